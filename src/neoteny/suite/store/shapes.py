"""What the JSON files of a results folder must hold: one table of fields per kind of file, and the check against it.

A shape is a type (`float`: any finite number), a dict of fields, `[shape]` for a list, a tuple for a list of fixed
length, or `Either`. A field whose name ends in "?" may be missing; the field "*" stands for all others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Shape = Any


@dataclass(frozen=True)
class Either:
    """One shape or another."""

    one: Shape
    other: Shape


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Args:
        fields: what every file of the kind has.
        sealed: what files of folders with checksums have besides.
        remedy: what to do if one is damaged.
    """

    fields: Mapping[str, Shape]
    sealed: Mapping[str, Shape]
    remedy: str

    def misfit(self, content: Mapping[str, Any], sealed: bool) -> str:
        """What does not fit, in words; empty if all does."""
        return _misfit(content, {**self.fields, **self.sealed} if sealed else self.fields, "")


NOTHING = type(None)

EXPERIMENT = Kind(
    {
        "format": int,
        "experiment": str,
        "scale": str,
        "results_version?": int,
        "data?": str,
        "configuration?": dict,
        "versions?": {"*": str},
        "experiment_sha256?": str,
    },
    {"results_version": int, "data": str, "configuration": dict},
    "Put back a copy of it, or repeat the folder's `neoteny run` command with --repair: it writes the file again.",
)
PLAN = Kind(
    {"runs": [str], "settings?": [str], "left_out?": [str], "more?": str, "command?": str, "folder?": str},
    {},
    "Repeat the folder's `neoteny run` command: it writes the file again.",
)
PART = Kind(
    {
        "runs": [
            {
                "run_id": str,
                "setting": str,
                "configuration": dict,
                "diverged_at_update": Either(int, NOTHING),
                "initial?": str,
            },
        ],
        "device": str,
        "kernel": str,
        "machine": str,
        "seconds": float,
        "versions": {"*": str},
        "commit?": str,
        "clean?": bool,
        "stack?": str,
        "table_sha256?": str,
        "belongs_to?": dict,
    },
    {"stack": str, "table_sha256": str, "belongs_to": dict},
    "Repeat the folder's `neoteny run` command with --repair: it moves the part away and trains its runs again.",
)
PROGRESS = Kind(
    {
        "state": str,
        "name": str,
        "runs": [str],
        "task": int,
        "tasks": int,
        "updates": int,
        "total_updates": int,
        "updates_per_second": float,
        "latest": Either((str, float), NOTHING),
        "resumed_at": int,
        "unit?": str,
        "diverged?": int,
        "diverged_runs?": [str],
        "backend?": str,
        "error?": str,
        "attempts?": int,
        "command?": str,
        "killed?": int,
    },
    {},
    "Nothing depends on it; it is written again when the stack continues.",
)
ANALYSIS = Kind(
    {"format": int, "when": str, "runs": int, "sha256": str},
    {},
    "Move it away; `neoteny run` with the experiment's file writes it again.",
)
JOBS = Kind(
    {"jobs": [{"job_id": str, "shard": str, "cluster": str, "log": str}]},
    {},
    "Only the queue states of `neoteny status` depend on it; the next `neoteny run --on slurm` writes it again.",
)

_NAMES = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    dict: "an object",
    NOTHING: "null",
}
_LARGEST = 2**63


def _misfit(value: Any, shape: Shape, place: str) -> str:
    if isinstance(shape, Either):
        return _misfit(value, shape.one, place) and _misfit(value, shape.other, place) and _say(value, shape, place)
    if isinstance(shape, Mapping):
        if not isinstance(value, dict):
            return _say(value, dict, place)
        return next(filter(None, _misfits_of_fields(value, shape, place)), "")
    if isinstance(shape, (list, tuple)):
        if not isinstance(value, list) or (isinstance(shape, tuple) and len(value) != len(shape)):
            return _say(value, shape, place)
        if shape == [str] and all(isinstance(item, str) for item in value):  # a plan may have 20,000 runs
            return ""
        shapes = shape if isinstance(shape, tuple) else shape * len(value)
        pairs = enumerate(zip(value, shapes, strict=True))
        return next(filter(None, (_misfit(item, one, f"{place}[{number}]") for number, (item, one) in pairs)), "")
    return "" if _is(value, shape) else _say(value, shape, place)


def _misfits_of_fields(value: dict[str, Any], shape: Mapping[str, Shape], place: str):
    before = f"{place}." if place else ""
    for name, inner in shape.items():
        if name == "*":
            yield from (_misfit(item, inner, f"{before}{key}") for key, item in value.items())
        elif name.rstrip("?") in value:
            yield _misfit(value[name.rstrip("?")], inner, before + name.rstrip("?"))
        elif not name.endswith("?"):
            yield f"field {before}{name} is missing; expected {_describe(inner)}"


def _is(value: Any, kind: type) -> bool:
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST
    if kind is float:
        return _is(value, int) or (isinstance(value, float) and math.isfinite(value))
    return isinstance(value, kind)


def _describe(shape: Shape) -> str:
    if isinstance(shape, Either):
        return f"{_describe(shape.one)} or {_describe(shape.other)}"
    if isinstance(shape, tuple):
        return f"a list of {', '.join(map(_describe, shape))}"
    return "a list" if isinstance(shape, list) else _NAMES[dict if isinstance(shape, Mapping) else shape]


def _say(value: Any, shape: Shape, place: str) -> str:
    found = _NAMES[dict] if isinstance(value, dict) else "a list" if isinstance(value, list) else repr(value)
    found = found if len(found) <= 60 else f"{found[:57]}..."
    return f"field {place} must be {_describe(shape)}, found {found}"

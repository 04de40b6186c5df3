"""run_id: a hash of everything that changes a run's numbers, and of nothing that does not.

In: problem, network, methods, seed, what is measured, number type, kernel, results version, and the source of classes
that are a user's own. Out: paths, labels, job counts, and the stack a run sits in (which matters to the last bits of
its numbers only, as the order of sums depends on it; a stack that has begun keeps its members).
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Mapping
from typing import Any

from neoteny.backends.backend import DESCRIPTIONS
from neoteny.suite.choice import choose_backend
from neoteny.suite.sweep import Network, Setting, Sweep

RESULTS_VERSION = 1
"""Raised when an algorithm changes its numbers by more than their rounding, so that old and new are never mixed."""


def canonical(value: Any) -> Any:
    """A description made of dicts, lists, strings and numbers alone."""
    if isinstance(value, Network):
        return {**_describe_type(value.build), **{name: canonical(option) for name, option in value.options}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        described = {field.name: canonical(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {**_describe_type(type(value)), **described}
    if isinstance(value, Mapping):
        return {str(key): canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, type):
        return canonical(_describe_type(value))
    raise TypeError(
        f"A configuration may hold numbers, strings, tuples and frozen dataclasses; got {type(value).__name__}: "
        f"{value!r}. Describe it by its parameters."
    )


def _describe_type(kind: type) -> dict[str, str]:
    """The name of a class; of a class that is not ours also a hash of its source, which may change at any time."""
    if kind.__module__.split(".")[0] == "neoteny":
        return {"type": kind.__qualname__}
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # made in a shell
        source = ""
    return {"type": kind.__qualname__, "source": hashlib.sha256(source.encode()).hexdigest()[:16]}


def configure(sweep: Sweep, setting: Setting, seed: int, kernel: str) -> dict[str, Any]:
    """The full configuration of one run; `kernel` as for `choose_backend`."""
    problem = setting.problem or sweep.problem
    described = {
        "results_version": RESULTS_VERSION,
        "problem": canonical(problem),
        "network": canonical(setting.network),
        "methods": canonical(setting.methods),
        "measures": canonical(sweep.measures),
        "measure_every": sweep.measure_every,
        "probe_examples": sweep.probe_examples,
        "dtype": sweep.dtype,
        "kernel": choose_backend(kernel, problem, setting)[0],
        "seed": seed,
    }
    if setting.agent is not None:
        described |= {"agent": canonical(setting.agent), "points_per_task": sweep.points_per_task}
    return described


def setting_digest(configuration: Mapping[str, Any]) -> str:
    """What stands for a configuration whatever its seed."""
    return digest({name: value for name, value in configuration.items() if name != "seed"})


def setting_digests(configuration: Mapping[str, Any]) -> set[str]:
    """What stands for a configuration whatever its seed, by each of the paths that may train it."""
    return {setting_digest(one) for one in _by_every_path(configuration)}


def run_ids(configuration: Mapping[str, Any]) -> set[str]:
    """What stands for a configuration by each of the paths that may train it."""
    return {digest(one) for one in _by_every_path(configuration)}


def _by_every_path(configuration: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{**configuration, "kernel": path} for path in DESCRIPTIONS]


def digest(value: Any) -> str:
    """16 hexadecimal digits that stand for a canonical value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

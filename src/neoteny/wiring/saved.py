"""Wirings as JSON files: `Wiring.save` and `Wiring.load`, and whether a wiring belongs to a model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup
from neoteny.layers.kinds import unwritable

FORMAT = "neoteny wiring"
VERSION = 1
LATER = 2  # of wirings with a port on one of several weights of a module, which version 1 cannot say


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of a model, by name."""
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def check_model(shapes: Mapping[str, tuple[int, ...]], groups: tuple[UnitGroup, ...], model: nn.Module) -> None:
    """Refuse a model that is not of the kind that was traced, or whose units can no longer be reset.

    Raises:
        ValueError: names the first parameter that differs, or the layers that must not be written.
    """
    now = shapes_of(model)
    for name in (*shapes, *now):
        before, here = shapes.get(name), now.get(name)
        if before != here:
            raise ValueError(
                f"the wiring is of another model: {name} {_shape(before)} in the traced model, {_shape(here)} in this "
                "one. Trace this model: neoteny.trace(model, example)."
            )
    reasons = unwritable(model)
    modules = dict.fromkeys(port.module for g in groups for port in (*g.producers, *g.consumers, *g.norms))
    problems = [f"{name}: {reasons[name]}" for name in modules if name in reasons]
    if problems:
        raise ValueError(
            f"the wiring's units can no longer be reset ({'; '.join(problems)}): trace the model as it is now."
        )


def write(
    path: str | Path, shapes: Mapping[str, tuple[int, ...]], groups: tuple[UnitGroup, ...], **reasons: Any
) -> None:
    """Write a wiring; an existing file is replaced in one step."""
    roles = ("producers", "consumers", "norms")
    content = {
        "format": FORMAT,
        "version": LATER if _several_weights(groups) else VERSION,
        "shapes": {name: list(shape) for name, shape in shapes.items()},
        "groups": [
            {
                **{role: [_from_port(port) for port in getattr(group, role)] for role in roles},
                "read": group.read,
                "notes": list(group.notes),
            }
            for group in groups
        ],
        **reasons,
    }
    path = Path(path)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read(path: str | Path) -> dict[str, Any]:
    """The fields of a wiring that was written.

    Raises:
        ValueError: the file is not a wiring, is damaged, or is of a later version.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path}: expected a wiring as wiring.save(path) writes it; it is not JSON: {error}"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path}: expected a wiring as wiring.save(path) writes it; found other JSON.")
    if content.get("version") not in (VERSION, LATER):
        raise ValueError(
            f"{path}: expected version {VERSION} or {LATER} of the format; found {content.get('version')!r}. "
            "Trace the model again, or install the version of neoteny that wrote it."
        )
    try:
        return {
            "groups": tuple(_to_group(group) for group in content["groups"]),
            "left_out": {str(name): str(reason) for name, reason in content["left_out"].items()},
            "uncalled": tuple(str(name) for name in content.get("uncalled", ())),  # wirings of 0.1.0 have none
            "shapes": {str(name): tuple(map(int, shape)) for name, shape in content["shapes"].items()},
        }
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ValueError(
            f"{path}: a damaged wiring ({type(error).__name__}: {error}): trace the model again."
        ) from error


def _from_port(port: Port) -> dict[str, Any]:
    features = cast(Tensor, port.features)
    given = (("weight", port.weight, "weight"), ("norm_behind", port.norm_behind, None))
    more = {key: value for key, value, usual in given if value != usual}
    first, repeat = int(features.min()), port.repeat
    if torch.equal(features.flatten(), torch.arange(features.numel()) + first):
        return {"module": port.module, "first": first, "units": features.shape[0], "repeat": repeat, **more}
    return {"module": port.module, "features": features.tolist(), **more}


def _to_port(saved: dict[str, Any]) -> Port:
    if "features" in saved:
        features = torch.tensor(saved["features"], dtype=torch.int64)
    else:
        features = torch.arange(saved["units"] * saved["repeat"]).view(saved["units"], saved["repeat"]) + saved["first"]
    if features.dim() != 2:
        raise ValueError(f"features of {saved['module']} must be a table, one row per unit")
    return Port(saved["module"], features, weight=saved.get("weight", "weight"), norm_behind=saved.get("norm_behind"))


def _to_group(saved: dict[str, Any]) -> UnitGroup:
    ports = [[_to_port(port) for port in saved[role]] for role in ("producers", "consumers", "norms")]
    if len({len(cast(Tensor, port.features)) for some in ports for port in some}) != 1:
        raise ValueError("ports of one group must have the same number of units")
    return UnitGroup(*ports, read=saved["read"], notes=saved["notes"])


def _several_weights(groups: tuple[UnitGroup, ...]) -> bool:
    return any(port.weight != "weight" for group in groups for port in (*group.producers, *group.consumers))


def _shape(shape: tuple[int, ...] | None) -> str:
    return "is missing" if shape is None else f"has shape {shape}"

"""What saved method states have in common, and the check that one belongs where it is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from torch import Tensor

from neoteny.methods.method import Method
from neoteny.methods.state import GROWING, INPUTS

SAVE_VERSION = 1


def describe_methods(methods: Sequence[Method]) -> list[dict[str, Any]]:
    """Names and hyperparameters, as plain values."""
    return [{"name": type(method).__name__, **_plain(method.hyperparameters())} for method in methods]


def check_saved(saved: Mapping[str, Any], mine: Mapping[str, Any], methods: Sequence[Method]) -> None:
    """Refuse a state dict of another kind, model or method, before anything is changed.

    Args:
        saved: what is to be loaded.
        mine: the state dict of the object it is loaded into.
        methods: of that object. A setting that a method did not have when `saved` was made counts as its default.

    Raises:
        ValueError: says what was expected and what came.
    """
    if not isinstance(saved, Mapping) or not all(key in saved for key in mine):
        raise ValueError("Expected a state dict made by state_dict() of an attachment or stack; got something else.")
    if saved["version"] != mine["version"]:
        raise ValueError(f"Expected a state dict of version {mine['version']}; got version {saved['version']}.")
    if saved["groups"] != mine["groups"]:
        raise ValueError(
            f"The state dict is of another model: expected unit groups {mine['groups']}, got {saved['groups']}."
        )
    if _completed(saved["methods"], methods) != mine["methods"]:
        raise ValueError(
            f"The state dict is of other methods or settings: expected {mine['methods']}, got {saved['methods']}."
        )


def check_shapes(saved: Mapping[str, Any], mine: Mapping[str, Any], also: Sequence[str] = ()) -> None:
    """Refuse a state dict whose tensors have other shapes, before anything is changed.

    Args:
        saved, mine: as for `check_saved`.
        also: keys beside "states" whose tensors must have the same shapes.
    """
    for key in also:
        _check_shapes(saved.get(key), mine[key], key)
    for number, (theirs, ours) in enumerate(zip(saved["states"], mine["states"], strict=True)):
        _check_shapes(theirs, ours, f"states[{number}]")


def _check_shapes(saved: Any, mine: Any, place: str) -> None:
    if isinstance(mine, dict):
        if not isinstance(saved, Mapping):
            raise ValueError(f"State dict, {place}: expected a dict, got {type(saved).__name__}.")
        growing = place.rpartition(".")[2] in GROWING
        missing = [] if growing else [key for key in mine if key not in saved]
        if missing:
            raise ValueError(f"State dict, {place}: expected the keys {sorted(mine)}, but {missing} are missing.")
        for key, value in mine.items():
            if key in saved and key != INPUTS:
                _check_shapes(saved[key], value, f"{place}.{key}")
    elif isinstance(mine, Tensor) and (not isinstance(saved, Tensor) or saved.shape != mine.shape):
        came = tuple(saved.shape) if isinstance(saved, Tensor) else type(saved).__name__
        raise ValueError(f"State dict, {place}: expected a tensor of shape {tuple(mine.shape)}, got {came}.")


def _completed(saved: Sequence[Mapping[str, Any]], methods: Sequence[Method]) -> list[dict[str, Any]]:
    """Saved names and settings, with the defaults of settings that are newer."""
    found: list[dict[str, Any]] = []
    for number, theirs in enumerate(saved):
        method = methods[number] if number < len(methods) else None
        newer: dict[str, Any] = {}
        if method is not None and is_dataclass(method) and theirs.get("name") == type(method).__name__:
            newer = {field.name: field.default for field in fields(method) if field.default is not MISSING}
        found.append({**_plain(newer), **theirs})
    return found


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

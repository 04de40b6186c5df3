"""The state of a method: one nested dict of tensors and numbers, kept outside the method and changed in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

State = dict[str, Any]

GROWING = ("parameters", "resets")
"""Dicts under these keys have entries for what was seen so far: parameters that were trained, weights that were reset.
Two states of one method may differ in them."""

INPUTS = "calls"
"""The dict under this key holds inputs of the network, of any number and shape: loading replaces it as a whole."""


def slot(state: State, name: str, make: Callable[[], Any]) -> Any:
    """The method's entry for a parameter, made when the parameter is first seen (it may be unfrozen or added late)."""
    kept = state.setdefault("parameters", {})
    if name not in kept:
        kept[name] = make()
    return kept[name]


def count_update(state: State, period: int = 1) -> bool:
    """Count one update in `state["step"]`; whether a period ends with it."""
    state["step"] = state.get("step", 0) + 1
    return state["step"] % period == 0


def snapshot(state: Any) -> Any:
    """A copy of a nested dict or list whose tensors no later step changes."""
    if isinstance(state, Mapping):
        return {key: snapshot(value) for key, value in state.items()}
    if isinstance(state, list):
        return [snapshot(value) for value in state]
    return state.detach().clone() if isinstance(state, Tensor) else state


def move_nested(state: State, device: torch.device) -> None:
    """Move the tensors of a nested dict to a device, in place; what was derived from them on the host is dropped."""
    state.pop("arrays", None)
    for key, value in state.items():
        if isinstance(value, dict):
            move_nested(value, device)
        elif isinstance(value, Tensor):
            state[key] = value.to(device)


def copy_nested(source: Mapping[str, Any], target: State, prune: bool = False) -> None:
    """Copy tensors and numbers of one nested dict into another of the same structure, in place.

    Args:
        source, target: from which into which.
        prune: drop entries that only the target has, as is done inside `GROWING` dicts.
    """
    for key in [key for key in target if prune and key not in source]:
        del target[key]
    for key, value in source.items():
        if key == INPUTS:
            target[key] = snapshot(value)
        elif isinstance(value, Mapping):
            copy_nested(value, target.setdefault(key, {}), prune or key in GROWING)
        elif isinstance(value, Tensor) and isinstance(target.get(key), Tensor):
            with torch.no_grad():
                target[key].copy_(value)
        else:
            target[key] = value.clone() if isinstance(value, Tensor) else value


def adopt(state: State, fresh: Mapping[str, Any]) -> None:
    """Give a state the structure of a fresh one, in place; what both have in the same shape is kept as it is."""
    for key in [key for key in state if key not in fresh and key not in GROWING]:
        del state[key]
    for key, value in fresh.items():
        kept = state.get(key)
        if key == INPUTS and key in state:
            continue
        if isinstance(value, dict) and isinstance(kept, dict):
            adopt(kept, value)
        elif key not in state or (isinstance(value, Tensor) and getattr(kept, "shape", None) != value.shape):
            state[key] = value


def forget_parameters(state: State, names: set[str]) -> None:
    """Drop every entry of a nested dict that is kept for one of these parameters."""
    for key in [key for key in state if key in names]:
        del state[key]
    for value in state.values():
        if isinstance(value, dict):
            forget_parameters(value, names)

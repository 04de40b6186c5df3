"""Copies of everything a model holds, and their comparison."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def snapshot(model: nn.Module) -> dict[str, Any]:
    hooks = [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return {"state": state, "hooks": hooks, "training": [module.training for module in model.modules()]}


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before["hooks"] == after["hooks"]
    assert before["training"] == after["training"]
    for name, value in before["state"].items():
        assert torch.equal(value, after["state"][name]), name

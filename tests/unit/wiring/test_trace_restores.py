"""trace leaves the model exactly as it was."""

from __future__ import annotations

import copy
import dataclasses
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup
from neoteny.wiring.trace import trace
from neoteny.wiring.wiring import WiringError
from support.wiring_checks import checked
from support.wiring_models import (
    Auxiliary,
    Branching,
    FunctionalMLP,
    Stateful,
    Swallow,
)


def _state(model: nn.Module) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for name, module in model.named_modules():
        state[f"{name}/keys"] = {key: id(value) for key, value in module.__dict__.items()}
        for key, value in module.__dict__.items():
            if isinstance(value, dict):
                state[f"{name}/{key}"] = {k: id(v) for k, v in value.items()}
            elif isinstance(value, list):
                state[f"{name}/{key}"] = [id(item) for item in value]
            elif isinstance(value, Tensor):
                state[f"{name}/{key}"] = value.tolist()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        state[name] = (tensor.detach().view(-1).clone().numpy().tobytes(), tensor._version, tensor.requires_grad)
    state["flags"] = (
        torch.backends.mha.get_fastpath_enabled(),
        torch.distributions.Distribution._validate_args,
        torch.backends.cuda.flash_sdp_enabled(),
        torch.is_grad_enabled(),
    )
    state["random"] = (torch.get_rng_state().tolist(), random.getstate())
    return state


@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_left_exactly_as_it_was(training: bool) -> None:
    model = Stateful().train(training)
    model.drop.train(not training)
    model.fc1.register_forward_hook(lambda *_: None)
    before = _state(model)
    checked(model, torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
    assert _state(model) == before


@pytest.mark.parametrize("model", [Swallow("nan_to_num"), Swallow("where"), Branching("hidden"), Auxiliary("values")])
def test_a_refused_model_is_left_exactly_as_it_was(model: nn.Module) -> None:
    before = _state(model)
    with pytest.raises(WiringError):
        trace(model, torch.ones(3, 4))
    with pytest.raises(ValueError, match="pass an example"):
        trace(model, torch.ones(3, 9))
    assert _state(model) == before


def test_a_waiting_backward_pass_survives() -> None:
    model, x = FunctionalMLP(), torch.randn(3, 5)
    loss = model(x).sum()
    trace(model, x)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_dead_units_are_judged_too() -> None:
    model = FunctionalMLP()
    with torch.no_grad():
        model.fc1.bias.fill_(-100.0)
        model.fc2.bias.fill_(-100.0)
    swapped = copy.deepcopy(model)
    assert len(checked(model, torch.randn(3, 5))) == 2
    with pytest.raises(WiringError, match="still move"):
        trace(swapped, torch.randn(3, 5), groups=[UnitGroup("fc1", Port("fc2", torch.arange(7).roll(1)))])


class _RunningMean:
    """Statistics kept outside of the module system, as much reinforcement-learning code does."""

    def __init__(self) -> None:
        self.mean = torch.zeros(5)
        self.array = np.zeros(5)
        self.count = 0
        self.seen: list[int] = []

    def update(self, values: Tensor) -> None:
        self.mean += values.detach().mean(0) - self.mean
        self.array += values.mean(0).numpy(force=True)
        self.count += 1
        self.seen.append(len(values))


class _Monitored(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 2)
        self.monitor = _RunningMean()

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        self.monitor.update(hidden)
        return self.second(hidden)


def test_state_in_plain_objects_is_left_as_it_was() -> None:
    model = _Monitored()
    model(torch.randn(4, 3))
    monitor = model.monitor
    kept = monitor.mean.clone(), monitor.array.copy(), monitor.count, list(monitor.seen)
    assert len(trace(model, torch.randn(4, 3))) == 1
    assert model.monitor is monitor
    assert torch.equal(monitor.mean, kept[0])
    assert np.array_equal(monitor.array, kept[1])
    assert (monitor.count, monitor.seen) == kept[2:]


@dataclasses.dataclass(slots=True)
class _Output:
    logits: Tensor


class _Slotted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))

    def forward(self, x: Tensor) -> _Output:
        return _Output(self.net(x))


def test_outputs_in_a_slotted_dataclass_are_seen() -> None:
    assert [group.name for group in trace(_Slotted(), torch.randn(4, 3))] == ["net.0"]

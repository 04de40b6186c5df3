"""Every method is found here by existing: seeded, stackable, checkpointable, and clear about bad values."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny import methods
from neoteny.methods import SGD, Method

torch.set_num_threads(1)

# A new method needs a row only if it cannot be built from its defaults.
SETTINGS: dict[str, dict[str, Any]] = {
    "L2": {"strength": 1e-2},
    "SGD": {"step_size": 0.02, "momentum": 0.9},
    "Adam": {"step_size": 1e-3},
    "ShrinkAndPerturb": {"strength": 1e-3, "noise_std": 1e-3},
    "ContinualBackprop": {"replacement_rate": 0.05, "maturity_threshold": 5},
    "HareAndTortoise": {"decay": 0.9, "period": 7},
    "L2Init": {"strength": 1e-2},
    "ReDo": {"threshold": 0.5, "period": 7},
    "Spectral": {"strength": 1e-2},
    "UPGD": {"step_size": 0.02, "noise_std": 0.01},
}
FOUND: dict[str, Any] = {
    name: value
    for name, value in vars(methods).items()
    if inspect.isclass(value) and issubclass(value, Method) and value not in (Method, methods.UnitMethod)
}


def make(name: str) -> Any:
    return FOUND[name](**SETTINGS.get(name, {}))


def ladder(method: Any) -> tuple[Method, list[Method]]:
    """The method with its first numeric hyperparameter different in three runs, and the three alone."""
    fields = [field.name for field in dataclasses.fields(method) if isinstance(getattr(method, field.name), float)]
    if not fields:
        return method, [method] * 3
    value = getattr(method, fields[0])
    values = (value, value / 2, value / 4)
    alone = [dataclasses.replace(method, **{fields[0]: each}) for each in values]
    return dataclasses.replace(method, **{fields[0]: values}), alone


def nets() -> list[nn.Sequential]:
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 2)).double()
        for _ in range(3)
    ]


def data(steps: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(4)
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    return [(torch.randn(3, 4, 5, **options), torch.randn(3, 4, 2, **options)) for _ in range(steps)]


def stack_of(members: list[nn.Sequential], method: Method, seeds: list[int]) -> neoteny.Stack:
    chain = (method,) if method.is_optimizer else (SGD(0.02), method)
    return neoteny.stack(members, *chain, example=torch.zeros(2, 5, dtype=torch.float64), seeds=seeds)


@pytest.mark.parametrize("name", FOUND)
class TestEveryMethod:
    def test_is_frozen_hyperparameters_that_can_be_pickled_and_compared(self, name: str) -> None:
        method = make(name)
        assert dataclasses.is_dataclass(method)
        field = dataclasses.fields(method)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, field, 0.5)
        assert pickle.loads(pickle.dumps(method)) == method
        assert method.__doc__
        assert "Args:" in method.__doc__

    def test_refuses_unknown_names_and_impossible_values(self, name: str) -> None:
        settings = SETTINGS.get(name, {})
        with pytest.raises(TypeError, match="unexpected keyword"):
            FOUND[name](**settings, no_such_setting=1)
        for field in dataclasses.fields(make(name)):
            if isinstance(getattr(make(name), field.name), (int, float)) and field.type != "bool":
                with pytest.raises((ValueError, TypeError), match=field.name):
                    FOUND[name](**{**settings, field.name: -1})
                with pytest.raises((ValueError, TypeError), match=field.name):
                    FOUND[name](**{**settings, field.name: float("nan")})

    def test_a_run_in_a_stack_equals_the_same_run_alone(self, name: str) -> None:
        together, alone = ladder(make(name))
        whole = stack_of(nets(), together, [7, 8, 9])
        single = [stack_of([net], each, [7 + run]) for run, (net, each) in enumerate(zip(nets(), alone, strict=True))]
        for x, y in data(120):
            losses = whole.step(x, y).losses
            for run, one in enumerate(single):
                assert float(one.step(x[run : run + 1], y[run : run + 1]).losses) == pytest.approx(
                    float(losses[run]), rel=1e-12, abs=1e-13
                )

    def test_the_same_seed_gives_the_same_run_and_the_loss_changes(self, name: str) -> None:
        ends = []
        for _ in range(2):
            runs = stack_of(nets(), make(name), [1, 2, 3])
            losses = [runs.step(x, y).losses for x, y in data(60)]
            ends.append(torch.stack(losses))
        assert torch.equal(ends[0], ends[1])
        assert not torch.equal(ends[0][0], ends[0][-1])

    def test_a_saved_run_continues_bit_for_bit(self, name: str) -> None:
        stream = data(80)
        runs = stack_of(nets(), make(name), [1, 2, 3])
        for x, y in stream[:40]:
            runs.step(x, y)
        file = io.BytesIO()
        torch.save(runs.state_dict(), file)
        first = [runs.step(x, y).losses for x, y in stream[40:]]
        file.seek(0)
        other = stack_of(nets(), make(name), [4, 5, 6])
        other.load_state_dict(torch.load(file, weights_only=True))
        second = [other.step(x, y).losses for x, y in stream[40:]]
        assert torch.equal(torch.stack(first), torch.stack(second))

    def test_attaches_to_a_module_unless_it_is_an_optimizer(self, name: str) -> None:
        method = make(name)
        model = nets()[0]
        optimizer = torch.optim.SGD(model.parameters(), 0.02)
        example = torch.zeros(2, 5, dtype=torch.float64)
        if method.is_optimizer:
            with pytest.raises(TypeError, match="not a method to attach"):
                neoteny.attach(model, optimizer, method, example=example)
            return
        twin = copy.deepcopy(model)
        plastic = neoteny.attach(model, optimizer, method, example=example, seed=7)
        runs = stack_of([twin], method, [7])
        for x, y in data(60):
            optimizer.zero_grad()
            (model(x[0]) - y[0]).square().mean().backward()
            optimizer.step()
            plastic.step()
            runs.step(x[:1], y[:1])
        for ours, theirs in zip(model.parameters(), runs.module(0).parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


def test_the_public_methods_are_the_ones_that_are_found() -> None:
    assert set(methods.__all__) == {*FOUND, "Method", "UnitMethod"}

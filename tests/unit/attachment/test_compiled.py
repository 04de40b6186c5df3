"""torch.compile: before attach it is refused or told by name; after attach units are replaced as in an eager model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
FAST = neoteny.ContinualBackprop(0.05, maturity_threshold=3)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.a(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.out = Block(), Block(), nn.Linear(6, 2)
        self.run_one: Callable[[Tensor], Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.one(x) if self.run_one is None else self.run_one(x))
        return self.out(torch.tanh(self.two(x)))


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Any:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compile_(model: Net, what: str, **options: Any) -> Any:
    """What to call instead of the model."""
    if what in ("wrapper", "inner"):
        return torch.compile(model, **options)
    if what == "function":
        return torch.compile(lambda x: model(x), **options)
    (model if what == "model" else model.one).compile(**options)
    return model


def train(model: Net, call: Any, plastic: neoteny.Attachment, optimizer: torch.optim.Optimizer, updates: int) -> Tensor:
    for step in range(updates):
        optimizer.zero_grad()
        call(torch.randn(4, 6, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        optimizer.step()
        plastic.step()
    return torch.cat([value.detach().flatten() for value in model.parameters()])


@pytest.mark.parametrize("what", ["wrapper", "inner", "model", "module"])
def test_code_that_was_compiled_before_attach_is_refused(what: str) -> None:
    model = Net()
    called = compile_(model, what, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    neoteny.attach(called, optimizer, FAST, example=X).detach()  # compiled, but not called yet
    called(X)
    name = r"module 'one'" if what == "module" else "model"
    with pytest.raises(ValueError, match=rf"compiled {name} .*put torch\.compiler\.reset\(\) on the line before"):
        neoteny.attach(called if what == "wrapper" else model, optimizer, FAST, example=X)


def test_a_model_whose_class_was_compiled_elsewhere_is_attached() -> None:
    torch.compile(Net(), backend="eager")(X)
    model = Net()
    neoteny.attach(model, torch.optim.SGD(model.parameters(), 0.05), FAST, example=X)


def test_units_behind_hooks_that_do_not_run_are_named_once() -> None:
    model = Net()
    model.run_one = torch.compile(lambda x: model.one(x), backend="eager")
    model(X)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    plastic = neoteny.attach(model, optimizer, FAST, example=X, seed=1)
    text = r"units of 'one\.a' were not read in this update.* gradients reached one\.b: hooks did not run there"
    with pytest.warns(RuntimeWarning, match=text) as told:
        train(model, model, plastic, optimizer, 102)
    assert len(told) == 1
    assert plastic.replaced["one.a"] == 0
    assert plastic.replaced["two.a"] > 0


def test_compiled_after_attach_units_are_replaced_as_in_an_eager_model() -> None:
    ends: list[Tensor] = []
    for what in ("eager", "wrapper", "model", "module", "function"):
        torch.compiler.reset()
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        plastic = neoteny.attach(model, optimizer, FAST, example=X, seed=1)
        called = model if what == "eager" else compile_(model, what, backend="eager", fullgraph=True)
        ends.append(train(model, called, plastic, optimizer, 20))
        assert min(plastic.replaced.values()) > 0
        assert torch.equal(ends[0], ends[-1]), what


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_compiled_update_leaves_the_tick_as_it_is() -> None:
    """torch.compile of the whole update: the tick runs between two compiled parts, and nothing of it is compiled."""
    ends = []
    for compiled in (False, True):
        torch.compiler.reset()
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        plastic = neoteny.attach(model, optimizer, neoteny.L2(1e-2), FAST, example=X, seed=1)

        def update(model: Net = model, optimizer: Any = optimizer, plastic: Any = plastic) -> None:
            optimizer.zero_grad()
            model(X).square().mean().backward()
            optimizer.step()
            plastic.step()

        run = torch.compile(update, backend="eager") if compiled else update
        for _ in range(40):
            run()
        ends.append((plastic.replaced, [value.detach().clone() for value in model.parameters()]))
    (counted, weights), (expected, same) = ends
    assert counted == expected
    assert min(counted.values()) > 0
    assert all(torch.equal(*each) for each in zip(weights, same, strict=True))
    codes = {code.co_filename for code in torch_codes()}
    assert not any("neoteny/methods" in name or "neoteny/units" in name for name in codes)


def torch_codes() -> list[Any]:
    from torch._dynamo.convert_frame import input_codes

    return [code for code in (reference() for reference in input_codes.seen) if code is not None]

"""Attachments over their life: wrapped and several optimizers, changed models, copies, and never silently nothing."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import neoteny
from neoteny import ContinualBackprop
from support.loops import FAST, batches, mlp, train
from support.snapshots import assert_same, snapshot

X = torch.zeros(2, 6)


class Wrapper(Optimizer):
    """A framework's wrapper: no state of its own, everything handed on, setters included."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def __getattribute__(self, name: str) -> Any:
        if name in ("optimizer", "__class__", "__dict__"):
            return object.__getattribute__(self, name)
        return getattr(self.optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "optimizer":
            object.__setattr__(self, name, value)
        else:
            setattr(self.optimizer, name, value)


def test_a_frameworks_wrapper_is_looked_through_and_left_alone() -> None:
    model, twin = mlp(), mlp()
    adam, plain = torch.optim.Adam(model.parameters()), torch.optim.Adam(twin.parameters())
    groups = adam.param_groups
    wrapped = Wrapper(adam)
    plastic = neoteny.attach(model, wrapped, FAST, example=X, seed=1)
    assert plastic.optimizers == (adam,)
    assert adam.param_groups is groups
    other = neoteny.attach(twin, plain, FAST, example=X, seed=1)
    train(model, wrapped, plastic, batches(40))
    train(twin, plain, other, batches(40))
    assert sum(plastic.replaced.values()) > 5
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), twin.parameters(), strict=True))


def test_accelerates_wrapper_is_looked_through() -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed (the extra huggingface)")
    model = mlp()
    adam = torch.optim.Adam(model.parameters())
    prepared, wrapped = accelerate.Accelerator(cpu=True).prepare(model, adam)
    plastic = neoteny.attach(prepared, wrapped, FAST, example=X, seed=1)
    assert [parameter.shape for parameter in adam.param_groups[0]["params"]] == [p.shape for p in model.parameters()]
    train(prepared, wrapped, plastic, batches(40))
    assert sum(plastic.replaced.values()) > 5


def split(model: nn.Module) -> list[Optimizer]:
    """Weights and biases in two optimizers, as Muon is used."""
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    biases = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    return [torch.optim.SGD(weights, 0.05, momentum=0.9), torch.optim.SGD(biases, 0.05, momentum=0.9)]


@pytest.mark.parametrize("auto", [False, True])
def test_two_optimizers_of_one_model_give_the_numbers_of_one(auto: bool) -> None:
    model, twin = mlp(), mlp()
    several, one = split(model), torch.optim.SGD(twin.parameters(), 0.05, momentum=0.9)
    methods = (neoteny.L2(1e-3), FAST)
    plastic = neoteny.attach(model, several, *methods, example=X, seed=1, auto=auto)
    other = neoteny.attach(twin, one, *methods, example=X, seed=1, auto=auto)
    for x, y in batches(40):
        for net, optimizers in ((model, several), (twin, [one])):
            (net(x) - y).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        if not auto:
            plastic.step()
            other.step()
    assert sum(plastic.replaced.values()) > 5
    assert plastic.replaced == other.replaced
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, twin.get_parameter(name)), name
        home = next(each for each in several if parameter in each.state)
        ours, theirs = home.state[parameter], one.state[twin.get_parameter(name)]
        assert torch.equal(ours["momentum_buffer"], theirs["momentum_buffer"])


def test_optimizers_that_share_a_parameter_are_refused() -> None:
    model = mlp()
    several = [torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD(model.parameters(), 0.1)]
    with pytest.raises(ValueError, match="own the same parameter"):
        neoteny.attach(model, several, FAST, example=X)
    with pytest.raises(TypeError, match="empty list"):
        neoteny.attach(model, [], FAST, example=X)


def test_a_new_optimizer_takes_the_place_of_the_old_one() -> None:
    model = mlp()
    others: list[weakref.ref[neoteny.Attachment]] = []
    plastic = None
    for _ in range(3):
        others += [] if plastic is None else [weakref.ref(plastic)]
        optimizer = torch.optim.Adam(model.parameters())
        plastic = neoteny.attach(model, optimizer, FAST, example=X, trained=True, auto=True, seed=1)
        for x, y in batches(30):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
    hooks = [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]
    assert len(hooks) == 2  # of the last attachment alone
    assert plastic is not None
    assert sum(plastic.replaced.values()) > 3
    gc.collect()
    assert [each() for each in others] == [None, None]


def test_attachments_of_different_parts_go_on_side_by_side() -> None:
    model = nn.Sequential(mlp(), nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    first, second = model[0], model[1:]
    one, two = (torch.optim.SGD(part.parameters(), 0.05) for part in (first, second))
    handles = [
        neoteny.attach(model, one, FAST, example=X, seed=1),
        neoteny.attach(model, two, FAST, example=X, seed=1),
    ]
    for x, _ in batches(30):
        model(x).square().mean().backward()
        for optimizer, plastic in zip((one, two), handles, strict=True):
            optimizer.step()
            plastic.step()
        model.zero_grad()
    assert all(sum(plastic.replaced.values()) > 3 for plastic in handles)


class Heads(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.b(torch.relu(self.a(x)))))


def run(model: nn.Module, optimizer: Optimizer, plastic: neoteny.Attachment, updates: int) -> None:
    for x, _ in batches(updates):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        plastic.step()


def test_a_head_put_in_the_place_of_another_is_followed() -> None:
    model = Heads()
    optimizer = torch.optim.Adam(model.parameters())
    plastic = neoteny.attach(model, optimizer, FAST, example=X, seed=1)
    run(model, optimizer, plastic, 30)
    ages = plastic.state_dict()["states"][0]["a"]["born"].clone()
    before = plastic.replaced["b"]
    model.head = nn.Linear(8, 5)
    optimizer.add_param_group({"params": model.head.parameters()})
    run(model, optimizer, plastic, 1)
    assert torch.equal(plastic.state_dict()["states"][0]["a"]["born"], ages)  # statistics were kept
    for x, _ in batches(30):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        was = plastic.replaced["b"]
        plastic.step()
        if plastic.replaced["b"] > was:
            state = plastic.state_dict()["states"][0]["b"]
            new = state["born"] == state["schedule"]["step"]
            assert not model.head.weight[:, new].any()
    assert plastic.replaced["b"] > before


def test_a_head_that_the_optimizer_does_not_own_is_an_error_that_says_so() -> None:
    model = Heads()
    optimizer = torch.optim.Adam(model.parameters())
    plastic = neoteny.attach(model, optimizer, FAST, example=X, seed=1)
    run(model, optimizer, plastic, 3)
    model.head = nn.Linear(8, 5)
    with pytest.raises(ValueError, match=r"add_param_group"):
        run(model, optimizer, plastic, 1)


def test_weights_that_were_assigned_to_all_layers_are_an_error_that_says_so() -> None:
    model = Heads()
    optimizer = torch.optim.Adam(model.parameters())
    plastic = neoteny.attach(model, optimizer, FAST, example=X, seed=1)
    run(model, optimizer, plastic, 3)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)  # the optimizer still trains the former ones
    with pytest.raises(ValueError, match=r"The model changed after attach, .* does not own all weights of .* a, b"):
        run(model, optimizer, plastic, 1)


def test_a_newer_attachment_goes_on_with_the_ages_of_the_earlier_one_and_says_so() -> None:
    model = Heads()
    optimizer = torch.optim.Adam(model.parameters())
    plastic = neoteny.attach(model, optimizer, FAST, example=X, seed=1)
    run(model, optimizer, plastic, 30)
    newer = torch.optim.SGD(model.parameters(), 0.01)
    again = neoteny.attach(model, newer, FAST, example=X, trained=True)
    assert "every unit's age started at zero" in str(again)
    again.load_state_dict(plastic.state_dict())
    assert "every unit's age started at zero" not in str(again)
    assert again.replaced == plastic.replaced


def test_other_sizes_are_traced_again() -> None:
    model = Heads()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    plastic = neoteny.attach(model, optimizer, FAST, example=X, seed=1)
    run(model, optimizer, plastic, 20)
    kept = plastic.replaced["a"]
    model.b, model.head = nn.Linear(8, 12), nn.Linear(12, 3)
    optimizer.add_param_group({"params": [*model.b.parameters(), *model.head.parameters()]})
    with pytest.raises(ValueError, match=r"plastic\.refresh\(example=\.\.\.\)"):
        run(model, optimizer, plastic, 1)
    plastic.refresh(example=X)
    run(model, optimizer, plastic, 30)
    assert plastic.replaced["a"] >= kept
    assert plastic.replaced["b"] > 0
    assert plastic.state_dict()["groups"] == {"a": 8, "b": 12}


def test_units_that_were_cut_away_in_place_are_refused_then_traced_again() -> None:
    model = Heads()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    plastic = neoteny.attach(model, optimizer, FAST, example=X, seed=1)
    run(model, optimizer, plastic, 20)
    for parameter in model.parameters():
        parameter.grad = None
    model.b.weight.data, model.b.bias.data = model.b.weight.data[:5], model.b.bias.data[:5]
    model.head.weight.data = model.head.weight.data[:, :5]
    with pytest.raises(ValueError, match=r"a weight of shape \(5, 8\).*had 8 features\. Trace the model"):
        run(model, optimizer, plastic, 1)
    plastic.refresh(example=X)
    run(model, optimizer, plastic, 30)
    assert plastic.state_dict()["groups"] == {"a": 8, "b": 5}


def test_a_group_that_is_not_read_for_long_is_told_once() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor, both: bool = True) -> Tensor:
            first = self.b(torch.relu(self.a(x)))
            return first + self.d(torch.relu(self.c(x))) if both else first

    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    plastic = neoteny.attach(model, optimizer, FAST, example=X, seed=1)

    def train_one_branch() -> None:
        for x, _ in batches(230):
            optimizer.zero_grad()
            model(x, both=False).square().mean().backward()
            optimizer.step()
            plastic.step()

    with pytest.warns(RuntimeWarning, match=r"units of 'c' were not read in 100 updates") as told:
        train_one_branch()
    assert len(told) == 1


@pytest.mark.parametrize("what", ["eval", "compiled"])
def test_an_update_that_was_not_seen_is_an_error_though_gradients_are_gone(what: str) -> None:
    model = Heads()
    optimizer = torch.optim.Adam(model.parameters())
    called: Callable[[Tensor], Tensor] = model
    if what == "eval":
        model.eval()
    else:
        torch.compiler.reset()
        called = torch.compile(lambda x: model(x), backend="eager")  # nothing of the model shows that it is compiled
        called(X)
    plastic = neoteny.attach(model, optimizer, FAST, example=X, seed=1)
    called(torch.randn(2, 6)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(ValueError, match="no activations were recorded"):
        plastic.step()


def test_gradients_zeroed_before_the_tick_change_nothing() -> None:
    model, twin = mlp(), mlp()
    results = []
    for net, early in ((model, True), (twin, False)):
        optimizer = torch.optim.SGD(net.parameters(), 0.05)
        plastic = neoteny.attach(net, optimizer, FAST, example=X, seed=1)
        for x, y in batches(40):
            (net(x) - y).square().mean().backward()
            optimizer.step()
            if early:
                optimizer.zero_grad()
            plastic.step()
            optimizer.zero_grad()
        results.append(plastic.replaced)
    assert results[0] == results[1]
    assert sum(results[0].values()) > 5


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_a_model_that_holds_its_attachment_can_be_copied_and_saved(how: str) -> None:
    model: Any = Heads()
    optimizer = torch.optim.Adam(model.parameters())
    plastic = model.plastic = neoteny.attach(model, optimizer, FAST, example=X, seed=1)
    run(model, optimizer, plastic, 20)
    if how == "deepcopy":
        other: Any = copy.deepcopy(model)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    other(torch.randn(3, 6))
    with pytest.raises(RuntimeError, match="Attach that model with its own optimizer"):
        other.plastic.step()
    again = torch.optim.Adam(other.parameters())
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    resumed = neoteny.attach(other, again, FAST, example=X, seed=1, trained=True)
    resumed.load_state_dict(other.plastic.state_dict())
    run(model, optimizer, plastic, 20)
    run(other, again, resumed, 20)
    assert resumed.replaced == plastic.replaced
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))


class Interrupted(BaseException):
    """Raised by the test inside `attach`; nobody catches it."""


def test_an_attach_that_fails_anywhere_leaves_model_and_optimizer_as_they_were() -> None:
    """Every call of a function of the package that `attach` makes fails in turn (the first of each place)."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 6)).square().mean().backward()
    optimizer.step()
    before, groups = snapshot(model), [dict(group) for group in optimizer.param_groups]
    state = copy.deepcopy(optimizer.state_dict())
    places: dict[Any, None] = {}

    def call(fail_at: Any = None) -> None:
        def watch(frame: FrameType, event: str, argument: Any) -> None:
            code = frame.f_code
            if event == "call" and "neoteny" in code.co_filename and not code.co_name.startswith("<"):
                place = (code.co_filename, code.co_firstlineno, frame.f_back and frame.f_back.f_lineno)
                places.setdefault(place)
                if place == fail_at:
                    raise Interrupted

        sys.setprofile(watch)
        try:
            neoteny.attach(model, optimizer, neoteny.L2Init(1e-3), ContinualBackprop(), example=X, trained=True, seed=1)
        finally:
            sys.setprofile(None)

    for _ in range(2):  # what is called once per process counts only where it is called again
        places.clear()
        call()
        neoteny.detach(model)
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]
    assert not any(hooks)
    found = list(places)
    assert len(found) > 100
    for place in found[:: max(1, len(found) // 20)]:
        torch.manual_seed(0)
        random = torch.get_rng_state()
        with pytest.raises(Interrupted):
            call(place)
        assert_same(before, snapshot(model))
        assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules()), place
        assert not any(each._post_accumulate_grad_hooks for each in model.parameters()), place  # pyright: ignore[reportAttributeAccessIssue]
        assert not optimizer._optimizer_step_pre_hooks, place
        assert not optimizer._optimizer_step_post_hooks, place
        assert [dict(group) for group in optimizer.param_groups] == groups, place
        assert optimizer.state_dict().keys() == state.keys()
        assert not neoteny.attachment.registry.attachments(model), place  # pyright: ignore[reportAttributeAccessIssue]
        assert torch.equal(random, torch.get_rng_state()), place

"""With every optimizer, the state of a reset weight goes back to its initial value, and nothing else changes."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny

LEARNING_RATE = 0.01
# SparseAdam updates embeddings from sparse gradients, which no Linear or Conv layer has; LBFGS keeps a history of whole
# updates, so that no single weight can be forgotten.
REFUSED = {"SparseAdam", "LBFGS"}
OPTIMIZERS: dict[str, Any] = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}
# What a fresh state holds where that is not zero, from the documentation of each optimizer.
INITIAL: dict[tuple[str, str], float] = {("Rprop", "step_size"): LEARNING_RATE, ("Adagrad", "sum"): 0.25}
COPIES = {("ASGD", "ax")}
"""State that begins as the weight itself: an average of weights."""
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "SGD": [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}],
    "Adam": [{}, {"amsgrad": True, "weight_decay": 0.01}],
    "AdamW": [{}, {"amsgrad": True}],
    "Adagrad": [{"initial_accumulator_value": 0.25}],
    "RMSprop": [{}, {"momentum": 0.9, "centered": True}],
    "Adafactor": [{}],
}
CASES = [(name, options) for name in OPTIMIZERS if name not in REFUSED for options in OPTIONS.get(name, [{}])]


pytestmark = pytest.mark.usefixtures("double_precision")


def make_net(bias: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 7, bias), nn.Tanh(), nn.Linear(7, 6, bias), nn.Tanh(), nn.Linear(6, 3, bias))


def states_of(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[tuple[str, str], Tensor]:
    """(parameter, key) -> a copy of every state tensor."""
    return {
        (name, key): value.detach().clone()
        for name, parameter in net.named_parameters()
        for key, value in optimizer.state[parameter].items()
        if isinstance(value, Tensor)
    }


def chosen_units(plastic: neoteny.Attachment) -> dict[str, list[int]]:
    states = plastic.state_dict()["states"][-1]
    return {
        name: (values["born"] == values["schedule"]["step"]).nonzero().flatten().tolist()
        for name, values in states.items()
    }


def reset_mask(net: nn.Sequential, name: str, value: Tensor, chosen: dict[str, list[int]]) -> Tensor:
    """Which elements of a parameter (or of a state with one number per row or column) belong to reset units."""
    mask = torch.zeros(value.shape, dtype=torch.bool)
    module, part = name.split(".")
    rows = chosen.get(module, [])
    columns = chosen.get(str(int(module) - 2), []) if part == "weight" else []
    parameter = net.get_parameter(name)
    if value.shape[0] == parameter.shape[0]:
        mask[rows] = True
    if part == "weight" and value.shape[1] == parameter.shape[1]:
        mask[:, columns] = True
    return mask


def train_and_check(net: nn.Sequential, optimizer: torch.optim.Optimizer, initial: Any, steps: int = 60) -> int:
    """Train with a high replacement rate; after every tick compare all state with the state from before it."""
    plastic = neoteny.attach(
        net, optimizer, neoteny.ContinualBackprop(0.03, 5), example=torch.zeros(1, 4), seed=3, trained=True
    )
    checked = 0
    for _ in range(steps):
        optimizer.zero_grad()
        (net(torch.randn(5, 4)) - torch.randn(5, 3)).square().mean().backward()
        optimizer.step()
        before = states_of(net, optimizer)
        plastic.step()
        after = states_of(net, optimizer)
        assert before.keys() == after.keys()
        chosen = chosen_units(plastic)
        for (name, key), value in after.items():
            if value.dim() == 0:
                assert torch.equal(value, before[name, key])  # a count for the whole tensor
                continue
            mask = reset_mask(net, name, value, chosen)
            copied = (type(optimizer).__name__, key) in COPIES
            expected = net.get_parameter(name)[mask] if copied else torch.full_like(value[mask], initial(name, key))
            torch.testing.assert_close(value[mask], expected, rtol=0, atol=1e-8)
            assert torch.equal(value[~mask], before[name, key][~mask]), (name, key)
            checked += int(mask.sum())
    assert all(plastic.replaced.values())
    return checked


@pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{name}-{'-'.join(options)}" for name, options in CASES])
def test_reset_weights_get_the_optimizers_initial_state_and_others_keep_theirs(
    name: str, options: dict[str, Any]
) -> None:
    net = make_net(bias=name != "Muon")  # Muon takes matrices only
    optimizer = OPTIMIZERS[name](net.parameters(), lr=LEARNING_RATE, **options)
    checked = train_and_check(net, optimizer, lambda _, key: INITIAL.get((name, key), 0.0))
    stateless = name == "SGD" and not options
    assert (checked == 0) == stateless


def test_every_optimizer_of_torch_is_covered() -> None:
    assert {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Rprop", "NAdam"} <= {name for name, _ in CASES}
    assert {name for name, _ in CASES} | REFUSED == set(OPTIMIZERS)


@pytest.mark.parametrize("name", sorted(REFUSED & set(OPTIMIZERS)))
def test_an_optimizer_whose_state_cannot_be_reset_is_refused(name: str) -> None:
    net = make_net()
    with pytest.raises(TypeError, match=name):
        neoteny.attach(
            net, OPTIMIZERS[name](net.parameters(), lr=0.1), neoteny.ContinualBackprop(), example=torch.zeros(1, 4)
        )
    assert not any(module._forward_pre_hooks for module in net.modules())


def test_each_parameter_group_has_its_own_initial_values() -> None:
    net = make_net()
    optimizer = torch.optim.Rprop(
        [
            {"params": net[0].parameters(), "lr": 0.02},
            {"params": [*net[2].parameters(), *net[4].parameters()], "lr": 0.003},
        ]
    )

    def initial(name: str, key: str) -> float:
        return 0.0 if key == "prev" else 0.02 if name.startswith("0.") else 0.003

    assert train_and_check(net, optimizer, initial) > 0


def test_looking_for_initial_values_leaves_the_optimizer_and_torchs_random_state_alone() -> None:
    net = make_net()
    optimizer = torch.optim.Adam(net.parameters())
    random_state = torch.get_rng_state()
    weights = [parameter.detach().clone() for parameter in net.parameters()]
    neoteny.attach(net, optimizer, neoteny.ContinualBackprop(), example=torch.zeros(1, 4), seed=1)
    assert not optimizer.state
    assert len(optimizer.param_groups[0]["params"]) == 6
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(now, then) for now, then in zip(net.parameters(), weights, strict=True))


def test_a_custom_optimizer_with_per_element_state_is_understood() -> None:
    class Signed(torch.optim.Optimizer):
        """Steps of the sign of a running gradient, with a memory that starts at three."""

        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for parameter in group["params"]:
                    state = self.state[parameter]
                    if not state:
                        state["memory"] = torch.full_like(parameter, 3.0)
                    state["memory"].add_(parameter.grad)
                    parameter.sub_(group["lr"] * state["memory"].sign())

    net = make_net()
    assert train_and_check(net, Signed(net.parameters(), lr=0.001), lambda _, __: 3.0) > 0


def test_the_printout_tells_of_torchs_shared_step_count_and_names_the_remedy() -> None:
    notes = {}
    for kind in (torch.optim.Adam, torch.optim.SGD, neoteny.optim.Adam):
        net = make_net()
        optimizer = kind(net.parameters(), lr=0.01)
        notes[kind] = str(neoteny.attach(net, optimizer, neoteny.ContinualBackprop(), example=torch.zeros(1, 4)))
    assert "neoteny.optim.Adam counts steps for each weight" in notes[torch.optim.Adam]
    assert "one step count" not in notes[torch.optim.SGD]
    assert "one step count" not in notes[neoteny.optim.Adam]


class _EagerState(torch.optim.SGD):
    """An optimizer that makes its state in the constructor, as Adagrad does in older versions of torch."""

    def __init__(self, params: Any, lr: float = 0.05, start: float = 0.25) -> None:
        super().__init__(params, lr)
        for group in self.param_groups:
            group["start"] = start
            for parameter in group["params"]:
                self.state[parameter]["total"] = torch.full_like(parameter, start)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["total"] += parameter.grad.abs()
                parameter -= group["lr"] * parameter.grad / self.state[parameter]["total"]


def test_state_made_in_the_constructor_is_known_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    optimizer = _EagerState(model.parameters(), start=0.5)
    method = neoteny.ContinualBackprop(1.0, 3)
    plastic = neoteny.attach(model, optimizer, method, example=torch.zeros(2, 4), seed=1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        plastic.step()
    assert plastic.replaced == {"0": 6}  # all at once, just now
    assert torch.equal(optimizer.state[model.get_parameter("0.weight")]["total"], torch.full((6, 4), 0.5))
    assert torch.equal(optimizer.state[model.get_parameter("2.weight")]["total"], torch.full((2, 6), 0.5))


class _ScheduleFree(torch.optim.SGD):
    """Gradients are taken between two iterates; `z` is the other one, and begins as the weight."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                z = self.state[parameter].setdefault("z", parameter.detach().clone())
                z -= group["lr"] * parameter.grad
                parameter.lerp_(z, 0.1)


class _Slow(torch.optim.Optimizer):
    """Lookahead: holds another optimizer, and after some of its steps goes back towards slow weights."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner, self.param_groups, self.count = inner, inner.param_groups, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()
        self.count += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if self.count % 5 == 0:
                    slow = self.state[parameter].setdefault("slow", parameter.detach().clone())
                    slow.lerp_(parameter, 0.5)
                    parameter.copy_(slow)


class _Factored(torch.optim.SGD):
    """One number per row and one per column, as vectors; rows and columns may be equally many."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state, squared = self.state[parameter], parameter.grad.square() + 1e-3
                if parameter.dim() < 2:
                    parameter -= group["lr"] * parameter.grad
                    continue
                for key, axis in (("row", 1), ("column", 0)):
                    state.setdefault(key, torch.zeros_like(squared.mean(axis))).lerp_(squared.mean(axis), 0.1)
                parameter -= group["lr"] * parameter.grad / (state["row"][:, None] + state["column"]).sqrt()


def reset_all(optimizer: torch.optim.Optimizer, model: nn.Module, updates: int) -> None:
    """Train until every unit of the one hidden layer has just been replaced."""
    method = neoteny.ContinualBackprop(1.0, updates - 1)
    plastic = neoteny.attach(model, optimizer, method, example=torch.zeros(2, 6), seed=1)
    for _ in range(updates):
        optimizer.zero_grad()
        model(torch.randn(3, 6)).square().mean().backward()
        optimizer.step()
        plastic.step()
    assert plastic.replaced == {"0": 6}


def test_the_second_iterate_of_a_schedule_free_optimizer_goes_on_from_the_new_weight() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    optimizer = _ScheduleFree(model.parameters(), lr=0.05)
    reset_all(optimizer, model, 4)
    for name in ("0.weight", "2.weight"):
        assert torch.equal(optimizer.state[model.get_parameter(name)]["z"], model.get_parameter(name))


def test_slow_weights_of_a_nested_optimizer_go_on_from_the_new_weight() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    inner = torch.optim.Adam(model.parameters())
    optimizer = _Slow(inner)
    reset_all(optimizer, model, 7)
    for name in ("0.weight", "2.weight"):
        parameter = model.get_parameter(name)
        assert torch.equal(optimizer.state[parameter]["slow"], parameter)
        assert not inner.state[parameter]["exp_avg"].any()
    assert optimizer.param_groups is inner.param_groups
    assert len(inner.param_groups[0]["params"]) == 4


def test_state_with_one_number_per_row_or_column_is_reset_in_its_own_axis() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    optimizer = _Factored(model.parameters(), lr=0.05)
    reset_all(optimizer, model, 4)
    incoming, outgoing = (optimizer.state[model.get_parameter(name)] for name in ("0.weight", "2.weight"))
    start = 1e-4  # after one step without gradients
    torch.testing.assert_close(incoming["row"], torch.full((6,), start))
    torch.testing.assert_close(outgoing["column"], torch.full((6,), start))
    assert (incoming["column"] > 2 * start).any()  # of the inputs, which are not new
    assert (outgoing["row"] > 2 * start).any()

"""Stacks: what is refused, with what to do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import neoteny
from neoteny.methods import SGD, Adam, ContinualBackprop, Method
from support.stacked_models import (
    Make,
    OwnForward,
    chain,
)

pytestmark = pytest.mark.usefixtures("double_precision")


def make_stack(*methods: Method | Any, runs: int = 3, **options: Any) -> neoteny.Stack:
    return neoteny.stack([chain() for _ in range(runs)], *methods, **{"example": torch.zeros(1, 4), **options})


def test_the_wrong_number_of_seeds_is_refused() -> None:
    with pytest.raises(ValueError, match="3 modules, but 2 seeds"):
        make_stack(SGD(0.1), seeds=[1, 2])


@pytest.mark.parametrize(
    "methods",
    [(), (ContinualBackprop(),), (ContinualBackprop(), SGD(0.1)), (SGD(0.1), Adam(0.1))],
    ids=["nothing", "none", "last", "two"],
)
def test_a_stack_needs_exactly_one_optimizer_first(methods: tuple[Method, ...]) -> None:
    with pytest.raises(ValueError, match="exactly one optimizer, as the first method"):
        make_stack(*methods)


def test_a_torch_optimizer_is_refused_as_a_method() -> None:
    with pytest.raises(TypeError, match="A torch optimizer cannot drive a stack"):
        make_stack(torch.optim.SGD(chain().parameters(), lr=0.1))


def test_torchs_dropout_is_refused_by_name() -> None:
    nets = [nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Dropout(0.1), nn.Linear(5, 2)) for _ in range(2)]
    with pytest.raises(ValueError, match=r"2 \(Dropout\).*neoteny\.nets\.Dropout"):
        neoteny.stack(nets, SGD(0.1))


@pytest.mark.parametrize("other", [lambda: nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 2)), OwnForward])
def test_mismatched_architectures_are_refused(other: Make) -> None:
    with pytest.raises(ValueError, match="one architecture; module 1 differs from module 0"):
        neoteny.stack([chain(), other()], SGD(0.1))


def test_architectures_that_differ_only_in_an_activation_are_refused() -> None:
    nets = [nn.Sequential(nn.Linear(4, 5), act, nn.Linear(5, 2)) for act in (nn.ReLU(), nn.Tanh())]
    with pytest.raises(ValueError, match="one architecture; module 1 differs from module 0"):
        neoteny.stack(nets, SGD(0.1))


def test_no_modules_at_all_are_refused() -> None:
    with pytest.raises(TypeError, match=r"at least one nn\.Module"):
        neoteny.stack([], SGD(0.1))


@pytest.mark.parametrize("shape", [(2, 3, 4), (4,), (3,)])
def test_inputs_without_one_batch_a_run_are_refused(shape: tuple[int, ...]) -> None:
    stack = make_stack(SGD(0.1))
    with pytest.raises(ValueError, match=r"Expected inputs of shape \(3, batch, \.\.\.\)"):
        stack.step(torch.zeros(shape), torch.zeros(3, 3, 2))
    with pytest.raises(ValueError, match=r"Expected inputs of shape \(3, batch, \.\.\.\)"):
        stack.predict(torch.zeros(shape))


def test_targets_that_would_broadcast_are_refused() -> None:
    nets = [nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)) for _ in range(3)]
    stack = neoteny.stack(nets, SGD(0.1))
    with pytest.raises(ValueError, match="targets"):
        stack.step(torch.zeros(3, 3, 4), torch.zeros(3, 3))


def test_sequences_of_hyperparameters_need_one_value_a_run() -> None:
    with pytest.raises(ValueError, match=r"one value per run \(3\); got 2"):
        make_stack(SGD(0.1), ContinualBackprop((0.1, 0.2)))
    with pytest.raises(ValueError, match=r"one value per run \(3\); got 4"):
        make_stack(Adam((0.1, 0.2, 0.3, 0.4)))
    with pytest.raises(ValueError, match="must be of one length"):
        make_stack(SGD(0.1), ContinualBackprop((0.1, 0.2, 0.3), (1, 2)))


def test_methods_on_units_need_an_example() -> None:
    with pytest.raises(ValueError, match=r"needs example="):
        make_stack(SGD(0.1), ContinualBackprop(), example=None)


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="loss must be 'mse', 'cross_entropy', 'token_cross_entropy' or a function"):
        make_stack(SGD(0.1), loss="huber")


def test_a_run_with_other_initial_weights_is_named() -> None:
    nets = [chain() for _ in range(3)]
    with torch.no_grad():
        nets[2].get_parameter("0.weight").mul_(10)
    with pytest.raises(ValueError, match="run 2, 0: the initial distribution"):
        neoteny.stack(nets, SGD(0.1), ContinualBackprop(), example=torch.zeros(1, 4))
    neoteny.stack(nets, SGD(0.1), ContinualBackprop(), example=torch.zeros(1, 4), trained=True)


@pytest.mark.parametrize("wrong", ["methods", "model", "runs", "something"])
def test_a_state_dict_of_another_stack_is_refused_and_changes_nothing(wrong: str) -> None:
    stack = make_stack(SGD(0.1), ContinualBackprop(0.1, 0))
    stack.step(torch.randn(3, 2, 4), torch.randn(3, 2, 2))
    before = copy.deepcopy(stack.state_dict())
    other: Any = {
        "methods": lambda: make_stack(SGD(0.2), ContinualBackprop(0.1, 0)).state_dict(),
        "model": lambda: neoteny.stack(
            [OwnForward() for _ in range(3)], SGD(0.1), ContinualBackprop(0.1, 0), example=torch.zeros(1, 4)
        ).state_dict(),
        "runs": lambda: make_stack(SGD(0.1), ContinualBackprop(0.1, 0), runs=2).state_dict(),
        "something": lambda: {"weights": torch.zeros(3)},
    }[wrong]()
    with pytest.raises(ValueError, match=r"[Ee]xpected"):
        stack.load_state_dict(other)
    after = stack.state_dict()
    for key in ("tensors", "states", "seeds"):
        torch.testing.assert_close(after[key], before[key], rtol=0, atol=0)

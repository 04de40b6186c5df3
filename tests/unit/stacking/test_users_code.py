"""A user's method or network that does what it must not: the error names it, in stacks and on the user's own model."""

from __future__ import annotations

import copy

import pytest
import torch

import neoteny
from neoteny.methods import L2, SGD, Method
from support import misbehaving
from support.misbehaving import AT, IN_STACKS, METHODS, NETWORKS, Own
from support.snapshots import assert_same, snapshot


def train(method: Method) -> neoteny.Stack:
    torch.manual_seed(0)
    runs = neoteny.stack([Own(4) for _ in range(3)], SGD(0.1), method)
    for _ in range(AT + 1):
        assert runs.updates <= AT
        runs.step(torch.zeros(3, 2, 4), torch.ones(3, 2, 1))
    return runs


@pytest.mark.parametrize("name", METHODS | IN_STACKS)
def test_a_method_that_misbehaves_in_a_stack_is_named_with_its_hook(name: str) -> None:
    method, hook, said = (METHODS | IN_STACKS)[name]
    with pytest.raises((RuntimeError, TypeError, ValueError), match=said) as caught:
        train(method)
    assert f"Wrong.{hook}" in str(caught.value) or f"in Wrong.{hook}" in caught.value.__notes__


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("auto", [False, True])
def test_a_method_that_misbehaves_on_a_users_model_is_named_and_the_rest_is_as_it_was(name: str, auto: bool) -> None:
    method, hook, said = METHODS[name]
    model = Own(4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    before = snapshot(model)
    stage = "attach"

    def run() -> None:
        nonlocal before, stage
        plastic = neoteny.attach(model, optimizer, L2(0.01), method, auto=auto)
        for _ in range(AT + 1):
            optimizer.zero_grad()
            (model(torch.zeros(2, 4)) - 1.0).square().mean().backward()
            before, stage = snapshot(model), "update"
            optimizer.step()
            before, stage = snapshot(model), "step"
            if not auto:
                plastic.step()

    with pytest.raises((RuntimeError, TypeError, ValueError), match=said) as caught:
        run()
    assert f"Wrong.{hook}" in str(caught.value) or f"in Wrong.{hook}" in caught.value.__notes__
    if "changes" not in name and (stage != "update" or hook != "step"):
        assert_same(before, snapshot(model))
    if stage == "attach":
        assert not optimizer._optimizer_step_pre_hooks
        assert not any(module._forward_pre_hooks for module in model.modules())
        assert not optimizer.state


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_that_cannot_be_stacked_gets_words_and_not_the_trace_of_vmap(name: str) -> None:
    network, said = NETWORKS[name]
    runs = neoteny.stack([network(4) for _ in range(2)], SGD(0.1))
    with pytest.raises((RuntimeError, ValueError), match=said) as caught:
        runs.step(torch.ones(2, 3, 4), torch.ones(2, 3, 1))
    assert "vmap" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert "Broken" in str(caught.value) or "in Broken.forward" in caught.value.__notes__


def test_the_users_line_is_named() -> None:
    network, _ = NETWORKS["a branch on values"]
    runs = neoteny.stack([network(4) for _ in range(2)], SGD(0.1))
    line = network.act.__code__.co_firstlineno  # pyright: ignore[reportFunctionMemberAccess]
    with pytest.raises(ValueError, match=rf"Broken runs alone, but not in a stack.*misbehaving.py, line {line}\)"):
        runs.step(torch.ones(2, 3, 4), torch.ones(2, 3, 1))


def test_losses_of_a_wrong_shape_are_refused() -> None:
    runs = neoteny.stack([Own(4) for _ in range(2)], SGD(0.1), loss=lambda outputs, targets: (outputs - targets) ** 2)
    with pytest.raises(ValueError, match=r"losses of shape \(2,\), one number per run; got shape \(2, 3, 1\)"):
        runs.step(torch.ones(2, 3, 4), torch.ones(2, 3, 1))


@pytest.mark.parametrize("evaluation", [{"out.weights": torch.zeros(3)}, {"out.weight": torch.zeros(3)}, [1]])
def test_weights_to_evaluate_with_that_do_not_fit_are_refused(evaluation: object) -> None:
    method = misbehaving.make("evaluation", lambda self, view, state: evaluation)
    runs = neoteny.stack([Own(4) for _ in range(3)], SGD(0.1), copy.copy(method))
    with pytest.raises((TypeError, ValueError), match=r"Wrong.evaluation"):
        runs.predict(torch.zeros(3, 2, 4))


def test_counts_that_are_not_one_per_run_are_refused() -> None:
    method = misbehaving.make("counts", lambda self, view, state: {"fc1": 3})
    with pytest.raises(TypeError, match=r"Wrong.counts must return a dict of tensors of shape \(3,\)"):
        _ = neoteny.stack([Own(4) for _ in range(3)], SGD(0.1), method).replaced

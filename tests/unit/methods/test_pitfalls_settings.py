"""Pitfalls of other code in this field: ignored settings, one class per variant. Each test fails on one."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import neoteny
from support.pitfall_models import mlp, update

pytestmark = pytest.mark.usefixtures("double_precision")


# ----------------------------------------------------------------------------------------- ignored configuration keys


@pytest.mark.parametrize("key", ["mt", "rr", "maturity_treshold", "util_type"])
def test_an_unknown_setting_is_an_error(key: str) -> None:
    with pytest.raises(TypeError, match=key):
        neoteny.ContinualBackprop(**{key: 1})  # type: ignore[arg-type]


def test_unknown_arguments_of_attach_and_stack_are_errors() -> None:
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="sede"):
        neoteny.attach(net, optimizer, neoteny.ContinualBackprop(), example=torch.zeros(1, 4), sede=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="sede"):
        neoteny.stack([net], neoteny.methods.SGD(0.1), sede=[1])  # type: ignore[call-arg]


def test_a_misspelt_value_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="Did you mean 'contribution'"):
        neoteny.ContinualBackprop(utility="contributions")
    with pytest.raises(ValueError, match="Did you mean 'layer'"):
        neoteny.ContinualBackprop(count="layers")


def test_an_initial_distribution_for_an_unknown_layer_is_an_error() -> None:
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="fc1"):
        neoteny.attach(
            net, optimizer, neoteny.ContinualBackprop(), example=torch.zeros(1, 4), init={"fc1": "kaiming_uniform"}
        )


@pytest.mark.parametrize("method", [neoteny.ContinualBackprop, neoteny.L2, neoteny.ShrinkAndPerturb])
def test_settings_have_their_full_names(method: Any) -> None:
    assert not {"rr", "mt", "lr", "std", "init"} & set(inspect.signature(method).parameters)


# ------------------------------------------------------------------------------- combinations by name and composition


def test_methods_compose_instead_of_being_one_class_a_variant() -> None:
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    plastic = neoteny.attach(
        net,
        optimizer,
        neoteny.L2(1e-3),
        neoteny.ShrinkAndPerturb(0.0, 1e-4),
        neoteny.ContinualBackprop(0.05, 5),
        neoteny.ContinualBackprop(0.05, 10, utility="random"),
        example=torch.zeros(1, 4),
        seed=1,
    )
    for _ in range(40):
        update(net, optimizer, plastic, torch.randn(4, 4), torch.randn(4, 3))
    assert all(plastic.replaced.values())
    assert [type(method).__name__ for method in plastic.methods] == [
        "L2", "ShrinkAndPerturb", "ContinualBackprop", "ContinualBackprop",
    ]  # fmt: skip

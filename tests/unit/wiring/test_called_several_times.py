"""Modules that are called several times in one forward pass: one unit, all its uses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from neoteny.wiring.trace import find
from support.shared_models import Gru, Pyramid, Rnn, Siamese, TwoBranches
from support.wiring_checks import checked, outline

_RECURRENT = (["ih", "hh"], [], ["hh", "out"], "hh")


@pytest.mark.parametrize(
    ("model", "example", "groups"),
    [
        (Rnn(), torch.randn(3, 4, 3), [_RECURRENT]),
        (Rnn(every=True), torch.randn(3, 4, 3), [_RECURRENT]),
        (Rnn(first="none"), torch.randn(3, 4, 3), [_RECURRENT]),
        (
            Gru(),
            torch.randn(3, 4, 3),
            [(["x.r", "h.r", "x.z", "h.z", "x.n", "h.n"], [], ["h.r", "h.z", "h.n", "out"], "h.r")],
        ),
        (
            Siamese(),
            (torch.randn(3, 4), torch.randn(3, 4)),
            [(["body.0"], ["body.1"], ["body.3"], "body.3"), (["body.3"], [], ["head"], "head")],
        ),
        (
            Siamese(joined=True),
            (torch.randn(3, 4), torch.randn(3, 4)),
            [(["body.0"], ["body.1"], ["body.3"], "body.3"), (["body.3"], [], ["head"], "head")],
        ),
        (
            Pyramid(),
            torch.randn(2, 3, 16, 16),
            [
                (["c1"], [], ["c2", "l1"], "c2"),
                (["c2"], [], ["l2"], "l2"),
                (["h1"], [], ["h2"], "h2"),
                (["h2"], [], ["boxes"], "boxes"),
            ],
        ),
    ],
    ids=["rnn", "every-output", "no-first-state", "gru", "siamese", "joined", "pyramid"],
)
def test_groups_hold_all_uses_of_a_module(model: nn.Module, example: Any, groups: list[Any]) -> None:
    assert outline(checked(model, example)) == groups


def test_the_columns_of_a_joined_pair_belong_to_one_unit() -> None:
    wiring = checked(Siamese(joined=True), (torch.randn(3, 4), torch.randn(3, 4)))
    assert wiring.groups[1].consumers[0].features.tolist() == [[unit, unit + 6] for unit in range(6)]  # pyright: ignore


def test_what_is_read_of_a_recurrence_is_said() -> None:
    (group,) = checked(Rnn(), torch.randn(3, 4, 3))
    note = "hh is called 4 times by the example, 1 of them without these units (an initial state): all calls count"
    assert note in group.notes


def test_an_example_of_one_step_shows_no_recurrence() -> None:
    wiring = find(Rnn(), torch.zeros(3, 1, 3))
    assert not wiring.groups
    assert "pass an example of several steps" in wiring.left_out["hh"]
    assert wiring.left_out["ih"].startswith("residual stream")


@pytest.mark.parametrize(("shared", "sink"), [("norm", "norm_a"), ("projection", "p_a")])
def test_columns_that_carry_other_units_in_another_call_are_left_out(shared: str, sink: str) -> None:
    wiring = find(TwoBranches(shared), torch.randn(3, 4))
    assert not wiring.refused
    for name, other in (("a", "b"), ("b", "a")):
        assert wiring.left_out[name] == f"{sink} is called several times, and reads {other} in another call"

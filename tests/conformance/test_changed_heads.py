"""Every method follows an output layer that is put in the place of another, or that grows, as for new classes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from neoteny.methods import ContinualBackprop, HareAndTortoise, L2Init
from support.method_cases import OTHERS, Attached, make, stream

FOLLOWING = [name for name in OTHERS if name != "PlasticityInjection"]  # it puts a head of its own there
HOW = ("another layer", "other parameters", "more rows in place")


def change_head(run: Attached, how: str, outputs: int = 5) -> nn.Linear:
    """Give a network another output layer as users do; returns the layer that was there, or a copy of it."""
    head = run.model[-1]
    assert isinstance(head, nn.Linear)
    old = nn.Linear(head.in_features, head.out_features).double()
    old.load_state_dict(head.state_dict())
    new = nn.Linear(head.in_features, outputs).double()
    for parameter in head.parameters():
        run.optimizer.state.pop(parameter, None)
        parameter.grad = None
    if how == "more rows in place":
        head.weight.data, head.bias.data = new.weight.data, new.bias.data
        return old
    if how == "other parameters":
        head.weight, head.bias = new.weight, new.bias
    else:
        run.model[-1], old = new, head
    run.optimizer.add_param_group({"params": new.parameters()})
    return old


def wider(batches: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return [(x, torch.cat([y, y, y[..., :1]], -1)) for x, y in batches]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", FOLLOWING)
def test_it_goes_on_with_a_wider_head_and_leaves_the_old_one_alone(name: str, how: str) -> None:
    run = Attached(make(name))
    assert run.plastic is not None
    data = stream(40)
    run.train(data[:20])
    old = change_head(run, how)
    before = [parameter.detach().clone() for parameter in old.parameters()]
    run.train(wider(data[20:]))
    assert all(torch.equal(one, two) for one, two in zip(old.parameters(), before, strict=True))
    assert all(parameter.isfinite().all() for parameter in run.model.parameters())
    again = Attached(make(name))
    change_head(again, "another layer")
    again.plastic.refresh()  # pyright: ignore[reportOptionalMemberAccess]
    again.plastic.load_state_dict(run.plastic.state_dict())  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize("how", HOW)
def test_what_reads_a_replaced_unit_is_zero_in_all_rows_of_the_new_head(how: str) -> None:
    run = Attached(ContinualBackprop(0.2, maturity_threshold=3))
    assert run.plastic is not None
    data = stream(40)
    run.train(data[:10])
    change_head(run, how)
    checked = 0
    for x, y in wider(data[10:]):
        was = run.plastic.replaced["2"]
        run.step(x[0], y[0])
        if run.plastic.replaced["2"] > was:
            state = run.plastic.state_dict()["states"][0]["2"]
            head = run.model[-1]
            assert isinstance(head, nn.Linear)
            assert not head.weight[:, state["born"] == state["schedule"]["step"]].any()
            checked += 1
    assert checked > 10


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("others", [(), (ContinualBackprop(0.2, maturity_threshold=3),)], ids=["alone", "with resets"])
def test_the_initial_weights_of_a_head_of_the_same_size_are_its_own(
    how: str, others: tuple[ContinualBackprop, ...]
) -> None:
    run = Attached(*others, L2Init(0.1))
    assert run.plastic is not None
    data = stream(21)
    run.train(data[:20])
    change_head(run, how, outputs=2)
    head = run.model[-1]
    assert isinstance(head, nn.Linear)
    initial = head.bias.detach().clone()
    run.train(data[20:])
    anchors = run.plastic.state_dict()["states"][len(others)]["parameters"]
    if how == "more rows in place":  # other values of the same parameter are what training gives, too
        assert not torch.equal(anchors["4.bias"], initial)
    else:
        assert torch.equal(anchors["4.bias"], initial)


def test_an_average_begins_again_with_a_new_head() -> None:
    run = Attached(HareAndTortoise(decay=0.99, period=1000))
    assert run.plastic is not None
    run.train(stream(20))
    change_head(run, "another layer", outputs=2)
    head = run.model[-1]
    assert isinstance(head, nn.Linear)
    initial = head.weight.detach().clone()
    run.train(stream(1))
    with run.plastic.evaluating():
        torch.testing.assert_close(head.weight, initial, rtol=0.0, atol=0.02)

"""attach(..., capturable=True): what is refused before anything is touched; the captures themselves need a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import neoteny


def attached(*methods: Any, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer, neoteny.Attachment]:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    example = torch.zeros(1, 4)
    return model, optimizer, neoteny.attach(model, optimizer, *methods, example=example, capturable=True, **options)


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (neoteny.ShrinkAndPerturb(1e-4, 1e-4), "ShrinkAndPerturb: it counts its updates on the host"),
        (neoteny.ReDo(100, 0.1), "ReDo is not covered"),
        (neoteny.ContinualBackprop(1e-4, utility="gxd"), "'gxd' of ContinualBackprop is not covered"),
    ],
)
def test_methods_that_need_the_host_are_refused(method: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        attached(method)


def test_two_methods_that_hear_of_new_units_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one method that acts on units.*; got ContinualBackprop, ContinualBackprop"):
        attached(neoteny.ContinualBackprop(1e-4), neoteny.L2(1e-3), neoteny.ContinualBackprop(1e-3))


def test_what_is_not_a_flag_is_refused() -> None:
    model = nn.Linear(4, 8)
    with pytest.raises(TypeError, match="capturable must be True or False; got 'no'"):
        neoteny.attach(model, torch.optim.SGD(model.parameters(), 0.01), neoteny.L2(1e-3), capturable="no")  # pyright: ignore[reportArgumentType]


def test_sums_of_passes_are_refused() -> None:
    with pytest.raises(ValueError, match="one device and accumulate='inputs'"):
        attached(neoteny.ContinualBackprop(1e-4), accumulate="sums")


def test_a_tick_on_the_cpu_says_what_to_do_and_changes_nothing() -> None:
    model, optimizer, plastic = attached(neoteny.ContinualBackprop(1.0, maturity_threshold=0))
    model(torch.randn(3, 4)).square().mean().backward()
    optimizer.step()
    before = [value.detach().clone() for value in model.parameters()]
    with pytest.raises(RuntimeError, match="the model is on cpu"):
        plastic.step()
    assert all(torch.equal(*each) for each in zip(before, model.parameters(), strict=True))
    assert plastic.replaced == {"0": 0}
    assert not any(plastic.view.activations.values())  # the next tick does not read this batch once more


def test_gradients_are_not_looked_at_where_the_tick_refuses_what_was_not_read() -> None:
    """Looking at them would wait for the device, which a capture does not allow."""
    seen = []
    for capturable in (True, False):
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        method = neoteny.ContinualBackprop(1e-4)
        plastic = neoteny.attach(model, optimizer, method, example=torch.zeros(1, 4), capturable=capturable)
        model(torch.randn(3, 4)).square().mean().backward()
        plastic._recorder.clear()  # as if the hooks had not run
        optimizer.step()
        seen.append([group.name for group in plastic._unread._ran])
    assert seen == [[], ["0"]]


def test_a_step_size_in_a_tensor_needs_a_capturable_adam() -> None:
    parameters = [nn.Parameter(torch.ones(3))]
    with pytest.raises(ValueError, match="a step size that is a tensor needs capturable=True"):
        neoteny.optim.Adam(parameters, torch.tensor(1e-3))
    ends = []
    for size in (1e-3, torch.tensor(1e-3, dtype=torch.float64)):
        parameter = nn.Parameter(torch.ones(3, dtype=torch.float64))
        optimizer = neoteny.optim.AdamW([parameter], size, capturable=isinstance(size, torch.Tensor))
        for _ in range(5):
            parameter.grad = torch.arange(3, dtype=torch.float64)
            optimizer.step()
        ends.append(parameter.detach().clone())
    assert torch.equal(*ends)


def test_the_optimizers_state_of_an_earlier_version_is_loaded() -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = neoteny.optim.Adam([parameter], 1e-3)
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        del group["counts_on_device"]
    optimizer.load_state_dict(saved)
    parameter.grad = torch.ones(3)
    optimizer.step()
    assert optimizer.param_groups[0]["counts_on_device"] is False

"""neoteny.optim.Adam: where updates are counted, and what a captured graph still reads, when a state is loaded."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import neoteny
from neoteny.layers.regions import Region
from neoteny.methods.device_adam import DeviceAdam


def updated(capturable: bool) -> tuple[nn.Parameter, neoteny.optim.Adam]:
    """A parameter after an update in which a row was reset, and its optimizer."""
    parameter = nn.Parameter(torch.ones(3, 2))
    optimizer = neoteny.optim.Adam([parameter], 1e-3, capturable=capturable)
    parameter.grad = torch.ones(3, 2)
    optimizer.step()
    optimizer.clear_elements(parameter, Region("x", (torch.tensor([1]),)))
    return parameter, optimizer


@pytest.mark.parametrize("capturable", [True, False])
def test_loading_a_state_does_not_change_where_updates_are_counted(capturable: bool) -> None:
    parameter, optimizer = updated(capturable)
    _, other = updated(not capturable)
    optimizer.load_state_dict(other.state_dict())
    assert optimizer.param_groups[0]["counts_on_device"] is capturable
    assert pickle.loads(pickle.dumps(optimizer)).param_groups[0]["counts_on_device"] is capturable
    optimizer.step()
    assert int(optimizer.state[parameter]["step"]) == 2


def test_counts_of_resets_are_loaded_to_where_the_parameter_is() -> None:
    _, saved = updated(False)
    parameter = nn.Parameter(torch.empty(3, 2, device="meta"))
    optimizer = neoteny.optim.Adam([parameter], 1e-3)
    optimizer.load_state_dict(saved.state_dict())
    assert optimizer.state[parameter]["resets"]["rows"]["step"].device.type == "meta"


@pytest.mark.parametrize("captured", [True, False])
def test_tables_that_a_graph_reads_are_kept(captured: bool) -> None:
    parameter, optimizer = updated(True)
    kept = []
    for change in (lambda: optimizer.load_state_dict(optimizer.state_dict()), optimizer.restart_step_counts):
        made = optimizer._device[0] = DeviceAdam([parameter], [optimizer.state[parameter]])
        made.captured = captured
        kept += [made] if captured else []
        change()
        assert optimizer._device == {}
        assert optimizer._retired == kept
    assert copy.deepcopy(optimizer)._retired == []

"""What a captured tick reads and writes, as far as a CPU shows it: the schedule on the device, and what is kept alive.

The tables are made on the CPU, where nothing is launched; `test_captured_gpu.py` has the captures themselves.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import neoteny
from neoteny.attachment.attachment import Attachment
from neoteny.units.device.rewrite import FusedReset
from neoteny.units.device.schedule import DeviceSchedule
from neoteny.units.device.tick import FusedMeasure
from neoteny.units.device_tick import Fused
from neoteny.units.utilities import UTILITIES

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
METHOD = neoteny.ContinualBackprop(0.03, maturity_threshold=2, decay_rate=0.9)
CPU = torch.device("cpu")


class Training:
    """A model, its optimizer and attachment."""

    def __init__(self, init: str | None = None) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))
        self.optimizer = neoteny.optim.Adam(self.model.parameters(), 0.01)
        self.plastic = neoteny.attach(self.model, self.optimizer, METHOD, example=X, seed=1, init=init, trained=True)
        self.state = self.plastic._chain.states[0]

    def train(self, updates: int) -> None:
        for _ in range(updates):
            self.optimizer.zero_grad()
            self.model(X).square().mean().backward()
            self.optimizer.step()
            self.plastic.step()

    def fused(self, captured: bool) -> Fused:
        """The fused tick, in use from now on."""
        view = self.plastic.view
        measure = FusedMeasure(view, view.groups, self.state, view.modules, 0.9, UTILITIES["overall"])
        if captured:
            inputs = {name: [torch.zeros(5, width)] for name, width in (("2", 8), ("4", 6))}
            found = measure._inputs_for(inputs, aligned=False, make=True)
            assert found is not None
            measure.captured.append(found)
        view.fused[id(self.state)] = (self.state, made := Fused(measure, FusedReset(measure, 2, True), ""))
        return made

    def schedule(self) -> DeviceSchedule:
        return DeviceSchedule(self.plastic.view.groups, self.state, [(0, 11, 2), (1, 12, 2)], CPU)


def numbers(plastic: Attachment) -> list[Any]:
    """What is counted, as a saved state has it."""
    saved = plastic.state_dict()["states"][0]
    return [[each["schedule"], each["replaced"], each["born"].tolist()] for each in saved.values()]


def test_the_schedule_goes_to_the_device_and_comes_back() -> None:
    one = Training()
    one.train(30)
    assert min(one.plastic.replaced.values()) > 0
    before = numbers(one.plastic)
    device = one.schedule()
    assert device._steps.tolist() == [30, 30]
    assert device._replaced.tolist() == list(one.plastic.replaced.values())
    assert numbers(one.plastic) == before

    device._steps.add_(4)  # as four ticks on the device do at which one unit is replaced
    device._replaced.add_(1)
    one.state["0"]["born"][3] = 33
    assert one.plastic.replaced == {"0": before[0][1][0] + 1, "2": before[1][1][0] + 1}
    saved = one.plastic.state_dict()["states"][0]
    assert [each["schedule"]["step"] for each in saved.values()] == [34, 34]
    assert " 1 / " in str(one.plastic)  # the age of the youngest unit
    assert int(one.state["0"]["schedule"].eligible[0]) == int((34 - saved["0"]["born"] > 2).sum())


def test_a_loaded_state_goes_to_the_device_and_a_later_one_takes_it_over() -> None:
    one, other = Training(), Training()
    one.train(12)
    kept, expected = one.plastic.state_dict(), numbers(one.plastic)
    other.train(30)
    first = other.schedule()
    other.plastic.load_state_dict(kept)
    assert first._steps.tolist() == [12, 12]
    assert numbers(other.plastic) == expected
    second = other.schedule()  # of tables that had to be made again
    assert second._waiting.tolist() == first._waiting.tolist()
    assert numbers(other.plastic) == expected
    resumed = Training()  # counts on the host
    resumed.plastic.load_state_dict(other.plastic.state_dict())
    assert numbers(resumed.plastic) == expected
    assert resumed.state["0"]["schedule"].device is None


def test_a_state_that_cannot_be_reset_is_refused_at_every_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    one = Training()
    one.train(1)
    reset = one.fused(captured=False).reset
    assert reset is not None
    reset.schedule = one.schedule()  # of an earlier state, which could be reset
    for _ in range(4):  # the first makes counts of resets, and with them other tables
        with pytest.raises(RuntimeError, match=r"pass capturable=True to neoteny\.optim\.Adam"):
            reset.replace_by_schedule(one.plastic.view, one.state)


def test_other_distributions_of_new_units_start_the_fused_tick_again() -> None:
    one = Training("kaiming_normal")
    one.fused(captured=False)
    one.plastic.load_state_dict(one.plastic.state_dict())
    assert one.plastic.view.fused
    found = Training()
    found.fused(captured=False)
    laws = dict(found.plastic.view.laws)
    found.plastic.view.use_laws({**laws, "0": one.plastic.view.laws["0"]})
    assert not found.plastic.view.fused


@pytest.mark.parametrize("captured", [True, False])
def test_what_a_graph_reads_is_kept_when_the_model_changes(captured: bool) -> None:
    one = Training()
    made = one.fused(captured)
    view = one.plastic.view
    if captured:
        with pytest.warns(RuntimeWarning, match="capture again"):
            one.plastic.refresh(example=X)
        with pytest.warns(RuntimeWarning, match="goes on replacing units"):
            one.plastic.detach()
    else:
        one.plastic.refresh(example=X)
        one.plastic.detach()
    assert not view.fused
    assert view.retired == ([made] if captured else [])

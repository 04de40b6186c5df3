"""Consumers without bias in front of a batch norm: the norm's running mean takes the compensation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neoteny
from reference.norm_compensation import running_mean_after
from support.replaced_units import chosen_units, means, outputs_of, train_until_replaced
from support.wiring_checks import checked

pytestmark = pytest.mark.usefixtures("double_precision")


class Normed(nn.Module):
    """Two convolutions, the second without bias and in front of a norm; `way` says what else reads it."""

    def __init__(self, way: str = "norm alone") -> None:
        super().__init__()
        self.way = way
        self.first, self.second = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 4, 3, 2, 1, bias=False)
        self.norm, self.last = nn.BatchNorm2d(4, track_running_stats=way != "no statistics"), nn.Conv2d(4, 3, 1)

    def normed(self, x: Tensor) -> Tensor:
        """What the norm returns."""
        return self.norm(self.second(F.relu(self.first(x))))

    def forward(self, x: Tensor) -> Tensor:
        values = self.second(F.relu(self.first(x)))
        if self.way == "halved":
            return self.last(F.relu(self.norm(values / 2)))
        normed = self.norm(values)
        return self.last(F.relu(normed + values if self.way == "skipped" else normed))


def notes(model: nn.Module, x: Tensor) -> list[str]:
    return [note for group in neoteny.trace(model, x).groups for note in group.notes if "has no bias" in note]


def test_the_mean_behind_the_norm_is_kept_in_evaluation_mode() -> None:
    model, x = Normed(), torch.randn(16, 2, 6, 6) + 0.5
    for _ in range(3):  # statistics of its own
        model(x + torch.randn_like(x))
    running = model.norm.running_mean
    assert running is not None
    model.norm.eval()  # so that training does not move the running mean
    before = means([model.normed(x).detach()])[0]
    hidden, weight = F.relu(model.first(x)).detach(), model.second.weight.detach().clone()
    old = running.clone()
    plastic = train_until_replaced(model, x, torch.optim.SGD(model.parameters(), lr=0.0), leave_out=["second"])
    units = chosen_units(plastic)["first"]
    assert not model.second.weight[:, units].any()
    torch.testing.assert_close(means([model.normed(x).detach()])[0], before, rtol=0, atol=1e-12)
    expected = running_mean_after(old.numpy(), hidden.numpy(), weight.numpy(), units, stride=2, padding=1)
    np.testing.assert_allclose(running.numpy(), expected, rtol=0, atol=1e-13)
    assert (running - old).abs().min() > 1e-4
    assert "no bias to compensate" not in str(plastic)


def test_without_compensation_the_running_mean_is_left_alone() -> None:
    model, x = Normed(), torch.randn(8, 2, 6, 6)
    model.norm.eval()
    assert model.norm.running_mean is not None
    old = model.norm.running_mean.clone()
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    train_until_replaced(model, x, still, leave_out=["second"], compensate=False)
    assert torch.equal(model.norm.running_mean, old)


def test_rows_of_a_grouped_convolution_and_a_linear_layer() -> None:
    grouped = nn.Sequential(nn.Conv2d(2, 6, 1), nn.ReLU(), nn.Conv2d(6, 4, 2, groups=2, bias=False), nn.BatchNorm2d(4))
    linear = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3, bias=False), nn.BatchNorm1d(3))
    for model, x in ((grouped, torch.randn(8, 2, 4, 4)), (linear, torch.randn(8, 4) + 1.0)):
        model[3].eval()
        before = means(outputs_of(model, x))[0]
        train_until_replaced(model, x, torch.optim.SGD(model.parameters(), lr=0.0))
        torch.testing.assert_close(means(outputs_of(model, x))[0], before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", ["halved", "skipped", "no statistics"])
def test_a_norm_that_is_not_given_exactly_this_takes_nothing(way: str) -> None:
    x = torch.randn(4, 2, 6, 6)
    assert notes(Normed(), x) == []
    assert notes(Normed(way), x) == ["consumer second has no bias: its mean cannot be compensated"]


def test_each_norm_is_found_in_one_pass_for_all_and_kept_in_a_saved_wiring(tmp_path: Path) -> None:
    def block(width: int) -> list[nn.Module]:
        return [nn.Conv2d(width, width + 1, 1, bias=False), nn.BatchNorm2d(width + 1), nn.ReLU()]

    model = nn.Sequential(*block(2), *block(3), *block(4), *block(5), nn.Conv2d(6, 2, 1, bias=False))
    wiring = checked(model, torch.randn(2, 2, 3, 3))
    wiring.save(tmp_path / "wiring.json")
    for each in (wiring, neoteny.Wiring.load(tmp_path / "wiring.json")):
        assert [group.consumers[0].norm_behind for group in each] == ["4", "7", "10", None]

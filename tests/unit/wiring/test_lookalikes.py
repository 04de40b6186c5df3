"""Norms of other libraries: recognised by what they compute, and reset like torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoteny.layers.lookalikes import norm_of
from support.replaced_units import chosen_units, outputs_of, tensors_of, train_until_replaced
from support.wiring_checks import checked, outline


class BatchNormAct(nn.BatchNorm2d):
    """A batch norm with its activation inside, as timm has it."""

    def forward(self, input: Tensor) -> Tensor:
        training = self.training
        values = F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, training)
        return F.relu(values)


class LayerNorm2d(nn.LayerNorm):
    """A layer norm over the channels of an image."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)


class RMSNormLike(nn.Module):
    """The norm of Llama; `offset` 1 makes it that of Gemma, whose weight starts at zero."""

    def __init__(self, width: int, offset: float = 0.0) -> None:
        super().__init__()
        self.offset, self.weight = offset, nn.Parameter(torch.full((width,), 1.0 - offset))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (self.weight + self.offset)


class FrozenBatchNorm(nn.Module):
    """A batch norm whose tensors are all buffers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        own: Any = self
        scale = (own.weight * (own.running_var + 1e-5).rsqrt()).view(1, -1, 1, 1)
        return x * scale + (own.bias.view(1, -1, 1, 1) - own.running_mean.view(1, -1, 1, 1) * scale)


class RolledNorm(RMSNormLike):
    """Not a norm per feature: feature i comes out as feature i + 1."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).roll(1, -1)


class SummedNorm(RMSNormLike):
    """Not a norm per feature: each feature is the sum of those before it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(-1) * self.weight


class NoisyNorm(RMSNormLike):
    """Not the same twice."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand_like(x) * self.training


def test_what_a_norm_does_is_found_by_trying_it() -> None:
    found = {type(module): norm_of(module) for module in (BatchNormAct(8), LayerNorm2d(8), FrozenBatchNorm(6))}
    assert [(norm.axis, norm.couples) for norm in found.values() if norm] == [(1, False), (1, True), (1, False)]
    assert all(norm is not None and norm.fresh["weight"] == 1.0 for norm in found.values())
    for offset in (0.0, 1.0):
        norm = norm_of(RMSNormLike(18, offset))  # as many features as the trial has examples
        assert norm is not None
        assert (norm.features, norm.axis, norm.couples, norm.fresh) == (18, -1, True, {"weight": 1.0 - offset})


@pytest.mark.parametrize("kind", [RolledNorm, SummedNorm, NoisyNorm])
def test_what_is_only_called_a_norm_is_not_taken_for_one(kind: type[RMSNormLike]) -> None:
    state = torch.get_rng_state()
    assert norm_of(kind(8)) is None
    assert torch.equal(torch.get_rng_state(), state)
    model = nn.Sequential(nn.Linear(4, 8), kind(8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2))
    assert [group.name for group in checked(model, torch.randn(3, 4))] == ["3"]


def test_groups_behind_norms_of_other_libraries() -> None:
    def image(norm: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 6, 3, bias=False), norm, nn.ReLU(), nn.Flatten(), nn.Linear(24, 3))

    for norm in (BatchNormAct(6), LayerNorm2d(6), FrozenBatchNorm(6)):
        wiring = checked(image(norm), torch.randn(3, 2, 4, 4))
        assert outline(wiring) == [(["0"], ["1"], ["4"], "4")]
        assert ("couples units" in str(wiring)) == isinstance(norm, LayerNorm2d)
    block = nn.Sequential(nn.Linear(4, 6), RMSNormLike(6), nn.SiLU(), nn.Linear(6, 2))
    assert outline(checked(block, torch.randn(3, 5, 4))) == [(["0"], ["1"], ["3"], "3")]
    with pytest.raises(ValueError, match="RMSNormLike 1 couples its units"):
        checked(block, torch.randn(3, 5, 4), norm="strict")


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("norm", [BatchNormAct(6), FrozenBatchNorm(6), RMSNormLike(6, 1.0)])
def test_a_reset_makes_the_units_features_of_such_a_norm_fresh(norm: nn.Module) -> None:
    image = not isinstance(norm, RMSNormLike)
    layers = (nn.Conv2d(2, 6, 3), nn.Conv2d(6, 3, 2)) if image else (nn.Linear(2, 6), nn.Linear(6, 3))
    model = nn.Sequential(layers[0], norm, nn.ELU(), layers[1]).double()
    x = torch.randn(8, 2, 4, 4) if image else torch.randn(8, 2)
    with torch.no_grad():
        for name, value in (*norm.named_parameters(), *norm.named_buffers()):
            if name != "num_batches_tracked":
                value.add_(torch.rand(6))
    before: dict[str, Tensor] = {}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    plastic = train_until_replaced(model, x, optimizer, before=lambda: before.update(tensors_of(model, optimizer)))
    units, after = chosen_units(plastic)["0"], tensors_of(model, optimizer)
    kept = [unit for unit in range(6) if unit not in units]
    fresh = {"weight": 0.0 if isinstance(norm, RMSNormLike) else 1.0, "running_var": 1.0}
    for name in [name for name in after if name.startswith("1.") and "num_batches" not in name]:
        assert torch.equal(after[name][kept], before[name][kept]), name
        assert (after[name][units] == fresh.get(name.removeprefix("1."), 0.0)).all(), name
        assert (before[name][units] != after[name][units]).any(), name
    model.eval()
    with torch.no_grad():
        output = outputs_of(model, x)[0]
        model[0].get_parameter("weight")[units] += 1.0
        if not isinstance(norm, RMSNormLike):  # it shares statistics between units
            assert torch.equal(outputs_of(model, x)[0], output)

"""diagnose: any module, in any precision, on any device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neoteny
from support.diagnosed_models import mlp
from support.wiring_models import ActorCritic, BasicBlock, PreNormBlock, SwiGLU


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 6), nn.Linear(3, 5), nn.Linear(11, 2)

    def forward(self, left: Tensor, right: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.head(torch.cat([F.relu(self.left(left)), torch.tanh(self.right(right))], -1))


def test_inputs_as_a_tuple_or_dict() -> None:
    torch.manual_seed(0)
    model = TwoInputs()
    left, right = torch.randn(30, 4), torch.randn(30, 3)
    found = neoteny.diagnose(model, (left, right))
    assert [layer.name for layer in found.layers] == ["left", "right"]
    assert found.layers == neoteny.diagnose(model, {"right": right, "left": left}).layers
    assert found.layers[0].saturated_share is None
    assert found.layers[1].saturated_share == 0.0


def test_a_mask_as_long_as_the_batch_does_not_confuse_the_tracing() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    tokens = torch.randn(12, 12, 16)  # as many tokens as examples
    causal = nn.Transformer.generate_square_subsequent_mask(12)
    found = neoteny.diagnose(layer, {"src": tokens, "src_mask": causal})
    assert [found.layers[0].name, found.layers[0].units, found.layers[0].rows] == ["linear1", 32, 144]


class FixedBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.fc(x.view(20, 4))))


def test_a_model_with_a_fixed_batch_size_is_traced_with_all_examples() -> None:
    assert neoteny.diagnose(FixedBatch(), torch.randn(20, 4)).layers[0].units == 6


@pytest.mark.parametrize(
    ("model", "shape", "names"),
    [
        (ActorCritic(), (50, 4), ["trunk.0", "trunk.2"]),
        (PreNormBlock(), (20, 5, 8), ["up"]),
        (SwiGLU(), (50, 4), ["gate"]),
        (nn.Sequential(nn.Conv1d(3, 6, 3), nn.ReLU(), nn.Conv1d(6, 2, 3)), (10, 3, 12), ["0"]),
        (
            nn.Sequential(BasicBlock(3, 8), nn.Flatten(), nn.Linear(8 * 16, 2)),
            (10, 3, 4, 4),
            ["0.downsample.0", "0.conv1"],
        ),
    ],
)
def test_finds_the_layers_of_ordinary_models(model: nn.Module, shape: tuple[int, ...], names: list[str]) -> None:
    found = neoteny.diagnose(model, torch.randn(shape))
    assert [layer.name for layer in found.layers] == names
    assert str(found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(inputs: Tensor, dtype: torch.dtype) -> None:
    model = mlp(10, 40, 30, 2).to(dtype)
    with torch.no_grad():
        model.get_parameter("fc1.bias")[:10] = -1e3
    found = neoteny.diagnose(model, inputs.to(dtype))
    assert found.layers[0].dead == 10
    assert found.layers[1].effective_rank > 1
    assert next(model.parameters()).dtype == dtype


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_numbers_of_the_cpu(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2).double()
    here = neoteny.diagnose(model, inputs.double(), control=False)
    there = neoteny.diagnose(model.cuda(), inputs.double().cuda(), control=False)
    assert there.layers[1].effective_rank == pytest.approx(here.layers[1].effective_rank, rel=1e-6)
    assert neoteny.diagnose(model, inputs.double().cuda()).layers[0].fresh is not None


def test_frozen_layers_count(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2).requires_grad_(False)
    assert [layer.name for layer in neoteny.diagnose(model, inputs).layers] == ["fc1", "fc2"]


def test_layer_norm_is_accepted_unless_refused(inputs: Tensor) -> None:
    model = nn.Sequential(nn.Linear(10, 20), nn.LayerNorm(20), nn.ReLU(), nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 2))
    assert [layer.name for layer in neoteny.diagnose(model, inputs).layers] == ["0", "3"]
    found = neoteny.diagnose(model, inputs, norm="strict")
    assert [layer.name for layer in found.layers] == ["3"]
    assert "LayerNorm" in found.left_out["0"]


class Swallowing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.head = nn.Linear(10, 10), nn.Linear(10, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.last(self.first(x).nan_to_num())))


def test_refused_layers_are_listed_and_the_others_measured(inputs: Tensor) -> None:
    found = neoteny.diagnose(Swallowing(), inputs)
    assert [layer.name for layer in found.layers] == ["last"]
    assert "swallows NaN" in found.refused["first"]
    assert "refused\n" in str(found)
    assert "  first: " in str(found)


class Loose(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(10, 20), nn.Linear(20, 2)
        self.scale = nn.Parameter(torch.full((20,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.scale * torch.relu(self.fc(x)))


def test_parameters_that_cannot_be_drawn_anew_are_named(inputs: Tensor) -> None:
    found = neoteny.diagnose(Loose(), inputs)
    assert found.notes == ("the fresh copy keeps parameters whose initial distribution is not known: scale",)


def test_says_when_there_are_fewer_rows_than_units(inputs: Tensor) -> None:
    found = neoteny.diagnose(mlp(10, 40, 6, 2), inputs[:8])
    assert found.notes == ("fewer rows than units, so that no rank can reach the number of units: fc1",)

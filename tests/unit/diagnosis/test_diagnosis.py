"""diagnose: numbers on networks made by hand, one sentence for each thing that is wrong, and nothing left behind."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections import OrderedDict
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neoteny
from neoteny import metrics
from neoteny.diagnosis import diagnose as diagnosis
from neoteny.diagnosis import result as verdict
from neoteny.nets import MLP, ConvNet
from support.wiring_models import ActorCritic, BasicBlock, PreNormBlock, ResNet, SwiGLU


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small only wait for each other's threads when tests run side by side."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """fc1, act1, fc2, ..., with torch's own initial weights."""
    torch.manual_seed(0)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (before, after) in enumerate(itertools.pairwise(widths), start=1):
        layers[f"fc{number}"] = nn.Linear(before, after)
        if number < len(widths) - 1:
            layers[f"act{number}"] = act()
    return nn.Sequential(layers)


@pytest.fixture
def inputs() -> Tensor:
    return torch.randn(300, 10, generator=torch.Generator().manual_seed(1))


def problems(found: diagnosis.Diagnosis) -> list[str]:
    """The verdict without advice."""
    return [sentence for sentence in found.verdict if not sentence.startswith("Consider")]


def healthy(found: diagnosis.Diagnosis) -> bool:
    return len(found.verdict) == 1 and found.verdict[0].startswith("Nothing is wrong")


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dead", [0, 1, 7, 40])
def test_counts_dead_units(inputs: Tensor, dead: int) -> None:
    model = mlp(10, 40, 30, 2)
    with torch.no_grad():
        model.fc1.bias[:dead] = -1e3
    found = neoteny.diagnose(model, inputs)
    assert found.layers[0].dead == dead
    assert found.layers[0].dead_share == dead / 40
    assert found.layers[0].saturated_share is None
    assert found.layers[0].fresh is not None
    assert found.layers[0].fresh.dead == 0


def test_agrees_with_the_metrics_on_activations_read_by_hand(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2)
    first = model.act1(model.fc1(inputs))
    second = model.act2(model.fc2(first))
    found = neoteny.diagnose(model, inputs, control=False)
    for layer, activations, name in zip(found.layers, (first, second), ("fc1", "fc2"), strict=True):
        assert layer.name == name
        assert layer.rows == len(inputs)
        assert layer.effective_rank == pytest.approx(float(metrics.effective_rank(activations)), rel=1e-9)
        assert layer.stable_rank == pytest.approx(float(metrics.stable_rank(activations)), rel=1e-9)
        assert layer.weight_magnitude == pytest.approx(float(model.get_submodule(name).weight.detach().abs().mean()))
        assert layer.fresh is None
    assert found.weight_magnitude == pytest.approx(float(metrics.weight_magnitude(model.parameters())))
    assert found.fresh_weight_magnitude is None


def test_the_control_is_a_reset_copy_under_a_fixed_seed(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    found = neoteny.diagnose(model, inputs)
    again = neoteny.diagnose(model, inputs)
    assert found == again
    fresh = found.layers[0].fresh
    assert fresh is not None
    assert fresh.weight_magnitude == pytest.approx(0.5 / math.sqrt(10), rel=0.1)  # uniform within 1 / sqrt(inputs)


def test_a_fresh_model_can_be_the_control(inputs: Tensor) -> None:
    model, fresh = mlp(10, 40, 30, 2), mlp(10, 40, 30, 2)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.mul_(0.1)
    found = neoteny.diagnose(model, inputs, control=fresh)
    assert found.fresh_weight_magnitude == pytest.approx(0.1 * found.weight_magnitude)
    assert sum("times as large" in sentence for sentence in found.verdict) == 2
    with pytest.raises(ValueError, match=r"same architecture.*'fc1.weight' has shape \(41, 10\)"):
        neoteny.diagnose(model, inputs, control=mlp(10, 41, 30, 2))


def test_declared_initial_distributions_are_the_control(inputs: Tensor) -> None:
    """Kaiming weights for tanh are 2.9 times torch's own; a network that says so is compared with its own kind."""
    torch.manual_seed(0)
    found = neoteny.diagnose(MLP(10, [50, 50], 2, activation="tanh"), inputs)
    for layer in found.layers:
        assert layer.fresh is not None
        assert layer.weight_magnitude == pytest.approx(layer.fresh.weight_magnitude, rel=0.1)
    assert healthy(found)


def test_a_channel_is_a_unit_and_every_position_a_row() -> None:
    torch.manual_seed(0)
    model = ConvNet()
    with torch.no_grad():
        model.conv2.bias[:10] = -1e3
        model.conv3.bias[:8] = -1e3
    images = torch.rand(40, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = neoteny.diagnose(model, images)
    layers = {layer.name: layer for layer in found.layers}
    assert {name: layer.units for name, layer in layers.items()} == {
        "conv1": 32, "conv2": 64, "conv3": 128, "fc1": 128, "fc2": 128
    }  # fmt: skip
    assert layers["conv2"].dead == 10
    assert layers["conv3"].dead >= 8
    assert layers["conv1"].rows == diagnosis.MOST_ROWS  # 40 * 14 * 14 positions
    assert layers["conv3"].rows == 40 * 2 * 2
    assert layers["fc1"].rows == 40
    assert any("conv2's units (10 of 64) never fire" in sentence for sentence in found.verdict)


def test_the_choice_of_rows_hardly_moves_a_rank() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 2, 3))
    images = torch.randn(40, 3, 16, 16)
    found = neoteny.diagnose(model, images, control=False)
    rows = model[:2](images).movedim(1, -1).flatten(0, -2)
    assert len(rows) > found.layers[0].rows == diagnosis.MOST_ROWS
    assert found.layers[0].effective_rank == pytest.approx(float(metrics.effective_rank(rows)), rel=0.02)


@pytest.mark.parametrize(
    ("act", "bounds"),
    [
        (nn.Tanh, (-1, 1)), (nn.Sigmoid, (0, 1)), (nn.Hardtanh, (-1, 1)), (nn.ReLU6, (0, 6)), (nn.Softsign, (-1, 1)),
        (nn.ReLU, None), (nn.LeakyReLU, None), (nn.GELU, None), (nn.SiLU, None), (nn.ELU, None), (nn.Softplus, None),
        (nn.Identity, None), (nn.Tanhshrink, None),
    ],
)  # fmt: skip
def test_bounded_activation_functions_are_told_by_trying(
    inputs: Tensor, act: type[nn.Module], bounds: tuple[float, float] | None
) -> None:
    model = mlp(10, 20, 2, act=act)
    with torch.no_grad():
        model.fc1.weight[:5] = 0.0
        model.fc1.bias[:5] = 1e3
    share = neoteny.diagnose(model, inputs).layers[0].saturated_share
    assert share == (None if bounds is None else 0.25)


@pytest.mark.parametrize("between", [nn.BatchNorm1d(20), nn.LayerNorm(20), nn.RMSNorm(20)])
def test_saturation_behind_a_norm(inputs: Tensor, between: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 20), between, nn.Tanh(), nn.Linear(20, 2))
    with torch.no_grad():
        if isinstance(between, nn.BatchNorm1d):
            between.bias[:4] = 1e3
    share = neoteny.diagnose(model, inputs).layers[0].saturated_share
    # A norm over units turns every constant into the same value: whether the function is bounded cannot be told.
    assert share == (0.2 if isinstance(between, nn.BatchNorm1d) else None)


def test_dead_units_are_read_before_a_batch_norm_that_hides_them(inputs: Tensor) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.BatchNorm1d(20), nn.Linear(20, 2))
    with torch.no_grad():
        model[0].bias[:6] = -1e3
        model[2].bias[:] = 0.5
    assert neoteny.diagnose(model, inputs).layers[0].dead == 6


def test_the_control_of_a_trained_batch_norm_has_seen_the_inputs() -> None:
    """An eval-mode batch norm with its first statistics does not normalise: deep fresh copies would look collapsed."""
    torch.manual_seed(0)
    model = ResNet()
    images = torch.randn(64, 3, 8, 8)
    untrained = neoteny.diagnose(model, images)
    for _ in range(60):
        model(images)
    found = neoteny.diagnose(model, images)
    for before, layer in zip(untrained.layers, found.layers, strict=True):
        assert layer.fresh is not None
        assert layer.effective_rank == pytest.approx(layer.fresh.effective_rank, rel=0.25)
        assert before.fresh is not None
        assert before.fresh.effective_rank < layer.fresh.effective_rank  # not settled: its model's are not either
    assert not any(sentence.startswith("Consider") for sentence in (*untrained.verdict, *found.verdict))


# --- sentences -------------------------------------------------------------------------------------------------------


def test_a_fresh_network_has_nothing_wrong(inputs: Tensor) -> None:
    for model in (mlp(10, 40, 30, 2), mlp(10, 40, 30, 2, act=nn.Tanh), mlp(10, 40, 30, 2, act=nn.GELU)):
        assert healthy(neoteny.diagnose(model, inputs))
        assert healthy(neoteny.diagnose(model, inputs, control=False))


def test_says_which_share_never_fires_and_what_to_do(inputs: Tensor) -> None:
    model = mlp(10, 100, 100, 2)
    with torch.no_grad():
        model.fc2.bias[:23] = -1e3
    found = neoteny.diagnose(model, inputs)
    assert problems(found) == ["23% of fc2's units (23 of 100) never fire on these inputs; in a fresh copy: 0%."]
    assert found.verdict[-1].startswith("Consider neoteny.ContinualBackprop")
    alone = neoteny.diagnose(model, inputs, control=False)
    assert problems(alone) == ["23% of fc2's units (23 of 100) never fire on these inputs."]


@pytest.mark.parametrize(("dead", "worth_a_sentence"), [(4, False), (5, True)])
def test_a_few_dead_units_are_no_news(inputs: Tensor, dead: int, worth_a_sentence: bool) -> None:
    model = mlp(10, 100, 100, 2)
    with torch.no_grad():
        model.fc2.bias[:dead] = -1e3
    assert healthy(neoteny.diagnose(model, inputs)) is not worth_a_sentence


def test_dead_units_that_a_fresh_copy_has_too_are_not_blamed_on_training() -> None:
    narrow = torch.full((50, 10), 3.0) + 0.01 * torch.randn(50, 10, generator=torch.Generator().manual_seed(0))
    found = neoteny.diagnose(mlp(10, 200, 2), narrow)
    assert len(found.verdict) == 2
    assert "never fire" in found.verdict[0]
    assert "training is not the cause" in found.verdict[0]
    assert found.verdict[1] == "Nothing else stands out, compared with a fresh copy."


def test_says_that_units_are_saturated(inputs: Tensor) -> None:
    model = mlp(10, 50, 50, 2, act=nn.Tanh)
    with torch.no_grad():
        model.fc1.bias[:20] = torch.tensor([20.0, -20.0]).repeat(10)
    found = neoteny.diagnose(model, inputs)
    assert problems(found) == [
        "40% of fc1's units (20 of 50) sit at a limit of their activation function on all these inputs; "
        "in a fresh copy: 0%."
    ]
    assert found.layers[0].saturated_share == 0.4
    assert found.layers[0].dead == 0


def test_says_that_the_rank_has_collapsed(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2)
    with torch.no_grad():
        model.fc2.weight[:] = model.fc2.weight[:1]
        model.fc2.bias.fill_(0.5)
    found = neoteny.diagnose(model, inputs)
    assert found.layers[1].effective_rank == pytest.approx(1.0)
    assert found.layers[1].stable_rank == pytest.approx(1.0)
    fresh = found.layers[1].fresh
    assert fresh is not None
    assert fresh.effective_rank > 10
    assert problems(found) == [f"fc2's effective rank is 1.0 of 30 units; a fresh copy has {fresh.effective_rank:.1f}."]
    alone = neoteny.diagnose(model, inputs, control=False)
    assert problems(alone) == ["fc2's effective rank is 1.0 of 30 units (at most 30 with these inputs)."]


def test_says_that_weights_have_grown(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2)
    with torch.no_grad():
        model.fc1.weight.mul_(3.5)
        model.fc2.weight.mul_(2.5)
    found = neoteny.diagnose(model, inputs)
    times = found.layers[0].weight_magnitude / found.layers[0].fresh.weight_magnitude  # pyright: ignore
    assert problems(found) == [f"The weights of fc1 are {times:.1f} times as large as a fresh copy's."]
    assert found.verdict[-1].startswith("Consider neoteny.L2")
    assert healthy(neoteny.diagnose(model, inputs, control=False))


def test_says_that_weights_outside_the_hidden_layers_have_grown(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2)
    with torch.no_grad():
        model.fc3.weight.mul_(1e3)
    found = neoteny.diagnose(model, inputs)
    assert len(problems(found)) == 1
    assert problems(found)[0].startswith("The model's weights are ")


def test_says_that_activations_are_not_finite(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2)
    inputs[200, 0] = math.inf
    found = neoteny.diagnose(model, inputs)
    assert found.verdict[0] == "fc1's activations are not all finite on these inputs."
    assert math.isnan(found.layers[0].dead_share)
    assert "diverged" in found.verdict[-1]
    assert "nan" in str(found)


def test_a_network_that_training_has_killed_gets_the_verdict() -> None:
    torch.manual_seed(0)
    model = MLP(20, [64, 64], 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)  # far too high
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(10, 20, generator=generator)
    label = torch.randint(0, 10, (300, 32), generator=generator)
    batches = centres[label] + torch.randn(300, 32, 20, generator=generator)
    before = neoteny.diagnose(model, batches.flatten(0, 1)[:1000])
    for x, y in zip(batches, label, strict=True):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    found = neoteny.diagnose(model, batches.flatten(0, 1)[:1000])
    assert healthy(before)
    assert found.layers[1].dead_share > 0.2
    assert any("of fc2's units" in sentence and "never fire" in sentence for sentence in found.verdict)
    assert any(sentence.startswith("Consider neoteny.ContinualBackprop") for sentence in found.verdict)


def test_the_advice_runs(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2)
    with torch.no_grad():
        model.fc2.bias[:10] = -1e3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    advice = next(s for s in neoteny.diagnose(model, inputs).verdict if s.startswith("Consider"))
    line = advice.partition(": ")[2].partition(" replaces")[0]
    plastic = eval(line, {"neoteny": neoteny, "model": model, "optimizer": optimizer, "inputs": inputs})
    assert set(plastic.replaced) == {"fc1", "fc2"}


def test_one_unit_more_than_a_fresh_copy_is_chance() -> None:
    def layer(dead: int) -> diagnosis.LayerDiagnosis:
        return diagnosis.LayerDiagnosis("fc1", 20, dead, dead / 20, None, 15.0, 5.0, 0.1, 100)

    def blamed(dead: int, fresh: int) -> bool:
        return bool(verdict.on_dead_units(dataclasses.replace(layer(dead), fresh=layer(fresh)))[1])

    assert not blamed(2, 1)
    assert not blamed(6, 4)
    assert blamed(1, 0)
    assert blamed(6, 1)


# --- any module ------------------------------------------------------------------------------------------------------


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
        model.fc1.bias[:10] = -1e3
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
    found = neoteny.diagnose(model, inputs, norm="refuse")
    assert [layer.name for layer in found.layers] == ["3"]
    assert "LayerNorm" in found.left_out["0"]


class UsedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(torch.relu(self.twice(torch.relu(self.first(x)))))
        return self.head(torch.relu(self.last(torch.relu(x))))


def test_refused_layers_are_listed_and_the_others_measured(inputs: Tensor) -> None:
    found = neoteny.diagnose(UsedTwice(), inputs)
    assert [layer.name for layer in found.layers] == ["last"]
    assert "2 times in one forward pass" in found.refused["twice"]
    assert "refused\n" in str(found)
    assert "  twice: " in str(found)


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


# --- nothing left behind ---------------------------------------------------------------------------------------------


def test_the_model_is_left_exactly_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(8, 4, 3))
    model.add_module("tail", nn.Sequential(nn.Flatten(), nn.Linear(4 * 16, 5), nn.Tanh(), nn.Linear(5, 2)).eval())
    images = torch.randn(30, 3, 8, 8)
    model(images).sum().backward()
    loss = model(images).sum()  # its graph must survive
    kept = images.clone()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}  # pyright: ignore
    modes = [module.training for module in model.modules()]
    random = torch.get_rng_state()
    keys = [set(module.__dict__) for module in model.modules()]
    neoteny.diagnose(model, images)
    assert torch.equal(torch.get_rng_state(), random)
    assert modes == [module.training for module in model.modules()]
    assert keys == [set(module.__dict__) for module in model.modules()]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, gradients[name])  # pyright: ignore
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert torch.equal(images, kept)
    loss.backward()


def test_an_attached_model_can_be_diagnosed_between_updates(inputs: Tensor) -> None:
    def train(diagnosed: bool) -> Tensor:
        model = mlp(10, 40, 30, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        method = neoteny.ContinualBackprop(0.05, maturity_threshold=2)
        plastic = neoteny.attach(model, optimizer, method, example=inputs, seed=0)
        for _ in range(10):
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            if diagnosed:
                assert neoteny.diagnose(model, inputs).layers[0].units == 40
            loss.backward()
            optimizer.step()
            plastic.step()
        assert sum(plastic.replaced.values()) > 0
        return model.fc1.weight.detach()

    assert torch.equal(train(True), train(False))


# --- printing and plain numbers --------------------------------------------------------------------------------------


def test_prints_an_aligned_table_and_the_verdict(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2)
    with torch.no_grad():
        model.fc2.bias[:15] = -1e3
        model.fc2.bias[15:] = 1.0
    lines = str(neoteny.diagnose(model, inputs)).splitlines()
    header = lines[0].split("  ")
    assert [title.strip() for title in header if title.strip()] == [
        "layer", "units", "dead", "fresh", "effective rank", "fresh", "stable rank", "mean |w|", "fresh"
    ]  # fmt: skip
    assert lines[1].split()[:4] == ["fc1", "40", "0%", "0%"]
    assert lines[2].split()[:4] == ["fc2", "30", "50%", "7%"]
    assert lines[3].startswith("whole model      -     -")
    assert len({len(line) for line in lines[:4]}) == 1
    assert lines[5] == "verdict"
    assert lines[6] == "  50% of fc2's units (15 of 30) never fire on these inputs; in a fresh copy: 7%."
    assert "  fc3: output layer: its values are the model's output" in lines
    alone = str(neoteny.diagnose(mlp(10, 40, 2, act=nn.Tanh), inputs, control=False)).splitlines()
    assert "fresh" not in alone[0]
    assert "saturated" in alone[0]


def test_as_dict_is_plain(inputs: Tensor) -> None:
    found = neoteny.diagnose(mlp(10, 40, 2), inputs)
    plain = json.loads(json.dumps(found.as_dict()))
    assert plain["layers"][0]["fresh"]["units"] == 40
    assert plain["layers"][0]["effective_rank"] == found.layers[0].effective_rank
    assert plain == found.as_dict()
    assert found.layers[0].as_dict()["dead"] == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.weight_magnitude = 0.0  # pyright: ignore


# --- bad input -------------------------------------------------------------------------------------------------------


def test_bad_input_is_refused_by_name(inputs: Tensor) -> None:
    model = mlp(10, 40, 2)
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module; got str"):
        neoteny.diagnose("model", inputs)  # pyright: ignore
    with pytest.raises(TypeError, match=r"control must be True, False or a fresh nn\.Module; got int"):
        neoteny.diagnose(model, inputs, control=3)  # pyright: ignore
    with pytest.raises(ValueError, match=r"at least 2 examples.*got 1"):
        neoteny.diagnose(model, inputs[:1])
    with pytest.raises(ValueError, match=r"batch of examples.*got int"):
        neoteny.diagnose(model, 3)
    with pytest.raises(ValueError, match=r"a float32 tensor of shape \(300, 9\)"):
        neoteny.diagnose(model, inputs[:, :9])
    with pytest.raises(ValueError, match="norm must be 'refuse' or 'accept'"):
        neoteny.diagnose(model, inputs, norm="maybe")  # pyright: ignore
    with pytest.raises(ValueError, match="found none"):
        neoteny.diagnose(nn.Linear(10, 2), inputs)
    with pytest.raises(ValueError, match="has no Linear"):
        neoteny.diagnose(nn.ReLU(), inputs)


def test_a_model_that_cannot_be_copied_is_told_so(inputs: Tensor) -> None:
    model = mlp(10, 40, 2)
    model.kept = model.fc1.weight * 2  # not a leaf: deepcopy refuses it
    with pytest.raises(ValueError, match="control=False"):
        neoteny.diagnose(model, inputs)
    assert neoteny.diagnose(model, inputs, control=False).layers

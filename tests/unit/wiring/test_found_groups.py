"""trace: the groups of units that it finds, in networks of every kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup
from neoteny.wiring.trace import find, trace
from neoteny.wiring.wiring import WiringError
from support.wiring_checks import checked, features_of, outline
from support.wiring_models import (
    ActorCritic,
    Branches,
    Chunked,
    ConvNet,
    FunctionalMLP,
    Gated,
    Permuted,
    PreNormBlock,
    Residual,
    ResNet,
    SwiGLU,
)


def maps(group: UnitGroup) -> dict[str, list[list[int]]]:
    return {port.module: features_of(port).tolist() for port in group.consumers}


def rows_of(group: UnitGroup) -> list[list[int]]:
    return [features_of(port).flatten().tolist() for port in group.producers]


def run(units: int, repeat: int = 1, start: int = 0) -> list[list[int]]:
    return (torch.arange(units * repeat).view(units, repeat) + start).tolist()


def test_mlp_with_functional_activations() -> None:
    wiring = checked(FunctionalMLP(), torch.randn(3, 5))
    assert outline(wiring) == [(["fc1"], [], ["fc2"], "fc2"), (["fc2"], [], ["fc3"], "fc3")]
    assert [maps(g) for g in wiring] == [{"fc2": run(7)}, {"fc3": run(6)}]
    assert wiring.left_out == {"fc3": "output layer: its values are the model's output"}
    assert len(wiring) == 2


def test_nested_sequentials_and_dropout() -> None:
    inner = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.ReLU())
    model = nn.Sequential(inner, nn.Sequential(nn.Sequential(nn.Linear(5, 3), nn.Tanh()), nn.Linear(3, 1)))
    assert [g.name for g in checked(model, torch.randn(1, 4))] == ["0.0", "1.0.0"]


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2, 2), nn.AvgPool2d(2, 2)])
def test_the_papers_conv_net(pool: nn.Module) -> None:
    wiring = checked(ConvNet(pool), torch.randn(2, 3, 32, 32))
    assert [(g.name, g.units) for g in wiring] == [
        ("conv1", 32),
        ("conv2", 64),
        ("conv3", 128),
        ("fc1", 128),
        ("fc2", 128),
    ]
    assert maps(wiring.groups[2]) == {"fc1": run(128, 4)}
    assert "fc1[0:512, 4 each]" in str(wiring)


def test_conv1d_stride_padding_and_unbatched() -> None:
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3, stride=2, padding=1),
        nn.ELU(),
        nn.Conv1d(4, 3, 3, padding=2),
        nn.ReLU(),
        nn.Flatten(-2),
        nn.Linear(18, 2),
    )
    for shape in ((2, 2, 8), (2, 8)):
        wiring = checked(model, torch.randn(shape))
        assert [maps(g) for g in wiring] == [{"2": run(4)}, {"5": run(3, 6)}]


ACTIVATIONS = [
    nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(), nn.PReLU(), nn.PReLU(6), nn.ELU(), nn.CELU(), nn.SELU(), nn.GELU(),
    nn.SiLU(), nn.Mish(), nn.Sigmoid(), nn.Tanh(), nn.Softplus(), nn.Softsign(), nn.Softshrink(), nn.Hardshrink(),
    nn.Hardtanh(), nn.Hardswish(), nn.Hardsigmoid(), nn.LogSigmoid(), nn.Tanhshrink(), nn.RReLU(), nn.Identity(),
]  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: type(a).__name__)
def test_every_elementwise_activation(activation: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 6), activation, nn.Linear(6, 2))
    assert outline(checked(model, torch.randn(3, 4))) == [(["0"], [], ["2"], "2")]


@pytest.mark.parametrize("activation", [nn.Threshold(0.1, 20.0), nn.Threshold(-100.0, 0.0)])
def test_an_activation_that_swallows_nan_is_refused_or_right(activation: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 6), activation, nn.Linear(6, 2))
    wiring = find(model, torch.randn(3, 4))
    assert list(wiring.refused) == ["0"] or outline(wiring) == [(["0"], [], ["2"], "2")]


def test_batch_norm_before_and_after_the_activation() -> None:
    before = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten(), nn.Linear(8, 2)
    )
    after = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 2))
    pooled = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    )
    late = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.ReLU(),
        nn.BatchNorm2d(4),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.BatchNorm1d(16),
        nn.Linear(16, 2),
    )
    assert outline(checked(before, torch.randn(3, 1, 6, 6)))[0] == (["0"], ["1"], ["3"], "3")
    assert outline(checked(after, torch.randn(3, 4))) == [(["0"], ["2"], ["3"], "2")]
    assert outline(checked(pooled, torch.randn(3, 1, 4, 4))) == [(["0"], ["2"], ["5"], "5")]
    wiring = checked(late, torch.randn(3, 1, 4, 4))
    assert outline(wiring) == [(["0"], ["2", "5"], ["6"], "5")]
    assert features_of(wiring.groups[0].norms[1]).tolist() == run(4, 4)


@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.RMSNorm(6), nn.GroupNorm(2, 6), nn.GroupNorm(1, 6)])
def test_coupling_norms_are_included_with_a_note_unless_strict(norm: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), norm, nn.Linear(6, 2))
    wiring = checked(model, torch.randn(3, 4))
    assert outline(wiring) == [(["0"], [], ["2"], "2"), (["2"], ["4"], ["5"], "4")]
    assert "4 couples units" in str(wiring)
    assert outline(trace(model, torch.randn(3, 4), norm="accept")) == outline(wiring)
    before = nn.Sequential(nn.Linear(4, 6), norm, nn.ReLU(), nn.Linear(6, 2))
    assert outline(checked(before, torch.randn(3, 4))) == [(["0"], ["1"], ["3"], "3")]
    for word in ("strict", "refuse"):
        wiring = checked(model, torch.randn(3, 4), norm=word)
        assert outline(wiring) == [(["0"], [], ["2"], "2")]
        assert 'norm="accept"' in wiring.left_out["2"]


def test_norms_that_keep_units_apart_are_included() -> None:
    for norm in (nn.GroupNorm(4, 4), nn.InstanceNorm2d(4, affine=True), nn.BatchNorm2d(4, affine=False)):
        model = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
        assert outline(checked(model, torch.randn(3, 1, 4, 4))) == [(["0"], ["1"], ["4"], "4")]
    shaped = nn.Sequential(nn.Conv2d(1, 4, 3), nn.LayerNorm([4, 2, 2]), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    with pytest.raises(ValueError, match=r"LayerNorm 1 couples"):
        trace(shaped, torch.randn(3, 1, 4, 4), norm="accept")


def test_resnet_groups_are_inside_the_blocks_and_the_stream_is_left_out() -> None:
    wiring = checked(ResNet(), torch.randn(2, 3, 16, 16))
    names = [f"blocks.{number}" for number in range(8)]
    assert outline(wiring) == [([f"{n}.conv1"], [f"{n}.bn1"], [f"{n}.conv2"], f"{n}.conv2") for n in names]
    assert all("residual stream" in wiring.left_out[name] for name in ["conv1", *(f"{n}.conv2" for n in names)])
    assert "blocks.2.downsample.0" in wiring.left_out
    assert [group.consumers[0].norm_behind for group in wiring] == [f"{name}.bn2" for name in names]
    assert not any(group.notes for group in wiring)
    assert "residual stream" in str(wiring)


def test_a_sum_of_two_convolutions_is_one_group() -> None:
    wiring = checked(ResNet(widths=(4, 6), blocks=1), torch.randn(2, 3, 8, 8))
    both = wiring.groups[1]
    assert [port.module for port in both.producers] == ["blocks.1.downsample.0", "blocks.1.conv2"]
    assert maps(both) == {"fc": run(6)}
    assert len(both.norms) == 2


def test_actor_critic_with_a_distribution() -> None:
    wiring = checked(ActorCritic(), torch.randn(3, 4))
    assert outline(wiring) == [
        (["trunk.0"], [], ["trunk.2"], "trunk.2"),
        (["trunk.2"], [], ["actor", "critic"], "actor"),
    ]
    assert set(wiring.left_out) == {"actor", "critic"}


def test_concatenated_branches_and_permuted_features() -> None:
    wiring = checked(Branches(), torch.randn(2, 1, 4, 4))
    assert [maps(g) for g in wiring] == [{"head": run(3, 4)}, {"head": run(5, 4, start=12)}]
    wiring = checked(Permuted(), torch.randn(2, 1, 4, 4))
    assert maps(wiring.groups[0]) == {"head": torch.arange(12).view(4, 3).T.tolist()}
    assert "mapped" in str(wiring)


@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_encoder_layer(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 20, batch_first=True, norm_first=norm_first)
    wiring = checked(layer, torch.randn(2, 5, 8))
    assert outline(wiring) == [(["linear1"], [], ["linear2"], "linear2")]
    assert set(wiring.left_out) == {"self_attn", "linear2"}
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    assert [g.name for g in checked(stack, torch.randn(2, 5, 8))] == ["layers.0.linear1", "layers.1.linear1"]


def test_hand_written_pre_norm_blocks() -> None:
    wiring = checked(nn.Sequential(PreNormBlock(), PreNormBlock(), nn.Linear(8, 2)), torch.randn(2, 5, 8))
    assert outline(wiring) == [(["0.up"], [], ["0.down"], "0.down"), (["1.up"], [], ["1.down"], "1.down")]
    assert {"0.qkv", "0.proj", "0.down", "1.qkv", "1.proj", "1.down", "2"} == set(wiring.left_out)


def test_gated_products() -> None:
    wiring = checked(SwiGLU(), torch.randn(3, 4))
    assert outline(wiring) == [(["gate", "up"], [], ["down"], "down")]
    declared = UnitGroup(["fc", Port("fc", offset=6)], ["head"])
    for wiring in (checked(Gated(), torch.randn(3, 4)), checked(Gated(), torch.randn(3, 4), groups=[declared])):
        assert rows_of(wiring.groups[0]) == [list(range(6)), list(range(6, 12))]
        assert maps(wiring.groups[0]) == {"head": run(6)}


def test_rows_of_one_layer_that_meet_in_one_feature() -> None:
    class Met(nn.Module):
        def __init__(self, meet: Callable[[Tensor], Tensor]) -> None:
            super().__init__()
            self.fc, self.norm, self.head, self.meet = nn.Linear(4, 12), nn.BatchNorm1d(12), nn.Linear(6, 2), meet

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.pad(self.meet(self.norm(self.fc(x))), (0, 6))[:, :6])

    fused = Met(lambda x: F.silu(x.chunk(2, 1)[0]) * x.chunk(2, 1)[1])
    wiring = checked(fused, torch.randn(3, 4))
    assert rows_of(wiring.groups[0]) == [list(range(6)), list(range(6, 12))]
    assert features_of(wiring.groups[0].norms[0]).tolist() == [[unit, unit + 6] for unit in range(6)]
    maxout = checked(Met(lambda x: x.unflatten(1, (6, 2)).amax(2)), torch.randn(3, 4))
    assert rows_of(maxout.groups[0]) == [list(range(0, 12, 2)), list(range(1, 12, 2))]
    three = checked(Met(lambda x: x.unflatten(1, (3, 4)).amax(1)), torch.randn(3, 4))
    assert rows_of(three.groups[0]) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    with pytest.raises(WiringError, match="meet in one feature of head, in no order"):
        trace(Met(lambda x: x[:, :6] * x[:, 6:][:, order]), torch.randn(3, 4))
    assert "mix before they reach" in find(Met(lambda x: x.softmax(1)[:, :6]), torch.randn(3, 4)).left_out["fc"]


def test_rows_of_one_layer_that_go_to_different_places() -> None:
    wiring = checked(Chunked(), torch.randn(3, 4))
    assert [maps(g) for g in wiring] == [{"a": run(6)}, {"b": run(4)}]
    assert [features_of(g.producers[0]).flatten().tolist() for g in wiring] == [list(range(6)), list(range(6, 10))]
    assert [g.name for g in wiring] == ["fc", "fc[6:10]"]


def test_rows_that_nobody_consumes() -> None:
    class Cropped(FunctionalMLP):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc3(F.relu(self.fc2(F.pad(F.relu(self.fc1(x))[:, :4], (0, 3)))))

    wiring = checked(Cropped(), torch.randn(3, 5))
    assert features_of(wiring.groups[0].producers[0]).flatten().tolist() == [0, 1, 2, 3]
    assert wiring.left_out["fc1[4:7]"] == "nothing consumes these rows"


def test_volumes_and_transposed_convolutions() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 6, 3, groups=2), nn.ReLU(), nn.Conv2d(6, 1, 1)
    )
    assert [maps(g) for g in checked(model, torch.randn(2, 1, 6, 6))] == [{"2": run(4)}, {"4": run(6)}]
    volume = nn.Sequential(nn.Conv3d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 8, 2))
    assert [maps(g) for g in checked(volume, torch.randn(2, 1, 3, 3, 3))] == [{"3": run(3, 8)}]


def test_grouped_and_depthwise_convolutions() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 1),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, groups=2),
        nn.ReLU(),
        nn.Conv2d(6, 6, 1, groups=6),
        nn.ReLU(),
        nn.Conv2d(6, 1, 1),
    )
    wiring = checked(model, torch.randn(2, 2, 5, 5))
    assert [maps(g) for g in wiring] == [{"2": run(4)}, {"4": run(6)}, {"6": run(6)}]


def test_streams_with_inputs_embeddings_and_parameters() -> None:
    for source, word in (("input", "the model's input"), ("embedding", "table (Embedding)")):
        wiring = find(Residual(source), torch.randn(3, 6))
        assert not wiring.groups
        assert word in wiring.left_out["fc1"]
    wiring = checked(Residual("parameter"), torch.randn(3, 6))
    assert "parameter scale" in str(wiring)


def test_integer_inputs_that_bypass_a_layer_count_as_a_stream() -> None:
    class Bytes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = x.float() / 255
            return self.head(F.relu(self.fc1(x)) + x)

    wiring = find(Bytes(), torch.randint(1, 255, (3, 6), dtype=torch.uint8))
    assert "the model's input" in wiring.left_out["fc1"]


@settings(max_examples=15, deadline=None)
@given(
    widths=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    channels=st.lists(st.integers(1, 5), max_size=2),
    batch=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_random_networks(widths: list[int], channels: list[int], batch: int, seed: int) -> None:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    before = 2
    for width in channels:
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
        before = width
    layers += [nn.AvgPool2d(2), nn.Flatten()]
    before *= 4
    for width in widths:
        layers += [nn.Linear(before, width), nn.LeakyReLU()]
        before = width
    wiring = checked(nn.Sequential(*layers), torch.randn(batch, 2, 4, 4))
    assert [g.units for g in wiring] == [*channels, *widths[:-1]]
    assert [g.consumers[0].repeat for g in wiring] == [4 if n + 1 == len(channels) else 1 for n in range(len(wiring))]

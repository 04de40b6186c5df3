"""trace: the groups it finds, what it leaves out, what it refuses, and that it leaves no trace itself."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup
from neoteny.wiring.sandbox import Sandbox
from neoteny.wiring.trace import find, trace
from neoteny.wiring.verify import verify
from neoteny.wiring.wiring import Wiring, WiringError
from support.wiring_models import (
    ActorCritic,
    Auxiliary,
    Branches,
    Branching,
    Chunked,
    ConvNet,
    FunctionalMLP,
    FunctionalWeight,
    Gated,
    Permuted,
    PreNormBlock,
    Recurrent,
    Residual,
    ResNet,
    Stateful,
    Swallow,
    SwiGLU,
    UsedTwice,
)


@pytest.fixture(autouse=True)
def _seed_and_one_thread() -> Iterator[None]:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # hundreds of tiny passes: on a busy machine threads cost more than they give
    yield
    torch.set_num_threads(threads)


def checked(model: nn.Module, example: Any, **options: Any) -> Wiring:
    """The wiring, each group verified once more from outside, names distinct, ports spelled out."""
    wiring = trace(model, example, **options)
    with Sandbox(model, example) as sandbox:
        assert all(verify(sandbox, group) is None for group in wiring)
    assert len({group.name for group in wiring}) == len(wiring)
    for group in wiring:
        assert group.read in {port.module for port in (*group.consumers, *group.norms)}
        assert all(port.features.shape == (group.units, port.repeat) for port in (*group.consumers, *group.producers))
    return wiring


def maps(group: UnitGroup) -> dict[str, list[list[int]]]:
    return {port.module: port.features.tolist() for port in group.consumers}


def outline(wiring: Wiring) -> list[tuple[list[str], list[str], list[str], str | None]]:
    return [
        ([p.module for p in g.producers], [p.module for p in g.norms], [p.module for p in g.consumers], g.read)
        for g in wiring
    ]


def run(units: int, repeat: int = 1, start: int = 0) -> list[list[int]]:
    return (torch.arange(units * repeat).view(units, repeat) + start).tolist()


# --- what is found ---------------------------------------------------------------------------------------------------


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
    assert wiring.groups[0].norms[1].features.tolist() == run(4, 4)


@pytest.mark.parametrize("norm", [nn.LayerNorm(6), nn.RMSNorm(6), nn.GroupNorm(2, 6), nn.GroupNorm(1, 6)])
def test_coupling_norms_are_left_out_unless_accepted(norm: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), norm, nn.Linear(6, 2))
    wiring = checked(model, torch.randn(3, 4))
    assert outline(wiring) == [(["0"], [], ["2"], "2")]
    assert 'norm="accept"' in wiring.left_out["2"]
    wiring = checked(model, torch.randn(3, 4), norm="accept")
    assert outline(wiring)[1] == (["2"], ["4"], ["5"], "4")
    assert "accepted" in str(wiring)


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
    assert all("has no bias" in group.notes[0] for group in wiring)
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
    with pytest.raises(WiringError, match="offset=6") as caught:
        trace(Gated(), torch.randn(3, 4))
    declared = UnitGroup(["fc", Port("fc", offset=6)], ["head"])
    assert declared.declaration() in str(caught.value)
    wiring = checked(Gated(), torch.randn(3, 4), groups=[declared])
    assert [port.features.flatten().tolist() for port in wiring.groups[0].producers] == [
        list(range(6)),
        list(range(6, 12)),
    ]


def test_rows_of_one_layer_that_go_to_different_places() -> None:
    wiring = checked(Chunked(), torch.randn(3, 4))
    assert [maps(g) for g in wiring] == [{"a": run(6)}, {"b": run(4)}]
    assert [g.producers[0].features.flatten().tolist() for g in wiring] == [list(range(6)), list(range(6, 10))]
    assert [g.name for g in wiring] == ["fc", "fc[6:10]"]


def test_rows_that_nobody_consumes() -> None:
    class Cropped(FunctionalMLP):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc3(F.relu(self.fc2(F.pad(F.relu(self.fc1(x))[:, :4], (0, 3)))))

    wiring = checked(Cropped(), torch.randn(3, 5))
    assert wiring.groups[0].producers[0].features.flatten().tolist() == [0, 1, 2, 3]
    assert wiring.left_out["fc1[4:7]"] == "nothing consumes these rows"


def test_recurrent_layers_are_closed_boxes() -> None:
    wiring = checked(Recurrent(), torch.randint(10, (2, 5)))
    assert outline(wiring) == [(["hidden"], [], ["head"], "head")]
    assert "lstm (LSTM)" in wiring.left_out["before"]
    assert {"before", "head", "lstm", "embed"} == set(wiring.left_out)


def test_transposed_convolution_is_a_closed_box() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 3, 3), nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 1, 1)
    )
    wiring = checked(model, torch.randn(2, 1, 6, 6))
    assert [g.name for g in wiring] == ["3"]
    assert "2 (ConvTranspose2d)" in wiring.left_out["0"]


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


# --- what is refused or left out -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (Branching("hidden"), {"a"}),
        (Branching("input"), {"a"}),
        (UsedTwice(), {"again", "fc1"}),
        (FunctionalWeight(call=False), {"b"}),
        (Swallow("where"), {"fc1"}),
        (Swallow("nan_to_num"), {"fc1"}),
        (Auxiliary("head"), {"aux"}),
        (Auxiliary("values"), {"fc1"}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_what_is_not_understood_is_refused_by_name(model: nn.Module, names: set[str]) -> None:
    for x in (torch.randn(3, 4), -torch.randn(3, 4).abs(), torch.randn(3, 4).abs()):
        wiring = find(model, x)
        assert set(wiring.refused) & names or set(wiring.refused) & {"b"}, wiring
        with pytest.raises(WiringError, match="groups="):
            trace(model, x)


def test_a_guess_is_printed_and_can_be_declared() -> None:
    with pytest.raises(WiringError) as caught:
        trace(Swallow("where"), torch.randn(3, 4))
    assert "neoteny.UnitGroup(['fc1'], consumers=['fc2'])" in str(caught.value)
    assert "leave_out=['fc1']" in str(caught.value)
    wiring = checked(Swallow("where"), torch.randn(3, 4), groups=[UnitGroup("fc1", "fc2")])
    assert outline(wiring) == [(["fc1"], [], ["fc2"], "fc2")]


@pytest.mark.parametrize("how", ["argmax", "sign"])
def test_a_hidden_path_to_the_output_is_left_out(how: str) -> None:
    wiring = find(Swallow(how), torch.randn(3, 4))
    assert not wiring.groups
    assert "reach the model's output" in wiring.left_out["fc1"]
    with pytest.raises(WiringError, match="still move"):
        trace(Swallow(how), torch.randn(3, 4), groups=[UnitGroup("fc1", "fc2")])


def test_uncalled_layers_and_layers_used_twice_can_be_left_out() -> None:
    model = FunctionalMLP()
    model.spare = nn.Linear(3, 3)
    with pytest.raises(WiringError, match="never calls"):
        trace(model, torch.randn(3, 5))
    assert checked(model, torch.randn(3, 5), leave_out=["spare"]).left_out["spare"] == "left out on request"
    wiring = find(UsedTwice(), torch.randn(3, 4), leave_out=["again"])
    assert not wiring.refused
    assert "more than once" in wiring.left_out["fc1"]


def test_leave_out_takes_layers_and_their_parents() -> None:
    wiring = checked(ActorCritic(), torch.randn(3, 4), leave_out=["trunk.0"])
    assert [g.name for g in wiring] == ["trunk.2"]
    with pytest.raises(ValueError, match="left out on request"):
        trace(ActorCritic(), torch.randn(3, 4), leave_out=["trunk"])
    with pytest.raises(ValueError, match="did you mean 'trunk'"):
        trace(ActorCritic(), torch.randn(3, 4), leave_out=["trunck"])
    with pytest.raises(TypeError, match="list of module names"):
        trace(ActorCritic(), torch.randn(3, 4), leave_out="trunk")


def test_a_weight_used_elsewhere_is_left_out() -> None:
    wiring = find(FunctionalWeight(call=True), torch.randn(3, 4))
    assert not wiring.groups
    assert "outside its own forward" in wiring.left_out["b"]
    assert "outside its own forward" in wiring.left_out["a"]


def test_reading_a_weights_dtype_is_not_using_it() -> None:
    class Cast(FunctionalMLP):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to(self.fc1.weight.dtype).type_as(self.fc2.weight).to(self.fc2.weight.device))

    assert len(checked(Cast(), torch.randn(3, 5))) == 2


def _weight_norm(model: FunctionalMLP) -> None:
    torch.nn.utils.parametrizations.weight_norm(model.fc2)


def _old_weight_norm(model: FunctionalMLP) -> None:
    with pytest.warns(FutureWarning):
        torch.nn.utils.weight_norm(model.fc2)


def _frozen(model: FunctionalMLP) -> None:
    model.fc2.weight.requires_grad_(False)


def _frozen_bias(model: FunctionalMLP) -> None:
    model.fc2.bias.requires_grad_(False)


def _shared(model: FunctionalMLP) -> None:
    model.copy = nn.Linear(7, 6)
    model.copy.weight = model.fc2.weight


def _own_forward(model: FunctionalMLP) -> None:
    class Noisy(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) * 2

    model.fc2 = Noisy(7, 6)


@pytest.mark.parametrize("spoil", [_weight_norm, _old_weight_norm, _frozen, _frozen_bias, _shared, _own_forward])
def test_layers_that_must_not_be_written_are_left_out_with_their_neighbours(spoil: Any) -> None:
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), FunctionalMLP())
    spoil(model[2])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    wiring = checked(model, torch.randn(3, 5), leave_out=["2.copy"] if spoil is _shared else [])
    assert [g.name for g in wiring] == ["0"]
    assert "2.fc2" in wiring.left_out["2.fc1"]
    assert "2.fc2" in wiring.left_out
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_frozen_layers_can_still_be_found() -> None:
    model = FunctionalMLP().requires_grad_(False)
    with pytest.raises(ValueError, match="frozen"):
        trace(model, torch.randn(3, 5))
    assert len(find(model, torch.randn(3, 5), frozen=False)) == 2


def test_a_module_under_two_names_is_one_module() -> None:
    model = FunctionalMLP()
    model.alias = model.fc1
    assert [g.name for g in checked(model, torch.randn(3, 5))] == ["fc1", "fc2"]
    assert checked(model, torch.randn(3, 5), groups=[UnitGroup("alias", "fc2")]).groups[0].name == "fc1"


def test_code_that_rejects_nan_is_left_out() -> None:
    class Picky(FunctionalMLP):
        def forward(self, x: Tensor) -> Tensor:
            h = F.relu(self.fc1(x))
            if not torch.isfinite(h).all():
                raise RuntimeError("not finite")
            return self.fc3(F.relu(self.fc2(h)))

    wiring = checked(Picky(), torch.randn(3, 5))
    assert "rejects NaN (RuntimeError: not finite)" in wiring.left_out["fc1"]


# --- input -----------------------------------------------------------------------------------------------------------


def test_examples_as_tuple_and_dict() -> None:
    class Two(FunctionalMLP):
        def forward(self, x: Tensor, scale: Tensor, *, flip: bool = False) -> Tensor:
            return super().forward(x * scale) * (-1 if flip else 1)

    x, scale = torch.randn(3, 5), torch.ones(5)
    assert len(checked(Two(), (x, scale))) == 2
    assert len(checked(Two(), {"x": x, "scale": scale, "flip": True})) == 2


def test_layers_called_by_keyword() -> None:
    class Keyword(FunctionalMLP):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc3(input=F.relu(self.fc2(input=F.relu(self.fc1(input=x)))))

    assert len(checked(Keyword(), torch.randn(3, 5))) == 2


def test_wrong_input_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"shape \(3, 4\).*pass an example batch") as caught:
        trace(FunctionalMLP(), torch.randn(3, 4))
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        trace(lambda x: x, torch.randn(3, 4))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="norm must be"):
        trace(FunctionalMLP(), torch.randn(3, 5), norm="layer")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="NaN"):
        trace(FunctionalMLP(), torch.full((3, 5), torch.nan))
    with pytest.raises(ValueError, match="no shape yet"):
        trace(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)), torch.randn(3, 5))


@pytest.mark.parametrize("model", [nn.Linear(5, 2), nn.Sequential(nn.Linear(5, 2)), nn.ReLU(), nn.GRU(5, 2)])
def test_models_without_hidden_units(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="at least one group of hidden units"):
        trace(model, torch.randn(3, 5))


def test_declared_groups_good_and_bad() -> None:
    model, x = FunctionalMLP(), torch.randn(3, 5)
    wiring = checked(model, x, groups=[UnitGroup("fc2", "fc3"), UnitGroup(Port("fc1", torch.arange(7)), "fc2")])
    assert outline(wiring) == [(["fc1"], [], ["fc2"], "fc2"), (["fc2"], [], ["fc3"], "fc3")]
    with pytest.raises(ValueError, match="did you mean 'fc2'"):
        trace(model, x, groups=[UnitGroup("fc1", "fcc2")])
    with pytest.raises(ValueError, match="must lie in"):
        trace(model, x, groups=[UnitGroup("fc1", Port("fc3", offset=1))])
    with pytest.raises(WiringError, match="still move"):
        trace(model, x, groups=[UnitGroup("fc1", Port("fc2", torch.arange(7).flip(0)))])
    with pytest.raises(WiringError, match="still move"):
        trace(ActorCritic(), torch.randn(3, 4), groups=[UnitGroup("trunk.2", "actor")])
    with pytest.raises(TypeError, match="Linear, Conv1d or Conv2d"):
        trace(nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2)), x, groups=[UnitGroup("0", "1")])
    with pytest.raises(TypeError, match="list of neoteny"):
        trace(model, x, groups=UnitGroup("fc1", "fc2"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="claimed twice"):
        trace(model, x, groups=[UnitGroup("fc1", "fc2"), UnitGroup("fc1", "fc2")])
    model.fc2.weight.requires_grad_(False)
    with pytest.raises(WiringError, match="frozen"):
        trace(model, x, groups=[UnitGroup("fc1", "fc2")])


def test_a_declared_norm_is_read_in_the_right_place_and_noted() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.LayerNorm(6), nn.Linear(6, 2))
    wiring = checked(model, torch.randn(3, 4), groups=[UnitGroup("0", "3", "2")])
    assert wiring.groups[0].read == "2"
    assert "accepted" in wiring.groups[0].notes[0]
    with pytest.raises(WiringError, match="still move"):
        trace(model, torch.randn(3, 4), groups=[UnitGroup("0", "3")])


def test_a_compiled_model_is_looked_through() -> None:
    model = FunctionalMLP()
    compiled = torch.compile(model)
    assert [g.name for g in trace(compiled, torch.randn(3, 5))] == ["fc1", "fc2"]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    model = nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 2)
    )
    wiring = checked(model.to(dtype), torch.randn(3, 4, dtype=dtype))
    assert outline(wiring) == [(["0"], ["2"], ["3"], "2"), (["3"], [], ["5"], "5")]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda() -> None:
    wiring = checked(ResNet().cuda(), torch.randn(2, 3, 16, 16, device="cuda"))
    assert len(wiring) == 8
    assert len(checked(ConvNet().cuda(), torch.randn(2, 3, 32, 32, device="cuda"))) == 5


# --- no trace of the tracing -----------------------------------------------------------------------------------------


def _state(model: nn.Module) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for name, module in model.named_modules():
        state[f"{name}/keys"] = {key: id(value) for key, value in module.__dict__.items()}
        for key, value in module.__dict__.items():
            if isinstance(value, dict):
                state[f"{name}/{key}"] = {k: id(v) for k, v in value.items()}
            elif isinstance(value, list):
                state[f"{name}/{key}"] = [id(item) for item in value]
            elif isinstance(value, Tensor):
                state[f"{name}/{key}"] = value.tolist()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        state[name] = (tensor.detach().view(-1).clone().numpy().tobytes(), tensor._version, tensor.requires_grad)
    state["flags"] = (
        torch.backends.mha.get_fastpath_enabled(),
        torch.distributions.Distribution._validate_args,
        torch.backends.cuda.flash_sdp_enabled(),
        torch.is_grad_enabled(),
    )
    state["random"] = (torch.get_rng_state().tolist(), random.getstate())
    return state


@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_left_exactly_as_it_was(training: bool) -> None:
    model = Stateful().train(training)
    model.drop.train(not training)
    model.fc1.register_forward_hook(lambda *_: None)
    before = _state(model)
    checked(model, torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
    assert _state(model) == before


@pytest.mark.parametrize("model", [UsedTwice(), Swallow("where"), Branching("hidden"), Auxiliary("values")])
def test_a_refused_model_is_left_exactly_as_it_was(model: nn.Module) -> None:
    before = _state(model)
    with pytest.raises(WiringError):
        trace(model, torch.ones(3, 4))
    with pytest.raises(ValueError, match="pass an example"):
        trace(model, torch.ones(3, 9))
    assert _state(model) == before


def test_a_waiting_backward_pass_survives() -> None:
    model, x = FunctionalMLP(), torch.randn(3, 5)
    loss = model(x).sum()
    trace(model, x)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_dead_units_are_judged_too() -> None:
    model = FunctionalMLP()
    with torch.no_grad():
        model.fc1.bias.fill_(-100.0)
        model.fc2.bias.fill_(-100.0)
    swapped = copy.deepcopy(model)
    assert len(checked(model, torch.randn(3, 5))) == 2
    with pytest.raises(WiringError, match="still move"):
        trace(swapped, torch.randn(3, 5), groups=[UnitGroup("fc1", Port("fc2", torch.arange(7).roll(1)))])


class _RunningMean:
    """Statistics kept outside of the module system, as much reinforcement-learning code does."""

    def __init__(self) -> None:
        self.mean = torch.zeros(5)
        self.array = np.zeros(5)
        self.count = 0
        self.seen: list[int] = []

    def update(self, values: Tensor) -> None:
        self.mean += values.detach().mean(0) - self.mean
        self.array += values.mean(0).numpy(force=True)
        self.count += 1
        self.seen.append(len(values))


class _Monitored(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 2)
        self.monitor = _RunningMean()

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        self.monitor.update(hidden)
        return self.second(hidden)


def test_state_in_plain_objects_is_left_as_it_was() -> None:
    model = _Monitored()
    model(torch.randn(4, 3))
    monitor = model.monitor
    kept = monitor.mean.clone(), monitor.array.copy(), monitor.count, list(monitor.seen)
    assert len(trace(model, torch.randn(4, 3))) == 1
    assert model.monitor is monitor
    assert torch.equal(monitor.mean, kept[0])
    assert np.array_equal(monitor.array, kept[1])
    assert (monitor.count, monitor.seen) == kept[2:]


@dataclasses.dataclass(slots=True)
class _Output:
    logits: Tensor


class _Slotted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))

    def forward(self, x: Tensor) -> _Output:
        return _Output(self.net(x))


def test_outputs_in_a_slotted_dataclass_are_seen() -> None:
    assert [group.name for group in trace(_Slotted(), torch.randn(4, 3))] == ["net.0"]

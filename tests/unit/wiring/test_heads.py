"""Attention heads as units: found in every way of writing attention, verified, read, and replaced as a whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import neoteny
from neoteny import UnitGroup, trace
from neoteny.layers.groups import Port
from neoteny.wiring.sandbox import Sandbox
from neoteny.wiring.verify import verify
from support.attention_models import WIDTH, Attention, Block, TorchAttention
from support.wiring_checks import checked, features_of

X = torch.randn(4, 5, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("attention", "units", "rows"),
    [
        (Attention(), 3, {"q": 4, "k": 4, "v": 4}),
        (Attention(6, key_heads=2), 2, {"q": 6, "k": 2, "v": 2}),
        (Attention(layout="parts"), 3, {"qkv": 12}),
        (Attention(6, key_heads=3, layout="parts"), 3, {"qkv": 8}),
        (Attention(layout="heads"), 3, {"qkv": 12}),
    ],
    ids=["apart", "grouped queries", "parts", "parts of grouped queries", "head by head"],
)
def test_heads_are_found_however_they_are_written(attention: Attention, units: int, rows: dict[str, int]) -> None:
    (group,) = checked(Block(attention), X, heads=True)
    assert {port.module.removeprefix("attention."): port.repeat for port in group.producers} == rows
    assert torch.equal(features_of(group.consumers[0]), torch.arange(WIDTH).view(units, -1))
    assert group.notes[0] == "its units are attention heads"
    if attention.layout == "parts":
        assert features_of(group.producers[0])[1].tolist()[: WIDTH // units] == list(
            range(WIDTH // units, 2 * WIDTH // units)
        )


def test_a_norm_of_queries_that_all_heads_share_is_noted() -> None:
    (group,) = checked(Block(Attention(norm=True)), X, heads=True)
    assert group.norms == ()
    assert group.notes[1] == "also shaped by attention.norm, which all heads share, left as it is"


def test_heads_are_off_by_default() -> None:
    with pytest.raises(ValueError, match=r"mix in attention\.out"):
        trace(Block(Attention()), X)


def test_the_heads_of_torchs_own_layer() -> None:
    (group,) = checked(Block(TorchAttention()), X, heads=True)
    assert group.name == "attention.inner.heads"
    assert [port.key for port in group.producers] == ["attention.inner.in_proj_weight"]
    assert features_of(group.producers[0])[1].tolist() == [*range(4, 8), *range(16, 20), *range(28, 32)]
    encoder = nn.Sequential(nn.TransformerEncoderLayer(WIDTH, 3, 7, batch_first=True), nn.Linear(WIDTH, 2))
    assert [group.name for group in checked(encoder, X, heads=True)] == ["0.self_attn.heads", "0.linear1"]


def test_what_is_no_head() -> None:
    def reasons(attention: nn.Module, **options: Any) -> str:
        model = nn.Sequential(Block(attention), nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 2))
        wiring = checked(model, X, heads=True, **options)
        assert [group.name for group in wiring] == ["0.head", "1"]
        return " ".join(wiring.left_out.values())

    assert "kdim, vdim" in reasons(TorchAttention(kdim=8, vdim=8))
    assert "add_bias_kv" in reasons(TorchAttention(add_bias_kv=True))
    assert "couples its units" in reasons(Attention(norm=True), norm="strict")
    assert "mix in 0.attention.out" in reasons(Attention(heads=1))
    assert "left out on request" in reasons(Attention(), leave_out=["0.attention.q"])
    frozen = TorchAttention()
    frozen.inner.requires_grad_(False)
    assert "frozen" in reasons(frozen)


def test_returned_attention_weights_are_an_output() -> None:
    with pytest.raises(ValueError, match="at least one group"):
        trace(Block(TorchAttention(shown=True)), X, heads=True)


def test_the_gate_sees_wrong_heads() -> None:
    model = Block(Attention())
    (group,) = trace(model, X, heads=True)

    def fails(wrong: UnitGroup) -> bool:
        with Sandbox(model, X) as sandbox:
            return verify(sandbox, wrong) is not None

    assert not fails(group)
    shifted = [Port(port.module, features_of(port).flatten().roll(1).view(3, 4)) for port in group.producers]
    for place in range(3):
        producers = [shifted[n] if n == place else port for n, port in enumerate(group.producers)]
        assert fails(UnitGroup(producers, group.consumers)), place


@pytest.mark.parametrize("build", [Attention, partial(Attention, layout="heads"), TorchAttention])
def test_a_replaced_head_leaves_the_mean_where_it_was(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    attention = build()
    model = Block(attention)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = neoteny.ContinualBackprop(0.4, maturity_threshold=0, count="layer")
    plastic = neoteny.attach(model, optimizer, method, example=X, seed=0, heads=True)
    (group,) = plastic.wiring.groups  # pyright: ignore[reportOptionalMemberAccess]
    mean = attention(model.norm(X)).mean((0, 1)).detach()
    model(X).square().mean().backward()
    optimizer.step()
    plastic.step()
    (replaced,) = [u for u in range(3) if not _columns(model, group, u).any()]
    assert plastic.replaced == {group.name: 1}
    for port in group.producers:
        name = f"{port.module}.{port.weight}"
        rows, value = features_of(port)[replaced], model.get_parameter(name)
        kept = torch.ones(len(value), dtype=torch.bool).index_fill_(0, rows, False)
        assert torch.equal(value[kept], before[name][kept])
        assert not torch.isclose(value[rows], before[name][rows]).any()
        bias = dict(model.named_parameters()).get(name.replace("weight", "bias"))
        assert bias is None or not bias[rows].any()
    torch.testing.assert_close(attention(model.norm(X)).mean((0, 1)), mean)


def _columns(model: nn.Module, group: UnitGroup, unit: int) -> torch.Tensor:
    port = group.consumers[0]
    return model.get_parameter(f"{port.module}.weight")[:, features_of(port)[unit]]

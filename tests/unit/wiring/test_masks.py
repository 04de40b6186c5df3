"""trace: masks, edges, lengths and weights of the input leave groups as they are; inputs that are added do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoteny.wiring.sandbox import few_examples
from neoteny.wiring.trace import find
from support.wiring_checks import checked, outline

MASK = torch.tensor([[True, True, True, False], [True, True, False, False], [True, False, False, False]])
EDGES = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])


class Pooled(nn.Module):
    """A layer of units, and what `pool` makes of them with a second input, before the head."""

    def __init__(self, pool: Any, activation: Any = F.relu) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(5, 6), nn.Linear(6, 2)
        self.pool, self.activation = pool, activation

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        return self.head(self.pool(self.activation(self.fc(x)), other))


def mean(h: Tensor, mask: Tensor) -> Tensor:
    weights = mask.unsqueeze(-1).to(h.dtype)
    return (h * weights).sum(1) / weights.sum(1)


def by_length(h: Tensor, lengths: Tensor) -> Tensor:
    return mean(h, torch.arange(h.shape[1]) < lengths.unsqueeze(-1))


def last(h: Tensor, lengths: Tensor) -> Tensor:
    return h[torch.arange(len(h)), lengths - 1]


def maximum(h: Tensor, mask: Tensor) -> Tensor:
    return h.masked_fill(~mask.unsqueeze(-1), -1e9).amax(1)


@pytest.mark.parametrize(
    ("pool", "other"),
    [
        (mean, MASK), (mean, MASK.float()), (mean, MASK.long()), (mean, torch.ones(3, 4, dtype=torch.bool)),
        (mean, torch.rand(3, 4)), (by_length, torch.tensor([3, 2, 1])), (last, torch.tensor([4, 2, 1])),
        (maximum, MASK), (maximum, torch.ones(3, 4, dtype=torch.bool)),
        (lambda h, mask: h[mask], MASK),
        (lambda h, mask: torch.where(mask.unsqueeze(-1), h, torch.zeros_like(h)), MASK),
    ],
)  # fmt: skip
@pytest.mark.parametrize("activation", [F.relu, torch.sigmoid])
def test_what_only_selects_or_weights_is_no_obstacle(pool: Any, other: Tensor, activation: Any) -> None:
    wiring = checked(Pooled(pool, activation), (torch.randn(3, 4, 5), other))
    assert outline(wiring) == [(["fc"], [], ["head"], "head")]


@pytest.mark.parametrize(
    ("pool", "other"),
    [
        (lambda h, mask: (h + mask.unsqueeze(-1)).sum(1), MASK),
        (lambda h, x: h + x, torch.rand(3, 4, 6)),
        (lambda h, x: F.relu(h + x), torch.rand(3, 4, 6)),
        (lambda h, x: h * x, torch.rand(3, 4, 6)),  # each unit is the gate of an input feature
        (lambda h, x: h * x, torch.randint(2, (3, 4, 6)).float()),
        (lambda h, x: torch.where(x.unsqueeze(-1), h, torch.ones_like(h) * x.sum()), MASK),
    ],
)
def test_inputs_that_the_columns_carry_themselves_leave_the_layer_out(pool: Any, other: Tensor) -> None:
    wiring = find(Pooled(pool, torch.sigmoid), (torch.randn(3, 4, 5), other))
    assert wiring.left_out["fc"] == "its columns of head also carry the model's input"


class GraphConvolutions(nn.Module):
    """Two graph convolutions (Kipf and Welling, 2017) over `edge_index`, and a head on the mean of all nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(3, 6), nn.Linear(6, 7), nn.Linear(7, 2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        source, target = edge_index
        weight = torch.ones(len(source)) if edge_weight is None else edge_weight
        degree = torch.ones(len(x)).index_add(0, target, weight)
        scale = (weight / (degree[source] * degree[target]).sqrt()).unsqueeze(-1)
        for layer in (self.one, self.two):
            x = layer(x)
            x = F.relu(x / degree.unsqueeze(-1) + torch.zeros_like(x).index_add(0, target, x[source] * scale))
        return self.head(x.mean(0))


def test_graph_convolutions() -> None:
    expected = [(["one"], [], ["two"], "two"), (["two"], [], ["head"], "head")]
    assert outline(checked(GraphConvolutions(), (torch.randn(5, 3), EDGES))) == expected
    weighted = {"x": torch.randn(5, 3), "edge_index": EDGES, "edge_weight": torch.rand(6)}
    assert outline(checked(GraphConvolutions(), weighted)) == expected


def test_a_batch_as_an_object_of_its_own() -> None:
    @dataclass
    class Data:
        x: Tensor
        edge_index: Tensor

    class OfData(GraphConvolutions):
        def forward(self, data: Data) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            data.x = data.x * 1.0  # the pass works on a copy
            return super().forward(data.x, data.edge_index)

    data = Data(torch.randn(5, 3), EDGES)
    kept = data.x
    assert len(checked(OfData(), data)) == 2
    assert data.x is kept

    class Skip(OfData):
        def forward(self, data: Data) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return self.two(F.relu(self.one(data.x)) + data.x.repeat(1, 2))

    assert "the model's input" in find(Skip(), data).left_out["one"]


def test_graph_attention_mixes_its_own_units_but_not_those_of_the_next_layer() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value, self.hidden, self.head = nn.Linear(3, 6), nn.Linear(6, 7), nn.Linear(7, 2)
            self.attend = nn.Parameter(torch.randn(12))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            source, target = edge_index
            h = self.value(x)
            score = F.leaky_relu(torch.cat([h[source], h[target]], -1) @ self.attend).exp()
            share = score / torch.zeros(len(x)).index_add(0, target, score)[target]
            h = F.elu(torch.zeros_like(h).index_add(0, target, h[source] * share.unsqueeze(-1)))
            return self.head(F.relu(self.hidden(h)))

    wiring = checked(Attention(), (torch.randn(5, 3), EDGES))
    assert outline(wiring) == [(["hidden"], [], ["head"], "head")]
    assert "mix before they reach hidden" in wiring.left_out["value"]


def test_a_transformer_encoder_with_a_padding_mask() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
            self.hidden, self.head = nn.Linear(8, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            h = F.relu(self.hidden(self.encoder(x, src_key_padding_mask=~mask)))
            return self.head(mean(h, mask))

    wiring = checked(Encoder(), (torch.randn(3, 4, 8), MASK))
    assert [group.name for group in wiring] == ["encoder.layers.0.linear1", "hidden"]


def test_rows_are_not_cut_off_where_other_inputs_may_point_at_them() -> None:
    graph = (torch.randn(5, 3), EDGES)
    assert few_examples(graph) is graph
    tokens = {"ids": torch.zeros(5, 4, dtype=torch.int64), "positions": torch.arange(4).view(1, 4)}
    assert few_examples(tokens)["ids"].shape == (2, 4)

"""trace: embeddings that feed units, also where a table is tied to the output layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import neoteny
from support.wiring_checks import checked, outline


class Language(nn.Module):
    """A table of tokens, a residual block, and an output layer that may share the table."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 6), nn.Embedding(8, 6)
        self.up, self.down, self.head = nn.Linear(6, 9), nn.Linear(9, 6), nn.Linear(6, 20, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(x + self.down(self.up(x).relu()))


@pytest.mark.parametrize("tied", [False, True])
def test_layers_behind_a_table_are_found_and_the_table_takes_one_line(tied: bool) -> None:
    wiring = checked(Language(tied), torch.randint(20, (2, 5)))
    assert outline(wiring) == [(["up"], [], ["down"], "down")]
    assert wiring.left_out["tokens"] == "Embedding: a table of the network's input, which has no units"
    assert ("shared with tokens.weight" in wiring.left_out["head"]) == tied


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_bag_of_embeddings_feeds_units(mode: str) -> None:
    model = nn.Sequential(nn.EmbeddingBag(20, 6, mode=mode), nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 2))
    wiring = neoteny.trace(model, torch.randint(20, (4, 3)))
    assert [group.name for group in wiring] == ["1"]
    assert "has no units" in wiring.left_out["0"]

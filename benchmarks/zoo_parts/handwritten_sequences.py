"""Hand-written models of sequences."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from zoo_parts.entry import Entry

WORDS = 200


class GRUClassifier(nn.Module):
    """Words, a GRU, a hidden layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.gru = nn.Embedding(WORDS, 32), nn.GRU(32, 64, batch_first=True)
        self.hidden, self.out = nn.Linear(64, 64), nn.Linear(64, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        _, last = self.gru(self.words(tokens))
        return self.out(F.relu(self.hidden(last[-1])))


class LSTMLanguageModel(nn.Module):
    """Two layers of LSTM with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(WORDS, 64), nn.LSTM(64, 64, num_layers=2, dropout=0.2, batch_first=True)
        self.drop, self.out = nn.Dropout(0.2), nn.Linear(64, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.drop(self.lstm(self.drop(self.words(tokens)))[0]))


class SwiGLUBlock(nn.Module):
    """Causal attention and a gated feed-forward network, both behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        hidden = self.norm2(x)
        return x + self.down(F.silu(self.gate(hidden)) * self.up(hidden))


class Transformer(nn.Module):
    """A small language model with the output layer tied to the embedding."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(64, width)
        self.blocks = nn.ModuleList(SwiGLUBlock(width, heads) for _ in range(depth))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class EncoderClassifier(nn.Module):
    """torch's own encoder, and a mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(64, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.encoder(self.words(tokens)).mean(1))


class TemporalBlock(nn.Module):
    """Two dilated causal convolutions, weight-normed, with a residual connection."""

    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.one = weight_norm(nn.Conv1d(inputs, outputs, 3, dilation=dilation))
        self.two = weight_norm(nn.Conv1d(outputs, outputs, 3, dilation=dilation))
        self.skip = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = F.dropout(F.relu(self.one(F.pad(x, (self.pad, 0)))), 0.1, self.training)
        inner = F.relu(self.two(F.pad(inner, (self.pad, 0))))
        return F.relu(inner + self.skip(x))


class TCN(nn.Module):
    """Three temporal blocks and a linear head on the last position."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(TemporalBlock(4, 32, 1), TemporalBlock(32, 32, 2), TemporalBlock(32, 32, 4))
        self.out = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.blocks(x)[..., -1])


class WaveNet(nn.Module):
    """Gated dilated convolutions with skip connections."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.start = nn.Conv1d(1, width, 1)
        self.filters = nn.ModuleList(nn.Conv1d(width, width, 2, dilation=2**i) for i in range(4))
        self.gates = nn.ModuleList(nn.Conv1d(width, width, 2, dilation=2**i) for i in range(4))
        self.back = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(4))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(4))
        self.end1, self.end2 = nn.Conv1d(width, width, 1), nn.Conv1d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.start(x), torch.zeros(())
        for number, (signal, gate) in enumerate(zip(self.filters, self.gates, strict=True)):
            padded = F.pad(x, (2**number, 0))
            inner = torch.tanh(signal(padded)) * torch.sigmoid(gate(padded))
            total = total + self.skips[number](inner)
            x = x + self.back[number](inner)
        return self.end2(F.relu(self.end1(F.relu(total))))


def sentences() -> Tensor:
    """Four sentences of twelve words."""
    return torch.randint(0, WORDS, (4, 12))


ENTRIES = [
    Entry("GRU classifier", GRUClassifier, sentences),
    Entry("LSTM language model", LSTMLanguageModel, sentences),
    Entry("SwiGLU transformer", Transformer, sentences),
    Entry("torch's TransformerEncoder", EncoderClassifier, sentences),
    Entry("TCN", TCN, lambda: torch.randn(4, 4, 32)),
    Entry("WaveNet", WaveNet, lambda: torch.randn(2, 1, 64)),
]

"""Attention with heads, written in the ways in which it is found."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 12


class Attention(nn.Module):
    """Self-attention with a mask that hides what follows.

    Args:
        heads: of queries.
        key_heads: of keys and values; fewer than `heads` in grouped-query attention.
        layout: "apart" (three layers), or of one layer for all three: "parts" (all queries, then all keys, then all
            values) or "heads" (these three of each head in turn).
        norm: normalise each head's queries with a LayerNorm that all heads share.
    """

    def __init__(self, heads: int = 3, key_heads: int | None = None, layout: str = "apart", norm: bool = False) -> None:
        super().__init__()
        self.heads, self.size, self.layout = heads, WIDTH // heads, layout
        self.key_heads = key_heads or heads
        keys = self.key_heads * self.size
        if layout == "apart":
            self.q, self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, keys), nn.Linear(WIDTH, keys, bias=False)
        else:
            self.qkv = nn.Linear(WIDTH, WIDTH + 2 * keys)
        self.norm = nn.LayerNorm(self.size) if norm else nn.Identity()
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        keys = self.key_heads * self.size
        if self.layout == "apart":
            parts = self.q(x), self.k(x), self.v(x)
        elif self.layout == "parts":
            parts = self.qkv(x).split([WIDTH, keys, keys], -1)
        else:
            parts = [part.flatten(-2) for part in self.qkv(x).unflatten(-1, (self.heads, 3, self.size)).unbind(-2)]
        q, k, v = (part.unflatten(-1, (-1, self.size)).transpose(1, 2) for part in parts)
        k, v = (part.repeat_interleave(self.heads // self.key_heads, 1) for part in (k, v))
        values = F.scaled_dot_product_attention(self.norm(q), k, v, is_causal=True)
        return self.out(values.transpose(1, 2).flatten(2))


class TorchAttention(nn.Module):
    """The same in torch's own layer; with `shown`, the model returns the attention weights, too."""

    def __init__(self, shown: bool = False, **options: Any) -> None:
        super().__init__()
        self.inner, self.shown = nn.MultiheadAttention(WIDTH, 3, batch_first=True, **options), shown

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        keys = x[..., : self.inner.kdim]
        values, weights = self.inner(x, keys, keys, attn_mask=mask, is_causal=True, need_weights=self.shown)
        return (values, weights) if self.shown else values


class Block(nn.Module):
    """Attention in a residual stream, and a head."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention, self.norm, self.head = attention, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        values = self.attention(self.norm(x))
        if isinstance(values, tuple):
            return self.head(x + values[0]), values[1]
        return self.head(x + values)

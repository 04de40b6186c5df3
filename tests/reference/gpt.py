"""A pre-norm decoder, naively: one sequence, one position, one head at a time, in NumPy.

h = token + position; h += project(attention(norm1(h))); h += fc2(act(fc1(norm2(h)))); logits = out(norm(h)). A head
weighs the values of all positions up to its own by softmax(q k / sqrt(size)).
"""

from __future__ import annotations

import math

import numpy as np

Weights = dict[str, np.ndarray]


def norm(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    centred = x - x.mean()
    return centred / math.sqrt((centred**2).mean() + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    return weights[f"{name}.weight"] @ x + weights.get(f"{name}.bias", 0.0)


def activate(x: np.ndarray, activation: str) -> np.ndarray:
    if activation == "relu":
        return np.maximum(x, 0.0)
    return np.array([value * 0.5 * (1.0 + math.erf(value / math.sqrt(2.0))) for value in x])


def logits(tokens: np.ndarray, weights: Weights, heads: int, blocks: int, activation: str) -> np.ndarray:
    """Logits (T, tokens) of one sequence (T,)."""
    stream = [weights["tokens.weight"][token] + weights["positions.weight"][t] for t, token in enumerate(tokens)]
    width = len(stream[0])
    size = width // heads
    for number in range(blocks):
        block = f"blocks.{number}"
        rows = [linear(norm(h, weights, f"{block}.norm1"), weights, f"{block}.qkv") for h in stream]
        for t in reversed(range(len(stream))):
            given = np.zeros(width)
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                query = rows[t][:width][part]
                scores = np.array([query @ rows[s][width : 2 * width][part] / math.sqrt(size) for s in range(t + 1)])
                shares = np.exp(scores - scores.max())
                shares /= shares.sum()
                for s in range(t + 1):
                    given[part] += shares[s] * rows[s][2 * width :][part]
            stream[t] = stream[t] + linear(given, weights, f"{block}.project")
        for t, h in enumerate(stream):
            units = activate(linear(norm(h, weights, f"{block}.norm2"), weights, f"{block}.fc1"), activation)
            stream[t] = h + linear(units, weights, f"{block}.fc2")
    return np.array([linear(norm(h, weights, "norm"), weights, "out") for h in stream])


def loss(tokens: np.ndarray, targets: np.ndarray, weights: Weights, heads: int, blocks: int, activation: str) -> float:
    """Mean cross-entropy per token of a batch of sequences (B, T)."""
    total = 0.0
    for sequence, wanted in zip(tokens, targets, strict=True):
        for row, target in zip(logits(sequence, weights, heads, blocks, activation), wanted, strict=True):
            total += math.log(np.exp(row - row.max()).sum()) + row.max() - row[target]
    return total / tokens.size

"""Draws of problems: ranges of uniform numbers, whole numbers and shuffles, each from its own counter-based stream.

Below this is `neoteny.draws.rng`; above it are the problems. Number i of a stream is word i % 4 of the generator's row
i // 4, so any range of a stream can be drawn without the rest, and has the same numbers however the stream is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from neoteny.draws import rng

CPU = torch.device("cpu")


def draw(seeds: Sequence[int], step: int, purpose: str, start: int, stop: int, device: torch.device = CPU) -> Tensor:
    """Numbers start to stop - 1 of the streams of these seeds: uniform in (0, 1), float64 (n, stop - start).

    Example:
        >>> whole = draw([3, 4], 0, "example", 0, 10)
        >>> bool((draw([4], 0, "example", 5, 9) == whole[1:, 5:9]).all())
        True
    """
    first = start // 4
    rows = torch.arange(first, -(-stop // 4), device=device)
    keys = torch.tensor(list(seeds), dtype=torch.int64, device=device).unsqueeze(-1)
    return rng.uniform(keys, step, purpose, rows, 4).flatten(-2)[:, start - 4 * first : stop - 4 * first]


def draw_whole(
    seeds: Sequence[int], step: int, purpose: str, start: int, stop: int, below: int, device: torch.device = CPU
) -> Tensor:
    """Whole numbers from 0 to below - 1, int64 (n, stop - start); see `draw`."""
    return (draw(seeds, step, purpose, start, stop, device) * below).long()


def shuffle(seeds: Sequence[int], step: int, purpose: str, count: int, first: int = 0, rounds: int = 1) -> Tensor:
    """Random orders of 0 to count - 1, int32 (n, rounds, count); round r does not depend on `first` or `rounds`.

    An order is the stable argsort of uniform numbers, which depends on no library's generator. The numbers' 32-bit
    words are sorted with the positions in their low bits, which no two share: the same order, and faster.
    """
    numbers = draw(seeds, step, purpose, first * count, (first + rounds) * count).unflatten(-1, (rounds, count))
    keys = numbers.mul(2.0**32).long().mul(2**31).add(torch.arange(count)).numpy()
    keys.sort(axis=-1)
    return torch.from_numpy(keys).bitwise_and(2**31 - 1).int()


def draw_from_passes(seed: int, purpose: str, count: int, start: int, stop: int) -> Tensor:
    """Numbers start to stop - 1 of endless passes through 0 to count - 1, each in a new random order: int32.

    Example:
        >>> sorted(draw_from_passes(5, "example", 3, 3, 6).tolist())
        [0, 1, 2]
    """
    first, last = start // count, -(-stop // count)
    orders = shuffle([seed], 0, purpose, count, first, last - first).flatten()
    return orders[start - first * count : stop - first * count]

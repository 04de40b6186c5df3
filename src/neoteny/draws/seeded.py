"""Torch's global generator with a seed of our own, by one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

_SEED_SPACE = 2**63 - 1  # of torch.manual_seed
_TURN = threading.RLock()


@contextmanager
def seeded(seed: int, devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Draws inside come from `seed` alone, and leave the generator as it was.

    Threads that build networks take turns: `fork_rng` puts a state back, but does not keep others from drawing in
    between. Code that draws from the global generator without this, in another thread, is not kept out.

    Args:
        seed: any whole number.
        devices: CUDA devices whose generators are seeded and put back, too.

    Example:
        >>> with seeded(3):
        ...     first = torch.rand(2)
        >>> with seeded(3):
        ...     bool(torch.equal(first, torch.rand(2)))
        True
    """
    with _TURN, torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(seed % _SEED_SPACE)
        yield

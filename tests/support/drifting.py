"""A small classification stream, stationary or with inputs that are permuted again and again, and a network for it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

DIM, CLASSES = 64, 10


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def batches(steps: int, period: int = 0, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of 32 around one centre per class; every `period` steps the pixels are permuted (0: never)."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, DIM, generator=generator)
    order = torch.arange(DIM)
    for step in range(steps):
        if period and step and step % period == 0:
            order = torch.randperm(DIM, generator=generator)
        labels = torch.randint(0, CLASSES, (32,), generator=generator)
        yield (centres[labels] + torch.randn(32, DIM, generator=generator))[:, order], labels


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: Iterator[tuple[Tensor, Tensor]]) -> list[float]:
    """Train on every batch once; the losses."""
    losses = []
    for inputs, labels in data:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses

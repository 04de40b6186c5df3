"""Networks that call a module several times in one forward pass."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Rnn(nn.Module):
    """A recurrence of linear layers, with or without a first state; the output reads the last state, or every one."""

    def __init__(self, *, first: str = "zeros", every: bool = False) -> None:
        super().__init__()
        self.first, self.every = first, every
        self.ih, self.hh, self.out = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = None if self.first == "none" else x.new_zeros(x.shape[0], 6)
        states: list[Tensor] = []
        for t in range(x.shape[1]):
            h = torch.tanh(self.ih(x[:, t]) + (0 if h is None else self.hh(h)))
            states.append(h)
        return torch.stack([self.out(each) for each in (states if self.every else states[-1:])], 1)


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.ModuleDict({name: nn.Linear(3, 6) for name in "rzn"})
        self.h = nn.ModuleDict({name: nn.Linear(6, 6) for name in "rzn"})
        self.out = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 6)
        for t in range(x.shape[1]):
            reset, update = (torch.sigmoid(self.x[name](x[:, t]) + self.h[name](h)) for name in "rz")
            new = torch.tanh(self.x["n"](x[:, t]) + reset * self.h["n"](h))
            h = (1 - update) * new + update * h
        return self.out(h)


class Siamese(nn.Module):
    """One body for two inputs, compared or side by side."""

    def __init__(self, *, joined: bool = False) -> None:
        super().__init__()
        self.joined = joined
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU())
        self.head = nn.Linear(12 if joined else 6, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        one, other = self.body(a), self.body(b)
        return self.head(torch.cat([one, other], 1) if self.joined else (one - other).abs())


class Pyramid(nn.Module):
    """One head over two feature maps of different size."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
        self.l1, self.l2 = nn.Conv2d(8, 6, 1), nn.Conv2d(8, 6, 1)
        self.h1, self.h2, self.boxes = nn.Conv2d(6, 7, 3, padding=1), nn.Conv2d(7, 5, 3, padding=1), nn.Conv2d(5, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = F.relu(self.c1(x))
        coarse = F.relu(self.c2(fine))
        levels = [self.boxes(F.relu(self.h2(F.relu(self.h1(each))))) for each in (self.l1(fine), self.l2(coarse))]
        return torch.cat([level.flatten(1) for level in levels], 1)


class TwoBranches(nn.Module):
    """Two branches that share a norm or a projection."""

    def __init__(self, shared: str) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(10, 2)
        self.norm_a, self.p_a = nn.BatchNorm1d(6), nn.Linear(6, 5)
        self.norm_b = self.norm_a if shared == "norm" else nn.BatchNorm1d(6)
        self.p_b = self.p_a if shared == "projection" else nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        a, b = F.relu(self.norm_a(self.a(x))), F.relu(self.norm_b(self.b(x)))
        return self.out(torch.cat([self.p_a(a), self.p_b(b)], 1))

"""Networks and optimizers for the fused tick, and a comparison of it with the general path, tick by tick."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import neoteny


class ConvNet(nn.Module):
    """Convolutions with stride and padding, a pooling, a flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 24, 3, stride=2, padding=2, dilation=2)
        self.hidden = nn.Linear(24 * 16, 50)
        self.out = nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.second(torch.relu(self.first(x)))), 2)
        return self.out(torch.relu(self.hidden(x.flatten(1))))


class Separable(nn.Module):
    """Convolutions without bias before norms, a depthwise and a pointwise one, a mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.depthwise, self.pointwise = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 32, 1, bias=False)
        self.last = nn.BatchNorm2d(32)
        self.out = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.depthwise(torch.relu(self.norm(self.first(x)))))
        return self.out(torch.relu(self.last(self.pointwise(x))).mean((2, 3)))


class Transformer(nn.Module):
    """A gated feed-forward block over tokens, and a layer with two readers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.gate, self.up, self.down = nn.Linear(32, 48), nn.Linear(32, 48), nn.Linear(48, 32)
        self.shared, self.left, self.right = nn.Linear(32, 20), nn.Linear(20, 10), nn.Linear(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))
        h = torch.tanh(self.shared(x))
        return (self.left(h) * torch.sigmoid(self.right(h))).mean(1)


class Branches(nn.Module):
    """Two layers side by side whose units one bias is compensated for, often at the same tick."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = nn.Linear(40, 30), nn.Linear(40, 30), nn.Linear(60, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat((torch.relu(self.left(x)), torch.tanh(self.right(x))), 1))


def mlp() -> nn.Module:
    """Three hidden layers."""
    return nn.Sequential(
        nn.Linear(40, 100), nn.ReLU(), nn.Linear(100, 64), nn.Tanh(), nn.Linear(64, 33), nn.ReLU(), nn.Linear(33, 10)
    )


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (16, 40)),
    "mlp, batch 1": (mlp, (1, 40)),
    "conv": (ConvNet, (8, 3, 16, 16)),
    "separable": (Separable, (8, 3, 16, 16)),
    "transformer": (Transformer, (4, 7, 32)),
    "branches": (Branches, (16, 40)),
}
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.01),
    "momentum": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 1e-3),
    "fused adamw": lambda p: torch.optim.AdamW(p, 1e-3, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-4, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, 1e-3, initial_accumulator_value=0.1),
    "neoteny adam": lambda p: neoteny.optim.Adam(p, 1e-3),
    "neoteny adamw": lambda p: neoteny.optim.AdamW(p, 1e-3),
}


class Pair:
    """One network attached twice, for the fused tick and for the general path; both see the same numbers.

    After each tick the fused one takes over the numbers of the other, so that a difference belongs to one tick.
    """

    def __init__(
        self,
        net: str,
        optimizer: str,
        method: neoteny.ContinualBackprop,
        channels_last: bool = False,
        device: str = "cuda",
    ) -> None:
        (build, self.shape), self.device = NETS[net], device
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        self.models, self.optimizers, self.attached = [], [], []
        for _ in range(2):
            torch.manual_seed(1)
            model = build().to(device).to(memory_format=self.format)  # pyright: ignore[reportCallIssue]
            made = OPTIMIZERS[optimizer](model.parameters())
            example = torch.zeros(self.shape, device=device)
            self.models.append(model)
            self.optimizers.append(made)
            self.attached.append(neoteny.attach(model, made, method, example=example, seed=7))
        general = self.attached[1]
        state = general._chain.states[0]
        general.view.fused[id(state)] = (state, "switched off")
        self.worst = 0.0

    def train(self, autocast: bool = False) -> None:
        """One update of both, with the same inputs and, before the tick, the same weights."""
        inputs = torch.randn(self.shape, device=self.device)
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=self.format)
        for model, optimizer in zip(self.models, self.optimizers, strict=True):
            optimizer.zero_grad()
            with torch.autocast(self.device, torch.bfloat16, enabled=autocast):
                loss = model(inputs).float().square().mean()
            loss.backward()
            optimizer.step()
        self._take_over(statistics=False)
        for plastic in self.attached:
            plastic.step()
        self._compare()
        self._take_over(statistics=True)

    def _tensors(self, side: int, statistics: bool) -> list[Tensor]:
        model, optimizer = self.models[side], self.optimizers[side]
        found = [*model.parameters(), *model.buffers()]
        for parameter in model.parameters():
            found += [value for value in optimizer.state[parameter].values() if isinstance(value, Tensor)]
        if statistics:
            for each in self.attached[side]._chain.states[0].values():
                found += [each[key] for key in ("mean_activation", "utility", "decay_power", "born")]
                found += list(each["column_means"].values())
        return found

    @torch.no_grad()
    def _take_over(self, statistics: bool) -> None:
        for mine, theirs in zip(self._tensors(0, statistics), self._tensors(1, statistics), strict=True):
            mine.copy_(theirs)

    @torch.no_grad()
    def _compare(self) -> None:
        fused, general = (each._chain.states[0] for each in self.attached)
        for name, statistics in general.items():
            assert torch.equal(fused[name]["born"], statistics["born"]), f"other units of {name} were replaced"
        for mine, theirs in zip(self._tensors(0, True), self._tensors(1, True), strict=True):
            scale = theirs.abs().max().clamp_min(1e-12).double()
            self.worst = max(self.worst, float((mine.double() - theirs.double()).abs().max() / scale))

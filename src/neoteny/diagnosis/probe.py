"""Probe: does this network still learn as fast as a new one? Discarded copies are trained to find out.

A copy of the model and freshly initialised copies of it (`fresh_copy.py`) learn the same batches in lock-step, each
with a plain optimizer that starts from nothing. The mean of a copy's losses is the area under its loss curve: small if
it learns fast. `diagnose(..., probe=Probe(...))` reports it; the model itself is not trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoteny.text import check_whole
from neoteny.wiring.sandbox import call, map_tensors

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
NOTABLE_EXCESS = 10.0
"""Per cent above the slowest fresh copy from which on a model is said to learn more slowly: one problem's fresh copies
differ by per cents."""


@dataclass(frozen=True)
class Probe:
    """What discarded copies of a model learn, and how, in `diagnose(..., probe=Probe(...))`.

    Take data that is new to the model, such as the next task: the question is whether it still learns.

    Args:
        data: batches of (inputs, targets): a list, a `DataLoader` or another iterable, from its start again when it
            ends; or a function without arguments that returns a batch. Inputs are what the model accepts: a tensor, a
            tuple of positional or a dict of keyword arguments.
        updates: how many each copy makes.
        step_size: of the optimizer.
        optimizer: "sgd" or "adam", without any state at the start.
        loss: a function of outputs and targets that gives one number. By default cross-entropy where targets are whole
            numbers, else the mean squared error.
        fresh_copies: how many freshly initialised copies learn beside; 1 if `control` is a model of yours.

    Example:
        >>> x = torch.randn(20, 4)
        >>> Probe([(x, x[:, :1])], updates=50).updates
        50
    """

    data: Iterable[tuple[Any, Any]] | Callable[[], tuple[Any, Any]]
    updates: int = 100
    step_size: float = 0.01
    optimizer: str = "sgd"
    loss: Callable[[Any, Any], Tensor] | None = None
    fresh_copies: int = 3

    def __post_init__(self) -> None:
        if isinstance(self.data, (Tensor, str, dict)) or not (callable(self.data) or isinstance(self.data, Iterable)):
            raise TypeError(
                "Probe: data must be batches of (inputs, targets) in a list or another iterable, or a function that "
                f"returns one; got {type(self.data).__name__}."
            )
        check_whole(self, updates=1, fresh_copies=1)
        size = self.step_size
        if isinstance(size, bool) or not isinstance(size, Real) or not 0.0 < float(size) < math.inf:
            raise ValueError(f"Probe: step_size must be a number above 0; got {size!r}.")
        if not isinstance(self.optimizer, str) or self.optimizer not in OPTIMIZERS:
            known = " or ".join(f'"{name}"' for name in OPTIMIZERS)
            raise ValueError(f"Probe: optimizer must be {known}; got {self.optimizer!r}.")
        if self.loss is not None and not callable(self.loss):
            raise TypeError(
                f"Probe: loss must be a function of outputs and targets; got {type(self.loss).__name__}: "
                "torch.nn.functional.cross_entropy, for example."
            )


@dataclass(frozen=True)
class Probed:
    """What the copies gave.

    Attributes:
        losses: of the model's copy before each update.
        fresh_losses: the same of each freshly initialised copy; empty without a comparison.
    """

    losses: tuple[float, ...]
    fresh_losses: tuple[tuple[float, ...], ...] = ()

    @property
    def loss(self) -> float:
        """The area under the loss curve of the model's copy, over the number of updates; nan if it diverged."""
        return _area(self.losses)

    @property
    def fresh(self) -> tuple[float, ...]:
        """The same of each freshly initialised copy."""
        return tuple(_area(losses) for losses in self.fresh_losses)

    @property
    def fresh_loss(self) -> float | None:
        """Their mean; None without a comparison."""
        return sum(self.fresh) / len(self.fresh) if self.fresh else None

    @property
    def excess(self) -> float | None:
        """By how many per cent the model's copy is above the mean of fresh ones; None without a comparison."""
        fresh = self.fresh_loss
        return None if fresh is None else 100.0 * (self.loss / fresh - 1.0) if fresh else math.nan

    @property
    def learns_slowly(self) -> bool:
        """Whether the model's copy is notably above every fresh one, or diverged where none of them did."""
        worst = max(self.fresh, default=math.nan)
        if not all(map(math.isfinite, self.fresh)):
            return False
        return bool(self.fresh) and not self.loss <= worst * (1.0 + NOTABLE_EXCESS / 100.0)

    def sentence(self) -> str:
        """The result in words."""
        count = len(self.losses)
        what = f"A copy of the model learned the probe's data for {count} updates with a mean loss of {self.loss:.3g}"
        if not math.isfinite(self.loss):
            what = f"A copy of the model that learned the probe's data diverged within {count} updates"
        if not self.fresh:
            return f"{what}."
        if not all(map(math.isfinite, self.fresh)):
            return f"{what}; a fresh copy diverged: choose a smaller step_size for the probe."
        spread = f", from {min(self.fresh):.3g} to {max(self.fresh):.3g}" if len(self.fresh) > 1 else ""
        compared = f"{what}; a fresh copy with {self.fresh_loss:.3g}{spread}"
        if not math.isfinite(self.loss):
            return f"{compared}. It has lost plasticity, or the probe's step_size is too large for its weights."
        assert self.excess is not None
        if self.learns_slowly:
            return f"{compared}. That is {self.excess:.0f}% more: it learns more slowly than a new network."
        if self.loss < min(self.fresh):
            return f"{compared}. That is {-self.excess:.0f}% less: it learns faster than a new network."
        return f"{compared}. It learns about as fast as a new network."

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {
            "loss": self.loss,
            "fresh_loss": self.fresh_loss,
            "excess": self.excess,
            "losses": list(self.losses),
            "fresh_losses": [list(each) for each in self.fresh_losses],
        }


def run_probe(probe: Probe, model: nn.Module, fresh: Sequence[nn.Module]) -> Probed:
    """Train copies in lock-step; each batch is taken once and given to all of them.

    Args:
        probe: how.
        model: a copy of the model that may be changed.
        fresh: freshly initialised copies that may be changed.
    """
    modules = [model, *fresh]
    optimizers: list[torch.optim.Optimizer] = []
    for module in modules:
        module.train()
        module.zero_grad()
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not trained:
            raise ValueError("probe: the model has no parameter that is trained (requires_grad), so nothing can learn.")
        optimizers.append(OPTIMIZERS[probe.optimizer](trained, lr=float(probe.step_size)))
    device = next(model.parameters()).device
    curves: list[list[float]] = [[] for _ in modules]
    batches = _batches(probe)
    with torch.enable_grad():
        for _ in range(probe.updates):
            inputs, targets = map_tensors(lambda tensor: tensor.detach().to(device), next(batches))
            for module, optimizer, curve in zip(modules, optimizers, curves, strict=True):
                optimizer.zero_grad()
                loss = _loss(probe, call(module, inputs), targets)
                if not loss.requires_grad:
                    raise ValueError("probe: the loss has no gradient: look for detach(), no_grad() or argmax.")
                curve.append(float(loss.detach()))
                loss.backward()
                optimizer.step()
    return Probed(tuple(curves[0]), tuple(map(tuple, curves[1:])))


def _batches(probe: Probe) -> Iterator[tuple[Any, Any]]:
    """Batches without an end."""
    given, data = 0, probe.data
    while True:
        before = given
        for batch in [data()] if callable(data) else data:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                came = type(batch).__name__ + (f" of {len(batch)}" if isinstance(batch, (tuple, list)) else "")
                raise TypeError(f"Probe: data must give pairs (inputs, targets); got a {came}.")
            given += 1
            yield batch[0], batch[1]
        if given == before:
            raise ValueError(
                f"Probe: data gave {given} batches and cannot be gone through again, but updates={probe.updates}: give "
                "a list, a DataLoader, or a function that returns a batch."
            )


def _loss(probe: Probe, outputs: Any, targets: Any) -> Tensor:
    if probe.loss is None:
        return _usual_loss(outputs, targets)
    loss = probe.loss(outputs, targets)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        came = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"Probe: loss must give a tensor with one number; got {came}.")
    return loss.reshape(())


def _usual_loss(outputs: Any, targets: Any) -> Tensor:
    """Cross-entropy for targets that are whole numbers, else the mean squared error."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        raise TypeError(
            f"Probe: the model gave {type(outputs).__name__} and targets are {type(targets).__name__}; both must be "
            "tensors, or pass loss=... for them."
        )
    if not targets.is_floating_point():
        return F.cross_entropy(outputs, targets.long())
    if outputs.shape != targets.shape:
        raise ValueError(
            f"Probe: targets must have the shape of the outputs, {tuple(outputs.shape)}; got {tuple(targets.shape)}. "
            "Pass loss=... for another loss than the mean squared error."
        )
    return F.mse_loss(outputs, targets)


def _area(losses: Sequence[float]) -> float:
    mean = sum(losses) / len(losses)
    return mean if math.isfinite(mean) else math.nan

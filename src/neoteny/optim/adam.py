"""Adam as a torch optimizer, with a step count for every element: a reset weight starts afresh."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from neoteny.layers.regions import Region
from neoteny.methods.adam_update import ElementSteps, adam_update


class Adam(Optimizer):
    """`torch.optim.Adam` with a step count for every element.

    Equal to `torch.optim.Adam` as long as nothing is reset. When a method resets a unit, moments and step counts of
    its weights go back to zero, so its first steps are as long as those of a new network.

    Args:
        params: parameters or parameter groups, as for every torch optimizer.
        lr: step size.
        betas: decay rates of both moments.
        eps: added to the root of the second moment.
        weight_decay: L2 term added to the gradient.

    Example:
        >>> layer = torch.nn.Linear(2, 1)
        >>> Adam(layer.parameters(), lr=1e-3).defaults["betas"]
        (0.9, 0.999)
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not 0.0 <= value < math.inf:
                raise ValueError(f"Adam: {name} must be a number >= 0; got {value!r}.")
        if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"Adam: betas must be two numbers in [0, 1); got {betas!r}.")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update of every parameter that has a gradient; returns what `closure` returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.grad.is_sparse:
                    raise TypeError("Adam: expected dense gradients, got a sparse one; use torch.optim.SparseAdam.")
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.int64)
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
                state["step"] += 1
                gradient = parameter.grad
                if group["weight_decay"]:
                    gradient = gradient.add(parameter, alpha=group["weight_decay"])
                adam_update(
                    parameter,
                    gradient,
                    state["exp_avg"],
                    state["exp_avg_sq"],
                    ElementSteps(int(state["step"]), state.get("resets"), run_axes=0),
                    group["lr"],
                    group["betas"],
                    group["eps"],
                )
        return loss

    def clear_elements(self, parameter: Tensor, region: Region) -> None:
        """Moments and step counts of some elements of a parameter back to zero."""
        state = self.state.get(parameter)
        if state:
            for key in ("exp_avg", "exp_avg_sq"):
                region.write(state[key], 0.0)
            ElementSteps.record(state.setdefault("resets", {}), parameter, region, int(state["step"]))

"""Adam as a torch optimizer, with a step count for every element: a reset weight starts afresh."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from neoteny.layers.regions import Region
from neoteny.methods.adam_update import ElementSteps, adam_update
from neoteny.methods.device_adam import DeviceAdam, serves


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
        capturable: count updates on the CUDA device, so that a CUDA graph can hold an update. A step size that is to
            change between replays is then given as a tensor on the device.

    Example:
        >>> layer = torch.nn.Linear(2, 1)
        >>> Adam(layer.parameters(), lr=1e-3).defaults["betas"]
        (0.9, 0.999)
    """

    _decoupled: ClassVar[bool] = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        capturable: bool = False,
    ) -> None:
        name = type(self).__name__
        if isinstance(lr, Tensor) and not (capturable and lr.dim() == 0):
            raise ValueError(
                f"{name}: a step size that is a tensor needs capturable=True and no axes; got shape "
                f"{tuple(lr.shape)}, capturable={capturable!r}."
            )
        for option, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not isinstance(value, (Real, Tensor)) or not 0.0 <= value < math.inf:
                raise ValueError(f"{name}: {option} must be a number >= 0; got {value!r}.")
        pair = isinstance(betas, (tuple, list)) and len(betas) == 2 and all(isinstance(each, Real) for each in betas)
        if not pair or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"{name}: betas must be two numbers in [0, 1); got {betas!r}.")
        self._device: dict[int, DeviceAdam] = {}
        self._retired: list[DeviceAdam] = []
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        # Not called "capturable": with that entry in a group, torch loads its step counts as float32.
        super().__init__(params, {**defaults, "counts_on_device": bool(capturable)})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update of every parameter that has a gradient; returns what `closure` returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number, group in enumerate(self.param_groups):
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            left = self._update_on_device(number, group, parameters)
            if left and left[0].is_cuda and torch.cuda.is_current_stream_capturing():
                raise RuntimeError(self._why_not_captured(group))
            for parameter in left:
                self._update(group, parameter)
        return loss

    def _update(self, group: dict[str, Any], parameter: Tensor) -> None:
        """One update of one parameter, wherever it lies."""
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:
            raise TypeError("Adam: expected dense gradients, got a sparse one; use torch.optim.SparseAdam.")
        state = self._state_of(group, parameter)
        state["step"] += 1
        if self._decoupled and group["weight_decay"]:
            parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
        elif group["weight_decay"]:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        adam_update(
            parameter,
            gradient,
            state["exp_avg"],
            state["exp_avg_sq"],
            ElementSteps(int(state["step"]), state.get("resets"), run_axes=0),
            float(group["lr"]),
            group["betas"],
            group["eps"],
        )

    def _update_on_device(self, number: int, group: dict[str, Any], parameters: list[Tensor]) -> list[Tensor]:
        """One update of the parameters on a CUDA device together; returns those that are left."""
        if not parameters or not parameters[0].is_cuda:
            return parameters
        capturing = torch.cuda.is_current_stream_capturing()
        if capturing and not (group["counts_on_device"] and self._counts_on_device(parameters)):
            return parameters
        betas = tuple(group["betas"])
        states = [self._state_of(group, parameter) for parameter in parameters]
        made = self._device.get(number)
        if made is None or not made.holds(parameters, states):
            if capturing or not all(serves(*each, betas) for each in zip(parameters, states, strict=True)):
                return parameters
            self._retire(number)
            made = self._device[number] = DeviceAdam(parameters, states)
        size = group["lr"]
        size = size if isinstance(size, Tensor) and size.is_cuda else float(size)
        options = (size, betas, group["eps"], group["weight_decay"], self._decoupled)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if any(gradient.is_sparse for gradient in gradients):
            return parameters
        return [] if made.update(gradients, *options) else parameters

    def _why_not_captured(self, group: dict[str, Any]) -> str:
        name = type(self).__name__
        if not group["counts_on_device"]:
            return f"neoteny.optim.{name}: pass capturable=True to capture an update in a CUDA graph."
        return (
            f"neoteny.optim.{name}: an update is being captured in a CUDA graph before its tables were made, or for "
            "parameters that the fused update does not serve (float64, other layouts, sparse gradients). Make three "
            "whole updates first, plastic.step() included, then capture."
        )

    def _counts_on_device(self, parameters: Sequence[Tensor]) -> bool:
        """Whether nothing has to be made or moved: what is made during a capture has no values before a replay."""
        states = [self.state.get(parameter) for parameter in parameters]
        return all(state and state["step"].is_cuda for state in states)

    def _retire(self, *numbers: int) -> None:
        """Drop the tables of these groups; those that a captured graph still reads are kept alive."""
        dropped = [self._device.pop(number) for number in numbers if number in self._device]
        self._retired += [each for each in dropped if each.captured]

    def _state_of(self, group: dict[str, Any], parameter: Tensor) -> dict[str, Any]:
        state = self.state[parameter]
        on_device = group["counts_on_device"] and parameter.is_cuda
        if state and state["step"].is_cuda != on_device:  # loaded from an optimizer that counts elsewhere
            state["step"] = state["step"].to(parameter.device if on_device else "cpu")
        if not state:
            state["step"] = torch.zeros((), dtype=torch.int64, device=parameter.device if on_device else "cpu")
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle, copy or load: tables on the device are made again; where updates are counted stays as it was."""
        super().__setstate__(state)
        for name, empty in (("_device", {}), ("_retired", [])):
            vars(self).setdefault(name, empty)
        self._retire(*self._device)
        for group in self.param_groups:
            group["counts_on_device"] = self.defaults.get("counts_on_device", False)  # none in an earlier version
        for parameter, kept in self.state.items():
            for counted in kept.get("resets", {}).values():  # torch leaves what is called "step" where it was saved
                counted["step"] = counted["step"].to(parameter.device)

    def element_state(self, parameter: Tensor, groups: int | None) -> tuple[list[Tensor], Tensor, int] | None:
        """What to write when rows (`groups` None) or columns of a parameter are reset; None before its first update.

        Returns:
            Tensors that become zero there, the vector that takes the number of updates so far, and that number.
        """
        state = self.state.get(parameter)
        if not state:
            return None
        vector = ElementSteps.vector(state.setdefault("resets", {}), parameter, groups, run_axes=0)
        return [state["exp_avg"], state["exp_avg_sq"]], vector, int(state["step"])

    def clear_elements(self, parameter: Tensor, region: Region) -> None:
        """Moments and step counts of some elements of a parameter back to zero."""
        state = self.state.get(parameter)
        if state:
            for key in ("exp_avg", "exp_avg_sq"):
                region.write(state[key], 0.0)
            ElementSteps.record(state.setdefault("resets", {}), parameter, region, int(state["step"]))

    def restart_step_counts(self) -> None:
        """Step counts of all weights back to zero; moments are kept."""
        for state in self.state.values():
            state["step"].zero_()
            ElementSteps.restart({"resets": state.get("resets", {})})
        self._retire(*self._device)


class AdamW(Adam):
    """`Adam` with decoupled weight decay, as `torch.optim.AdamW`: weights shrink by lr * weight_decay at each update.

    Example:
        >>> layer = torch.nn.Linear(2, 1)
        >>> AdamW(layer.parameters()).defaults["weight_decay"]
        0.01
    """

    _decoupled: ClassVar[bool] = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        capturable: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, capturable)

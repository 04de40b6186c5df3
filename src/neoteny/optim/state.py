"""What a torch optimizer remembers of each weight, and how to make it forget a reset one.

The initial value of a state tensor is not written down here optimizer by optimizer: a twin of the user's optimizer
takes one step on a parameter of zeros with a gradient of zeros, and what its state then holds is the initial value
(zero for moments, the starting step size for Rprop, the starting sum for Adagrad).
"""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict, defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from neoteny.layers.regions import Region


class OptimizerState:
    """The per-element state of one optimizer.

    Args:
        optimizer: any `torch.optim.Optimizer`.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise TypeError(
                "LBFGS keeps a history of whole-network updates, so no single weight's state can be reset; use a "
                "first-order optimizer such as SGD or Adam."
            )
        self.optimizer = optimizer
        self._initial: dict[tuple[int, int], dict[str, Tensor]] = {}

    def owns(self, parameter: Tensor) -> bool:
        """Whether the optimizer updates this parameter."""
        return any(parameter is owned for group in self.optimizer.param_groups for owned in group["params"])

    def prepare(self, parameter: Tensor) -> None:
        """Find the initial values for this parameter now, so that an optimizer without any fails early."""
        if not hasattr(self.optimizer, "clear_elements"):
            self._initial_of(parameter)

    def clear(self, parameter: Tensor, region: Region) -> None:
        """Put the state of the region's elements back to its initial value."""
        clear_elements = getattr(self.optimizer, "clear_elements", None)
        if clear_elements is not None:
            clear_elements(parameter, region)
            return
        state = self.optimizer.state.get(parameter)
        if not state:
            return
        initial: dict[str, Tensor] | None = None
        for key, value in state.items():
            if isinstance(value, Tensor) and covers(value, parameter, region):
                initial = self._initial_of(parameter) if initial is None else initial
                region.write(value, initial[key].to(value.device) if key in initial else 0.0)

    def shares_step_count(self) -> bool:
        """Whether a reset weight goes on with the step count of its whole tensor, as in torch's Adam family."""
        if hasattr(self.optimizer, "clear_elements"):
            return False
        return any(
            "step" in initial and any(key.startswith("exp_avg") for key in initial)
            for initial in self._initial.values()
        )

    def _initial_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """First elements of the twin's state tensors, by name, for parameters of this group and number of axes."""
        number = next(
            i
            for i, group in enumerate(self.optimizer.param_groups)
            if any(parameter is owned for owned in group["params"])
        )
        key = (number, parameter.dim())
        if key not in self._initial:
            self._initial[key] = initial_state(self.optimizer, number, parameter)
        return self._initial[key]


def initial_state(optimizer: Optimizer, group_number: int, like: Tensor) -> dict[str, Tensor]:
    """What a twin of the optimizer holds after one step on zeros: name -> 0-dim tensor.

    Args:
        optimizer: the user's optimizer, which is left alone.
        group_number: which of its parameter groups.
        like: a parameter whose dtype, device and number of axes the trial takes.

    Raises:
        TypeError: the optimizer cannot take such a step.
    """
    trial = torch.nn.Parameter(torch.zeros((2,) * like.dim(), dtype=like.dtype, device=like.device))
    trial.grad = torch.zeros_like(trial)
    group = optimizer.param_groups[group_number]
    options = copy.deepcopy({key: value for key, value in group.items() if key != "params"})
    errors: list[Exception] = []
    for make in (_copied, _constructed):
        try:
            twin = make(optimizer, options, trial)
            # The class's function: a scheduler may have wrapped the instance's `step`.
            with torch.random.fork_rng(devices=[like.device] if like.device.type == "cuda" else []):
                type(optimizer).step(twin)
            break
        except Exception as error:
            errors.append(error)
    else:
        raise TypeError(
            f"{type(optimizer).__name__} could not take a trial step on zeros ({errors[0]}), so the initial value of "
            "its per-weight state is not known. Give it a method `clear_elements(parameter, region)` that calls "
            "`region.write(state_tensor, value)` for each of its state tensors."
        ) from errors[0]
    state: dict[str, Any] = twin.state[trial]
    return {
        key: value.detach().flatten()[0].clone()
        for key, value in state.items()
        if isinstance(value, Tensor) and value.numel() > 0
    }


def _copied(optimizer: Optimizer, options: dict[str, Any], trial: Tensor) -> Optimizer:
    """A shallow copy that owns the trial parameter alone; needs to know nothing of the class."""
    twin = copy.copy(optimizer)
    twin.state = defaultdict(dict)
    twin.param_groups = [{**options, "params": [trial]}]
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(twin, name, OrderedDict())
    return twin


def _constructed(optimizer: Optimizer, options: dict[str, Any], trial: Tensor) -> Optimizer:
    """A new optimizer with the same options, for classes that make their state in the constructor."""
    known = inspect.signature(type(optimizer).__init__).parameters
    return type(optimizer)([trial], **{key: value for key, value in options.items() if key in known})


def covers(value: Tensor, parameter: Tensor, region: Region) -> bool:
    """Whether a state tensor holds numbers of single elements, rows or columns that the region indexes.

    Factored state (Adafactor keeps one number per row and one per column) counts where its axis is the indexed one.
    """
    if value.shape == parameter.shape:
        return True
    if value.dim() != parameter.dim() or value.dim() < 2:
        return False
    axis = 0 if region.groups is None else 1
    factored = all(mine in (1, full) for mine, full in zip(value.shape, parameter.shape, strict=True))
    whole_groups = region.groups in (None, 1) or value.shape[0] == parameter.shape[0]
    return factored and value.shape[axis] == parameter.shape[axis] and whole_groups

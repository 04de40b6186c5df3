"""What a torch optimizer remembers of each weight, and how to make it forget a reset one.

The initial value of a state tensor is not written down here optimizer by optimizer: a twin of the user's optimizer
steps on a parameter of zeros with a gradient of zeros, and what its state first holds is the initial value
(zero for moments, the starting step size for Rprop, the starting sum for Adagrad). The same on a parameter of ones
shows which state begins as a copy of the weight (the second iterate of a schedule-free optimizer, averaged weights, the
slow weights of Lookahead).
"""

from __future__ import annotations

import copy
import inspect
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from neoteny.layers.regions import Region
from neoteny.units.view import ElementState

_SIDES = (2, 3, 5, 7, 11, 13)
"""Sizes of a trial parameter: all different, so that the shape of a state tensor tells which axes it has."""

_STEPS = 12
"""Trial steps; some state is made after a few of them (Lookahead's slow weights)."""


@dataclass(frozen=True)
class Beginning:
    """How one state tensor begins.

    Args:
        value: of each element, 0-dim.
        is_copy: whether it begins as a copy of the weight instead.
        axes: which axes of the parameter it has; an axis that the parameter has and this lacks was summed over.
    """

    value: Tensor
    is_copy: bool
    axes: tuple[int, ...] | None


class OptimizerState:
    """The per-element state of one optimizer, or of several that share a model.

    Args:
        optimizers: any `torch.optim.Optimizer`s.
    """

    def __init__(self, *optimizers: Optimizer) -> None:
        if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in optimizers):
            raise TypeError(
                "LBFGS keeps a history of whole-network updates, so no single weight's state can be reset; use a "
                "first-order optimizer such as SGD or Adam."
            )
        self.optimizers = optimizers
        self._initial: dict[tuple[int, int, int], list[dict[str, Beginning]]] = {}
        self._homes: dict[Tensor, tuple[int, int]] = {}
        self._starts_alone: dict[tuple[int, int, int], bool] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers, live."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def owns(self, parameter: Tensor) -> bool:
        """Whether an optimizer updates this parameter."""
        return self._home(parameter) is not None

    def group_of(self, parameter: Tensor) -> dict[str, Any] | None:
        """The parameter group that a parameter is in, live; None if there is none."""
        home = self._homes.get(parameter) or self._home(parameter)
        if home is None:
            return None
        self._homes[parameter] = home
        return self.optimizers[home[0]].param_groups[home[1]]

    def forget(self, parameter: Tensor) -> None:
        """Drop the state of a parameter that no longer exists."""
        for optimizer in self.optimizers:
            optimizer.state.pop(parameter, None)
        self._homes.pop(parameter, None)

    def prepare(self, parameter: Tensor) -> None:
        """Find the initial values for this parameter now, so that an optimizer without any fails early."""
        home = self._home(parameter)
        if home is not None and not hasattr(self.optimizers[home[0]], "clear_elements"):
            self._initial_of(parameter, home)

    def clear(self, parameter: Tensor, region: Region) -> None:
        """Put the state of the region's elements back to its initial value; the parameter holds the new weights."""
        home = self._homes.get(parameter) or self._home(parameter)
        if home is None:
            return
        self._homes[parameter] = home
        optimizer = self.optimizers[home[0]]
        clear_elements = getattr(optimizer, "clear_elements", None)
        if clear_elements is not None:
            clear_elements(parameter, region)
            return
        for number, each in enumerate(_nested(optimizer)):
            for key, value in each.state.get(parameter, {}).items():
                if not isinstance(value, Tensor) or value.dim() == 0:
                    continue
                beginning = self._initial_of(parameter, home)[number].get(key)
                whole = _with_all_axes(value, parameter, beginning)
                if not covers(whole, parameter, region):
                    continue
                if beginning is not None and beginning.is_copy:
                    region.copy(parameter, whole)
                else:
                    region.write(whole, 0.0 if beginning is None else beginning.value.to(value.device))

    def restart(self, parameter: Tensor, whole: Region) -> None:
        """Put the state of a whole parameter back to its start, with what is one number per tensor (a step count).

        An optimizer that makes the state of a parameter when it first updates it, forgets it and starts again.
        """
        home = self._home(parameter)
        if home is None:
            return
        optimizer = self.optimizers[home[0]]
        if hasattr(optimizer, "clear_elements") or not self._makes_state_when_needed(parameter, home):
            self.clear(parameter, whole)
            return
        for each in _nested(optimizer):
            each.state.pop(parameter, None)

    def _makes_state_when_needed(self, parameter: Tensor, home: tuple[int, int]) -> bool:
        """Whether a twin without any state takes steps; Adagrad, for one, makes its state in the constructor."""
        key = (*home, parameter.dim())
        if key not in self._starts_alone:
            try:
                _try(self.optimizers[home[0]], home[1], parameter, 0.0, (_copied,))
                self._starts_alone[key] = True
            except TypeError:
                self._starts_alone[key] = False
        return self._starts_alone[key]

    def elementwise(self, parameter: Tensor, groups: int | None) -> ElementState | None:
        """What to write where rows (`groups` None) or columns of a parameter are reset.

        Returns:
            None if some of the state is not one number per element, laid out as the parameter is.
        """
        home = self._homes.get(parameter) or self._home(parameter)
        if home is None:
            return ElementState([])
        optimizer = self.optimizers[home[0]]
        if hasattr(optimizer, "element_state"):
            known = optimizer.element_state(parameter, groups)  # pyright: ignore[reportAttributeAccessIssue]
            if known is None:
                return ElementState([])
            same = all(tensor.stride() == parameter.stride() for tensor in known[0])
            return ElementState([(tensor, 0.0) for tensor in known[0]], *known[1:]) if same else None
        if hasattr(optimizer, "clear_elements"):
            return None
        found: list[tuple[Tensor, float | None]] = []
        for number, each in enumerate(_nested(self.optimizers[home[0]])):
            for key, value in each.state.get(parameter, {}).items():
                if not isinstance(value, Tensor) or value.dim() == 0:
                    continue
                if value.shape != parameter.shape or value.stride() != parameter.stride():
                    return None
                beginning = self._initial_of(parameter, home)[number].get(key)
                if beginning is None:
                    found.append((value, 0.0))
                else:
                    found.append((value, None if beginning.is_copy else float(beginning.value)))
        return ElementState(found)

    def places(self, parameter: Tensor) -> list[tuple[dict[Any, Any], Any, Any]]:
        """Where the state of a parameter is looked up: dict, key, and what is there now."""
        home = self._homes.get(parameter) or self._home(parameter)
        if home is None:
            return []
        self._homes[parameter] = home
        found: list[tuple[dict[Any, Any], Any, Any]] = []
        for each in _nested(self.optimizers[home[0]]):
            state = each.state.get(parameter)
            found += [(vars(each), "state", each.state), (each.state, parameter, state)]
            found += [] if state is None else [(state, key, value) for key, value in state.items()]
        return found

    def clock(self, parameter: Tensor) -> int:
        """The number of updates of a parameter, of an optimizer that counts them for every element; else 0."""
        counter = self.counter(parameter)
        return 0 if counter is None else int(counter)

    def counter(self, parameter: Tensor) -> Tensor | None:
        """Where an optimizer that counts the updates of every element keeps their number for a parameter; else None."""
        home = self._homes.get(parameter)
        optimizer = None if home is None else self.optimizers[home[0]]
        if not hasattr(optimizer, "element_state"):
            return None
        return optimizer.state.get(parameter, {}).get("step")  # pyright: ignore[reportOptionalMemberAccess]

    def restart_step_counts(self) -> None:
        """Set the step counts of all parameters back to zero, as they were before the first update; moments stay."""
        for optimizer in self.optimizers:
            if hasattr(optimizer, "restart_step_counts"):
                optimizer.restart_step_counts()  # pyright: ignore[reportAttributeAccessIssue]
            elif self._counts_steps(optimizer):
                for each in _nested(optimizer):
                    for state in each.state.values():
                        if isinstance(state.get("step"), Tensor):
                            state["step"].zero_()
                        elif "step" in state:
                            state["step"] = 0

    def without_step_count(self) -> str:
        """The names of the optimizers, if none of them corrects its moments by a step count; else ""."""
        if any(self._counts_steps(optimizer) for optimizer in self.optimizers):
            return ""
        return ", ".join(getattr(optimizer, "name", type(optimizer).__name__) for optimizer in self.optimizers)

    def _counts_steps(self, optimizer: Optimizer) -> bool:
        """Whether it is of Adam's kind, with a step count as the only number that is not by element."""
        if hasattr(optimizer, "restart_step_counts"):
            return getattr(optimizer, "counts_steps", True)
        like = optimizer.param_groups[0]["params"][0]
        home = self._home(like)
        assert home is not None
        for initial in self._initial_of(like, home):
            numbers = {key for key, beginning in initial.items() if beginning.axes == ()}
            if numbers == {"step"} and any(key.startswith("exp_avg") for key in initial):
                return True
        return False

    def shares_step_count(self) -> str:
        """The optimizer whose reset weights go on with the step count of their tensor, as in torch's Adam family."""
        for (number, _, _), found in self._initial.items():
            for initial in found:
                if "step" in initial and any(key.startswith("exp_avg") for key in initial):
                    return type(self.optimizers[number]).__name__
        return ""

    def _home(self, parameter: Tensor) -> tuple[int, int] | None:
        """Which optimizer, and which of its groups, a parameter belongs to."""
        for number, optimizer in enumerate(self.optimizers):
            for place, group in enumerate(optimizer.param_groups):
                if any(parameter is owned for owned in group["params"]):
                    return number, place
        return None

    def _initial_of(self, parameter: Tensor, home: tuple[int, int]) -> list[dict[str, Beginning]]:
        """How the state of parameters of this group and number of axes begins, for each nested optimizer."""
        key = (*home, parameter.dim())
        if key not in self._initial:
            self._initial[key] = initial_state(self.optimizers[home[0]], home[1], parameter)
        return self._initial[key]


def unwrap_optimizer(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside a framework's wrapper (accelerate, Lightning), which has no state of its own."""
    inner = getattr(optimizer, "optimizer", None)
    while isinstance(inner, Optimizer) and inner.state is optimizer.state:
        optimizer, inner = inner, getattr(inner, "optimizer", None)
    return optimizer


def initial_state(optimizer: Optimizer, group_number: int, like: Tensor) -> list[dict[str, Beginning]]:
    """How the state of a parameter begins, as a twin of the optimizer shows: by name, for each nested optimizer.

    Args:
        optimizer: the user's optimizer, which is left alone.
        group_number: which of its parameter groups.
        like: a parameter whose dtype, device and number of axes the trial takes.

    Raises:
        TypeError: the optimizer cannot take such a step.
    """
    at_zero = _try(optimizer, group_number, like, 0.0)
    try:
        at_one = _try(optimizer, group_number, like, 1.0)
    except TypeError:
        at_one = at_zero
    sides = _SIDES[: like.dim()]
    return [
        {
            key: Beginning(
                value.flatten()[0].clone(),
                value.shape == sides and key in other and bool(((other[key] - value) - 1.0).abs().max() < 0.1),
                _axes(value, sides),
            )
            for key, value in state.items()
        }
        for state, other in zip(at_zero, at_one, strict=True)
    ]


def _try(
    optimizer: Optimizer, group_number: int, like: Tensor, value: float, ways: Sequence[Callable[..., Optimizer]] = ()
) -> list[dict[str, Tensor]]:
    """Each state tensor when it first appears, in a twin that steps on a constant parameter with gradients of zero."""
    group = optimizer.param_groups[group_number]
    options = copy.deepcopy({key: value for key, value in group.items() if key != "params"})
    if value and "weight_decay" in options:
        options["weight_decay"] = 0.0  # else moments would depend on the weight, too
    errors: list[Exception] = []
    for make in ways or (_copied, _constructed):
        trial = torch.nn.Parameter(torch.full(_SIDES[: like.dim()], value, dtype=like.dtype, device=like.device))
        trial.grad = torch.zeros_like(trial)
        try:
            twin = make(optimizer, options, trial)
            found: list[dict[str, Tensor]] = [{} for _ in _nested(twin)]
            with torch.random.fork_rng(devices=[like.device] if like.device.type == "cuda" else []):
                for _ in range(_STEPS):
                    type(optimizer).step(twin)  # the class's function: a scheduler may have wrapped the instance's
                    for kept, nested in zip(found, _nested(twin), strict=True):
                        for key, each in nested.state.get(trial, {}).items():
                            if isinstance(each, Tensor) and each.numel() > 0:
                                kept.setdefault(key, each.detach().clone())
        except Exception as error:
            errors.append(error)
            continue
        return found
    raise TypeError(
        f"{type(optimizer).__name__} could not take trial steps on zeros ({errors[0]}), so the initial value of "
        "its per-weight state is not known. Give it a method `clear_elements(parameter, region)` that calls "
        "`region.write(state_tensor, value)` for each of its state tensors."
    ) from errors[0]


def _nested(optimizer: Optimizer) -> Iterator[Optimizer]:
    """An optimizer, then those it holds that have a state of their own."""
    yield optimizer
    for value in vars(optimizer).values():
        if isinstance(value, Optimizer) and value.state is not optimizer.state:
            yield from _nested(value)


def _copied(
    optimizer: Optimizer, options: dict[str, Any], trial: Tensor, made: dict[int, Any] | None = None
) -> Optimizer:
    """A twin that owns the trial parameter alone; needs to know nothing of the class.

    Attributes are shared, but for state, groups and hooks; what a wrapper shares with the optimizer it holds, its twin
    shares with that one's twin.
    """
    made = {} if made is None else made
    twin = object.__new__(type(optimizer))
    vars(twin).update(vars(optimizer))
    for name, value in vars(optimizer).items():  # first: setting an attribute below may reach into these
        if isinstance(value, Optimizer):
            vars(twin)[name] = _copied(value, options, trial, made)
    twin.state = made.setdefault(id(optimizer.state), defaultdict(dict))
    twin.param_groups = made.setdefault(id(optimizer.param_groups), [{**options, "params": [trial]}])
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(twin, name, OrderedDict())
    return twin


def _constructed(optimizer: Optimizer, options: dict[str, Any], trial: Tensor) -> Optimizer:
    """A new optimizer with the same options, for classes that make their state in the constructor."""
    known = inspect.signature(type(optimizer).__init__).parameters
    return type(optimizer)([trial], **{key: value for key, value in options.items() if key in known})


def _axes(value: Tensor, sides: Sequence[int]) -> tuple[int, ...] | None:
    """Which axes of a trial parameter a state tensor has, by their sizes; None if it is not of this kind."""
    axes = tuple(sides.index(side) for side in value.shape if side in sides)
    return axes if len(axes) == value.dim() and list(axes) == sorted(axes) else None


def _with_all_axes(value: Tensor, parameter: Tensor, beginning: Beginning | None) -> Tensor:
    """A view of a state tensor with an axis of size 1 for each axis of the parameter that it lacks."""
    if beginning is None or beginning.axes is None or value.dim() == parameter.dim():
        return value
    shape = [parameter.shape[axis] if axis in beginning.axes else 1 for axis in range(parameter.dim())]
    return value.view(shape) if value.numel() == math.prod(shape) else value


def covers(value: Tensor, parameter: Tensor, region: Region) -> bool:
    """Whether a state tensor holds numbers of single elements, rows or columns that the region indexes.

    Factored state (Adafactor keeps one number per row and one per column) counts where its axis is the indexed one.
    """
    if value.shape == parameter.shape:
        return True
    if region.mask is not None or value.dim() != parameter.dim() or value.dim() < 2:
        return False
    axis = 0 if region.groups is None else 1
    factored = all(mine in (1, full) for mine, full in zip(value.shape, parameter.shape, strict=True))
    whole_groups = region.groups in (None, 1) or value.shape[0] == parameter.shape[0]
    return factored and value.shape[axis] == parameter.shape[axis] and whole_groups

"""from_method(): a method that is an optimizer, as a torch optimizer for a user's own module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from neoteny.draws.initial import Distribution, ModuleDistribution
from neoteny.layers.parameters import LayerParameters
from neoteny.layers.regions import Region
from neoteny.methods.method import Method, State
from neoteny.methods.state import move_nested
from neoteny.units.view import View


def from_method(method: Method, params: Iterable[Any], seed: int | None = None) -> MethodOptimizer:
    """A torch optimizer that makes a method's update.

    Its parameter groups hold the method's hyperparameters, with `step_size` under torch's name `lr`; so learning-rate
    schedulers, gradient scalers and `state_dict` work as with every torch optimizer. Each parameter group keeps a state
    of its own: what a method compares across weights (UPGD's largest utility) it compares within the group.

    Args:
        method: for example `UPGD(0.01)`; one number per hyperparameter.
        params: parameters, named parameters or parameter groups, as for every torch optimizer.
        seed: of every draw; without it one is drawn from torch's generator.

    Example:
        >>> from neoteny.methods import UPGD
        >>> layer = nn.Linear(2, 1)
        >>> optimizer = from_method(UPGD(0.01), layer.parameters())
        >>> optimizer.param_groups[0]["lr"]
        0.01
    """
    return MethodOptimizer(method, params, seed)


class MethodOptimizer(Optimizer):
    """A torch optimizer around a method; made by `from_method`."""

    def __init__(self, method: Method, params: Iterable[Any], seed: int | None = None) -> None:
        if not isinstance(method, Method) or not method.is_optimizer:
            given = method if isinstance(method, type) else type(method)
            raise TypeError(
                f"from_method expects a method that is an optimizer, such as neoteny.UPGD(0.01); got {given.__name__}. "
                "Other methods are attached: neoteny.attach(model, optimizer, method, ...)."
            )
        if method.runs() is not None:
            raise ValueError(
                f"{type(method).__name__}: a sequence of hyperparameters is for neoteny.stack; from_method takes one "
                "value."
            )
        self._method = method
        self._instances: dict[tuple[Any, ...], Method] = {}
        self._views: dict[int, _GroupView] = {}
        options = method.hyperparameters()
        super().__init__(params, {"lr": options.pop("step_size"), **options})
        self._seed = int(torch.randint(0, 2**63 - 1, ())) if seed is None else seed

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One update of every parameter that has a gradient; returns what `closure` returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number, group in enumerate(self.param_groups):
            view = self._view(number)
            if any(view.gradient(name) is not None for name in view.parameters):
                self._instance(group).step(view, self._state(number))
        return loss

    def clear_elements(self, parameter: Tensor, region: Region) -> None:
        """Put the method's memory of some elements of a parameter back to its start."""
        for number, group in enumerate(self.param_groups):
            for name, owned in self._view(number).named():
                if owned is parameter:
                    self._instance(group).on_reset(self._view(number), self._state(number), replace(region, name=name))

    @property
    def name(self) -> str:
        """The method's name."""
        return type(self._method).__name__

    @property
    def counts_steps(self) -> bool:
        """Whether the method corrects its moments by a step count."""
        return self._method.counts_steps

    def restart_step_counts(self) -> None:
        """Set the method's step counts back to zero; moments are kept."""
        for number, group in enumerate(self.param_groups):
            self._instance(group).restart_count(self._view(number), self._state(number))

    def state_dict(self) -> dict[str, Any]:
        """As of every torch optimizer, with the seed of the draws."""
        return {**super().state_dict(), "seed": self._seed}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Restore `state_dict()`; it is copied, so that later updates leave it alone."""
        saved = copy.deepcopy(dict(state_dict))
        self._seed = saved.pop("seed", self._seed)
        super().load_state_dict(saved)
        self._views.clear()
        for number in range(len(self.param_groups)):
            key: Any = _key(number)
            if key in self.state:
                move_nested(self.state[key], self._view(number).seeds.device)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._method!r})\n{super().__repr__()}"

    def _instance(self, group: Mapping[str, Any]) -> Method:
        """The method with the present hyperparameters of a group, which a scheduler may have changed."""
        names = [name for name in self._method.hyperparameters() if name != "step_size"]
        values = (float(group["lr"]), *(group[name] for name in names))
        if values not in self._instances:
            if len(self._instances) > 64:  # a scheduler changes the step size at every update
                self._instances.clear()
            options = dict(zip(names, values[1:], strict=True))
            self._instances[values] = replace(self._method, step_size=values[0], **options)  # pyright: ignore
        return self._instances[values]

    def _view(self, number: int) -> _GroupView:
        if number not in self._views:
            self._views[number] = _GroupView(self, number)
        view = self._views[number]
        view.seeds = view.seeds.to(self.param_groups[number]["params"][0].device)
        return view

    def _state(self, number: int) -> State:
        key: Any = _key(number)
        if key not in self.state:
            self.state[key] = self._instance(self.param_groups[number]).init(self._view(number))
        return self.state[key]


class _GroupView(View):
    """The parameters of one group of an optimizer, as a method sees them (R = ())."""

    def __init__(self, optimizer: MethodOptimizer, number: int) -> None:
        super().__init__()
        self.runs = ()
        self.groups = ()
        self._optimizer = optimizer
        self._number = number
        self.seeds = torch.tensor(optimizer._seed, dtype=torch.int64)

    def named(self) -> list[tuple[str, Tensor]]:
        """Every parameter of the group with its name, or its number where the user gave no names."""
        group = self._optimizer.param_groups[self._number]
        names = group.get("param_names") or [f"{self._number}.{place}" for place in range(len(group["params"]))]
        return list(zip(names, group["params"], strict=True))

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Every trainable parameter of the group."""
        return {name: parameter for name, parameter in self.named() if parameter.requires_grad}

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """An optimizer sees none."""
        return {}

    @property
    def layers(self) -> Sequence[LayerParameters]:
        """An optimizer sees parameters, not layers."""
        return ()

    def tensor(self, name: str) -> Tensor:
        """A parameter by name."""
        return dict(self.named())[name]

    def gradient(self, name: str) -> Tensor | None:
        """The gradient in the parameter's `.grad`."""
        gradient = self.tensor(name).grad
        if gradient is not None and gradient.is_sparse:
            raise TypeError(f"{name} has sparse gradients, but {self._optimizer._method!r} needs dense ones.")
        return gradient

    def output_weight(self) -> str | None:
        """The last matrix of all groups: an optimizer sees no layers."""
        every = [
            (number, place, parameter)
            for number, group in enumerate(self._optimizer.param_groups)
            for place, parameter in enumerate(group["params"])
        ]
        matrices = [(number, place) for number, place, parameter in every if parameter.dim() > 1]
        if not matrices or matrices[-1][0] != self._number:
            return None
        return self.named()[matrices[-1][1]][0]

    def initial(self, weight: str) -> Distribution | ModuleDistribution:
        """Not known to an optimizer."""
        raise TypeError(f"An optimizer does not know the initial distribution of {weight!r}.")

    def freeze(self, name: str) -> None:
        """Make a parameter one that is no longer trained."""
        self.tensor(name).requires_grad_(False)

    def replace_module(self, name: str, make: Callable[[nn.Module], nn.Module]) -> None:
        """Not possible for an optimizer."""
        raise TypeError(f"An optimizer cannot replace the module {name!r}.")


def _key(number: int) -> str:
    return f"group {number}"

"""StackView: the stacked tensors of n networks, as methods see them (R = (n,))."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import stack_module_state

from neoteny.draws.initial import Declared, Distribution, ModuleDistribution, initial_of
from neoteny.layers.parameters import LayerParameters, layer_parameters
from neoteny.stacking.forward import is_chain
from neoteny.stacking.running_again import run_again
from neoteny.units.bind import refuse_port
from neoteny.units.calls import Call, Pass
from neoteny.units.view import LiveGroup, View


class StackView(View):
    """The stacked tensors of n networks.

    Args:
        modules: the networks; their tensors are copied.
        template: a module of the same structure, whose tensors do not matter; a rewritten network rewrites it.
        groups: the unit groups.
        seeds: of the runs.
        init: the declared initial distributions, as for `stack`.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        template: nn.Module,
        groups: Sequence[LiveGroup],
        seeds: Sequence[int],
        init: Declared | None = None,
    ) -> None:
        super().__init__()
        parameters, buffers = stack_module_state(list(modules))
        self.runs = (len(modules),)
        self.groups = groups
        self.template = template
        self.gradients: dict[str, Tensor | None] = {}
        self.tensors: dict[str, Tensor] = {**parameters, **buffers}
        self._buffers = buffers
        self.optimizer: object = None
        """The method that makes the updates."""
        self.on_rewrite: Callable[[], None] = lambda: None
        self._init = init
        self._parameters = {name: value for name, value in parameters.items() if value.requires_grad}
        device = next(iter(parameters.values())).device
        self.seeds = torch.tensor(list(seeds), dtype=torch.int64, device=device)

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Every trainable parameter, (n, ...)."""
        return self._parameters

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """Every buffer, (n, ...)."""
        return self._buffers

    @property
    def structure(self) -> nn.Module:
        """The template."""
        return self.template

    @property
    def layers(self) -> Sequence[LayerParameters]:
        """The names of weights, biases and scales, layer by layer."""
        return layer_parameters(self.template)

    def tensor(self, name: str) -> Tensor:
        """A stacked parameter or buffer."""
        return self.tensors[name]

    def gradient(self, name: str) -> Tensor | None:
        """The gradient of this step."""
        return self.gradients.get(name)

    def initial(self, weight: str) -> Distribution | ModuleDistribution:
        """The initial distribution of a layer's weight."""
        return initial_of(self.template, weight, self._init)

    def step_size(self, name: str) -> float | Tensor:
        """The step size of the method that is the optimizer."""
        size = getattr(self.optimizer, "step_size", None)
        if not isinstance(size, (int, float, tuple)):
            raise ValueError(
                f"{type(self.optimizer).__name__} has no setting `step_size`, so the step size of {name!r} is not "
                "known: choose another optimizer."
            )
        parameter = self.tensors[name]
        return self.scheduled(self.per_run(size, parameter, self.axes(parameter)))

    def forward(self, call: Call, tensors: Mapping[str, Tensor] | None = None, reads: Sequence[str] = ()) -> Pass:
        """Make a forward pass of all networks again; see `View.forward`."""
        return run_again(self.template, {**self.tensors, **(tensors or {})}, self._buffers, call, reads)

    def joined(self, calls: Sequence[Call]) -> list[Call]:
        """One call with all examples, of a chain of layers that in evaluation mode take each by itself."""
        alike = {(call.arguments[0].shape[2:], call.arguments[0].dtype, call.autocast) for call in calls}
        if len(alike) != 1 or not is_chain(self.template):
            return list(calls)
        return [Call((torch.cat([call.arguments[0] for call in calls], 1),), {}, calls[0].autocast)]

    def trainable(self, group: LiveGroup) -> bool:
        """Whether no parameter of the group was frozen since."""
        return all(name in self._parameters or name in self._buffers for name in group.tensors())

    def freeze(self, name: str) -> None:
        """Make a parameter one that is no longer trained."""
        self._parameters.pop(name).requires_grad_(False)
        self.template.get_parameter(name).requires_grad_(False)

    def unfreeze(self, name: str) -> None:
        """Train a frozen parameter again."""
        self.template.get_parameter(name).requires_grad_(True)
        order = [key for key, value in self.template.named_parameters() if value.requires_grad]
        self._parameters[name] = self.tensors[name].requires_grad_(True)
        self._parameters = {key: self._parameters[key] for key in order if key in self._parameters}

    def replace_module(self, name: str, make: Callable[[nn.Module], nn.Module]) -> None:
        """Put another module in the place of one in every run, and give the optimizer its new parameters."""
        refuse_port(self.groups, name)
        made = [make(self._submodule(name, run)) for run in range(self.runs[0])]
        parent, _, key = name.rpartition(".")
        setattr(self.template.get_submodule(parent), key, made[0])
        gone = {each for each in self.tensors if each.startswith(f"{name}.")}
        for each in gone:
            del self.tensors[each]
            self._buffers.pop(each, None)
            self._parameters.pop(each, None)
        parameters, buffers = stack_module_state(made)
        self.tensors |= {f"{name}.{each}": value for each, value in (parameters | buffers).items()}
        self._buffers |= {f"{name}.{each}": value for each, value in buffers.items()}
        trained = {f"{name}.{each}": value for each, value in parameters.items() if value.requires_grad}
        self._parameters |= trained
        for listener in self.listeners:
            listener.forget(gone)
        self.on_rewrite()

    def _submodule(self, name: str, run: int) -> nn.Module:
        """A copy of one run's submodule."""
        module = copy.deepcopy(self.template.get_submodule(name))
        with torch.no_grad():
            for key, tensor in (*module.named_parameters(), *module.named_buffers()):
                tensor.copy_(self.tensors[f"{name}.{key}"][run])
        return module

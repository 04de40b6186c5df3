"""ModuleView: the live tensors of a user's module and the state of its optimizer, as methods see them (R = ())."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from neoteny.attachment.parts import Parts
from neoteny.attachment.running_again import run_again
from neoteny.draws.initial import Declared, Distribution, ModuleDistribution, holders, initial_of, resolve
from neoteny.layers.parameters import LayerParameters, layer_parameters
from neoteny.layers.parametrized import ComputedWeight, computed_weight
from neoteny.layers.regions import Region
from neoteny.optim.state import OptimizerState
from neoteny.units.bind import refuse_port
from neoteny.units.calls import Call, Pass
from neoteny.units.device_tick import retire
from neoteny.units.laws import STRICT, Laws
from neoteny.units.view import ElementState, LiveGroup, View

_Place = tuple[Mapping[str, Tensor | None], str, str]
"""Parameters of a module, the name of one of them there, and its name in the model."""


class ModuleView(View):
    """The live tensors of one module and the state of its optimizer.

    Args:
        model: the module.
        state: of its optimizer.
        groups: its unit groups.
        seed: of every draw.
        init: the declared initial distributions, as for `attach`.
        laws: what new units of each layer are drawn from.
    """

    def __init__(
        self,
        model: nn.Module,
        state: OptimizerState,
        groups: Sequence[LiveGroup],
        seed: int,
        init: Declared | None = None,
        laws: Laws | None = None,
    ) -> None:
        super().__init__()
        self.runs = ()
        self.groups = groups
        self.optimizer_state = state
        self._model = model
        self.init = None if init == STRICT else init
        self.laws: Laws = laws or {}
        self._group_parameters: dict[str, list[_Place]] = {}
        self._owners: dict[str, tuple[nn.Module, str]] = {}
        self._layers: list[LayerParameters] | None = None
        self.on_rewrite: Callable[[], None] = lambda: None
        self._look()
        self._first = state.param_groups[0]["params"][0]
        self.seeds = torch.tensor(seed, dtype=torch.int64, device=self._first.device)

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Every parameter that is trainable now and that the optimizer owns now: users freeze, unfreeze and add."""
        owned = {id(parameter) for group in self.optimizer_state.param_groups for parameter in group["params"]}
        named = self._model.named_parameters()
        return {name: value for name, value in named if value.requires_grad and id(value) in owned}

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """Every buffer of the model."""
        return dict(self._model.named_buffers())

    @property
    def layers(self) -> Sequence[LayerParameters]:
        """The names of weights, biases and scales, layer by layer."""
        if self._layers is None:
            self._layers = layer_parameters(self._model)
        return self._layers

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """Every module by name."""
        return self._modules

    @property
    def structure(self) -> nn.Module:
        """The model itself."""
        return self._model

    def tensor(self, name: str) -> Tensor:
        """A parameter or buffer, looked up at every call: a user may have replaced or moved it.

        Of a weight that is computed from other parameters this is a copy: `write` changes it.
        """
        if name in self._computed:
            return self._computed[name].read()
        if name not in self._owners:
            module, _, key = name.rpartition(".")
            self._owners[name] = (self._modules[module], key)
        module, key = self._owners[name]
        value = module._parameters.get(key)
        value = module._buffers.get(key) if value is None else value
        if value is None:
            raise ValueError(
                f"{name} is no longer a parameter of its module: it was re-parametrised or removed after attach. Call "
                "plastic.detach() and attach again."
            )
        return value

    def gradient(self, name: str) -> Tensor | None:
        """The gradient in the parameter's `.grad`; of a computed weight, of the parameter of its shape behind it."""
        if name in self._computed:
            name = f"{name.removesuffix('weight')}{self._computed[name].originals[-1]}"
        return self._model.get_parameter(name).grad

    @contextmanager
    def holding(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """Let some parameters and buffers have other values, until the end of a `with`."""
        tensors = {name: self.tensor(name) for name in values}
        with torch.no_grad():
            kept = {name: tensor.detach().clone() for name, tensor in tensors.items()}
            for name, value in values.items():
                tensors[name].copy_(value)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in kept.items():
                    tensors[name].copy_(value)

    def initial(self, weight: str) -> Distribution | ModuleDistribution:
        """The initial distribution of a layer's weight."""
        module, _, key = weight.rpartition(".")
        for name in (weight, *holders(weight)):
            if name in self.laws:
                return resolve(self._modules[module], self.laws[name].initial, key)
        return initial_of(self._model, weight, self.init)

    def use_laws(self, laws: Laws) -> None:
        """Draw new units from these distributions from now on."""
        self.laws = laws
        before = [group.initial for group in self.groups]
        for group in self.groups:
            group.initial = [
                resolve(self._modules[port.module], laws[port.key].initial, port.weight.rpartition(".")[2])
                for port in group.producers
            ]
        if before != [group.initial for group in self.groups]:
            self._start_fused_ticks_again()

    def freeze(self, name: str) -> None:
        """Make a parameter one that is no longer trained."""
        parameter = self._model.get_parameter(name)
        parameter.requires_grad_(False)
        parameter.grad = None

    def replace_module(self, name: str, make: Callable[[nn.Module], nn.Module]) -> None:
        """Put another module in the place of one, and give the optimizer its new parameters."""
        refuse_port(self.groups, name)
        old = self._model.get_submodule(name)
        new = make(old)
        before = {id(parameter): parameter for parameter in old.parameters()}
        home = self.optimizer_state.param_groups[0]
        for group in self.optimizer_state.param_groups:
            if any(id(parameter) in before for parameter in group["params"]):
                home = group
        parent, _, key = name.rpartition(".")
        setattr(self._model.get_submodule(parent), key, new)
        live = {id(parameter) for parameter in self._model.parameters()}
        known = {id(parameter) for group in self.optimizer_state.param_groups for parameter in group["params"]}
        for group in self.optimizer_state.param_groups:
            kept = [id(each) not in before or id(each) in live for each in group["params"]]
            for each in ("params", "param_names"):  # names where the user gave named parameters
                if each in group:
                    group[each] = [value for value, stays in zip(group[each], kept, strict=True) if stays]
        for parameter in before.values():
            if id(parameter) not in live:
                self.optimizer_state.forget(parameter)
        for each, parameter in new.named_parameters():
            if parameter.requires_grad and id(parameter) not in known:
                home["params"].append(parameter)
                if "param_names" in home:
                    home["param_names"].append(f"{name}.{each}")
        self._look()
        for listener in self.listeners:
            listener.forget({f"{name}.{each}" for each, _ in (*old.named_parameters(), *old.named_buffers())})
        self.on_rewrite()

    def changed(self) -> bool:
        """Whether a layer or a weight is no longer the one that was attached, or a layer has new neighbours."""
        return self._parts.changed()

    def rebind(self, groups: Sequence[LiveGroup]) -> set[str]:
        """Take groups bound to the modules of today; returns the names of parameters that are no longer the same."""
        before = self._parts
        self.groups = groups
        self._magnitudes = self._gradient_magnitudes = self._shared_inputs = None
        self._look()
        self._start_fused_ticks_again()
        return before.not_in(self._parts)

    def _look(self) -> None:
        """Look the model's modules up, and remember what they are."""
        self._modules = dict(self._model.named_modules())
        self._owners.clear()
        self._group_parameters.clear()
        self._layers = None
        written = [port for group in self.groups for port in (*group.producers, *group.consumers)]
        found = {port.weight: computed_weight(self._modules[port.module]) for port in written}
        self._computed: dict[str, ComputedWeight] = {name: each for name, each in found.items() if each is not None}
        self._parts = Parts(self._modules)

    def trainable(self, group: LiveGroup) -> bool:
        """Whether no parameter of the group was frozen since attach."""
        for home, key, name in self._parameters_of(group):  # hundreds per tick in a densely connected network
            value = home.get(key)
            if not (self.tensor(name) if value is None else value).requires_grad:
                return False
        return True

    def device(self) -> torch.device:
        """Where the model is now."""
        return self._first.device

    def follow_device(self) -> bool:
        """Move the seed to where the model is now; whether it was elsewhere."""
        if self.seeds.device == self.device():
            return False
        self.seeds = self.seeds.to(self.device())
        return True

    def gradient_scale(self) -> float | Tensor:
        """The loss scale, while a fused optimizer still has to divide by it."""
        scales = [getattr(optimizer, "grad_scale", None) for optimizer in self.optimizer_state.optimizers]
        return next((scale for scale in scales if scale is not None), 1.0)

    def step_size(self, name: str) -> float | Tensor:
        """The step size (`lr`) of the parameter group that a parameter is in."""
        group = self.optimizer_state.group_of(self._model.get_parameter(name))
        if group is None or "lr" not in group:
            raise ValueError(f"The step size of {name!r} is not known: the optimizer's group of it has no entry 'lr'.")
        size = group["lr"]
        return size.detach().clone() if isinstance(size, Tensor) else float(size)

    def forward(self, call: Call, tensors: Mapping[str, Tensor] | None = None, reads: Sequence[str] = ()) -> Pass:
        """Make a forward pass of the model again; see `View.forward`."""
        return run_again(self._model, call, tensors or {}, reads)

    def write(self, region: Region, value: Tensor | float) -> None:
        """Set these elements of a parameter or buffer; of a computed weight, through what it is computed from."""
        computed = self._computed.get(region.name)
        if computed is None:
            super().write(region, value)
            return
        weight = computed.read()
        new = torch.zeros_like(weight, dtype=torch.bool)
        region.write(weight, value)
        region.write(new, True)
        computed.write(weight, new)

    def was_reset(self, region: Region) -> None:
        """Reset the torch optimizer's state for these elements, and tell every method."""
        computed = self._computed.get(region.name)
        prefix = region.name.removesuffix("weight")
        for each in [region] if computed is None else computed.regions(region, prefix):
            self.clear_optimizer(each)
            super().was_reset(each)

    def clear_optimizer(self, region: Region) -> None:
        """Reset the torch optimizer's state for these elements."""
        tensor = self.tensor(region.name)
        if isinstance(tensor, nn.Parameter):
            self.optimizer_state.clear(tensor, region)

    def restart_optimizer(self, name: str) -> None:
        """Put the torch optimizer's state of a whole parameter back to its start, with its step count."""
        tensor = self.tensor(name)
        if isinstance(tensor, nn.Parameter):
            self.optimizer_state.restart(tensor, Region.whole(name, tensor, 0))

    def restart_step_counts(self) -> None:
        """Set the step counts of the torch optimizers back to zero."""
        self.optimizer_state.restart_step_counts()

    def without_step_count(self) -> str:
        """The names of the torch optimizers, if none of them has a step count."""
        return self.optimizer_state.without_step_count()

    def optimizer_elements(self, name: str, groups: int | None) -> ElementState | None:
        """The torch optimizer's state of a parameter; see `View.optimizer_elements`."""
        tensor = self.tensor(name)
        known = isinstance(tensor, nn.Parameter)
        return self.optimizer_state.elementwise(tensor, groups) if known else ElementState([])

    def optimizer_clock(self, name: str) -> int:
        """The number of updates that the torch optimizer counts of a parameter."""
        return self.optimizer_state.clock(self.tensor(name))

    def optimizer_counter(self, name: str) -> Tensor | None:
        """Where the torch optimizer counts the updates of a parameter."""
        return self.optimizer_state.counter(self.tensor(name))

    def places(self, name: str) -> list[tuple[dict[Any, Any], Any, Any]]:
        """Where a parameter or buffer and its optimizer state are looked up; see `View.places`."""
        tensor = self.tensor(name)
        module, key = self._owners[name]
        if not isinstance(tensor, nn.Parameter):
            return [(module._buffers, key, tensor)]
        return [(module._parameters, key, tensor), *self.optimizer_state.places(tensor)]

    def _start_fused_ticks_again(self) -> None:
        """Forget the tables of fused ticks: they name modules and distributions of new units."""
        former = [made for _, made in self.fused.values()]
        self.fused.clear()
        for made in former:
            retire(self, made)

    def _parameters_of(self, group: LiveGroup) -> list[_Place]:
        if group.name not in self._group_parameters:
            places: list[_Place] = []
            for name in (each for tensor in group.tensors() for each in self._parameters_behind(tensor)):
                self.tensor(name)  # finds its owner
                module, key = self._owners[name]
                places.append((module._parameters, key, name))
            self._group_parameters[group.name] = places
        return self._group_parameters[group.name]

    def _parameters_behind(self, name: str) -> list[str]:
        """The parameters that a weight is, or is computed from; none for a buffer."""
        if name in self._computed:
            return [f"{name.removesuffix('weight')}{each}" for each in self._computed[name].originals]
        return [name] if isinstance(self.tensor(name), nn.Parameter) else []

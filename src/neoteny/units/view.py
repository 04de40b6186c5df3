"""View: the live tensors of one network (R = ()) or of n networks in lock-step (R = (n,)).

A method is written once against a View. `attachment` makes one over a user's module and optimizer, `stacking` one over
stacked parameters. Every tensor has the run axes R first, and all other axes are counted from the right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from neoteny.draws.initial import Declared, Distribution, ModuleDistribution, declared_for, resolve
from neoteny.layers.groups import Port, UnitGroup
from neoteny.layers.parameters import LayerParameters
from neoteny.layers.ports import ConsumerPort, HiddenPort, NormPort, ProducerPort
from neoteny.layers.recurrent import RECURRENT, hidden_source
from neoteny.layers.regions import ChosenUnits, Region
from neoteny.units.calls import Call, Pass
from neoteny.units.magnitudes import Magnitudes
from neoteny.units.ranks import Gathered, Ranks
from neoteny.units.shared_inputs import SharedInputs
from neoteny.wiring.output import find_output_layers, the_only

Reader = ConsumerPort | NormPort | HiddenPort
"""Where activations are read."""


class LiveGroup:
    """A unit group bound to the modules of a network: how to read its units and where to rewrite them.

    Attributes:
        name, units: as in the declaration.
        producers, consumers, norms: the bound ports.
        reader: the port at whose input the activations are read (a consumer or a norm; of a recurrent layer, what it
            returns).
        means: the consumers whose column means must be kept apart from the units' own mean activations, because they
            see something else (a flatten, another consumer, a norm in between).
    """

    def __init__(
        self,
        group: UnitGroup,
        modules: Mapping[str, nn.Module],
        init: Declared = "default",
    ) -> None:
        self.group = group
        self.name = group.name
        self.units = group.units
        self.producers = [ProducerPort(port, modules[port.module]) for port in group.producers]
        self.consumers = [ConsumerPort(port, modules[port.module]) for port in group.consumers]
        self.norms = [NormPort(port, modules[port.module]) for port in group.norms]
        self.initial: list[Distribution | ModuleDistribution] = [
            resolve(modules[port.module], declared_for(port.key, init), port.weight) for port in group.producers
        ]
        self.reader = self._find_reader(modules)
        self.means = [port for port in self.consumers if not (port is self.reader and port.one_column_a_unit)]
        # One linear layer read by one linear layer, feature by feature: what the compiled tick understands.
        self.plain_linear = (
            len(self.producers) == len(self.consumers) == 1
            and self.reader is self.consumers[0]
            and not self.means
            and all(port.in_order and not port.input_first for port in (*self.producers, *self.consumers))
        )

    def _find_reader(self, modules: Mapping[str, nn.Module]) -> Reader:
        for port in self.producers:
            module = modules[port.module]
            if isinstance(module, RECURRENT):  # all its steps count, also those that no other layer reads
                hidden = Port(port.module, port.features[:, :1] % module.hidden_size)
                return HiddenPort(hidden, hidden_source(port.weight), module.hidden_size)
        readable: dict[str, Reader] = {port.module: port for port in (*self.norms, *self.consumers)}
        return readable[self.group.read or self.group.consumers[0].module]

    def read_modules(self) -> list[str]:
        """Modules whose input must be recorded: the reader and every consumer."""
        return list(dict.fromkeys([self.reader.key, *(port.key for port in self.consumers)]))

    def reading(self, activations: Mapping[str, list[Tensor]]) -> Reader | None:
        """The port to read at this tick: the reader, else a consumer that ran; None if the group did not run."""
        return next((port for port in (self.reader, *self.consumers) if activations.get(port.key)), None)

    def tensors(self) -> list[str]:
        """Names of all parameters and buffers that a reset may write."""
        ports = (*self.producers, *self.consumers)
        names = [name for port in ports for name in (port.weight, port.bias) if name is not None]
        return [*names, *(name for port in self.norms for name in port.fresh)]


class ElementState(NamedTuple):
    """What an optimizer keeps of the elements of one parameter.

    Args:
        tensors: of the parameter's shape, each with its first value (None: a copy of the weight).
        vector: one number per row or column that becomes `clock` when that is reset, if there is one.
        clock: the number of updates so far.
    """

    tensors: list[tuple[Tensor, float | None]]
    vector: Tensor | None = None
    clock: int = 0


class View(ABC):
    """What a method sees: parameters, gradients, unit groups, recorded activations, seeds.

    Attributes:
        runs: R, the run axes: () or (n,).
        seeds: (*R,) int64, the run seeds.
        groups: the unit groups, in forward order.
        parameters: name -> tensor (*R, ...), every trainable parameter.
        activations: module name -> the inputs (*R, B, ...) it has received since the last tick.
        input_gradients: module name -> the gradients of the loss with respect to those inputs, where a method asked.
        calls: the forward passes of this update, where a method asked (`needs_inputs`).
        loss: (*R,) the training loss of this update, where it is known.
    """

    runs: tuple[int, ...]
    seeds: Tensor
    groups: Sequence[LiveGroup]

    def __init__(self) -> None:
        self.activations: Mapping[str, list[Tensor]] = {}
        self.input_gradients: Mapping[str, list[Tensor]] = {}
        self.calls: list[Call] = []
        self.loss: Tensor | None = None
        self.step_size_factor = 1.0
        """What a schedule multiplies the optimizer's step size by at this update (`scheduled`)."""
        self.listeners: list[ResetListener] = []
        self._per_run: dict[Any, Tensor] = {}
        self._magnitudes: Magnitudes | None = None
        self._gradient_magnitudes: Magnitudes | None = None
        self._shared_inputs: SharedInputs | None = None
        self.fused: dict[int, Any] = {}
        """Of methods that have one, the fused tick (`units/device_tick.py`), by the identity of their state."""
        self.retired: list[Any] = []
        """Fused ticks that are no longer in use, but that a captured CUDA graph may still write to."""
        self.capturable = False
        """Whether ticks leave nothing to the host, so that a CUDA graph can hold them."""
        self.resets_are_private = False
        """Whether no other method has to be told of units that one resets."""
        self.example: Any = None
        """What the network accepts, while methods are set up; it may show which layer gives the output."""
        self._outputs: tuple[str, ...] | None = None
        self.ranks: Ranks | None = None
        """The processes that train replicas of this network; `activations` are then those of all of them."""
        self.totals: dict[int, Any] | None = None
        """Of methods that keep sums instead of inputs (`units/totals.py`), the sums, by the identity of their state."""

    @property
    def own_activations(self) -> Mapping[str, list[Tensor]]:
        """What modules of this process received since the last tick."""
        return self.activations.own if isinstance(self.activations, Gathered) else self.activations

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Tensor]:
        """Every trainable parameter by name."""

    @property
    @abstractmethod
    def buffers(self) -> Mapping[str, Tensor]:
        """Every buffer by name."""

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """Every module by name; none where they are stacked."""
        return {}

    @property
    def structure(self) -> nn.Module:
        """A module with the network's structure; of a stack its tensors do not matter."""
        raise TypeError(f"{type(self).__name__} sees parameters, not modules.")

    @property
    @abstractmethod
    def layers(self) -> Sequence[LayerParameters]:
        """The names of weights, biases and scales, layer by layer."""

    @abstractmethod
    def tensor(self, name: str) -> Tensor:
        """A parameter or buffer by name."""

    @abstractmethod
    def gradient(self, name: str) -> Tensor | None:
        """The gradient of a parameter, to be changed in place."""

    @abstractmethod
    def initial(self, weight: str) -> Distribution | ModuleDistribution:
        """The initial distribution of a layer's weight, given by the weight's name."""

    @abstractmethod
    def freeze(self, name: str) -> None:
        """Make a parameter one that is no longer trained."""

    @abstractmethod
    def replace_module(self, name: str, make: Callable[[nn.Module], nn.Module]) -> None:
        """Put another module in the place of one, and give the optimizer its new parameters.

        Args:
            name: the module's name.
            make: from the present module to the new one, called once per run.
        """

    def output_layer(self) -> str:
        """The name of the layer that gives the network's output.

        Raises:
            ValueError: there are several, or it cannot be told.
        """
        return the_only(self.structure, self.output_layers())

    def output_layers(self) -> tuple[str, ...]:
        """The names of all layers that give the network's output; found once, when a method first asks.

        Raises:
            ValueError: it cannot be told.
        """
        if self._outputs is None:
            self._outputs = find_output_layers(self.structure, self.example)
        return self._outputs

    def weights(self) -> dict[str, Tensor]:
        """The trainable weights of linear layers and convolutions, (*R, out, in, ...)."""
        parameters = self.parameters
        names = [layer.weight for layer in self.layers if layer.weight is not None]
        return {name: parameters[name] for name in names if name in parameters}

    def output_weight(self) -> str | None:
        """The weight matrix of the output layer: that of the layer that the network lists last."""
        return next((layer.weight for layer in reversed(self.layers) if layer.weight is not None), None)

    def gradient_scale(self) -> float | Tensor:
        """What gradients are still multiplied by (a scaler whose optimizer unscales by itself)."""
        return 1.0

    def step_size(self, name: str) -> float | Tensor:
        """The optimizer's present step size for a parameter, ready to broadcast against it."""
        raise TypeError(f"The step size of {name!r} is not known here.")

    def scheduled(self, size: float | Tensor) -> float | Tensor:
        """A step size as the schedule has it at this update."""
        return size if self.step_size_factor == 1.0 else size * self.step_size_factor

    def forward(self, call: Call, tensors: Mapping[str, Tensor] | None = None, reads: Sequence[str] = ()) -> Pass:
        """Make a forward pass again, in evaluation mode, without a trace in buffers, random states or recordings.

        It is differentiated where gradients are enabled.

        Args:
            call: of `view.calls`, or kept from an earlier update.
            tensors: parameters and buffers to use instead of the present ones, by name.
            reads: modules whose inputs to return, too.
        """
        raise TypeError("There is no network here to run.")

    def joined(self, calls: Sequence[Call]) -> list[Call]:
        """The same passes in fewer calls, where no example of a pass influences another."""
        return list(calls)

    def trainable(self, group: LiveGroup) -> bool:
        """Whether all weights of a group may be changed now."""
        return True

    def write(self, region: Region, value: Tensor | float) -> None:
        """Set these elements of a parameter or buffer."""
        region.write(self.tensor(region.name), value)

    def was_reset(self, region: Region) -> None:
        """Tell the optimizer and every method that these elements are new."""
        for listener in self.listeners:
            listener.on_reset(region)

    def clear_optimizer(self, region: Region) -> None:
        """Put the optimizer's state of these elements back to its start; nobody else is told."""
        for listener in self.listeners:
            listener.clear_optimizer(region)

    def restart_optimizer(self, name: str) -> None:
        """Put the optimizer's state of a whole parameter back to its start, with its step count."""
        self.clear_optimizer(Region.whole(name, self.tensor(name), len(self.runs)))

    def restart_step_counts(self) -> None:
        """Set the step counts of the optimizer back to zero and keep its moments."""
        for listener in self.listeners:
            listener.restart_step_counts()

    def without_step_count(self) -> str:
        """The names of the optimizers, if none of them corrects its moments by a step count; else ""."""
        return ""

    def optimizer_elements(self, name: str, groups: int | None) -> ElementState | None:
        """The optimizer's state of rows (`groups` None) or columns of a parameter; None if it is not by element."""
        return None

    def optimizer_clock(self, name: str) -> int:
        """The number of updates of a parameter, of an optimizer that counts them for every element; else 0."""
        return 0

    def optimizer_counter(self, name: str) -> Tensor | None:
        """Where the optimizer keeps what `optimizer_clock` returns; None where it counts nothing."""
        return None

    def places(self, name: str) -> list[tuple[dict[Any, Any], Any, Any]]:
        """Where a parameter and each part of its optimizer state are looked up: dict, key, and what is there now."""
        return []

    def units_were_reset(self, group: LiveGroup, chosen: ChosenUnits, by: object) -> None:
        """Tell every method but the one that did it that these units are new."""
        for listener in self.listeners:
            listener.on_units_reset(group, chosen, by)

    def axes(self, parameter: Tensor) -> int:
        """The number of axes of a parameter after the run axes."""
        return parameter.dim() - len(self.runs)

    def per_run(self, value: float | tuple[float, ...], like: Tensor, axes: int) -> float | Tensor:
        """A hyperparameter ready to broadcast against tensors with `axes` axes after the run axes."""
        if isinstance(value, (int, float)):
            return value
        key = (value, like.dtype, like.device, axes)
        if key not in self._per_run:
            tensor = torch.tensor(value, dtype=like.dtype, device=like.device)
            self._per_run[key] = tensor.reshape(self.runs + (1,) * axes)
        return self._per_run[key]

    @property
    def shared_inputs(self) -> SharedInputs:
        """What modules were given that several groups read; a method that reads it forgets what was kept before."""
        if self._shared_inputs is None:
            self._shared_inputs = SharedInputs(self)
        return self._shared_inputs

    def magnitudes(self) -> Magnitudes:
        """Sums of absolute weights as they are now."""
        if self._magnitudes is None:
            self._magnitudes = Magnitudes(self)
        self._magnitudes.forget()
        return self._magnitudes

    def gradient_magnitudes(self) -> Magnitudes:
        """Sums of absolute gradients of weights as they are now; each weight that is asked for must have one."""
        if self._gradient_magnitudes is None:
            self._gradient_magnitudes = Magnitudes(self, self._known_gradient)
        self._gradient_magnitudes.forget()
        return self._gradient_magnitudes

    def _known_gradient(self, name: str) -> Tensor:
        gradient = self.gradient(name)
        assert gradient is not None
        return gradient


class ResetListener(Protocol):
    """Hears of resets: the methods of an attachment or a stack."""

    def on_reset(self, region: Region) -> None:
        """Some elements of a parameter are new."""
        ...

    def clear_optimizer(self, region: Region) -> None:
        """The optimizer forgets some elements of a parameter."""
        ...

    def restart_step_counts(self) -> None:
        """The optimizer's step counts go back to zero."""
        ...

    def on_units_reset(self, group: LiveGroup, chosen: ChosenUnits, by: object) -> None:
        """Some units are new."""
        ...

    def forget(self, names: set[str]) -> None:
        """These parameters are gone: another module has taken the place of theirs."""
        ...


def read_modules(view: View) -> list[str]:
    """The modules whose inputs show the activations of every group."""
    return list(dict.fromkeys(name for group in view.groups for name in group.read_modules()))

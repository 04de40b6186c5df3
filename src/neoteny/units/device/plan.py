"""Plan: where the units of one group lie, as rows of the tables that the kernels of a reset read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from neoteny.draws.initial import Distribution
from neoteny.draws.rng import purpose_code
from neoteny.layers.ports import ConsumerPort, ProducerPort
from neoteny.layers.regions import tap_layout
from neoteny.units.device.layout import KINDS
from neoteny.units.view import ElementState, LiveGroup

_FAMILIES = {"uniform": 0, "normal": 1, "cut": 2}
ROWS, COLUMNS = 128, 256
_STEP, _CLOCK = 1, 2  # vectors that take the step of the replacement, or the optimizer's number of updates
_KINDS = {**KINDS, torch.int64: 3}
_TABLES = {"outgoing": 17, "rows": 2, "incoming": 12, "columns": 2, "states": 3, "vectors": 6}


def why_not(groups: Sequence[LiveGroup]) -> str:
    """Why units of these groups are not replaced by the fused reset, or ""."""
    for group in groups:
        for port, law in zip(group.producers, group.initial, strict=True):
            if not isinstance(law, Distribution):
                return f"{port.module} draws new weights with code of its own"
        if group.units > 16384:
            return f"{group.name} has more than 16,384 units"
    return ""


class Network(Protocol):
    """One network's tensors: a view of a module, or one run of a stack."""

    def tensor(self, name: str) -> Tensor:
        """A parameter or buffer by name."""
        ...

    def optimizer_elements(self, name: str, groups: int | None) -> ElementState | None:
        """See `View.optimizer_elements`."""
        ...

    def places(self, name: str) -> list[tuple[dict[Any, Any], Any, Any]]:
        """See `View.places`."""
        ...


class Plan:
    """The rewriting of one group's units, as rows of the kernels' tables.

    Args:
        view: the network.
        group: of its units.
        statistics: of the group, see `units/statistics.py`; they are one row per unit.
        place: where the features of a port begin in the table of all features.
        compensate: as of `ContinualBackprop`.
    """

    def __init__(
        self,
        view: Network,
        group: LiveGroup,
        statistics: Mapping[str, Any],
        place: Callable[[Tensor], int],
        compensate: bool,
    ) -> None:
        self.view, self._place = view, place
        self._rows: dict[str, list[list[int]]] = {name: [] for name in _TABLES}
        self.laws: list[list[float]] = []
        self.states: list[float] = []
        self.values: list[float] = []
        self.held: list[Tensor] = []
        self.counted: list[str] = []
        self.biases: set[int] = set()
        """Where the mean share of zeroed weights is added."""
        self.ready = True
        means: Mapping[str, Tensor] = statistics["column_means"]
        for port in group.consumers:
            self._add_consumer(port, means.get(port.key) if compensate else None, compensate)
        for port, law in zip(group.producers, group.initial, strict=True):
            assert isinstance(law, Distribution)
            self._add_producer(port, law)
        for port in group.norms:
            for name, value in port.fresh.items():
                self._add_vector(view.tensor(name), port.features, value)
                self._add_states(name, port.features)
        for key, value in (("mean_activation", 0.0), ("utility", 0.0), ("decay_power", 1.0)):
            self._add_vector(statistics[key], None, value)
        self._add_vector(statistics["born"], None, 0.0, special=_STEP)
        for kept in means.values():
            self._add_vector(kept, None, 0.0)
        self._places = [place for name in group.tensors() for place in view.places(name)]
        homes = {id(home): home for home, _, _ in self._places}
        self._sizes = [(home, len(home)) for home in homes.values()]
        self.tables = {
            name: np.array(rows, dtype=np.int64).reshape(len(rows), width)
            for (name, rows), width in zip(self._rows.items(), _TABLES.values(), strict=True)
        }

    def holds(self) -> bool:
        """Whether every tensor of the group and of its optimizer state is still in its place."""
        for home, size in self._sizes:
            if len(home) != size:
                return False
        return all(home.get(key) is held for home, key, held in self._places)

    def _add_consumer(self, port: ConsumerPort, kept: Tensor | None, compensate: bool) -> None:
        weight = self.view.tensor(port.weight)
        inner, apart = tap_layout(weight) or (1, 1)
        # Without a bias: the running mean of the norm behind, from which the mean share is then taken.
        takes = port.bias or port.running_mean if compensate else None
        bias = None if takes is None else self.view.tensor(takes)
        number = len(self._rows["outgoing"])
        row = [weight.data_ptr(), KINDS[weight.dtype], weight.shape[0], math.prod(weight.shape[1:])]
        row += [port.repeat, self._place(port.features), inner, apart, port.taps]
        row += [port.groups, port.width // port.groups]
        row += [0, 0] if bias is None else [bias.data_ptr(), KINDS[bias.dtype]]
        row += [
            0 if kept is None else kept.data_ptr(),
            -1 if port.bias is None else 1,
            *self._weight_states(port.weight, port.features, port.groups),
        ]
        self._rows["outgoing"].append(row)
        self._rows["rows"] += [[number, block] for block in range(-(-weight.shape[0] // ROWS))]
        self.held += [weight, *([] if bias is None else [bias])]
        self.biases |= set() if bias is None else {bias.data_ptr()}

    def _add_producer(self, port: ProducerPort, law: Distribution) -> None:
        weight = self.view.tensor(port.weight)
        inner, apart = tap_layout(weight) or (1, 1)
        number = len(self._rows["incoming"])
        row = [weight.data_ptr(), KINDS[weight.dtype], math.prod(weight.shape[1:]), port.repeat]
        row += [self._place(port.features), inner, apart, math.prod(weight.shape[2:])]
        row += [
            _FAMILIES[law.family],
            purpose_code(port.weight),
            *self._weight_states(port.weight, port.features, None),
        ]
        self._rows["incoming"].append(row)
        self._rows["columns"] += [[number, block] for block in range(-(-math.prod(weight.shape[1:]) // COLUMNS))]
        self.laws.append([law.scale, math.erfc(law.cut / math.sqrt(2.0)) / 2.0])
        self.held.append(weight)
        if port.bias is not None:
            self._add_vector(self.view.tensor(port.bias), port.features, 0.0)
            self._add_states(port.bias, port.features)

    def _weight_states(self, name: str, features: Tensor, groups: int | None) -> list[int]:
        """First and last row of the optimizer's tensors of a weight."""
        start = len(self.states)
        for tensor, value in self._optimizer_tensors(name, features, groups):
            self._rows["states"].append([tensor.data_ptr(), _KINDS[tensor.dtype], int(value is None)])
            self.states.append(value or 0.0)
        return [start, len(self.states)]

    def _add_states(self, name: str, features: Tensor) -> None:
        for tensor, value in self._optimizer_tensors(name, features, None):
            self._add_vector(tensor, features, value or 0.0)

    def _optimizer_tensors(self, name: str, features: Tensor, groups: int | None) -> list[tuple[Tensor, float | None]]:
        found = self.view.optimizer_elements(name, groups)
        if found is None or any(tensor.dtype not in _KINDS for tensor, _ in found.tensors):
            self.ready = False
            return []
        self.held += [tensor for tensor, _ in found.tensors]
        if found.vector is not None:
            self._add_vector(found.vector.flatten(), features, 0.0, special=_CLOCK)
            self.counted.append(name)
        return found.tensors

    def _add_vector(self, tensor: Tensor, features: Tensor | None, value: float, special: int = 0) -> None:
        repeat, place = (1, -1) if features is None else (features.shape[1], self._place(features))
        kind, length = _KINDS[tensor.dtype], tensor[0].numel()
        self._rows["vectors"].append([tensor.data_ptr(), kind, repeat, place, length, special])
        self.values.append(value)
        self.held.append(tensor)


def merge(plans: Sequence[Plan], device: torch.device) -> dict[str, Tensor]:
    """The tables of all plans as one of each; "ranges" says which rows are whose."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in _TABLES}
    sizes = dict.fromkeys(_TABLES, 0)
    ranges: list[list[int]] = []
    for plan in plans:
        made = {name: table.copy() for name, table in plan.tables.items()}
        made["rows"][:, 0] += sizes["outgoing"]
        made["columns"][:, 0] += sizes["incoming"]
        made["outgoing"][:, -2:] += sizes["states"]
        made["incoming"][:, -2:] += sizes["states"]
        ranges.append([])
        for name in ("rows", "columns", "vectors"):
            ranges[-1] += [sizes[name], sizes[name] + len(made[name])]
        for name, table in made.items():
            parts[name].append(table)
            sizes[name] += len(table)
    tables = {name: torch.from_numpy(np.concatenate(found)) for name, found in parts.items()}
    tables["ranges"] = torch.tensor(ranges)
    for name, values in (("laws", "laws"), ("state_values", "states"), ("vector_values", "values")):
        numbers = [number for plan in plans for number in getattr(plan, values)]
        tables[name] = torch.tensor(numbers, dtype=torch.float64)
    return {name: table.to(device) for name, table in tables.items()}

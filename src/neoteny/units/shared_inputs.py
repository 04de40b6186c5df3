"""SharedInputs: the input of a module that several groups read, averaged once per tick for all of them.

In a densely connected network every layer reads the units of all layers before it. The means of its whole input are
taken once, and each group takes its own features out of them, without a copy. Before this: `view` (recorded
activations). After it: `statistics`.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from neoteny.layers.ports import ConsumerPort, HiddenPort, NormPort
from neoteny.units import numerics

if TYPE_CHECKING:
    from neoteny.units.view import View

Reader = ConsumerPort | NormPort | HiddenPort
R = TypeVar("R", bound=ConsumerPort | NormPort | HiddenPort)
Key = tuple[str, torch.dtype]


class SharedInputs:
    """Means over the examples of what modules were given since the last tick.

    It serves ports whose units are neighbouring features, one each, of a module that other groups read as well.

    Args:
        view: whose activations are read.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        readers = Counter(name for group in view.groups for name in group.read_modules())
        self._keys = {name for name, count in readers.items() if count > 1}
        self._batches: dict[Key, list[Tensor]] = {}
        self._positions: dict[Key, list[Tensor]] = {}
        self._means: dict[Key, Tensor] = {}
        self._columns: dict[Key, tuple[Tensor, bool]] = {}

    def forget(self) -> None:
        """There are other activations now."""
        for kept in (self._batches, self._positions, self._means, self._columns):
            kept.clear()

    def start(self, port: Reader) -> int | None:
        """The feature of the port's first unit; None for a port that is not served."""
        return port.start if port.key in self._keys else None

    def batches(self, port: Reader, dtype: torch.dtype) -> list[Tensor]:
        """All features of the module, for each pass (*R, B, features, positions)."""
        key = (port.key, dtype)
        if key not in self._batches:
            whole, axes = _whole(port), len(self._view.runs)
            self._batches[key] = [whole.split(each, axes).to(dtype) for each in self._view.activations[port.key]]
        return self._batches[key]

    def unit_means(self, port: Reader, start: int, dtype: torch.dtype) -> Tensor:
        """(*R, U) the mean over examples and positions."""
        return self._all_means(port, dtype).narrow(-1, start, len(port.features))

    def column_means(self, port: ConsumerPort, start: int, dtype: torch.dtype) -> tuple[Tensor, bool]:
        """(*R, U, 1, taps) as of `ConsumerPort.column_means`, and whether all are known to be finite."""
        key = (port.key, dtype)
        if key not in self._columns:
            if port.pointwise:
                columns = self._all_means(port, dtype)[..., None, None]
            else:
                inputs, whole = self._view.activations[port.key], _whole(port)
                means = zip(self._by_position(port, dtype), inputs, strict=True)
                columns = numerics.average([whole.column_means(mean, each) for mean, each in means], inputs)
            # another device is not waited for
            self._columns[key] = columns, columns.device.type == "cpu" and bool(torch.isfinite(columns).all())
        columns, finite = self._columns[key]
        return columns.narrow(-3, start, len(port.features)), finite

    def _all_means(self, port: Reader, dtype: torch.dtype) -> Tensor:
        """(*R, features) the mean over examples and positions."""
        key = (port.key, dtype)
        if key not in self._means:
            means = self._by_position(port, dtype)
            flat = [each.squeeze(-1) if each.shape[-1] == 1 else each.mean(-1) for each in means]
            self._means[key] = numerics.average(flat, self.batches(port, dtype))
        return self._means[key]

    def _by_position(self, port: Reader, dtype: torch.dtype) -> list[Tensor]:
        """For each pass (*R, features, positions)."""
        key = (port.key, dtype)
        if key not in self._positions:
            self._positions[key] = [numerics.example_mean(batch) for batch in self.batches(port, dtype)]
        return self._positions[key]


def _whole(port: R) -> R:
    """The port as if every feature of its module were a unit."""
    whole = copy.copy(port)
    whole.features, whole.repeat, whole.in_order = torch.arange(port.width)[:, None], 1, True
    return whole

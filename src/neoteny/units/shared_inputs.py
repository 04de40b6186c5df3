"""SharedInputs: the input of a module that several groups read, averaged once per tick for all of them.

In a densely connected network every layer reads the units of all layers before it. The means of its whole input are
taken once, and each group takes its own features out of them, without a copy. Before this: `view` (recorded
activations). After it: `statistics`.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neoteny.layers.ports import ConsumerPort, HiddenPort, NormPort
from neoteny.units import numerics

if TYPE_CHECKING:
    from neoteny.units.view import View

Reader = ConsumerPort | NormPort | HiddenPort
Key = tuple[str, torch.dtype]
Waiting = tuple[ConsumerPort, int, dict[str, Tensor], float | Tensor]


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
        self._ports: dict[str, Any] = {}
        self._batches: dict[Key, list[Tensor]] = {}
        self._positions: dict[Key, list[Tensor]] = {}
        self._means: dict[Key, Tensor] = {}
        self._waiting: dict[str, list[Waiting]] = {}
        self._joined: dict[str, tuple[Tensor, dict[int, Tensor]]] = {}  # and the part of each first feature

    def start(self, port: Reader) -> int | None:
        """The feature of the port's first unit; None for a port that is not served."""
        return port.start if port.key in self._keys else None

    def batches(self, port: Reader, dtype: torch.dtype) -> list[Tensor]:
        """All features of the module, for each pass (*R, B, features, positions)."""
        key = (port.key, dtype)
        if key not in self._batches:
            whole, axes = self._whole(port), len(self._view.runs)
            self._batches[key] = [whole.split(each, axes).to(dtype) for each in self._view.activations[port.key]]
        return self._batches[key]

    def unit_means(self, port: Reader, start: int, dtype: torch.dtype) -> Tensor:
        """(*R, U) the mean over examples and positions."""
        return self._all_means(port, dtype).narrow(-1, start, len(port.features))

    def follow(self, port: ConsumerPort, start: int, kept: dict[str, Tensor], weight: float | Tensor) -> None:
        """Move a group's means of what a consumer reads, `kept` under the port's key, towards those of this tick.

        It is done at `finish`, for all groups that read the module at once.
        """
        self._waiting.setdefault(port.key, []).append((port, start, kept, weight))

    def finish(self) -> None:
        """Move the means that follow, and forget the activations."""
        for key, waiting in self._waiting.items():
            columns, finite = self._column_means(waiting[0][0], waiting[0][2][key].dtype)
            if finite and not self._view.runs:
                self._move_together(key, columns, waiting)
                continue
            for port, start, kept, weight in waiting:
                observed = columns.narrow(-3, start, len(port.features))
                kept[key].lerp_(torch.where(torch.isfinite(observed), observed, kept[key]), weight)
        self.forget()

    def forget(self) -> None:
        """There are other activations now, or none."""
        for kept in (self._waiting, self._batches, self._positions, self._means):
            kept.clear()

    def _move_together(self, key: str, columns: Tensor, waiting: list[Waiting]) -> None:
        """Let the groups' means lie in one tensor, as the features do, and move that."""
        joined, parts = self._joined.get(key, (columns, {}))
        if any(parts.get(start) is not kept[key] for _, start, kept, _ in waiting):
            joined, parts = torch.zeros_like(columns), {}
            for port, start, kept, _ in waiting:
                parts[start] = joined.narrow(-3, start, len(port.features)).copy_(kept[key])
                kept[key] = parts[start]
            self._joined[key] = joined, parts
        if len(parts) == len(waiting):
            joined.lerp_(columns, waiting[0][3])
            return
        for port, start, kept, weight in waiting:  # other groups wait: they did not run, or are frozen
            kept[key].lerp_(columns.narrow(-3, start, len(port.features)), weight)

    def _column_means(self, port: ConsumerPort, dtype: torch.dtype) -> tuple[Tensor, bool]:
        """(*R, features, 1, taps) as of `ConsumerPort.column_means`, and whether all are known to be finite."""
        if port.pointwise:
            columns = self._all_means(port, dtype)[..., None, None]
        else:
            inputs, whole = self._view.activations[port.key], self._whole(port)
            means = zip(self._by_position(port, dtype), inputs, strict=True)
            columns = numerics.average([whole.column_means(mean, each) for mean, each in means], inputs)
        # another device is not waited for
        return columns, columns.device.type == "cpu" and bool(torch.isfinite(columns).all())

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

    def _whole(self, port: Any) -> Any:
        """The port as if every feature of its module were a unit."""
        whole = self._ports.get(port.key)
        if whole is None:
            whole = self._ports[port.key] = copy.copy(port)
            whole.features, whole.repeat, whole.in_order = torch.arange(port.width)[:, None], 1, True
        return whole

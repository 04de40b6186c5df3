"""FusedMeasure: one tick of the running means and utilities of all groups, in six launches.

Equal to the torch path of `ContinualBackprop` up to the order of sums, and to itself from run to run.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from neoteny.units.device import measure_kernels as kernels
from neoteny.units.device.layout import INPUT_TILE, KINDS, UNITS, WEIGHT_TILE, Inputs, Layout
from neoteny.units.device.memory import compile_recording, record_addresses
from neoteny.units.utilities import ACTIVITY, INCOMING, OUTGOING
from neoteny.units.view import LiveGroup, View

_RECORD_AFTER = 3
"""Ticks with inputs of the same shapes after which their launches are recorded as one."""
_FLAT = ("mean_activation", "utility", "decay_power", "born")


class FusedMeasure:
    """The fused tick of one model.

    Args:
        view: of the model.
        groups: all its groups.
        state: of `ContinualBackprop`, by group; its statistics become views of one tensor each.
        modules: of the model by name.
        decay: of the running averages.
        terms: of the utility, see `utilities`.
    """

    def __init__(
        self,
        view: View,
        groups: Sequence[LiveGroup],
        state: dict[str, Any],
        modules: Mapping[str, nn.Module],
        decay: float,
        terms: int,
    ) -> None:
        self.layout = Layout(view, groups, modules)
        self.decay, self.terms = decay, terms
        self.flat = {key: torch.cat([state[group.name][key].flatten() for group in groups]) for key in _FLAT}
        self.centres = torch.empty_like(self.flat["mean_activation"])
        self.views: list[tuple[dict[str, Any], Tensor]] = []
        for group, base in zip(groups, self.layout.bases, strict=True):
            statistics = state[group.name]
            for key, flat in self.flat.items():
                statistics[key] = flat[base : base + group.units]
            self.views.append((statistics, statistics["utility"]))
        self.means = {group.name: state[group.name]["column_means"] for group in groups}
        self._inputs: dict[Any, Inputs] = {}
        self._sums = torch.empty(0, device=self.layout.device)
        names = [name for group in groups for name in group.tensors() if name not in self.layout.weights]
        others = [view.tensor(name) for name in names]
        self._others = [each for each in others if isinstance(each, nn.Parameter)]
        self.is_fresh = False
        """Whether the last tick was measured here."""
        self._capturable = view.capturable
        self.captured: list[Inputs] = []
        """What CUDA graphs of a user's read; they may be replayed as long as this lives."""

    def holds(self) -> bool:
        """Whether the statistics and weights are still those that the tables name, and nothing is frozen."""
        for statistics, mine in self.views:
            if statistics["utility"] is not mine:
                return False
        return self.layout.holds() and all(each.requires_grad for each in self._others)

    def measure(self, view: View) -> bool:
        """One tick of means and utilities of all groups; every module that is read has run.

        Returns:
            False, and nothing done, where a module did not run, or was given images of several sizes, or numbers of a
            type that the kernels do not know.
        """
        self.is_fresh = False
        recorded: dict[str, list[Tensor]] = {}
        for name in self.layout.modules:
            batches = view.activations.get(name)
            if not batches or batches[0].dtype not in KINDS:
                return False
            images = batches[0].dim() > 2 and self.layout.channels_first[name]
            if images and any(each.shape[1:] != batches[0].shape[1:] for each in batches[1:]):
                return False
            recorded[name] = [each if images and _channels_last(each) else each.contiguous() for each in batches]
        every = [batch for batches in recorded.values() for batch in batches]
        addresses = tuple(batch.data_ptr() for batch in every)
        capturing = torch.cuda.is_current_stream_capturing()
        inputs = self._inputs_for(recorded, not any(address % 16 for address in addresses), make=not capturing)
        if inputs is None:
            return False
        self.is_fresh = True
        if capturing:
            self._capture(inputs, addresses)
            return True
        inputs.use(addresses)
        if inputs.graph is not None:
            inputs.graph.replay()
            return True
        self._launch(inputs, inputs.tables["pieces"], self._sums)
        inputs.ticks += 1
        if inputs.ticks == _RECORD_AFTER:
            inputs.graph = self._record(inputs)
        return True

    def _capture(self, inputs: Inputs, addresses: tuple[int, ...]) -> None:
        """Launch into the graph that is being captured: with tables of its own, which no other tick writes."""
        pieces = record_addresses(inputs.tables["pieces"], addresses)
        self._launch(inputs, pieces, torch.empty_like(self._sums))
        self.captured.append(inputs)

    def _record(self, inputs: Inputs) -> torch.cuda.CUDAGraph:
        """The launches as one: they have the same arguments as long as the shapes stay."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), _no_collection():
            graph.capture_begin(capture_error_mode="thread_local")
            self._launch(inputs, inputs.tables["pieces"], self._sums)
            graph.capture_end()
        return graph

    def _launch(self, inputs: Inputs, pieces: Tensor, sums: Tensor) -> None:
        layout, terms, table = self.layout, self.terms, inputs.tables
        fixed, rest = layout.tables, 1.0 - self.decay
        if terms & (INCOMING | OUTGOING):
            tiles = fixed["weight_tiles"]
            kernels.weight_sums[(len(tiles),)](tiles, fixed["weights"], sums, layout.aligned, *WEIGHT_TILE)
        sum_columns = (pieces, table["inputs"], fixed["unit_of"], self.centres, sums)
        kernels.column_sums[(len(table["tiles"]),)](
            table["tiles"], *sum_columns, False, terms, inputs.aligned, *INPUT_TILE
        )
        blocks, mean, power = fixed["blocks"], self.flat["mean_activation"], self.flat["decay_power"]
        where = (blocks, fixed["groups"], table["inputs"])
        kernels.update_means[(len(blocks),)](
            *where, fixed["features"], sums, mean, power, self.centres, self.decay, rest, UNITS, 64
        )
        if "jobs" in table:
            jobs = table["job_blocks"]
            kernels.update_column_means[(len(jobs),)](
                jobs, table["jobs"], table["inputs"], fixed["features"], sums, rest, 128
            )
        if terms & ACTIVITY:
            tiles = table["reader_tiles"]
            kernels.column_sums[(len(tiles),)](tiles, *sum_columns, True, terms, inputs.aligned, *INPUT_TILE)
        if terms & (ACTIVITY | INCOMING | OUTGOING):
            kernels.update_utilities[(len(blocks),)](
                *where,
                fixed["producers"],
                fixed["consumers"],
                fixed["weights"],
                fixed["features"],
                sums,
                self.flat["utility"],
                rest,
                terms,
                UNITS,
                64,
            )

    def _inputs_for(self, recorded: Mapping[str, list[Tensor]], aligned: bool, make: bool) -> Inputs | None:
        """The tables for inputs of these shapes, made once; None where they are not there and must not be made."""
        shapes = ([(each.shape, each.stride(), each.dtype) for each in batches] for batches in recorded.values())
        key = (aligned, *map(tuple, shapes))
        if key not in self._inputs:
            if not make:
                return None
            if len(self._inputs) > 16:  # lengths that never repeat
                self._inputs.clear()
            self._inputs[key] = Inputs(self.layout, recorded, self.means, aligned)
            if self._capturable:
                compile_recording(self._inputs[key].tables["pieces"])
        inputs = self._inputs[key]
        if inputs.scratch > len(self._sums):
            self._sums = torch.empty(inputs.scratch, device=self.layout.device)
            for each in self._inputs.values():
                each.graph, each.ticks = None, 0
        return inputs


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without garbage collection: another graph that is freed during a capture would break it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _channels_last(batch: Tensor) -> bool:
    return batch.dim() == 4 and batch.is_contiguous(memory_format=torch.channels_last)

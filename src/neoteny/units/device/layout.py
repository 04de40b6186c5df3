"""The tables that tell the kernels of the fused tick where everything lies.

`Layout` is made once for the groups of a model: weights, ports, features, and the places of partial sums. `Inputs` is
made for the shapes of the recorded activations; while those stay, a tick only writes their addresses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neoteny.layers.kinds import features_last
from neoteny.layers.ports import ConsumerPort
from neoteny.layers.regions import tap_layout
from neoteny.units.view import LiveGroup, View

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
WEIGHT_TILE = (32, 256)
INPUT_TILE = (32, 128)
UNITS = 16
_MODULES = (nn.Linear, nn.Conv1d, nn.Conv2d)
_PROGRAMS = 2048
"""Programs wanted in a pass over activations: some waves on a large device."""


def why_not(view: View, groups: Sequence[LiveGroup], modules: Mapping[str, nn.Module]) -> str:
    """Why the fused tick does not serve these groups, or ""."""
    drawn: set[str] = set()
    for group in groups:
        drawn |= {port.weight for port in group.producers}
        if drawn & {port.weight for port in group.consumers}:
            return f"{group.name} feeds itself or a layer before it"
        for port in (*group.producers, *group.consumers):
            module, weight = modules[port.module], view.tensor(port.weight)
            if type(module) not in _MODULES:
                return f"{port.module} is a {type(module).__name__}"
            if not isinstance(weight, nn.Parameter):
                return f"{port.weight} is computed from other parameters"
            if weight.dtype not in KINDS:
                return f"{port.weight} is {weight.dtype}"
            if tap_layout(weight) is None:
                return f"{port.weight} is not contiguous"
            if getattr(module, "padding_mode", "zeros") != "zeros":
                return f"{port.module} pads with {module.padding_mode}"
    return ""


class Layout:
    """What does not change from tick to tick.

    Attributes:
        tables: name to int64 table on the device.
        scratch: how many partial sums the weights need.
    """

    def __init__(self, view: View, groups: Sequence[LiveGroup], modules: Mapping[str, nn.Module]) -> None:
        self.groups = groups
        self.device = view.seeds.device
        self.modules = list(dict.fromkeys(name for group in groups for name in group.read_modules()))
        self.channels_first = {name: not features_last(modules[name]) for name in self.modules}
        self.features: list[Tensor] = []
        self._places: dict[bytes, int] = {}
        self.scratch = 0
        self.weights: list[str] = []
        self._weight_rows: list[list[int]] = []
        weight_tiles: list[Tensor] = []
        for name in dict.fromkeys(port.weight for g in groups for port in (*g.producers, *g.consumers)):
            weight_tiles.append(self._add_weight(view, name))
        group_rows, producer_rows, consumer_rows, blocks = [], [], [], []
        base = 0
        self.bases: list[int] = []
        for number, group in enumerate(groups):
            first_producer, first_consumer = len(producer_rows), len(consumer_rows)
            for port in group.producers:
                producer_rows.append([self.weights.index(port.weight), port.repeat, self.place(port.features), 0])
            for port in group.consumers:
                inner, apart = tap_layout(view.tensor(port.weight)) or (1, 1)
                per_group = port.width // port.groups
                place = (self.weights.index(port.weight), port.repeat, self.place(port.features))
                consumer_rows.append([*place, inner, apart, port.taps, port.groups, per_group])
            for port in group.norms:
                self.place(port.features)
            reader = group.reader
            columns = isinstance(reader, ConsumerPort) and reader.convolution is None
            places = [first_consumer + k for k, port in enumerate(group.consumers) if port is reader and columns]
            read = (self.modules.index(reader.module), reader.repeat, self.place(reader.features), 0, 0, 0, 0)
            fan_in = sum(port.fan_in for port in group.producers)
            fan_out = sum(port.fan_out for port in group.consumers)
            into = (first_producer, len(producer_rows), fan_in)
            out_of = (first_consumer, len(consumer_rows), fan_out, places[0] if places else -1)
            group_rows.append([base, group.units, *read, *into, *out_of])
            blocks += [[number, start] for start in range(0, group.units, UNITS)]
            self.bases.append(base)
            base += group.units
        self.units = base
        unit_of = self._units_of()
        self.tables = {
            "weight_tiles": torch.cat(weight_tiles),
            "weights": torch.tensor(self._weight_rows),
            "groups": torch.tensor(group_rows),
            "producers": torch.tensor(producer_rows),
            "consumers": torch.tensor(consumer_rows),
            "blocks": torch.tensor(blocks),
            "features": torch.cat(self.features),
            "unit_of": unit_of,
        }
        self.tables = {name: table.to(self.device) for name, table in self.tables.items()}
        self.aligned = not any(row[0] % 16 or row[3] % 16 for row in self._weight_rows)
        self.held = [view.tensor(name) for name in self.weights]
        self._homes = [(modules[name.rpartition(".")[0]]._parameters, name.rpartition(".")[2]) for name in self.weights]

    def holds(self) -> bool:
        """Whether the weights are still where the tables say, and trained."""
        for (home, key), held, row in zip(self._homes, self.held, self._weight_rows, strict=True):
            if home.get(key) is not held or held.data_ptr() != row[0] or not held.requires_grad:
                return False
        return True

    def _add_weight(self, view: View, name: str) -> Tensor:
        weight = view.tensor(name)
        rows, columns = weight.shape[0], math.prod(weight.shape[1:])
        row_blocks, column_blocks = -(-rows // WEIGHT_TILE[0]), -(-columns // WEIGHT_TILE[1])
        by_row = self.scratch
        by_column = by_row + rows * column_blocks
        self.scratch = by_column + columns * row_blocks
        self._weight_rows.append(
            [weight.data_ptr(), KINDS[weight.dtype], rows, columns, by_row, by_column, row_blocks, column_blocks]
        )
        self.weights.append(name)
        grid = torch.cartesian_prod(torch.arange(row_blocks), torch.arange(column_blocks)).reshape(-1, 2)
        return torch.cat((torch.full((len(grid), 1), len(self.weights) - 1), grid), 1)

    def place(self, features: Tensor) -> int:
        """Where the features of a port begin in the table of all features."""
        numbers = features.cpu().flatten()
        key = numbers.numpy().tobytes()
        if key not in self._places:
            self._places[key] = sum(len(each) for each in self.features)
            self.features.append(numbers)
        return self._places[key]

    def _units_of(self) -> Tensor:
        """For each module that is read, which unit of all each of its features is; -1 for none."""
        self.unit_places: dict[str, tuple[int, int]] = {}
        maps: list[Tensor] = []
        place = 0
        for name in self.modules:
            readers = [(group.reader, base) for group, base in zip(self.groups, self.bases, strict=True)]
            mine = [(reader, base) for reader, base in readers if reader.module == name]
            if not mine:
                continue
            found = torch.full((mine[0][0].width,), -1)
            for reader, base in mine:
                numbers = torch.arange(len(reader.features)).unsqueeze(1).expand_as(reader.features) + base
                found[reader.features.cpu().flatten()] = numbers.flatten()
            self.unit_places[name] = (place, len(found))
            maps.append(found)
            place += len(found)
        return torch.cat(maps)


class Inputs:
    """The tables for recorded activations of certain shapes.

    Attributes:
        scratch: how many partial sums are needed, those of the weights included.
    """

    def __init__(
        self, layout: Layout, recorded: Mapping[str, Sequence[Tensor]], means: Mapping[str, Any], aligned: bool
    ) -> None:
        self.scratch = layout.scratch
        rows, pieces, tiles, reader_tiles = [], [], [], []
        wanted = sum(-(-each[0].shape[-1] // INPUT_TILE[1]) for each in recorded.values())
        for number, name in enumerate(layout.modules):
            batches = recorded[name]
            first = layout.channels_first[name]
            shape = Shape(batches[0], first)
            splits: list[list[int]] = []
            total = sum(Shape(batch, first).rows for batch in batches)
            height = max(32, -(-total * wanted // _PROGRAMS)) if shape.positions == 1 else max(32, total)
            for batch in batches:
                count = Shape(batch, first).rows
                for start in range(0, count, height):
                    splits.append([len(pieces), number, len(splits), start, min(start + height, count)])
                pieces.append([0, KINDS[batch.dtype], count])
            sums = self.scratch
            deviations = sums + len(splits) * shape.columns
            place, channels = layout.unit_places.get(name, (0, shape.channels))
            self.scratch = deviations + (len(splits) * shape.columns if name in layout.unit_places else 0)
            where = (shape.inner, channels, place, shape.positions, shape.apart)
            rows.append([shape.columns, sums, deviations, len(splits), total, *where])
            own = [[*split, block] for split in splits for block in range(-(-shape.columns // INPUT_TILE[1]))]
            tiles += own
            reader_tiles += own if name in layout.unit_places else []
        jobs, job_blocks = [], []
        for group, base in zip(layout.groups, layout.bases, strict=True):
            for port in group.means:
                kept = means[group.name].get(port.key)
                if kept is None:
                    continue
                shape = Shape(recorded[port.module][0], layout.channels_first[port.module])
                place = layout.place(port.features)
                job = [base, group.units, port.repeat, place, layout.modules.index(port.module), kept.data_ptr()]
                jobs.append(job + _geometry(port, shape))
                job_blocks += [[len(jobs) - 1, unit] for unit in range(group.units)]
        self.aligned = aligned and all(row[0] % 16 == 0 for row in rows)
        made = {"inputs": rows, "pieces": pieces, "tiles": tiles, "reader_tiles": reader_tiles}
        made |= {"jobs": jobs, "job_blocks": job_blocks}
        self.tables = {name: torch.tensor(table).to(layout.device) for name, table in made.items() if table}
        self._pieces = torch.tensor(pieces)
        self._addresses: tuple[int, ...] = ()
        self._known: dict[tuple[int, ...], Tensor] = {}
        self.graph: torch.cuda.CUDAGraph | None = None
        self.ticks = 0

    def use(self, addresses: tuple[int, ...]) -> None:
        """Take the inputs that lie at these addresses; a training loop soon uses the same few again."""
        if addresses == self._addresses:
            return
        known = self._known.get(addresses)
        if known is None:
            if len(self._known) >= 64:
                self._known.clear()
            self._pieces[:, 0] = torch.tensor(addresses)
            known = self._pieces.pin_memory().to(self.tables["pieces"].device, non_blocking=True)
            self._known[addresses] = known
        self.tables["pieces"].copy_(known)
        self._addresses = addresses


class Shape:
    """A recorded input as a matrix (rows, columns), as it lies in memory.

    Attributes:
        rows, columns: of the matrix.
        channels: features of the input.
        positions: columns of each feature.
        inner, apart: from feature f and position p to the column f * inner + p * apart.
        image: height and width.
    """

    def __init__(self, batch: Tensor, channels_first: bool) -> None:
        self.image = (1, 1)
        if channels_first and batch.dim() > 2:
            self.rows, self.channels = batch.shape[:2]
            self.image = (math.prod(batch.shape[2:-1]), batch.shape[-1])
            self.positions = math.prod(self.image)
            self.inner, self.apart = (self.positions, 1) if batch.is_contiguous() else (1, self.channels)
        else:
            self.channels, self.positions = batch.shape[-1], 1
            self.rows, self.inner, self.apart = batch.numel() // batch.shape[-1], 1, 1
        self.columns = self.channels * self.positions


def _geometry(port: ConsumerPort, shape: Shape) -> list[int]:
    conv = port.convolution
    if conv is None:
        return [1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 1]
    low = list(conv._reversed_padding_repeated_twice)[::2][::-1]
    ends = list(conv._reversed_padding_repeated_twice)[1::2][::-1]
    sizes = [list(each) for each in (conv.kernel_size, conv.stride, low, conv.dilation, ends)]
    if len(conv.kernel_size) == 1:
        sizes = [[fill, *each] for fill, each in zip((1, 1, 0, 1, 0), sizes, strict=True)]
    kernel, stride, low, dilation, high = sizes
    out = [
        (shape.image[axis] + low[axis] + high[axis] - dilation[axis] * (kernel[axis] - 1) - 1) // stride[axis] + 1
        for axis in range(2)
    ]
    return [*kernel, *stride, *low, *dilation, *shape.image, *out]

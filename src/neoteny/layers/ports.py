"""Ports bound to modules: how a group reads, measures and indexes the tensors of one producer, consumer or norm.

A weight is (*R, out, in / groups, *kernel). Everything that knows the layout of a Linear, a convolution or a norm is
in this file; statistics, resets and optimizers see units, regions and sums.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoteny.layers.groups import Port
from neoteny.layers.kinds import feature_dim, width_in
from neoteny.layers.regions import ChosenUnits, Region


class BoundPort:
    """What all ports share: the module's name and the unit -> features map."""

    def __init__(self, port: Port, width: int) -> None:
        assert port.features is not None
        self.module = port.module
        self.width = width
        self.features = port.features
        self.repeat = port.repeat
        # A port whose features run 0, 1, 2, ... needs no gather: units are read by reshaping.
        self.in_order = torch.equal(port.features.flatten(), torch.arange(width))

    def features_on(self, device: torch.device) -> Tensor:
        """The map (U, repeat) on a device, moved once."""
        if self.features.device != device:
            self.features = self.features.to(device, non_blocking=True)
        return self.features

    def indices(self, chosen: ChosenUnits) -> tuple[tuple[Tensor, ...], Tensor]:
        """Run numbers (M, 1) and features (M, repeat) of the chosen units."""
        features = self.features_on(chosen.units.device)[chosen.units]
        return tuple(run.unsqueeze(-1) for run in chosen.runs), features

    def per_unit(self, values: Tensor) -> Tensor:
        """(*R, width) -> (*R, U, repeat)."""
        if self.in_order:
            return values.unflatten(-1, (-1, self.repeat))
        return values[..., self.features_on(values.device)]


class ProducerPort(BoundPort):
    """Rows of a Linear or Conv."""

    def __init__(self, port: Port, module: nn.Module) -> None:
        weight: Tensor = module.weight  # pyright: ignore[reportAssignmentType]
        super().__init__(port, weight.shape[0])
        self.weight = f"{port.module}.weight"
        self.bias = None if module.bias is None else f"{port.module}.bias"
        self.outputs = weight.shape[0]
        self.groups = getattr(module, "groups", 1)
        self.fan_in = math.prod(weight.shape[1:])
        self.row_shape = tuple(weight.shape[1:])

    def per_unit_rows(self, values: Tensor) -> Tensor:
        """(*R, out) -> (*R, U)."""
        per_unit = self.per_unit(values)
        return per_unit.squeeze(-1) if self.repeat == 1 else per_unit.sum(-1)

    def regions(self, chosen: ChosenUnits) -> tuple[Region, Region | None]:
        """The chosen units' incoming weights and biases."""
        runs, rows = self.indices(chosen)
        weight = Region(self.weight, (*runs, rows), active=chosen.active)
        bias = None if self.bias is None else Region(self.bias, (*runs, rows), active=chosen.active)
        return weight, bias


class NormPort(BoundPort):
    """Channels of a normalisation module."""

    def __init__(self, port: Port, module: nn.Module) -> None:
        super().__init__(port, width_in(module))
        self.norm = module
        # What a fresh norm holds: scale 1, shift 0, mean 0, variance 1.
        fresh = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
        self.fresh = {f"{port.module}.{key}": value for key, value in fresh.items() if _has(module, key)}
        self.trained = {name for name in self.fresh if name.endswith((".weight", ".bias"))}

    def regions(self, chosen: ChosenUnits) -> list[tuple[Region, float]]:
        """The chosen units' scale, shift and running statistics, each with its fresh value."""
        runs, channels = self.indices(chosen)
        return [(Region(name, (*runs, channels), active=chosen.active), value) for name, value in self.fresh.items()]

    def split(self, inputs: Tensor, run_axes: int) -> Tensor:
        """The units' activations (*R, B, U, positions) in the module's input."""
        one_run = inputs[0] if run_axes else inputs
        axis = feature_dim(self.norm, one_run)
        if axis == one_run.dim() - 1:
            return _features_last(self, inputs, run_axes)
        return _channels(self, inputs if axis == 1 else inputs.unsqueeze(run_axes), run_axes)


class ConsumerPort(BoundPort):
    """Columns of a Linear, or input channels of a Conv (its groups included)."""

    def __init__(self, port: Port, module: nn.Module) -> None:
        weight: Tensor = module.weight  # pyright: ignore[reportAssignmentType]
        self.groups: int = getattr(module, "groups", 1)
        super().__init__(port, weight.shape[1] * self.groups)
        self.weight = f"{port.module}.weight"
        self.bias = None if module.bias is None else f"{port.module}.bias"
        self.outputs = weight.shape[0]
        self.convolution = module if isinstance(module, (nn.Conv1d, nn.Conv2d)) else None
        self.taps = math.prod(weight.shape[2:])
        # Weights that leave one column: what turns a sum of |w| into a mean.
        self.fan_out = self.outputs // self.groups * self.taps
        self.one_column_a_unit = self.convolution is None and self.repeat == 1

    def region(self, chosen: ChosenUnits) -> Region:
        """The chosen units' outgoing weights to this consumer."""
        runs, columns = self.indices(chosen)
        per_group = self.width // self.groups
        group = torch.div(columns, per_group, rounding_mode="floor")
        return Region(self.weight, (*runs, group, columns - group * per_group), self.groups, chosen.active)

    def split(self, inputs: Tensor, run_axes: int) -> Tensor:
        """The units' activations (*R, B, U, positions) in the module's input.

        A unit's positions are the pixels of its channel, or the columns that a flatten gave it.
        """
        if self.convolution is None:
            return _features_last(self, inputs, run_axes)
        unbatched = inputs.dim() == run_axes + 1 + len(self.convolution.kernel_size)
        return _channels(self, inputs.unsqueeze(run_axes) if unbatched else inputs, run_axes)

    def column_means(self, mean: Tensor, inputs: Tensor) -> Tensor:
        """Mean input of every column the units own, as the consumer's weights meet it: (*R, U, repeat, taps).

        Under a convolution the mean is taken over output positions for each kernel tap, padding included, so that
        weight times mean, summed, is exactly the unit's mean share of the consumer's pre-activation.

        Args:
            mean: (*R, U, repeat * positions) the mean over examples of what `split` gives for the inputs.
            inputs: the module's input itself, for the shape of an image.
        """
        if self.convolution is None:
            return mean.unsqueeze(-1)
        spatial = inputs.shape[-len(self.convolution.kernel_size) :]
        taps = self._tap_means(mean.reshape(-1, *spatial))  # (runs * U * repeat, taps)
        return taps.reshape(*mean.shape[:-1], self.repeat, self.taps)

    def compensate(self, weight: Tensor, bias: Tensor, region: Region, means: Tensor) -> None:
        """Add the chosen units' mean contribution to the consumer's bias.

        Args:
            weight, bias: the consumer's, (*R, ...).
            region: the units' outgoing weights, not yet zeroed.
            means: (M, repeat, taps) what the consumer sees on average.
        """
        outgoing = region.read(weight).flatten(3) if self.taps > 1 else region.read(weight).flatten(2).unsqueeze(-1)
        share = (outgoing.to(means.dtype) * means.unsqueeze(-2)).sum(-1)  # (M, repeat, out / groups)
        if region.active is not None:
            share = share * region.active[:, None, None]
        by_group = bias.unflatten(-1, (self.groups, -1))
        by_group.index_put_(region.index[:-1], share.to(bias.dtype), accumulate=True)

    def _tap_means(self, image: Tensor) -> Tensor:
        """(N, *spatial) -> (N, taps): mean over output positions of what lies under each tap."""
        conv = self.convolution
        assert conv is not None
        low_high: list[int] = list(conv._reversed_padding_repeated_twice)
        if any(low_high):
            mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
            image = F.pad(image.unsqueeze(0), low_high, mode=mode).squeeze(0)
        kernel, stride, dilation = tuple(conv.kernel_size), tuple(conv.stride), tuple(conv.dilation)
        if len(kernel) == 1:
            image, kernel, stride, dilation = image.unsqueeze(-2), (1, *kernel), (1, *stride), (1, *dilation)
        # One image of N channels, not N images: the device is then asked once.
        columns = F.unfold(image.unsqueeze(0), kernel, dilation=dilation, stride=stride)  # (1, N * taps, positions)
        return columns.mean(-1).reshape(-1, self.taps)


def _features_last(port: BoundPort, inputs: Tensor, run_axes: int) -> Tensor:
    """(*R, ..., F) -> (*R, B, U, repeat)."""
    if inputs.dim() == run_axes + 1:
        inputs = inputs.unsqueeze(run_axes)
    elif inputs.dim() > run_axes + 2:
        inputs = inputs.flatten(run_axes, -2)
    if inputs.shape[-1] != port.width:
        raise ValueError(f"{port.module} received {inputs.shape[-1]} features, expected {port.width}.")
    return port.per_unit(inputs)


def _channels(port: BoundPort, inputs: Tensor, run_axes: int) -> Tensor:
    """(*R, B, C, *spatial) -> (*R, B, U, repeat * positions)."""
    inputs = inputs.flatten(run_axes + 2)  # (*R, B, C, positions)
    if port.in_order:
        return inputs if port.repeat == 1 else inputs.unflatten(-2, (-1, port.repeat)).flatten(-2)
    return inputs[..., port.features_on(inputs.device), :].flatten(-2)


def _has(module: nn.Module, key: str) -> bool:
    return getattr(module, key, None) is not None

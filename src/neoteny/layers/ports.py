"""Ports bound to modules: how a group reads, measures and indexes the tensors of one producer, consumer or norm.

A weight is (*R, out, in / groups, *kernel); of a transposed convolution, and of some linear layers, it is
(*R, in, out / groups, *kernel) ("input first"). Everything that knows the layout of a Linear, a convolution or a norm
is in this file; statistics, resets and optimizers see units, regions and sums.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from neoteny.layers.groups import Port, join
from neoteny.layers.kinds import feature_dim, input_first, norm_fresh, width_in, width_out
from neoteny.layers.regions import ChosenUnits, Region

_IN_PARALLEL = 32768
"""Numbers from which on torch adds them in several threads."""


class BoundPort:
    """What all ports share: the module's name and the unit -> features map."""

    def __init__(self, port: Port, width: int) -> None:
        assert port.features is not None
        self.module = port.module
        self.key = port.key  # of what is kept for this port: a law, recorded inputs, column means
        self.width = width
        self.features = port.features
        self.repeat = port.repeat
        # A port whose features run 0, 1, 2, ... needs no gather: units are read by reshaping.
        self.in_order = torch.equal(port.features.flatten(), torch.arange(width))
        # Units that are neighbouring features are taken out of others without a copy, from here on.
        neighbours = port.repeat == 1 and bool((port.features.flatten().diff() == 1).all())
        self.start = int(port.features[0, 0]) if neighbours else None

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
        if self.start is not None:
            return values.narrow(-1, self.start, len(self.features)).unsqueeze(-1)
        return values[..., self.features_on(values.device)]


class WeightPort(BoundPort):
    """What producers and consumers share: a weight, whose two first axes count outputs and inputs in some order."""

    def __init__(self, port: Port, module: nn.Module, producer: bool) -> None:
        weight: Tensor = getattr(module, port.weight)
        if port.weight == "weight":
            self.outputs, self.inputs = width_out(module), width_in(module)
        else:  # one of several weights of a module
            self.outputs, self.inputs = weight.shape
        super().__init__(port, self.outputs if producer else self.inputs)
        bias = bias_of(module, port.weight)
        self.weight = join(port.module, port.weight)
        self.bias = None if bias is None else join(port.module, bias)
        self.groups: int = getattr(module, "groups", 1)
        self.input_first = input_first(module)
        self.taps = math.prod(weight.shape[2:])
        # A weight is read as (runs * groups, rows of one group, all else) when |w| is summed.
        self.rows_of_a_group = weight.shape[0] // self.groups

    def region_of(self, runs: tuple[Tensor, ...], features: Tensor, first_axis: bool, active: Tensor | None) -> Region:
        """The elements of the weight at some features (M, repeat), which its first or its second axis counts."""
        if first_axis:
            return Region(self.weight, (*runs, features), active=active)
        per_group = self.width // self.groups
        group = torch.div(features, per_group, rounding_mode="floor")
        return Region(self.weight, (*runs, group, features - group * per_group), self.groups, active)


class ProducerPort(WeightPort):
    """Rows of a Linear or Conv, or of one weight of a recurrent layer."""

    def __init__(self, port: Port, module: nn.Module) -> None:
        super().__init__(port, module, producer=True)
        weight: Tensor = getattr(module, port.weight)
        self.row_shape = (self.inputs // self.groups, *weight.shape[2:])
        self.fan_in = math.prod(self.row_shape)

    def per_unit_rows(self, values: Tensor) -> Tensor:
        """(*R, out) -> (*R, U)."""
        per_unit = self.per_unit(values)
        return per_unit.squeeze(-1) if self.repeat == 1 else per_unit.sum(-1)

    def over_rows(self, values: Tensor, weight: Tensor) -> Tensor:
        """One value per output (*R, out), laid out to broadcast against the weight (*R, ...)."""
        run_axes = values.dim() - 1
        if not self.input_first:
            return values.reshape(values.shape + (1,) * (weight.dim() - values.dim()))
        inputs = weight.shape[run_axes] // self.groups
        by_group = values.unflatten(-1, (self.groups, -1)).unsqueeze(-2)  # (*R, groups, 1, out / groups)
        whole = by_group.expand(*by_group.shape[:-2], inputs, by_group.shape[-1]).flatten(run_axes, run_axes + 1)
        return whole.reshape(whole.shape + (1,) * (weight.dim() - whole.dim()))

    def regions(self, chosen: ChosenUnits) -> tuple[Region, Region | None]:
        """The chosen units' incoming weights and biases."""
        runs, rows = self.indices(chosen)
        weight = self.region_of(runs, rows, not self.input_first, chosen.active)
        bias = None if self.bias is None else Region(self.bias, (*runs, rows), active=chosen.active)
        return weight, bias


class HiddenPort(BoundPort):
    """The hidden features of a recurrent layer in one direction, read in what the layer returns."""

    def __init__(self, port: Port, key: str, width: int) -> None:
        super().__init__(port, width)
        self.key = key

    def split(self, inputs: Tensor, run_axes: int) -> Tensor:
        """The units' activations (*R, B, U, 1) in the recorded hidden states."""
        return _features_last(self, inputs, run_axes)


class NormPort(BoundPort):
    """Channels of a normalisation module."""

    def __init__(self, port: Port, module: nn.Module) -> None:
        super().__init__(port, width_in(module))
        self.norm = module
        self.fresh = {f"{port.module}.{key}": value for key, value in norm_fresh(module).items()}

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


class ConsumerPort(WeightPort):
    """Columns of a Linear or of one weight of a recurrent layer, or input channels of a Conv (its groups included)."""

    def __init__(self, port: Port, module: nn.Module) -> None:
        super().__init__(port, module, producer=False)
        self.convolution = module if isinstance(module, _ConvNd) else None
        # Without a bias: what the norm behind takes from all that it is given.
        self.running_mean = None if port.norm_behind is None else f"{port.norm_behind}.running_mean"
        # Weights that leave one column: what turns a sum of |w| into a mean.
        self.fan_out = self.outputs // self.groups * self.taps
        self.one_column_a_unit = self.convolution is None and self.repeat == 1
        # Every position of the input is met by the one tap: its mean over positions is the mean under the tap.
        self.pointwise = self.taps == 1 and (self.convolution is None or _keeps_positions(self.convolution))

    def region(self, chosen: ChosenUnits) -> Region:
        """The chosen units' outgoing weights to this consumer."""
        runs, columns = self.indices(chosen)
        return self.region_of(runs, columns, self.input_first, chosen.active)

    def column_sums(self, values: Tensor, run_axes: int) -> Tensor:
        """The sum of a tensor of the weight's shape (*R, ...) over the outgoing weights of each unit, (*R, U)."""
        if self.input_first:
            columns = values.flatten(run_axes + 1).sum(-1)
        else:
            by_group = values.unflatten(run_axes, (self.groups, -1))  # (*R, groups, out / groups, in / groups, *kernel)
            columns = by_group.flatten(run_axes + 3).sum(-1) if by_group.dim() > run_axes + 3 else by_group
            columns = columns.sum(run_axes + 1).flatten(run_axes)
        return self.per_unit(columns).sum(-1)

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
        weight times mean, summed, is exactly the unit's mean share of the consumer's pre-activation. Under a transposed
        convolution this share differs from position to position, with the stride and at the borders; its mean over all
        positions is what is kept.

        Args:
            mean: (*R, U, repeat * positions) the mean over examples of what `split` gives for the inputs.
            inputs: the module's input itself, for the shape of an image.
        """
        if self.convolution is None:
            return mean.unsqueeze(-1)
        spatial = inputs.shape[-len(self.convolution.kernel_size) :]
        taps = self._tap_means(mean.reshape(-1, *spatial))  # (runs * U * repeat, taps)
        return taps.reshape(*mean.shape[:-1], self.repeat, self.taps)

    def compensate(self, weight: Tensor, bias: Tensor, chosen: ChosenUnits, means: Tensor, sign: float = 1.0) -> None:
        """Add the chosen units' mean contribution to the consumer's bias.

        Args:
            weight, bias: the consumer's, (*R, ...); the units' outgoing weights are not zero yet.
            chosen: the units.
            means: (M, repeat, taps) what the consumer sees on average.
            sign: -1 to take it from a running mean instead.
        """
        region = self.region(chosen)
        outgoing = region.read(weight).flatten(3) if self.taps > 1 else region.read(weight).flatten(2).unsqueeze(-1)
        share = (outgoing.to(means.dtype) * means.unsqueeze(-2)).sum(-1)  # (M, repeat, out / groups)
        if region.active is not None:
            share = share * region.active[:, None, None]
        by_group = bias.unflatten(-1, (self.groups, -1))
        runs, columns = self.indices(chosen)
        group = torch.div(columns, self.width // self.groups, rounding_mode="floor")
        index, values = (*runs, group), (sign * share).to(bias.dtype)
        units = max(1, len(values))
        if bias.device.type == "cpu" and values.numel() >= _IN_PARALLEL:
            # Threads that add at once do so in another order each time; parts that are small enough are added in order.
            index = tuple(each.expand(group.shape).reshape(-1, 1) for each in index)
            values = values.flatten(0, 1).unsqueeze(1)
            units = max(1, (_IN_PARALLEL - 1) // values.shape[-1])
        for start in range(0, len(values), units):
            part = slice(start, start + units)
            by_group.index_put_(tuple(each[part] for each in index), values[part], accumulate=True)

    def _tap_means(self, image: Tensor) -> Tensor:
        """(N, *spatial) -> (N, taps): mean over output positions of what lies under each tap."""
        conv = self.convolution
        assert conv is not None
        if isinstance(conv, _ConvTransposeNd):
            return _transposed_tap_means(conv, image)
        low_high: list[int] = list(conv._reversed_padding_repeated_twice)
        if any(low_high):
            mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
            image = F.pad(image.unsqueeze(0), low_high, mode=mode).squeeze(0)
        kernel, stride, dilation = tuple(conv.kernel_size), tuple(conv.stride), tuple(conv.dilation)
        if len(kernel) == 1:
            image, kernel, stride, dilation = image.unsqueeze(-2), (1, *kernel), (1, *stride), (1, *dilation)
        if len(kernel) == 3:
            for size, step, between in zip(kernel, stride, dilation, strict=True):
                windows = image.unfold(1, (size - 1) * between + 1, step)  # (N, positions, ..., window)
                image = windows[..., ::between].mean(1)
            return image.reshape(-1, self.taps)
        # One image of N channels, not N images: the device is then asked once.
        columns = F.unfold(image.unsqueeze(0), kernel, dilation=dilation, stride=stride)  # (1, N * taps, positions)
        return columns.mean(-1).reshape(-1, self.taps)


def _transposed_tap_means(conv: _ConvTransposeNd, image: Tensor) -> Tensor:
    """(N, *spatial) -> (N, taps): for each tap the sum of what it carries to the output, over all output positions.

    Input p goes through tap k to output p * stride - padding + k * dilation, where that lies inside.
    """
    positions = 1
    for axis, size in enumerate(image.shape[1:]):
        kernel, stride, dilation = conv.kernel_size[axis], conv.stride[axis], conv.dilation[axis]
        padding, extra = int(conv.padding[axis]), conv.output_padding[axis]
        outputs = (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1
        taps = torch.arange(kernel, device=image.device) * dilation - padding
        places = torch.arange(size, device=image.device).unsqueeze(1) * stride + taps  # (size, kernel)
        arrives = ((places >= 0) & (places < outputs)).to(image.dtype)
        image = torch.tensordot(image.movedim(1, -1), arrives, dims=1)  # the axis of taps comes last
        positions *= outputs
    return image.reshape(image.shape[0], -1) / positions


def bias_of(module: nn.Module, weight: str) -> str | None:
    """The name in a module of the bias that goes with a weight; None if there is none."""
    bias = weight.replace("weight", "bias")
    return bias if isinstance(getattr(module, bias, None), Tensor) else None


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


def _keeps_positions(conv: _ConvNd) -> bool:
    """Whether a kernel of one tap meets each position of the input once and nothing else."""
    padded = any(conv._reversed_padding_repeated_twice) or any(getattr(conv, "output_padding", ()))
    return not padded and all(stride == 1 for stride in conv.stride)

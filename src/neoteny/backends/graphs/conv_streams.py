"""The forward pass of n conv nets with each run's convolutions on a stream of their own.

One network's convolution at batch 100 fills a small part of a large GPU. n of them side by side fill it, and are faster
than the one grouped convolution that `vmap` makes of them; being the same calls as for one network, they also give a
run the same numbers with any neighbours. Linear layers at the end are batched matrix products over all runs. The
backward pass is autograd's, which runs every operation on the stream of its forward pass and waits where streams meet.

Used by `graphs`, which records all these launches once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from neoteny.backends.graphs import relu_pool as pooling
from neoteny.stacking.forward import ELEMENTWISE, StackedLinear, runs_in_order

STREAMS = 32
Layers = Sequence[tuple[str, nn.Module]]


class SideBySide:
    """Runs n networks that are a chain of convolutions, poolings and activations, then of linear layers.

    Args:
        layers: all layers in order, by name.
        reads: names of layers whose inputs are recorded.
        device: where.
    """

    def __init__(self, layers: Layers, reads: Collection[str], device: torch.device) -> None:
        split = next(number for number, (_, layer) in enumerate(layers) if isinstance(layer, nn.Linear))
        self._head, self._tail = layers[:split], layers[split:]
        self._reads = reads
        self._fuse = pooling.available(device)
        self._device = device
        self._streams = [torch.cuda.Stream(device) for _ in range(STREAMS)] if device.type == "cuda" else []

    @staticmethod
    def of(module: nn.Module, reads: Collection[str], device: torch.device) -> SideBySide | None:
        """The forward pass of networks like this one; None if it is not such a chain."""
        layers = list(module.named_children())
        kinds = [_kind(layer) for _, layer in layers]
        split = kinds.index("linear") if "linear" in kinds else 0
        chain = all(kind in ("image", "any") for kind in kinds[:split]) and all(
            kind in ("linear", "any") for kind in kinds[split:]
        )
        flattened = any(isinstance(layer, nn.Flatten) for _, layer in layers[:split])
        convolves = any(isinstance(layer, nn.Conv2d) for _, layer in layers[:split])
        each_once = len({id(layer) for _, layer in layers}) == len(layers)
        fits = runs_in_order(module) and chain and flattened and convolves and each_once
        return SideBySide(layers, reads, device) if fits else None

    def __call__(self, tensors: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Outputs (n, B, ...) and the recorded inputs (n, B, ...), from stacked tensors and inputs (n, B, ...)."""
        runs = len(inputs)
        own = {
            f"{name}.{key}": tensors[f"{name}.{key}"].unbind(0)
            for name, layer in self._head
            for key, _ in layer.named_parameters()
        }
        features: list[Tensor] = []
        seen: dict[str, list[Tensor]] = {}
        here = torch.cuda.current_stream(self._device) if self._streams else None
        for stream in self._streams:
            stream.wait_stream(cast(Any, here))
        for run in range(runs):
            with torch.cuda.stream(self._streams[run % STREAMS]) if self._streams else contextlib.nullcontext():
                parameters = {name: parts[run] for name, parts in own.items()}
                features.append(self._convolve(parameters, inputs[run], seen))
        for stream in self._streams:
            cast(Any, here).wait_stream(stream)
        recorded = {name: torch.stack(parts) for name, parts in seen.items()}
        value = torch.stack(features)
        for name, layer in self._tail:
            if name in self._reads:
                recorded[name] = value
            if isinstance(layer, nn.Linear):
                weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
                value = cast(Tensor, StackedLinear.apply(value, weight, bias))
            else:
                value = layer(value)
        return value, recorded

    def _convolve(self, parameters: dict[str, Tensor], value: Tensor, seen: dict[str, list[Tensor]]) -> Tensor:
        """One run's layers up to the first linear one."""
        number = 0
        while number < len(self._head):
            name, layer = self._head[number]
            if name in self._reads:
                seen.setdefault(name, []).append(value.detach())
            number += 1
            if not isinstance(layer, nn.Conv2d):
                value = layer(value)
                continue
            weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
            if bias is not None and self._fuses(self._head[number : number + 2]):
                geometry = (layer.stride, layer.padding, layer.dilation, layer.groups)
                value = cast(Tensor, pooling.ConvolutionReluPool.apply(value, weight, bias, geometry))
                number += 2
            else:
                value = layer._conv_forward(value, weight, bias)
        return value

    def _fuses(self, following: Layers) -> bool:
        """Whether these two layers are a ReLU and a 2x2 max-pooling, and can be taken in one kernel."""
        if not self._fuse or len(following) < 2 or any(name in self._reads for name, _ in following):
            return False
        (_, relu), (_, pool) = following
        return (
            type(relu) is nn.ReLU
            and type(pool) is nn.MaxPool2d
            and pool.kernel_size in (2, (2, 2))
            and pool.stride in (2, (2, 2))
            and pool.padding in (0, (0, 0))
            and pool.dilation in (1, (1, 1))
            and not pool.ceil_mode
        )


def _kind(layer: nn.Module) -> str:
    """Where a layer may stand: "image", "linear", "any" (where its inputs' shape does not matter) or "" for nowhere."""
    if type(layer) is nn.Conv2d:
        return "image" if layer.padding_mode == "zeros" else ""
    if type(layer) is nn.Linear:
        return "linear"
    if type(layer) is nn.Flatten:
        return "image" if (layer.start_dim, layer.end_dim) == (1, -1) else ""
    if type(layer) in (nn.MaxPool2d, nn.AvgPool2d):
        return "" if getattr(layer, "return_indices", False) else "image"
    return "any" if isinstance(layer, ELEMENTWISE) else ""

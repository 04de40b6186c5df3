"""run_again(): a forward pass of n networks beside their training, which leaves no trace in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from neoteny.stacking.forward import ChainForward, VmapForward, is_chain
from neoteny.units.calls import Call, Pass


def run_again(
    template: nn.Module, tensors: Mapping[str, Tensor], buffers: Iterable[str], call: Call, reads: Sequence[str]
) -> Pass:
    """Make a forward pass of n networks in evaluation mode.

    Args:
        template: a module of their structure.
        tensors: their parameters and buffers, (n, ...).
        buffers: which of them are buffers; the pass sees copies.
        call: the inputs (n, B, ...).
        reads: modules whose inputs to return.
    """
    used = {**tensors, **{name: tensors[name].detach().clone() for name in buffers}}
    wanted = dict.fromkeys(reads)
    forward = (
        ChainForward(template, wanted) if is_chain(template) else VmapForward(template, wanted, in_evaluation=True)
    )
    training = [module for module in template.modules() if module.training]
    devices = {value.device for value in used.values() if value.device.type == "cuda"}
    try:
        for module in training:
            module.training = False
        with torch.random.fork_rng(devices=list(devices)), call.again():
            outputs, found = forward(used, call.arguments[0])
    finally:
        forward.remove()
        for module in training:
            module.training = True
    return Pass(outputs, {name: [value] for name, value in found.items()})

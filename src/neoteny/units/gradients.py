"""Gradients of units: how large they are at a unit's incoming weights and at its output, compared with its layer.

Before this: `view` (gradients of parameters, recorded gradients of activations). After it: methods that score units by
gradients, and the utility "gxd" of `ContinualBackprop`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from neoteny.units.statistics import read
from neoteny.units.view import LiveGroup, Reader, View

EPSILON = 1e-8


def gradient_modules(view: View, who: str) -> list[str]:
    """The modules at whose inputs the gradients of all units' outputs must be recorded.

    Every consumer is named: where several layers read one tensor, its gradient is that of all of them together.

    Args:
        view: whose units.
        who: the method and its setting, for the message.

    Raises:
        ValueError: some units are read inside a module, where no gradient can be recorded.
    """
    inside = [group.name for group in view.groups if group.reader.key != group.reader.module]
    if inside:
        raise ValueError(
            f"{who} reads the gradient at the output of every unit, which is not recorded inside recurrent layers and "
            f"attention: {', '.join(inside)}. Leave these units out (leave_out={inside!r}), or choose another setting."
        )
    ports = [port for group in view.groups for port in (group.reader, *group.consumers)]
    return list(dict.fromkeys(port.module for port in ports if port.key == port.module))


def output_gradients(view: View, group: LiveGroup, reader: Reader, dtype: torch.dtype) -> list[Tensor]:
    """The gradients of the loss at the units' outputs, one (*R, B, U, positions) per forward pass, as `read` gives h.

    Raises:
        ValueError: none were recorded.
    """
    found = view.input_gradients.get(reader.key, [])
    if len(found) != len(view.activations[reader.key]):
        raise ValueError(
            f"No gradients were recorded at {reader.key}, where the units of {group.name} are read. They are where the "
            "loss is differentiated by the loop itself: with neoteny.attach, or Stack.step and Stack.learn. Units "
            "inside attention have none: leave them out (leave_out=...)."
        )
    return [reader.split(gradient, len(view.runs)).to(dtype) for gradient in found]


def output_scores(view: View, group: LiveGroup, reader: Reader) -> Tensor:
    """Mean absolute gradient at each unit's output over examples and positions, relative to the layer, (*R, U)."""
    gradients = output_gradients(view, group, reader, torch.float64)
    examples = sum(each.shape[-3] * each.shape[-1] for each in gradients)
    total = torch.stack([each.abs().sum((-3, -1)) for each in gradients]).sum(0)
    return relative(total / examples / view.gradient_scale())


def replacement_cost(view: View, group: LiveGroup, reader: Reader, dtype: torch.dtype, centre: Tensor | None) -> Tensor:
    """Mean over examples of |sum over positions of dL/dh * (h - centre)|, (*R, U): the first-order cost of a reset.

    Args:
        view, group, reader: whose units, and where they are read.
        dtype: of the result.
        centre: (*R, U) what a unit is replaced by; None for 0.
    """
    costs: list[Tensor] = []
    batches = read(view, reader, dtype)
    for h, gradient in zip(batches, output_gradients(view, group, reader, dtype), strict=True):
        change = h if centre is None else h - centre.unsqueeze(-1).unsqueeze(-3)
        costs.append((gradient * change).sum(-1).abs().sum(-2))
    total = torch.stack(costs).sum(0) / sum(batch.shape[-3] for batch in batches)
    return total / view.gradient_scale()


def weight_scores(view: View, group: LiveGroup) -> Tensor | None:
    """Mean absolute gradient of each unit's incoming weights, relative to the layer, (*R, U); None without them."""
    if any(view.gradient(port.weight) is None for port in group.producers):
        return None
    return relative(view.gradient_magnitudes().incoming_mean(group).double() / view.gradient_scale())


def relative(magnitudes: Tensor) -> Tensor:
    """Magnitudes (*R, U) divided by the mean of their layer."""
    return magnitudes / (magnitudes.mean(-1, keepdim=True) + EPSILON)

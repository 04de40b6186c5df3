"""Adam's update with a step count for every element, so that a reset weight starts afresh.

The count of an element is the number of updates since the later of the last resets of its two units: two vectors per
weight, no further tensor of its size. Since 1 - beta^t grows with t, the correction of an element is
min(1 - beta^t_row, 1 - beta^t_column), an outer minimum of two short vectors. A method that resets single weights
adds a tensor of the weight's size, which joins the minimum.

Used by `methods.adam` (stacks) and `optim.adam` (a user's module).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from neoteny.layers.regions import Region, put
from neoteny.methods.fused_adam import update_fused


class ElementSteps:
    """Step counts of the elements of one parameter (*R, ...).

    Args:
        step: updates so far.
        resets: `rows` (*R, out), `columns` (*R, groups, in / groups) and `elements` (*R, ...), each under the key
            "step": the update at which a row, column or element was last reset; and `missed`, how many updates the
            whole parameter went without a gradient. None or empty if nothing ever was.
        run_axes: the number of run axes R.
    """

    def __init__(self, step: int, resets: dict[str, dict[str, Tensor]] | None, run_axes: int) -> None:
        missed = _missed(resets)
        self.step = step - missed if missed else step
        self.resets = resets
        self.run_axes = run_axes

    @staticmethod
    def miss(resets: dict[str, dict[str, dict[str, Tensor]]], known: Iterable[str], updated: Sequence[str]) -> None:
        """Note which of the known parameters had no gradient at an update, which then does not count for them.

        Args:
            resets: the resets of all parameters by name.
            known, updated: names of the parameters that have a state, and of those that were updated.
        """
        for name in set(known).difference(updated):
            counted = resets.setdefault(name, {}).setdefault("missed", {"step": torch.zeros((), dtype=torch.int64)})
            counted["step"] += 1

    @staticmethod
    def restart(resets: dict[str, dict[str, dict[str, Tensor]]]) -> None:
        """Forget every reset and missed update, for a step count that goes back to zero; in place."""
        for counts in resets.values():
            for counted in counts.values():
                counted["step"].zero_()

    @staticmethod
    def record(resets: dict[str, dict[str, Tensor]], like: Tensor, region: Region, step: int) -> None:
        """Note that the region was reset at `step`."""
        if region.mask is not None:
            if "elements" not in resets:
                resets["elements"] = {"step": torch.zeros(like.shape, dtype=torch.int64, device=like.device)}
            region.write(resets["elements"]["step"], step - _missed(resets))
            return
        run_axes = len(region.index) - (1 if region.groups is None else 2)
        vector = ElementSteps.vector(resets, like, region.groups, run_axes)
        put(vector, region.index, step - _missed(resets), region.active)

    @staticmethod
    def vector(resets: dict[str, dict[str, Tensor]], like: Tensor, groups: int | None, run_axes: int) -> Tensor:
        """The reset steps of rows (`groups` None) or of columns of a parameter, made if there are none yet."""
        key = "rows" if groups is None else "columns"
        if key not in resets:
            shape = like.shape[: run_axes + 1]
            if groups is not None:
                shape = (*like.shape[:run_axes], groups, like.shape[run_axes + 1])
            # "step" is the one key that Optimizer.load_state_dict does not cast to the parameter's dtype.
            resets[key] = {"step": torch.zeros(shape, dtype=torch.int64, device=like.device)}
        return resets[key]["step"]

    def correction(self, beta: float, like: Tensor) -> float | Tensor:
        """1 - beta^t: one number if nothing was reset, else a tensor that broadcasts against `like`."""
        rows, columns, elements = ((self.resets or {}).get(key) for key in ("rows", "columns", "elements"))
        if rows is None and columns is None and elements is None:
            return 1.0 - beta**self.step
        least: Tensor | None = None
        shape = like.shape
        if rows is not None:
            least = self._since(beta, rows["step"], like)
            least = least.reshape(least.shape + (1,) * (like.dim() - least.dim()))
        if columns is not None:
            by_column = self._since(beta, columns["step"], like)  # (*R, groups, in / groups)
            groups, per_group = by_column.shape[-2:]
            outputs = shape[self.run_axes] // groups
            by_column = by_column.unsqueeze(-2).expand(*by_column.shape[:-2], groups, outputs, per_group)
            by_column = by_column.reshape(*by_column.shape[:-3], groups * outputs, per_group)
            by_column = by_column.reshape(by_column.shape + (1,) * (like.dim() - by_column.dim()))
            least = by_column if least is None else torch.minimum(least, by_column)
        if elements is not None:
            by_element = self._since(beta, elements["step"], like)
            least = by_element if least is None else torch.minimum(least, by_element)
        assert least is not None
        return least

    def _since(self, beta: float, since: Tensor, like: Tensor) -> Tensor:
        """1 - beta^(step - since), in float64 until the last: in low precision beta itself may round to 1."""
        return (1.0 - torch.pow(beta, (self.step - since).to(torch.float64))).to(like.dtype)


def _missed(resets: dict[str, dict[str, Tensor]] | None) -> int:
    return int(resets["missed"]["step"]) if resets and "missed" in resets else 0


def adam_update(
    parameter: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    steps: ElementSteps,
    step_size: float | Tensor,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """One Adam update in place; every tensor (*R, ...)."""
    if update_fused(
        parameter, gradient, first, second, steps.step, steps.resets, steps.run_axes, step_size, betas, eps
    ):
        return
    beta1, beta2 = betas
    first.lerp_(gradient, 1.0 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
    correction1 = steps.correction(beta1, parameter)
    correction2 = steps.correction(beta2, parameter)
    if isinstance(correction1, float) and isinstance(correction2, float) and isinstance(step_size, (int, float)):
        denominator = (second.sqrt() / math.sqrt(correction2)).add_(eps)
        parameter.addcdiv_(first, denominator, value=-step_size / correction1)
    else:
        denominator = (second / correction2).sqrt_().add_(eps)
        parameter.sub_(step_size * (first / correction1) / denominator)

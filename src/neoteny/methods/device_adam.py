"""Adam's update of many parameters on a CUDA device in one launch, with a step count for every element.

The arithmetic is `adam_update`'s. Tables on the device say where parameters, gradients and moments lie; while they stay
where they are, an update is one launch. Needs Triton, which comes with torch for CUDA.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Mapping, Sequence
from operator import is_, is_not
from typing import Any

import torch
from torch import Tensor

from neoteny.layers.regions import tap_layout
from neoteny.units.device.layout import KINDS

_BLOCK = 1024
_LONGEST_TABLE = 1_000_000


class DeviceAdam:
    """Updates the same parameters again and again.

    Args:
        parameters: those that have a gradient and `serves` accepts.
        states: of each, "step" (0-dim, on the host or on the device), "exp_avg", "exp_avg_sq" and, once something was
            reset, "resets".
    """

    def __init__(self, parameters: Sequence[Tensor], states: Sequence[dict[str, Any]]) -> None:
        self.parameters, self.states = list(parameters), list(states)
        self._moments = [state[key] for state in states for key in ("exp_avg", "exp_avg_sq", "step")]
        self._resets = [len(state.get("resets", ())) for state in states]
        self._steps = [state["step"] for state in states]
        self._clock = self._steps[0] if self._steps[0].is_cuda else None
        """Where updates are counted on the device, whose host then never learns the number."""
        self.captured = False
        """Whether a CUDA graph of a user's reads the tables."""
        self._strides = [parameter.stride() for parameter in parameters]
        self._count = int(self._steps[0])
        self._device = parameters[0].device
        self._places = [parameter.data_ptr() for parameter in parameters]
        self._known: dict[tuple[int, ...], Tensor] = {}
        self._addresses: tuple[int, ...] = ()
        self._aligned = False
        self._kinds: list[torch.dtype] = []
        self._rows, self._chunks = self._tables()
        self._gradients = torch.zeros(len(parameters), dtype=torch.int64, device=self._device)
        if self._clock is not None:
            from neoteny.units.device.memory import compile_recording

            compile_recording(self._gradients.unsqueeze(1))

    def holds(self, parameters: Sequence[Tensor], states: Sequence[dict[str, Any]]) -> bool:
        """Whether these parameters, their moments and their counts are those that the tables name."""
        if len(parameters) != len(self.parameters) or not all(map(is_, parameters, self.parameters)):
            return False
        moments = [state[key] for state in states for key in ("exp_avg", "exp_avg_sq", "step")]
        return (
            not any(map(is_not, moments, self._moments))
            and [len(state.get("resets", ())) for state in states] == self._resets
            and [parameter.data_ptr() for parameter in parameters] == self._places
            and (self._clock is not None or int(self._steps[0]) == self._count)
        )

    def update(
        self,
        gradients: Sequence[Tensor],
        step_size: float | Tensor,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        decoupled: bool,
    ) -> bool:
        """One update of every parameter in place; False, and nothing done, if a gradient lies otherwise in memory."""
        from neoteny.methods.device_adam_kernel import adam

        if [gradient.stride() for gradient in gradients] != self._strides:
            return False
        table, aligned = self._captured(gradients) if torch.cuda.is_current_stream_capturing() else self._use(gradients)
        torch._foreach_add_(self._steps, 1)  # pyright: ignore[reportPrivateImportUsage]
        self._count += 1
        powers = [_powers(beta, self._device) for beta in betas]
        adam[(len(self._chunks),)](
            self._chunks,
            self._rows,
            table,
            powers[0],
            powers[1],
            len(powers[0]) - 1,
            len(powers[1]) - 1,
            self._count if self._clock is None else self._clock,
            step_size,
            1.0 - betas[0],
            betas[1],
            1.0 - betas[1],
            eps,
            weight_decay,
            decoupled,
            aligned,
            self._clock is not None,
            isinstance(step_size, Tensor),
            _BLOCK,
            num_warps=8,
        )
        torch.autograd.graph.increment_version(self.parameters)
        return True

    def _tables(self) -> tuple[Tensor, Tensor]:
        rows: list[list[int]] = []
        chunks: list[Tensor] = []
        for number, (parameter, state) in enumerate(zip(self.parameters, self.states, strict=True)):
            resets = state.get("resets", {})
            by_row, by_column = (resets[key]["step"] if key in resets else None for key in ("rows", "columns"))
            length, (inner, _) = math.prod(parameter.shape[1:]), tap_layout(parameter) or (1, 1)
            groups, per_group = (1, length) if by_column is None else by_column.shape[-2:]
            where = (parameter.data_ptr(), state["exp_avg"].data_ptr(), state["exp_avg_sq"].data_ptr())
            counts = [0 if vector is None else vector.data_ptr() for vector in (by_row, by_column)]
            high = max(1, len(parameter) // groups if parameter.dim() else 1)
            late = self._count - int(state["step"])
            kind = KINDS[parameter.dtype]
            rows.append([*where, kind, kind, parameter.numel(), *counts, length, inner, per_group, high, late])
            starts = torch.arange(0, parameter.numel(), _BLOCK)
            chunks.append(torch.stack((torch.full_like(starts, number), starts), 1))
        self._whole = all(address % 16 == 0 for row in rows for address in row[:3])
        return torch.tensor(rows).to(self._device), torch.cat(chunks).to(self._device)

    def _captured(self, gradients: Sequence[Tensor]) -> tuple[Tensor, bool]:
        """A table of gradients that belongs to the graph being captured, and whether all addresses are aligned."""
        if [gradient.dtype for gradient in gradients] != self._kinds:
            raise RuntimeError(
                "neoteny.optim.Adam: the gradients have other types than in the updates before the capture. Make an "
                "update with the same types first."
            )
        from neoteny.units.device.memory import record_addresses

        addresses = tuple(gradient.data_ptr() for gradient in gradients)
        table = record_addresses(self._gradients.unsqueeze(1), addresses)
        self.captured = True
        return table, self._whole and not any(address % 16 for address in addresses)

    def _use(self, gradients: Sequence[Tensor]) -> tuple[Tensor, bool]:
        """Take the gradients that lie at these addresses; a training loop soon uses the same few again.

        Returns:
            The table of addresses, and whether all addresses are multiples of 16.
        """
        kinds = [gradient.dtype for gradient in gradients]
        if kinds != self._kinds:
            self._rows[:, 4] = torch.tensor([KINDS[kind] for kind in kinds]).to(self._device)
            self._kinds = kinds
        addresses = tuple(gradient.data_ptr() for gradient in gradients)
        if addresses == self._addresses:
            return self._gradients, self._aligned
        self._aligned = self._whole and not any(address % 16 for address in addresses)
        known = self._known.get(addresses)
        if known is None:
            if len(self._known) >= 16:
                self._known.clear()
            known = torch.tensor(addresses).pin_memory().to(self._device, non_blocking=True)
            self._known[addresses] = known
        self._gradients.copy_(known)
        self._addresses = addresses
        return self._gradients, self._aligned


def serves(parameter: Tensor, state: Mapping[str, Any], betas: tuple[float, float]) -> bool:
    """Whether a parameter with a gradient can take part."""
    gradient, first, second = parameter.grad, state["exp_avg"], state["exp_avg_sq"]
    if gradient is None or not parameter.is_cuda or not parameter.numel():
        return False
    if type(gradient) is not Tensor or gradient.is_sparse or "elements" in state.get("resets", ()):
        return False
    if not KINDS.keys() >= {parameter.dtype, gradient.dtype} or {first.dtype, second.dtype} != {parameter.dtype}:
        return False
    if any(tensor.stride() != parameter.stride() for tensor in (gradient, first, second)):
        return False
    if tap_layout(parameter) is None or torch.compiler.is_compiling():
        return False
    return _installed() and all(_table_length(beta) <= _LONGEST_TABLE for beta in betas)


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def _table_length(beta: float) -> int:
    return 2 if beta == 0.0 else math.ceil(-60.0 * math.log(2.0) / math.log(beta)) + 1


@functools.cache
def _powers(beta: float, device: torch.device) -> Tensor:
    """1 / (1 - beta^t) for t = 0, 1, ... until it is 1, in float32; infinite at 0, which no element has."""
    values = [math.inf, *(1.0 / (1.0 - beta**step) for step in range(1, _table_length(beta)))]
    return torch.tensor(values, dtype=torch.float64).to(torch.float32).to(device)

"""PackedBackend: what the dense kernels of both devices share, from a stack to its packed state and back.

Before this: `terms` and `pack`; after it: `dense.kernel` on the CPU, `dense_cuda.kernel` on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from neoteny.backends.kernel.backend import BlockBackend, check_stack
from neoteny.backends.kernel.dense.pack import DensePacked, layer_names
from neoteny.backends.kernel.dense.terms import REINIT, dense_numbers_of, dense_options_of
from neoteny.backends.kernel.examples import Examples
from neoteny.backends.kernel.pack import unit_scales
from neoteny.draws.initial import Distribution
from neoteny.problems.problem import Stream
from neoteny.stacking.stack import Stack


class PackedBackend(BlockBackend):
    """A stack in the dense kernels' layout; see `backends.backend.Backend`.

    Args:
        stack, stream, seeds, loss: as for `KernelBackend`.
        batch: examples per update.
    """

    def __init__(self, stack: Stack, stream: Stream, seeds: Sequence[int], loss: str, batch: int = 1) -> None:
        options = check_stack(stack, seeds, dense_options_of(stack.module(0), stack.methods, loss, batch))
        super().__init__(stack, stream, seeds, options.widths, loss)
        bounds = [*(unit_scales(stack) if options.rewrites_units else [0.0] * options.hidden), 0.0]
        if REINIT in options.after:
            bounds = [_uniform_bound(stack, f"{name}.weight") for name in layer_names(options.hidden)]
        self._packed = DensePacked(options, stack, bounds)
        self._numbers = dense_numbers_of(stack.methods, len(self._seeds))
        self.read()

    def check_batch(self, examples: Examples) -> None:
        """ValueError where a plan has another number of examples per update."""
        batch = self._packed.options.batch
        if examples.batch != batch:
            raise ValueError(
                f"{type(self).__name__}: made for {batch} examples per update; the plan has {examples.batch}."
            )

    def replaced(self) -> Tensor | None:
        """Units replaced so far in each run, int64 (n,); None if no method replaces any."""
        tensors = self._packed.tensors
        if not self._packed.options.rewrites_units:
            return None
        return (tensors.replaced + tensors.reset).sum(1).cpu()

    @torch.no_grad()
    def unpack(self) -> None:
        """Copy the state into the stack."""
        self._packed.write()

    def pack(self) -> None:
        """Copy the state from the stack."""
        self._packed.read()


def _uniform_bound(stack: Stack, weight: str) -> float:
    """The bound of the uniform distribution that a weight is redrawn from."""
    initial = stack.view.initial(weight)
    if not isinstance(initial, Distribution) or initial.family != "uniform":
        raise ValueError(
            "DenseBackend: no kernel trains this stack: new weights must come from a uniform distribution. Train it "
            "with Stack.step."
        )
    return initial.scale

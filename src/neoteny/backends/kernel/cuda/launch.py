"""What the CUDA kernels share on the host: compiling a source with NVRTC, a launch, copies of the examples.

Before this: a `source`; after it: `cuda.kernel` and `dense_cuda.kernel`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neoteny.backends.kernel.examples import Examples

_COMPILER_FLAGS = ("-std=c++17", "-ftz=true", "-prec-div=false", "-prec-sqrt=false")  # the last three: of float32 alone
MOST_STEPS = 2**31 - 2**20
"""Steps are 32-bit numbers in the kernels."""


@functools.lru_cache(maxsize=64)
def compile_kernel(text: str, name: str, shared_bytes: int, device: int, flags: tuple[str, ...] = ()) -> Any:
    """The compiled kernel of that name."""
    try:
        import cupy  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("The CUDA kernel is compiled with cupy: pip install cupy-cuda12x (or -cuda13x).") from error
    with cupy.cuda.Device(device):
        function = cupy.RawModule(code=text, options=_COMPILER_FLAGS + flags, backend="nvrtc").get_function(name)
        function.max_dynamic_shared_size_bytes = shared_bytes
    return function


def launch(
    function: Any, blocks: int, threads: int, arguments: Sequence[Any], shared_bytes: int, stream: torch.cuda.Stream
) -> None:
    """Start a compiled kernel on a stream of torch's."""
    import cupy  # pyright: ignore[reportMissingImports]

    index = stream.device.index or 0
    with warnings.catch_warnings():  # its successor wants streams of a protocol that not every torch has
        warnings.simplefilter("ignore", DeprecationWarning)
        other = cupy.cuda.ExternalStream(stream.cuda_stream, index)
    with cupy.cuda.Device(index), other:
        function((blocks,), (threads,), tuple(arguments), shared_mem=shared_bytes)


class Uploads:
    """The inputs and the task on a device; copied when they change."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._table: list[tuple[np.ndarray, Tensor]] = []
        self._task: tuple[Examples | None, list[Tensor]] = (None, [])

    def of(self, examples: Examples) -> list[Tensor]:
        """Start, feature, level, values and target of the table; order, place and stream of the task."""
        table = examples.table
        arrays = (table.start, table.feature, table.level, table.values, table.target)
        kept = {id(array): tensor for array, tensor in self._table}  # tasks share what is large
        self._table = [(array, kept[id(array)] if id(array) in kept else self._upload(array)) for array in arrays]
        if self._task[0] is not examples:
            self._task = (
                examples,
                [self._upload(array) for array in (examples.order, examples.place, examples.stream)],
            )
        return [*(tensor for _, tensor in self._table), *self._task[1]]

    def _upload(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)


def check_range(name: str, examples: Examples, start: int, stop: int, step: int) -> None:
    """ValueError where a block of updates is not one of the task, or beyond what a kernel can count."""
    if not 0 <= start <= stop <= examples.steps:
        raise ValueError(f"{name}: updates {start} to {stop} of a task of {examples.steps}.")
    if step + (stop - start) > MOST_STEPS:
        raise ValueError(f"{name}: more than {MOST_STEPS} updates.")

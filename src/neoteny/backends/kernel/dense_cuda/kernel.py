"""DenseCudaBackend: a stack of runs trained by the dense kernel on a GPU, a block of threads per run.

A run is trained from its first update of the block to its last without looking at the others, and all sums are added up
in a fixed order: its numbers depend neither on its neighbours nor on where it was interrupted.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from neoteny.backends.kernel.cuda.launch import Uploads, check_range, compile_kernel, launch
from neoteny.backends.kernel.dense.backend import PackedBackend
from neoteny.backends.kernel.dense.terms import DenseOptions
from neoteny.backends.kernel.dense_cuda.memory import plan_memory
from neoteny.backends.kernel.dense_cuda.source import GIVEN, constants_of, source
from neoteny.backends.kernel.examples import Examples
from neoteny.problems.problem import Stream
from neoteny.stacking.stack import Stack

_CHECKED = "NEOTENY_CHECKED_KERNEL"
"""Name of the environment variable that has places checked inside the kernel: slower; a wrong one is printed."""


class DenseCudaBackend(PackedBackend):
    """A stack trained by the dense kernel on a GPU; see `backends.backend.Backend`.

    Args:
        stack, stream, seeds, loss, batch: as for `PackedBackend`.

    Attributes:
        threads: of a run.
        room: bytes of shared memory per run that are used; None: what the device has.
    """

    threads: int = 512
    room: int | None = None

    def __init__(self, stack: Stack, stream: Stream, seeds: Sequence[int], loss: str, batch: int = 1) -> None:
        super().__init__(stack, stream, seeds, loss, batch)
        packed, self._device = self._packed, self._packed.device
        room = self._room() if self.room is None else self.room
        self._memory = plan_memory(packed, room)
        self._constants = constants_of(packed, self._memory, self.threads)
        self._prepare()
        runs, dtype = len(self._seeds), packed.dtype
        numbers = np.stack([np.broadcast_to(row, (runs,)) for row in self._numbers])
        self._rates = torch.from_numpy(numbers).to(self._device)
        corrections = corrections_by_age(packed.options) if packed.options.counts_weights else np.ones((2, 1))
        self._by_age = torch.from_numpy(corrections).to(self._device, dtype)
        outside = max(16, runs * self._memory.outside)
        self._outside = torch.zeros(outside, dtype=torch.uint8, device=self._device)
        self._uploads = Uploads(self._device)

    def train(self, examples: Examples, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Kernel.advance`."""
        self.check_batch(examples)
        packed, runs = self._packed, len(self._seeds)
        check_range(type(self).__name__, examples, start, stop, packed.step)
        total = torch.zeros(runs, dtype=torch.float64, device=self._device)
        broken = torch.full((runs,), -1, dtype=torch.int64, device=self._device)
        if start < stop and runs > 0:
            self._launch(self._given(examples, start, stop, total, broken))
            packed.step += stop - start
        return total.cpu().numpy(), broken.cpu().numpy()

    def _given(self, examples: Examples, start: int, stop: int, total: Tensor, broken: Tensor) -> Tensor:
        """The kernel's argument: `source.GIVEN` as numbers and addresses, int64."""
        packed = self._packed
        names = ("entry", "feature", "level", "values", "target", "order", "place", "stream")
        tensors = dict(zip(names, self._uploads.of(examples), strict=True))
        self._held = tensors  # until the next launch
        tensors |= {"total": total, "broken": broken, "numbers": self._rates, "outside": self._outside}
        tensors |= {"by_age1": self._by_age[0], "by_age2": self._by_age[1]}
        tensors |= packed.tensors._asdict()
        numbers = {
            "runs": len(self._seeds), "step": packed.step, "start": start, "stop": stop,
            "order_columns": examples.order.shape[1], "ages": self._by_age.shape[1],
        }  # fmt: skip
        values = [numbers[name] if name in numbers else tensors[name].data_ptr() for name in GIVEN]
        return torch.tensor(values, dtype=torch.int64).to(self._device)

    def _room(self) -> int:
        """Shared memory that a block can have."""
        if self._device.type != "cuda":
            raise ValueError(f"DenseCudaBackend: the runs must be on a CUDA device, not on {self._device}.")
        return torch.cuda.get_device_properties(self._device).shared_memory_per_block_optin

    def _prepare(self) -> None:
        """Compile the kernel of this learner."""
        text = source(self._constants, self._packed.dtype.itemsize)
        flags = ("-DCHECKED",) if os.environ.get(_CHECKED) else ()
        self._function = compile_kernel(text, "dense", self._memory.inside, self._device.index or 0, flags)
        self._stream_of_device = torch.cuda.Stream(self._device)

    def _launch(self, given: Tensor) -> None:
        """Train all runs and wait for them."""
        stream = self._stream_of_device  # of its own, so that stacks in several threads train side by side
        stream.wait_stream(torch.cuda.current_stream(self._device))
        arguments = (np.uint64(given.data_ptr()),)
        launch(self._function, len(self._seeds), self.threads, arguments, self._memory.inside, stream)
        stream.synchronize()


@functools.lru_cache(maxsize=4)
def corrections_by_age(options: DenseOptions) -> np.ndarray:
    """Adam's 1 / (1 - beta1^age) and 1 / sqrt(1 - beta2^age) for every age from 0 on, (2, ages), float64.

    The last age stands for all beyond, which have no correction to the last digit.
    """
    slowest = max(options.beta1, options.beta2, 1e-3)
    ages = np.arange(int(54.0 * np.log(2.0) / -np.log(slowest)) + 2, dtype=np.float64)
    ages[0] = 1.0  # no update has an age of 0
    return np.stack([1.0 / (1.0 - options.beta1**ages), 1.0 / np.sqrt(1.0 - options.beta2**ages)])

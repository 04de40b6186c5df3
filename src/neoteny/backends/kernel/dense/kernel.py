"""DenseBackend: a stack of runs trained by the dense kernel, runs shared out among threads.

Every run is trained from its first update of the block to its last without looking at the others, so its numbers depend
neither on its neighbours nor on the number of threads.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from neoteny import jit
from neoteny.backends.kernel.cpu import layers as sparse_layers
from neoteny.backends.kernel.cpu import units as sparse_units
from neoteny.backends.kernel.cpu.arguments import inputs_of
from neoteny.backends.kernel.dense import network, pack, passes, places, reinit, run, terms, units
from neoteny.backends.kernel.dense.backend import PackedBackend
from neoteny.backends.kernel.dense.run import train_run
from neoteny.backends.kernel.examples import Examples
from neoteny.draws import philox
from neoteny.problems.problem import Stream
from neoteny.stacking.stack import Stack
from neoteny.units import utilities


class Flags(NamedTuple):
    """`terms.DenseOptions` as numbers; see there."""

    width: int
    copies: int
    activation: int
    slope: float
    sharpness: float
    norm: bool
    norm_eps: float
    loss: int
    batch: int
    optimizer: int
    beta1: float
    beta2: float
    eps: float
    factor: float
    scale: int
    protect: bool
    utility: int
    compensate: bool
    count_layer: bool
    reset_by: int
    reset_period: int
    first_threshold: int
    reinit_period: int
    by_gradient: bool
    proportional: bool
    averages: bool
    spare_output: bool
    slow_period: int


class DenseBackend(PackedBackend):
    """A stack trained by the dense kernel on the CPU; see `backends.backend.Backend`.

    Args:
        stack, stream, seeds, loss, batch: as for `PackedBackend`.
        threads: how many threads share the runs; the numbers do not depend on it.
    """

    def __init__(
        self, stack: Stack, stream: Stream, seeds: Sequence[int], loss: str, batch: int = 1, threads: int = 1
    ) -> None:
        super().__init__(stack, stream, seeds, loss, batch)
        options = self._packed.options
        self._threads = threads
        self._flags = Flags(**{name: getattr(options, name) for name in Flags._fields})
        self._acts = np.array(options.acts, dtype=np.int64)
        self._one = np.ones(1, dtype=self._packed.state.parameters.dtype)

    def train(self, examples: Examples, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Kernel.advance`."""
        self.check_batch(examples)
        packed = self._packed
        runs, inputs, train = len(self._seeds), inputs_of(examples), _train_runs()
        total, broken = np.zeros(runs), np.full(runs, -1, dtype=np.int64)
        given = (packed.shape, self._flags, self._acts, packed.state, self._numbers, inputs, packed.step)

        def work(run: int) -> None:
            torch.set_flush_denormal(True)  # set per thread; numbers below 1e-38 slow Adam down
            train(run, run + 1, *given, start, stop, total, broken, self._one)

        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(work, range(runs)))
        packed.step += stop - start
        return total, broken


def _fingerprint() -> str:
    """Stands for the sources of all compiled functions; as part of an entry it keeps its cache from growing stale."""
    own = (network, pack, passes, places, reinit, run, terms, units)
    modules = (*own, jit, philox, sparse_layers, sparse_units, utilities)
    return hashlib.sha256(b"".join(Path(str(module.__file__)).read_bytes() for module in modules)).hexdigest()


@functools.cache
def _train_runs() -> Callable[..., None]:
    """The compiled entry."""
    fingerprint, compile_ = _fingerprint(), jit.compiler()
    assert compile_ is not None

    @compile_
    def train_runs(
        first_run, last_run, shape, options, acts, state, numbers, inputs, step, start, stop, total, broken, unit_value
    ):  # pragma: no cover - compiled
        if fingerprint == "":
            return
        for run_number in range(first_run, last_run):
            train_run(
                run_number, shape, options, acts, state, numbers, inputs, step, start, stop, total, broken, unit_value
            )

    return train_runs

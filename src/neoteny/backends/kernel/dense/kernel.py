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
from torch import Tensor

from neoteny import jit
from neoteny.backends.kernel.backend import BlockBackend, check_stack
from neoteny.backends.kernel.cpu import layers as sparse_layers
from neoteny.backends.kernel.cpu import units as sparse_units
from neoteny.backends.kernel.cpu.arguments import inputs_of
from neoteny.backends.kernel.dense import network, pack, passes, places, reinit, run, terms, units
from neoteny.backends.kernel.dense.pack import DensePacked, layer_names
from neoteny.backends.kernel.dense.run import train_run
from neoteny.backends.kernel.dense.terms import REINIT, dense_numbers_of, dense_options_of
from neoteny.backends.kernel.examples import Examples
from neoteny.backends.kernel.pack import unit_scales
from neoteny.draws import philox
from neoteny.draws.initial import Distribution
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


class DenseBackend(BlockBackend):
    """A stack trained by the dense kernel; see `backends.backend.Backend`.

    Args:
        stack, stream, seeds, loss: as for `KernelBackend`.
        batch: examples per update.
        threads: how many threads share the runs; the numbers do not depend on it.
    """

    def __init__(
        self, stack: Stack, stream: Stream, seeds: Sequence[int], loss: str, batch: int = 1, threads: int = 1
    ) -> None:
        options = check_stack(stack, seeds, dense_options_of(stack.module(0), stack.methods, loss, batch))
        super().__init__(stack, stream, seeds, options.widths, loss)
        self._threads = threads
        bounds = [*(unit_scales(stack) if options.rewrites_units else [0.0] * options.hidden), 0.0]
        if REINIT in options.after:
            bounds = [_uniform_bound(stack, f"{name}.weight") for name in layer_names(options.hidden)]
        self._packed = DensePacked(options, stack, bounds)
        self._numbers = dense_numbers_of(stack.methods, len(self._seeds))
        self._flags = Flags(**{name: getattr(options, name) for name in Flags._fields})
        self._acts = np.array(options.acts, dtype=np.int64)
        self._one = np.ones(1, dtype=self._packed.state.parameters.dtype)
        self.read()

    def train(self, examples: Examples, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Kernel.advance`."""
        packed = self._packed
        if examples.batch != packed.options.batch:
            raise ValueError(
                f"DenseBackend: made for {packed.options.batch} examples per update; the plan has {examples.batch}."
            )
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

    def replaced(self) -> Tensor | None:
        """Units replaced so far in each run, int64 (n,); None if no method replaces any."""
        state = self._packed.state
        if not self._packed.options.rewrites_units:
            return None
        return torch.from_numpy((state.replaced + state.reset).sum(1))

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

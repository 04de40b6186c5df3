"""The CPU kernel: a block of updates of many runs in one compiled call, runs shared out among threads.

Every run is trained from its first update of the block to its last without looking at the others, so its numbers depend
neither on its neighbours nor on the number of threads. `wide` trains one run at a time, `narrow` many runs of a
narrow network side by side.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from neoteny import jit
from neoteny.backends.kernel import options as kernel_options
from neoteny.backends.kernel.cpu import arguments, lanes, layers, narrow, norm, units, wide
from neoteny.backends.kernel.cpu.arguments import as_array, flags_of, inputs_of, rates_of, shape_of, state_of
from neoteny.backends.kernel.cpu.narrow import LANES, train_group
from neoteny.backends.kernel.cpu.wide import train_run
from neoteny.backends.kernel.examples import Examples
from neoteny.backends.kernel.options import LOSSES, Numbers, Options
from neoteny.backends.kernel.pack import Packed
from neoteny.backends.kernel.schedule import due_counts
from neoteny.draws import philox
from neoteny.jit import compiler
from neoteny.units import utilities

_NARROW = 32


class CpuKernel:
    """Advances packed runs on the CPU; see `kernel.backend.Kernel`.

    Args:
        packed, numbers, scales: see `kernel.backend.MakeKernel`.
        threads: how many threads share the runs; the numbers do not depend on it.
    """

    def __init__(self, packed: Packed, numbers: Numbers, scales: Sequence[float], threads: int = 1) -> None:
        self.threads = threads
        self._packed, self._numbers = packed, numbers
        self._shape = shape_of(packed, scales)
        self._options = flags_of(packed.options)
        self._rates = rates_of(numbers)
        self._one = as_array(torch.ones(1, dtype=packed.parameters.dtype))

    def advance(self, examples: Examples, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        packed = self._packed
        runs = len(packed.seeds)
        due = due_counts(packed, self._numbers, stop - start)
        total, broken = np.zeros(runs), np.full(runs, -1, dtype=np.int64)
        inputs = inputs_of(examples)
        side_by_side = len(inputs.mask) > 0 and _is_narrow(packed.options)
        train = _train_groups() if side_by_side else _train_runs()
        given = (self._shape, self._options, state_of(packed), self._rates, inputs, due, packed.step)
        at_once = LANES if side_by_side else max(1, runs // (4 * self.threads))

        def work(first: int) -> None:
            torch.set_flush_denormal(True)  # set per thread; numbers below 1e-38 slow Adam down
            last = min(first + at_once, runs)
            train(first, last, *given, start, stop, total, broken, self._one)

        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(work, range(0, runs, at_once)))
        packed.step += stop - start
        return total, broken


def _is_narrow(s: Options) -> bool:
    """Whether runs are better trained side by side than one by one."""
    plain = not (s.norm or s.dropout or s.noise) and LOSSES[s.loss] == "mse"
    return plain and max(s.widths) <= _NARROW


def _entry(function: Callable[..., None]) -> Callable[..., None]:
    """Compile a function that is called from Python; its machine code is kept on disk."""
    compile_ = compiler()
    assert compile_ is not None
    return compile_(function)


def _fingerprint() -> str:
    """Stands for the sources of all compiled functions; as part of an entry it keeps its cache from growing stale."""
    modules = (
        jit,
        kernel_options,
        arguments,
        philox,
        lanes,
        layers,
        narrow,
        norm,
        units,
        wide,
        utilities,
    )
    return hashlib.sha256(b"".join(Path(str(module.__file__)).read_bytes() for module in modules)).hexdigest()


@functools.cache
def _train_groups() -> Callable[..., None]:
    """The compiled entry for narrow networks."""
    fingerprint = _fingerprint()

    @_entry
    def train_groups(
        first_run, last_run, shape, options, state, rates, inputs, due, step, start, stop, total, broken, unit_value
    ):  # pragma: no cover - compiled
        if fingerprint == "":
            return
        train_group(
            first_run, last_run - first_run, shape, options, state, rates, inputs.mask, inputs.target, inputs.order,
            inputs.stream, due, step, start, stop, total, broken, unit_value,
        )  # fmt: skip

    return train_groups


@functools.cache
def _train_runs() -> Callable[..., None]:
    """The compiled entry for all other networks."""
    fingerprint = _fingerprint()

    @_entry
    def train_runs(
        first_run, last_run, shape, options, state, rates, inputs, due, step, start, stop, total, broken, unit_value
    ):  # pragma: no cover - compiled
        if fingerprint == "":
            return
        for run in range(first_run, last_run):
            train_run(run, shape, options, state, rates, inputs, due, step, start, stop, total, broken, unit_value)

    return train_runs

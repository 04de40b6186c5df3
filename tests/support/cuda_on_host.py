"""The dense CUDA kernel compiled by the host's C++ compiler and trained on the CPU: what its text says, not its speed.

On a GPU the numbers of a learner are constants of its source. Here they are variables, so that one library serves all
learners. Before this: `dense_cases`; after it: `unit/backends/kernel/test_dense_cuda.py`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from neoteny.backends.kernel.dense_cuda.kernel import DenseCudaBackend
from neoteny.backends.kernel.dense_cuda.source import Constants, body
from neoteny.stacking.stack import Stack
from support.dense_cases import SEEDS, Learner, stream_of

_LIST_ROOM = 128
_FLAGS = ("-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", "-ffp-contract=off", "-w")
_ENTRY = """
extern "C" void train_on_host(const Given *given, long long runs) {
    for (int block = 0; block < runs; block++) {
        if (THREADS == 1) {
            at_barrier.reset();
            threadIdx.x = 0, blockIdx.x = block;
            dense(given);
            continue;
        }
        at_barrier = std::make_unique<std::barrier<>>(THREADS);
        std::vector<std::thread> threads;
        for (int thread = 0; thread < THREADS; thread++)
            threads.emplace_back([=] {
                threadIdx.x = thread, blockIdx.x = block;
                dense(given);
            });
        for (std::thread &each : threads) each.join();
    }
}
"""


@functools.cache
def compiler() -> str | None:
    """The host's C++ compiler, if it is one that knows the barriers of C++20."""
    for found in filter(None, map(shutil.which, ("g++", "clang++"))):
        trial = subprocess.run(
            [found, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"],
            input="#include <barrier>\nstd::barrier<> one(1);\n",
            text=True,
            capture_output=True,
        )
        if trial.returncode == 0:
            return found
    return None


def host_source(constants: Constants, item: int) -> str:
    """The kernel's source with variables for all constants."""
    lines = [f"typedef {'double' if item == 8 else 'float'} real;"]
    lines.append((Path(__file__).parent / "cuda_on_host.h").read_text())
    lines += ['extern "C" {', *(f"int {name};" for name in constants.ints)]
    lines += [f"double {name};" for name in constants.reals]
    lines += [f"{'unsigned' if name == 'PURPOSE' else 'int'} {name}[{_LIST_ROOM}];" for name in constants.lists]
    return "\n".join([*lines, f"double BOUND[{_LIST_ROOM}];", "}", body(), _ENTRY])


@functools.cache
def library(text: str, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The compiled library; kept on disk by a hash of its source, so that processes share it."""
    found = compiler()
    assert found is not None
    digest = hashlib.sha256("\n".join([text, found, *_FLAGS, *flags]).encode()).hexdigest()[:24]
    folder = Path(tempfile.gettempdir()) / f"neoteny-cuda-on-host-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{digest}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as own:  # other processes and threads may be at it, too
            (Path(own) / "dense.cpp").write_text(text)
            subprocess.run([found, *_FLAGS, *flags, "-o", f"{own}/dense.so", f"{own}/dense.cpp"], check=True)
            (Path(own) / "dense.so").replace(path)
    return ctypes.CDLL(str(path))


class HostDenseCuda(DenseCudaBackend):
    """The dense CUDA kernel on the CPU; `threads` of the process are the threads of a block."""

    threads = 1
    room = 1 << 20

    def _prepare(self) -> None:
        if not 1 <= self.threads <= 32 or not 0 <= self._memory.inside <= 1 << 20:
            raise ValueError("HostDenseCuda: 1 to 32 threads and 1 MiB of shared memory.")
        self._library = library(host_source(self._constants, self._packed.dtype.itemsize))

    def _launch(self, given: Tensor) -> None:
        constants = self._constants
        for name, value in constants.ints.items():
            ctypes.c_int.in_dll(self._library, name).value = value
        for name, number in constants.reals.items():
            ctypes.c_double.in_dll(self._library, name).value = number
        for name, values in constants.lists.items():
            kind: Any = ctypes.c_uint if name == "PURPOSE" else ctypes.c_int
            (kind * _LIST_ROOM).in_dll(self._library, name)[: len(values)] = values
        (ctypes.c_double * _LIST_ROOM).in_dll(self._library, "BOUND")[: len(constants.bounds)] = constants.bounds
        self._library.train_on_host(ctypes.c_void_p(given.data_ptr()), ctypes.c_longlong(len(self._seeds)))


def host_dense(
    learner: Learner, stack: Stack, seeds: Sequence[int] = SEEDS, threads: int = 1, room: int = 1 << 20
) -> DenseCudaBackend:
    """The dense CUDA kernel on the CPU, with this number of threads per block and this much shared memory."""
    kind = type("HostDenseCuda", (HostDenseCuda,), {"threads": threads, "room": room})
    return kind(stack, stream_of(learner.problem), seeds, learner.problem.loss, learner.examples)

"""The CPU kernel's machine code: a process that compiles it and one that loads it from disk compute the same bits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("numba")

from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher

from neoteny.backends.kernel.cpu import lanes, layers, narrow, norm, units, wide
from neoteny.backends.kernel.dense import network, passes, reinit, run
from neoteny.backends.kernel.dense import units as dense_units
from neoteny.draws import philox

TRAIN = """
import hashlib, torch
from neoteny.backends.kernel.backend import KernelBackend
from support.kernel_cases import PROBLEMS, SEEDS, Case, build, kernel_of, stream_of
from support.kernel_comparison import flat_state

torch.set_num_threads(1)
for case in (
    Case("digits", (34, 17, 20), "relu", "adam", "l2", utility="overall"),
    Case("digits", (7, 12), "swish", "adam", norm="online"),
    Case("regression", (7, 12), "tanh", "adam", "perturb last", dropout=0.2, utility="random", count="layer"),
    Case("regression", (5,), "sigmoid", "adam", "l2", utility="contribution"),
):
    stack = build(case, dtype=torch.float32)
    path = KernelBackend(stack, stream_of(case.problem), SEEDS, PROBLEMS[case.problem].loss, kernel_of("cpu"))
    path.plan(0)
    sums = [path.advance(start, stop)[0] for start, stop in ((0, 80), (80, 160))]
    path.write_back()
    values = [*sums, *(value for _, value in sorted(flat_state(stack).items()))]
    print(hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest())

from neoteny.methods import AdamW, ContinualBackprop, ReDo, WeightClipping
from support import dense_cases

learner = dense_cases.Learner((AdamW(1e-3), ReDo(5, 0.3), ContinualBackprop(0.02, 10), WeightClipping(1.0)))
stack = dense_cases.build(learner, dtype=torch.float32)
path = dense_cases.dense(learner, stack)
path.plan(0)
path.advance(0, 48)
path.write_back()
print(hashlib.sha256(b"".join(value.numpy().tobytes() for value in flat_state(stack).values())).hexdigest())
"""
"""Trains some cases, on both paths, and prints a digest of everything that came out of each."""


MODULES = [dense_units, lanes, layers, narrow, network, norm, passes, philox, reinit, run, units, wide]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_function_that_compiled_code_calls_is_copied_into_its_caller(module: ModuleType) -> None:
    compiled = [value for value in vars(module).values() if isinstance(value, Dispatcher)]
    own = [function for function in compiled if function.py_func.__module__ == module.__name__]
    called = [function for function in own if isinstance(vars(function)["_cache"], NullCache)]
    assert called
    for function in called:
        options = function.targetoptions
        assert options["forceinline"] or options["inline"] == "always", function.__name__


def test_a_long_function_is_copied_too() -> None:
    activate = layers.activate

    def calls(kind, z, h, slope):
        activate(kind, z, np.uint64(0), np.uint64(8), h, slope, z[0, 0])
        activate(kind, h, np.uint64(0), np.uint64(8), z, slope, z[0, 0])

    caller = philox.compiled(calls)
    caller(0, *np.ones((3, 1, 8)))
    (text,) = caller.inspect_llvm().values()
    defined = re.findall(r"^define [^@]*@(\S+?)\(", text, re.MULTILINE)
    assert any("calls" in name for name in defined)
    assert not any("activate" in name for name in defined)


@pytest.mark.slow
def test_code_compiled_now_and_code_from_disk_train_to_the_same_bits(tmp_path: Path) -> None:
    root = Path(__file__).parents[4]
    places = os.pathsep.join([str(root / "src"), str(root / "tests")])
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": places}
    printed = []
    for _ in range(2):
        command = [sys.executable, "-c", TRAIN]
        printed.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
        assert list(tmp_path.rglob("*train_runs*.nbc"))
    assert len(printed[0].split()) == 5
    assert printed[0] == printed[1]

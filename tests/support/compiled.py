"""The compiled kernels, made once before the tests begin: otherwise every process that needs one compiles it itself."""

from __future__ import annotations

import importlib.util

import torch

from neoteny.backends.kernel.backend import KernelBackend
from support.kernel_cases import PROBLEMS, SEEDS, Case, build, kernel_of, paths_of, stream_of


def compile_kernels(dtype: torch.dtype) -> None:
    """Let every CPU kernel train one update in this number type; its machine code is then on disk."""
    if importlib.util.find_spec("numba") is None:
        return
    case = Case()
    for path in paths_of(case, "cpu"):
        problem, stream = PROBLEMS[case.problem], stream_of(case.problem)
        backend = KernelBackend(build(case, dtype=dtype), stream, SEEDS, problem.loss, kernel_of("cpu", path))
        backend.plan(0)
        backend.advance(0, 1)

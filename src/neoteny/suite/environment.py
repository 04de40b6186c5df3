"""What a sweep runs on: its data, its device, settings that make numbers repeat, and what is recorded about them."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import neoteny
from neoteny.problems.problem import Problem, Source, Stream, Worlds
from neoteny.suite.configuration import choose_backend
from neoteny.suite.selection import check_columns
from neoteny.suite.sweep import Sweep
from neoteny.text import nearest

KERNELS = ("auto", "reference")
DEVICES = ("auto", "cpu", "cuda")
_PACKAGES = ("torch", "numpy", "numba", "pandas", "pyarrow", "gymnasium", "pybullet", "mujoco")


def open_problems(sweep: Sweep, data: Path | str | None) -> dict[Problem, Source]:
    """Every problem of a sweep with its data, found and checked."""
    check_columns(sweep)
    problems = dict.fromkeys(setting.problem or sweep.problem for setting in sweep.settings)
    found: dict[Problem, Source] = {}
    for problem in problems:
        source, wanted = problem.open(data), Worlds if problem.control else Stream
        if not isinstance(source, wanted):
            raise TypeError(
                f"{type(problem).__name__}.open must return a {wanted.__name__} (neoteny.problems.problem); got "
                f"{type(source).__name__}."
            )
        found[problem] = source
    return found


def choose_device(name: str, sweep: Sweep | None = None) -> torch.device:
    """The device for `--device`. Agents act and learn on the CPU, where their simulators run."""
    if name not in DEVICES:
        hint = nearest("cuda" if name == "gpu" else name, DEVICES)
        raise ValueError(f"Unknown device {name!r}.{hint} Known are {', '.join(DEVICES)}.")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here. Use --device cpu or auto.")
    if sweep is not None and any(setting.agent is not None for setting in sweep.settings):
        if name == "cuda":
            raise ValueError("--device cuda: agents act in simulators that run on the CPU. Use --device cpu or auto.")
        return torch.device("cpu")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def choose_kernel(name: str, device: torch.device) -> str:
    """The `kernel` argument of `choose_backend` for `--kernel`."""
    if name not in KERNELS:
        raise ValueError(f"Unknown kernel {name!r}.{nearest(name, list(KERNELS))} Known are {', '.join(KERNELS)}.")
    return "reference" if name == "reference" else device.type


def set_deterministic() -> None:
    """Set the global torch flags that the last bits of a number depend on."""
    torch.set_num_threads(1)  # processes share the cores better than threads
    torch.set_flush_denormal(True)  # numbers below 1e-38 slow Adam down by a quarter
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def check_matmul(sweep: Sweep, device: torch.device, kernel: str) -> None:
    """Refuse a sweep's `matmul` where it has no effect: on the CPU, and in our CUDA kernel, which has its own products.

    Args:
        sweep: what is to run.
        device: where.
        kernel: as `choose_kernel` gives it.
    """
    if sweep.matmul is None:
        return
    asked = f"matmul={sweep.matmul!r}"
    if device.type != "cuda":
        raise ValueError(f"Sweep: {asked} is of products on a CUDA device, and this is {device.type}; leave it out.")
    for setting in sweep.settings:
        if choose_backend(kernel, setting.problem or sweep.problem, setting)[0] == "cuda":
            raise ValueError(
                f"Setting {setting.label!r}: {asked} has no effect in the CUDA kernel, which multiplies in float32; "
                "leave it out, or run with --kernel reference."
            )


@contextlib.contextmanager
def multiplying(matmul: str | None) -> Iterator[None]:
    """Let products of float32 numbers on a CUDA device be what a sweep's `matmul` says; None leaves them alone."""
    if matmul is None:
        yield
        return
    products: Any = torch.backends.cuda.matmul
    convolutions: Any = torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = matmul == "tf32"
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


def versions() -> dict[str, str]:
    """Versions of the packages that the numbers may depend on."""
    found = {"neoteny": neoteny.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def machine(device: torch.device) -> str:
    """The machine in words: the GPU's name, or the system and its number of cores."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"

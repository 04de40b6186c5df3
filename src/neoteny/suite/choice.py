"""Which backend trains a setting, and why it is the library where a compiled one was wanted."""

from __future__ import annotations

import functools
import importlib
import importlib.util

from neoteny.backends.kernel.options import why_not_covered
from neoteny.problems.problem import Problem
from neoteny.suite.sweep import Setting


def choose_backend(kernel: str, problem: Problem, setting: Setting) -> tuple[str, str]:
    """The path of a setting, and why it is the library's where a compiled one was wanted.

    Args:
        kernel: "reference", or the device whose compiled paths are wanted: "cpu" or "cuda".
        problem, setting: what is trained.
    """
    if kernel == "reference":
        return "reference", "asked for"
    missing = _missing(kernel)
    if setting.agent is not None:
        why = missing or setting.agent.why_not_compiled(setting)
        return ("reference", why) if why else (kernel, "")
    why = missing or why_not_covered(problem, setting.network.build, dict(setting.network.options), setting.methods)
    if not why:
        return kernel, ""
    if kernel == "cuda":
        from neoteny.backends.graphs import backend as graphs

        if not graphs.why_not_recorded(setting.methods):
            return "graphs", missing
    return "reference", why


@functools.cache
def _missing(kernel: str) -> str:
    """Which package the kernel of a device lacks here, or cannot import, in words."""
    for package in {"cpu": ("numba",), "cuda": ("cupy",)}[kernel]:
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
        try:
            importlib.import_module(package)
        except Exception as error:  # numba refuses some versions of numpy, cupy a machine without CUDA's libraries
            return f"{package} cannot be imported: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    return ""

"""The configuration of a run as plain values, with the backend that trains it: what `identity` hashes.

Before this: `sweep`, the description of an experiment. After it: `stacks`, which turns configurations into runs.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import inspect
from collections.abc import Mapping
from typing import Any

from neoteny.backends.kernel.coverage import why_not_covered
from neoteny.problems.problem import Problem
from neoteny.suite.identity import RESULTS_VERSION
from neoteny.suite.plasticity_probe import LEARNING_MEASURES
from neoteny.suite.sweep import Network, Setting, Sweep


def canonical(value: Any) -> Any:
    """A description made of dicts, lists, strings and numbers alone."""
    if isinstance(value, Network):
        return {**_describe_type(value.build), **{name: canonical(option) for name, option in value.options}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        described = {
            field.name: canonical(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not field.metadata.get("new") or getattr(value, field.name) != field.default  # see `problem.NEW_FIELD`
        }
        return {**_describe_type(type(value)), **described}
    if isinstance(value, Mapping):
        return {str(key): canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, type):
        return canonical(_describe_type(value))
    raise TypeError(
        f"a configuration may hold numbers, strings, tuples and frozen dataclasses; got {type(value).__name__}: "
        f"{value!r}. Describe it by its parameters."
    )


def _describe_type(kind: type) -> dict[str, str]:
    """The name of a class; of a class that is not ours also a hash of its source, which may change at any time."""
    if kind.__module__.split(".")[0] == "neoteny":
        return {"type": kind.__qualname__}
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # made in a shell
        source = ""
    return {"type": kind.__qualname__, "source": hashlib.sha256(source.encode()).hexdigest()[:16]}


def configure(sweep: Sweep, setting: Setting, seed: int, kernel: str) -> dict[str, Any]:
    """The full configuration of one run; `kernel` as for `choose_backend`.

    Raises:
        TypeError: the setting holds a value that cannot be described; the message names the setting.
    """
    try:
        return _configure(sweep, setting, seed, kernel)
    except TypeError as error:
        raise TypeError(f"Setting {setting.label!r}: {error}") from error


def _configure(sweep: Sweep, setting: Setting, seed: int, kernel: str) -> dict[str, Any]:
    problem = setting.problem or sweep.problem
    described = {
        "results_version": RESULTS_VERSION,
        "problem": canonical(problem),
        "network": canonical(setting.network),
        "methods": canonical(setting.methods),
        "measures": canonical(sweep.measures),
        "measure_every": sweep.measure_every,
        "probe_examples": sweep.probe_examples,
        "dtype": sweep.dtype,
        "kernel": choose_backend(kernel, problem, setting)[0],
        "seed": seed,
    }
    if sweep.matmul is not None:
        described["matmul"] = sweep.matmul
    if any(name in LEARNING_MEASURES for name in sweep.measures):
        described["probe"] = [sweep.probe_updates, sweep.probe_optimizer, sweep.probe_step_size]
    if setting.agent is not None:
        described |= {"agent": canonical(setting.agent), "points_per_task": sweep.points_per_task}
    return described


def describe(sweep: Sweep) -> dict[str, Any]:
    """The sweep as plain values, for the configuration shown with the results."""
    described = {
        field.name: canonical(getattr(sweep, field.name))
        for field in dataclasses.fields(sweep)
        if field.name != "settings" and (not field.metadata.get("new") or getattr(sweep, field.name) != field.default)
    }
    described["settings"] = [{"label": setting.label, **canonical(setting)} for setting in sweep.settings]
    return described


def choose_backend(kernel: str, problem: Problem, setting: Setting) -> tuple[str, str]:
    """The backend that trains a setting, and why it is the library where a compiled one was wanted.

    Args:
        kernel: "reference", or the device whose compiled backends are wanted: "cpu" or "cuda".
        problem, setting: what is trained.
    """
    if kernel == "reference":
        return "reference", "asked for"
    missing = _missing(kernel)
    if setting.agent is not None:
        why = missing or setting.agent.why_not_compiled(setting)
        return ("reference", why) if why else (kernel, "")
    network = setting.network
    why = missing or why_not_covered(problem, network.build, dict(network.options), setting.methods)
    if not why:
        return kernel, ""
    if kernel == "cuda":
        from neoteny.backends.graphs import backend as graphs

        if not graphs.why_not_recorded(setting.methods) and not problem.schedules_step_size:
            return "graphs", missing
    return "reference", why


@functools.cache
def _missing(kernel: str) -> str:
    """Which package the kernel of a device needs and cannot import here, in words; "" if none."""
    for package in {"cpu": ("numba",), "cuda": ("cupy",)}[kernel]:
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
        try:
            importlib.import_module(package)
        except Exception as error:  # numba refuses some versions of numpy, cupy a machine without CUDA's libraries
            return f"{package} cannot be imported: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    return ""

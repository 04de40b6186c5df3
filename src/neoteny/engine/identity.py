"""run_id: a hash of everything that changes a run's numbers, and of nothing that does not.

In: problem, network, methods, seed, what is measured, number type, kernel, results version. Out: paths, labels, job
counts, the stack a run sits in.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from neoteny.engine.sweep import Network, Setting, Sweep

RESULTS_VERSION = 1
"""Raised when an algorithm changes the numbers it gives, so that old and new results are never mixed."""


def canonical(value: Any) -> Any:
    """A description made of dicts, lists, strings and numbers alone."""
    if isinstance(value, Network):
        return {"type": value.build.__qualname__, **{name: canonical(option) for name, option in value.options}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        described = {field.name: canonical(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__qualname__, **described}
    if isinstance(value, Mapping):
        return {str(key): canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, type):
        return value.__qualname__
    raise TypeError(
        f"A configuration may hold numbers, strings, tuples and frozen dataclasses; got {type(value).__name__}: "
        f"{value!r}. Describe it by its parameters."
    )


def configure(sweep: Sweep, setting: Setting, seed: int, kernel: str) -> dict[str, Any]:
    """The full configuration of one run."""
    return {
        "results_version": RESULTS_VERSION,
        "problem": canonical(setting.problem or sweep.problem),
        "network": canonical(setting.network),
        "methods": canonical(setting.methods),
        "measures": canonical(sweep.measures),
        "measure_every": sweep.measure_every,
        "probe_examples": sweep.probe_examples,
        "dtype": sweep.dtype,
        "kernel": kernel,
        "seed": seed,
    }


def digest(value: Any) -> str:
    """16 hexadecimal digits that stand for a canonical value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

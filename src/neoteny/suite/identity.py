"""run_id: a hash of everything that changes a run's numbers, and of nothing else.

In the hash: problem, network, methods, seed, what is measured, number type, backend, results version, and the source of
classes that are a user's own (`configuration` collects them). Not in it: paths, labels, numbers of processes, and the
stack that a run is trained in (with the library it changes the last bits of the numbers, through the order of sums; a
stack that has begun keeps its members, and a finished one lists them in order).

Only JSON and hashlib are used here, so that `neoteny status` can read a results folder without importing torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from neoteny.backends.names import DESCRIPTIONS

RESULTS_VERSION = 1
"""Raised when an algorithm changes its numbers by more than their rounding, so that old and new are never mixed."""


def digest(value: Any) -> str:
    """16 hexadecimal digits that stand for a canonical value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def setting_digest(configuration: Mapping[str, Any]) -> str:
    """The digest of a configuration without its seed."""
    return digest({name: value for name, value in configuration.items() if name != "seed"})


def setting_digests(configuration: Mapping[str, Any]) -> set[str]:
    """Seed-independent digests, one per backend."""
    return {setting_digest(variant) for variant in _with_every_backend(configuration)}


def run_ids(configuration: Mapping[str, Any]) -> set[str]:
    """The ids that a run has with each backend."""
    return {digest(variant) for variant in _with_every_backend(configuration)}


def _with_every_backend(configuration: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{**configuration, "kernel": name} for name in DESCRIPTIONS]

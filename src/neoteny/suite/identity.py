"""run_id: a hash of everything that changes a run's numbers, and of nothing else.

In the hash: problem, network, methods, seed, what is measured, number type, backend, a chosen `matmul`, results
version, and the source of classes that are a user's own (`configuration` collects them). Not in it: paths, labels,
numbers of processes, and the stack that a run is trained in (with the library it changes the last bits of the numbers,
through the order of sums; a stack that has begun keeps its members, and a finished one lists them in order).

Only JSON and hashlib are used here, so that `neoteny status` can read a results folder without importing torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from neoteny.backends.names import DESCRIPTIONS

RESULTS_VERSION = 1
"""Raised when an algorithm changes its numbers by more than their rounding, so that old and new are never mixed."""


_DIGITS = 16


def digest(value: Any) -> str:
    """16 hexadecimal digits that stand for a canonical value."""
    return hashlib.sha256(_to_text(value).encode()).hexdigest()[:_DIGITS]


def digests_of_seeds(configuration: Mapping[str, Any], seeds: Iterable[int]) -> Iterator[tuple[dict[str, Any], str]]:
    """A configuration with each of some seeds, and its digest; the text around the seed is made once.

    Example:
        >>> found = list(digests_of_seeds({"a": 1, "seed": 0, "z": 2}, range(2)))
        >>> found == [({"a": 1, "seed": seed, "z": 2}, digest({"a": 1, "seed": seed, "z": 2})) for seed in (0, 1)]
        True
    """
    before = {name: value for name, value in configuration.items() if name < "seed"}
    after = {name: value for name, value in configuration.items() if name > "seed"}
    head, tail = (_to_text(part)[1:-1] for part in (before, after))
    start = hashlib.sha256(f'{{{head}{"," if head else ""}"seed":'.encode())
    end = f"{',' if tail else ''}{tail}}}"
    for seed in seeds:
        whole = start.copy()
        whole.update(f"{seed:d}{end}".encode())
        yield {**configuration, "seed": seed}, whole.hexdigest()[:_DIGITS]


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


def _to_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)

"""PartRecord: what commands need to know of a finished stack, in short, so that an index can hold 20,000 of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from neoteny.suite.identity import setting_digest


@dataclass(frozen=True)
class PartRecord:
    """A finished stack.

    Args:
        stack: its id.
        runs: ids of its runs.
        settings: for each run the digest of its setting.
        diverged: how many of its runs diverged.
        seconds: of training.
        machine, backend, versions: how it was trained, in words.
        has_checksum: whether its table has one; not so in folders that an earlier version began.
    """

    stack: str
    runs: tuple[str, ...]
    settings: tuple[str, ...]
    diverged: int
    seconds: float
    machine: str
    backend: str
    versions: str
    has_checksum: bool

    @classmethod
    def of(cls, stack: str, part: Mapping[str, Any]) -> PartRecord:
        """The record of a part's description."""
        runs = part["runs"]
        return cls(
            stack,
            tuple(run["run_id"] for run in runs),
            tuple(setting_digest(run["configuration"]) for run in runs),
            sum(run["diverged_at_update"] is not None for run in runs),
            part["seconds"],
            part["machine"],
            f"{part['kernel']} on {part['device']}",
            ", ".join(f"{name} {number}" for name, number in part["versions"].items()),
            "table_sha256" in part,
        )

    def to_json(self) -> list[Any]:
        """Its fields, for the index."""
        return [getattr(self, field.name) for field in fields(self)]

    @classmethod
    def from_json(cls, content: list[Any]) -> PartRecord:
        """The record that `to_json` gave."""
        stack, runs, settings, *others = content
        return cls(stack, tuple(runs), tuple(settings), *others)


def runs_in(records: Iterable[PartRecord]) -> set[str]:
    """Ids of the runs of some parts."""
    return {run for record in records for run in record.runs}

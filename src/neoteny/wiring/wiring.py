"""Wiring: what tracing found, as a table; WiringError: what it could not understand, with what to pass instead.

`trace.py` and `declare.py` make it; `attachment/` and `stacking/` bind its groups to live tensors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from neoteny.layers.groups import UnitGroup, describe_port
from neoteny.text import by_kind, compact
from neoteny.wiring import saved

NOT_CALLED = "the example does not call it"
FUNCTIONAL = "never called: operations use its weight directly, where its rows and columns cannot be followed"
IDLE = "nothing consumes it"


class WiringError(ValueError):
    """Some modules could not be understood; the message names them, says why, and what to pass instead.

    Attributes:
        wiring: what was found, `wiring.refused` included.
    """

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        lines = ["cannot tell how the units of these modules are wired:"]
        for name, reason in wiring.refused.items():
            lines.append(f"  {name or 'the model'}: {reason}")
            if name in wiring.guesses:
                lines.append(f"    as a declaration (check it): {wiring.guesses[name]}")
        others = "others are still found" if wiring.avoidable else "only those are then used"
        lines.append(f"Pass groups=[neoteny.UnitGroup(...), ...] with the groups of these modules ({others})")
        if wiring.avoidable:
            lines[-1] += ","
            lines.append(f"or go on without these modules: leave_out={list(wiring.refused)}")
        super().__init__("\n".join(lines) + ".")


@dataclass(frozen=True)
class Wiring:
    """The unit groups of a model. Print it for a table.

    Attributes:
        groups: in the order of the forward pass, every port spelled out.
        left_out: layers that are in no group, each with the reason.
        refused: layers that could not be understood; `trace` raises if there are any.
        guesses: declarations to start from, for refused layers.
        avoidable: whether it is enough to leave the refused layers out.
        uncalled: layers that no example calls, so that it is not known whether units feed them.
        passes: forward passes that tracing took.
        shapes: the parameters of the traced model, each with its shape.
    """

    groups: tuple[UnitGroup, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    guesses: dict[str, str] = field(default_factory=dict)
    avoidable: bool = True
    uncalled: tuple[str, ...] = ()
    passes: int = field(default=0, compare=False)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write the groups and the reasons of layers left out as JSON; `Wiring.load` reads it.

        Raises:
            ValueError: the wiring has refused layers, or does not come from `neoteny.trace`.
        """
        if self.refused or not self.shapes:
            raise ValueError("expected a wiring of neoteny.trace(model, example), without refused layers, to save.")
        saved.write(path, self.shapes, self.groups, left_out=self.left_out, uncalled=self.uncalled)

    @classmethod
    def load(cls, path: str | Path) -> Wiring:
        """The wiring that `save` wrote; pass it as `attach(..., wiring=wiring)` instead of tracing again.

        Raises:
            ValueError: the file is not a wiring, is damaged, or is of a later version.
        """
        return cls(**saved.read(path))

    def check(self, model: nn.Module) -> None:
        """Refuse a model that differs from the traced one.

        Raises:
            ValueError: a parameter is missing, new or of another shape, or layers of groups must not be written now.
        """
        saved.check_model(self.shapes, self.groups, model)

    def reasons(self) -> str:
        """Why layers are in no group, one line per reason, with the layers that it holds for."""
        layers: dict[str, list[str]] = defaultdict(list)
        for names, reason in by_kind(self.left_out):
            layers[reason].append(names or "the model itself")
        return "".join(f"\n  {compact(names)}: {reason}" for reason, names in layers.items())

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[UnitGroup]:
        return iter(self.groups)

    def __str__(self) -> str:
        rows = [("group", "units", "producers", "norms", "consumers", "read at")]
        for group in self.groups:
            ports = [", ".join(map(describe_port, some)) for some in (group.producers, group.norms, group.consumers)]
            rows.append((group.name, str(group.units), ports[0], ports[1] or "-", ports[2], group.read or "-"))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = []
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            cells[1] = row[1].rjust(widths[1])
            lines.append("  ".join(cells).rstrip())
        lines.insert(1, "-" * max(map(len, lines)))
        notes: dict[str, list[str]] = defaultdict(list)
        for place in range(max((len(group.notes) for group in self.groups), default=0)):
            said = {group.name: group.notes[place] for group in self.groups if place < len(group.notes)}
            for names, note in by_kind(said):
                notes[note].append(names)
        if notes:
            lines += ["", "notes", *(f"  {', '.join(names)}: {note}" for note, names in notes.items())]
        for title, all_reasons in (("left out", self.left_out), ("refused", self.refused)):
            if reasons := by_kind(all_reasons):
                width = max(len(name) for name, _ in reasons)
                lines += ["", title, *(f"  {name.ljust(width)}  {reason}" for name, reason in reasons)]
        return "\n".join(lines)

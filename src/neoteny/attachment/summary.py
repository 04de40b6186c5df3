"""What `print(plastic)` shows: groups, counts, ages and utilities at a glance, and what a user should know."""

from __future__ import annotations

from collections.abc import Sequence

from neoteny.methods.chain import Chain
from neoteny.methods.method import Method
from neoteny.optim.state import OptimizerState
from neoteny.text import by_kind, compact
from neoteny.units.device_tick import why_not_fused
from neoteny.units.laws import Laws, describe
from neoteny.units.view import View
from neoteny.wiring.wiring import Wiring


def summarize(chain: Chain, wiring: Wiring | None, laws: Laws, seed: int, trained: bool) -> str:
    """The text of an attachment."""
    parts = [f"Neoteny attachment, seed {seed}: " + ", ".join(repr(method) for method in chain.methods)]
    notes = (
        _notes(chain.view, trained)
        + describe(laws)
        + ([] if wiring is None else _wiring_notes(chain.methods, chain.view, wiring))
    )
    return "\n".join([*parts, *chain.describe(), *(f"- {note}" for note in notes)])


def _wiring_notes(methods: Sequence[Method], view: View, wiring: Wiring) -> list[str]:
    """What concerns some groups or layers, one line per kind; `print(plastic.wiring)` has the reasons one by one."""
    notes: list[str] = []
    if any(getattr(method, "compensate", False) for method in methods):
        silent = [
            port.module
            for group in view.groups
            for port in group.consumers
            if port.bias is None and port.running_mean is None
        ]
        if silent:
            notes.append(f"no bias to compensate in {compact(list(dict.fromkeys(silent)))}")
    coupled = [note.split(" couples units: ") for group in wiring.groups for note in group.notes]
    norms = {each[0].split()[-1]: each[1] for each in coupled if len(each) == 2}
    for text in dict.fromkeys(norms.values()):
        some = compact([name for name in norms if norms[name] == text])
        notes.append(f"norms that couple units, {some}: {text}")
    kinds: dict[str, list[str]] = {}
    for names, reason in by_kind(wiring.left_out):
        kinds.setdefault(reason.partition(":")[0], []).append(names)
    notes += [f"left out, {kind}: {', '.join(names)}" for kind, names in kinds.items()]
    if wiring.left_out or any(group.notes for group in wiring.groups):
        notes.append("print(plastic.wiring) shows the unit groups and the reasons in full")
    return notes


def _notes(view: View, trained: bool) -> list[str]:
    notes: list[str] = []
    if trained:
        notes.append("the network was already trained at attach: every unit's age started at zero there")
    if why := why_not_fused(view):
        notes.append(f"every tick takes the general path, not the fused kernels: {why}")
    state: OptimizerState | None = getattr(view, "optimizer_state", None)
    if view.groups and state is not None and (name := state.shares_step_count()):
        notes.append(
            f"torch.optim.{name} has one step count per tensor, so a reset weight's first steps are several step sizes "
            f"long; neoteny.optim.{'AdamW' if name == 'AdamW' else 'Adam'} counts steps for each weight"
        )
    return notes

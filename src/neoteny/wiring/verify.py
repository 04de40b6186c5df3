"""verify: the check that every unit group must pass, found or declared.

A group claims that a unit affects the rest of the network only through its consumers' columns. The test: zero those
columns for some units, then change everything that produces the units (weights, biases, norm parameters, running
statistics; `edits.py`). Then no bit may change in the model's output, in the rows of other units, and in what any layer
is given, except for the columns at zero.

Groups are checked in the same passes, each with its own random half of units. Two groups are kept apart where one may
reach, beyond the layers it claims, a place that the other may reach as well (`flow.py`): there the two could
hide each other. Where a joint check fails, its groups are checked in smaller sets, down to single ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from neoteny.layers.groups import Port, UnitGroup
from neoteny.wiring.edits import Edits
from neoteny.wiring.flow import apart
from neoteny.wiring.probe import same_leaves
from neoteny.wiring.recording import Recording
from neoteny.wiring.recurrent import spell_out
from neoteny.wiring.sandbox import Sandbox, leaves
from neoteny.wiring.watch import Watch

Change = tuple[list[Tensor], Tensor]  # units of each group, and the sign of each group's change
_MOVES = "other layers or the output still move with its units when all their columns are zero"


class Verifier:
    """Checks groups on one example.

    Args:
        recording: of the model on this example.
        also: a recording on another example; what reaches what there counts, too.
        brief: only check half of each group's units, once, in the first mode.
        modes: whether to check in training mode, for each mode to check in.

    Attributes:
        ran_in_training: whether every check in training mode could run.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        also: Recording | None = None,
        brief: bool = False,
        modes: tuple[bool, ...] = (False, True),
    ) -> None:
        self.sandbox, self.example, self.brief, self.modes = recording.sandbox, recording.example, brief, modes
        self.recordings = [recording, *([] if also is None else [also])]
        self.ran_in_training = True

    def check(self, groups: Sequence[UnitGroup]) -> list[str | None]:
        """For each resolved group why it is wrong, or None when it passes.

        Both modes are checked: in training mode a model may hand its units to code that evaluation never runs. A model
        that cannot run the example in training mode (BatchNorm on one row) is checked in evaluation mode alone.
        """
        failures: list[str | None] = [None] * len(groups)
        self.sandbox.progress.stage = "checking groups"
        for together in self._apart(groups):
            for number, failure in self._narrow(groups, together).items():
                failures[number] = failure
        return failures

    def _narrow(self, groups: Sequence[UnitGroup], some: list[int]) -> dict[int, str]:
        failure = self._failure([groups[number] for number in some])
        if failure is None:
            return {}
        if len(some) == 1:
            return {some[0]: failure}
        half = len(some) // 2
        return {**self._narrow(groups, some[:half]), **self._narrow(groups, some[half:])}

    def _apart(self, groups: Sequence[UnitGroup]) -> list[list[int]]:
        """The groups' numbers in few lists, such that no two of one list could hide each other."""
        reaches = [recording.reach for recording in self.recordings if recording.reach is not None]
        if len(reaches) < len(self.recordings):
            return [[number] for number in range(len(groups))]
        places = [
            {place for port in group.producers for reach in reaches for place in reach.get(port.module, ())}
            for group in groups
        ]
        claimed = [{port.module for port in (*group.consumers, *group.norms)} for group in groups]

        def clash(one: int, other: int) -> bool:
            beyond = (places[one] - claimed[one], places[other] - claimed[other])
            return not (beyond[0].isdisjoint(places[other]) and beyond[1].isdisjoint(places[one]))

        return apart(range(len(groups)), clash)

    def _failure(self, groups: list[UnitGroup]) -> str | None:
        """Why some of these groups are wrong, or None when all pass."""
        generator = torch.Generator().manual_seed(int(self.brief))
        with Edits(self.sandbox.model, groups) as edits:
            for training in self.modes[:1] if self.brief else self.modes:
                shuffled = [torch.randperm(group.units, generator=generator) for group in groups]
                first = [order[: (len(order) + 1) // 2] for order in shuffled]
                second = [order[(len(order) + 1) // 2 :] for order in shuffled]
                for half in (first,) if self.brief else (first, second):
                    try:
                        still = self._still(edits, half, self._changes(half, generator, training), training)
                    except Exception as error:
                        if training and False in self.modes:
                            self.ran_in_training = False
                            break
                        return f"the model raised {type(error).__name__} while the group was checked: {error}"
                    if not still:
                        mode = "training" if training else "evaluation"
                        return f"{_MOVES} ({mode})"
        return None

    def _changes(self, half: list[Tensor], generator: torch.Generator, training: bool) -> list[Change]:
        """All units with both signs, of which one revives a dead ReLU, and single units; or all units once."""
        if training or self.brief:
            return [(half, torch.ones(len(half)))]
        signs = torch.randint(2, (len(half),), generator=generator) * 2.0 - 1
        return [(half, signs), (half, -signs), ([units[:1] for units in half], signs)]

    def _still(self, edits: Edits, zeroed: list[Tensor], changes: list[Change], training: bool) -> bool:
        """Whether nothing moves with some units when their columns are zero."""
        run = partial(self.sandbox.forward, training=training, example=self.example)
        edits.restore()
        edits.zero_columns(zeroed)
        watch = Watch(self.sandbox.model, edits.groups, training, self.recordings[0].states)
        watch.outputs = leaves(run(watch.recording()))
        for chosen, signs in changes:
            edits.restore()
            edits.change(chosen, signs)
            edits.zero_columns(zeroed)
            output = run(watch.comparing(chosen))
            if watch.moved or watch.waiting or watch.output_moved(output):
                return False
        return True


def verify(sandbox: Sandbox, group: UnitGroup) -> str | None:
    """Why a resolved group is wrong, or None when it passes, checked alone on the sandbox's example."""
    return Verifier(Recording(sandbox, sandbox.example)).check([group])[0]


def inert(recording: Recording, name: str, rows: Tensor) -> bool:
    """Whether nothing in the output depends on some rows of a boundary module."""
    port = Port(name, rows.reshape(-1, 1))
    groups = spell_out(recording.sandbox.model, [UnitGroup([port], [port])])
    run = partial(recording.sandbox.forward, training=recording.training, example=recording.example)
    baseline = leaves(run())
    with Edits(recording.sandbox.model, groups) as edits:
        for sign in (1.0, -1.0):
            edits.restore()
            edits.change([torch.arange(group.units) for group in groups], torch.full((len(groups),), sign))
            if not same_leaves(baseline, leaves(run())):
                return False
    return True

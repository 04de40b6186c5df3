"""Which examples the probe and the verification run on.

The probe needs dozens of passes, and where units go depends on the model's code, not on the size of a batch or of an
image. So it runs on the first example alone, with the image made smaller, where the model then makes the same calls
with values of the same rank, and every layer may reach the same places. The verification runs there, too, and ends on
the example that was given, with half of each group's units.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from neoteny.layers.groups import UnitGroup
from neoteny.wiring.families import Check
from neoteny.wiring.probe import Probe
from neoteny.wiring.recording import Recording, record
from neoteny.wiring.sandbox import Sandbox, batch_rows, leaves, map_tensors
from neoteny.wiring.verify import Verifier

_WORTH_REDUCING = 2**19  # values that layers return in one pass: below this, passes take milliseconds
_SIDE = 64  # of a smaller image


@dataclass
class Part:
    """One way of running a model: a call of the user's, in evaluation mode and, where that differs, in training mode.

    Attributes:
        probe: replays it.
        check: the verification that groups must pass there.
    """

    probe: Probe
    check: Check


def prepare(sandbox: Sandbox, example: Any, closed: Collection[str] = ()) -> list[Part]:
    """The ways in which a model runs an example: one, or two where training mode calls other layers.

    `closed` names modules to take for opaque ones, which may run or not.
    """
    given = record(sandbox, example, closed=closed)
    reduced = _reduce(given)
    shown = given if reduced is None else reduced
    training = shown.listen_in_training()
    if training is None or not (set(training) ^ set(shown.order)).difference(closed):
        return [_part(given, reduced, (False, True))]
    trained = record(sandbox, example, training=True, closed=closed)
    return [_part(given, reduced, (False,)), _part(trained, _reduce(trained), (True,))]


def _part(given: Recording, reduced: Recording | None, modes: tuple[bool, ...]) -> Part:
    if reduced is None:
        return Part(Probe(given), lambda groups: Verifier(given, modes=modes).check(groups))
    given.kept.clear()

    def check(groups: list[UnitGroup]) -> list[str | None]:
        first = Verifier(reduced, modes=modes)
        failures = first.check(groups)
        last = Verifier(given, also=reduced, brief=first.ran_in_training, modes=modes)
        passed = [number for number, failure in enumerate(failures) if failure is None]
        for number, failure in zip(passed, last.check([groups[number] for number in passed]), strict=True):
            failures[number] = failure
        return failures

    return Part(Probe(reduced), check)


def _reduce(given: Recording) -> Recording | None:
    """The recording of a smaller example on which the model does the same; None if there is none or no need."""
    values = [leaf for kept in given.kept.values() for leaf in leaves(kept) if isinstance(leaf, Tensor)]
    if sum(leaf.numel() for leaf in values) < _WORTH_REDUCING or given.reach is None:
        return None
    for example in _smaller(given.example):
        try:
            reduced = record(given.sandbox, example, training=given.training, closed=given.closed)
        except ValueError:  # the model takes no such example
            continue
        if reduced.order == given.order and reduced.reach == given.reach and _ranks(reduced) == _ranks(given):
            return reduced
    return None


def _smaller(example: Any) -> Iterator[Any]:
    rows = batch_rows(example)
    if not rows:
        return
    tensors = [leaf for leaf in leaves(example) if isinstance(leaf, Tensor) and leaf.dim()]
    single = map_tensors(lambda each: each[:1] if each.dim() and each.shape[0] == rows else each, example)
    if any(_is_image(tensor) for tensor in tensors):
        yield map_tensors(lambda each: _shrink(each) if _is_image(each) else each, single)
    if rows > 1:
        yield single


def _is_image(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_floating_point() and min(tensor.shape[2:]) >= 2 * _SIDE


def _shrink(image: Tensor) -> Tensor:
    down, right = (size // _SIDE for size in image.shape[2:])
    return image[:, :, : down * _SIDE : down, : right * _SIDE : right]


def _ranks(recording: Recording) -> list[int]:
    """The number of axes of everything that layers and the model return: another one if an axis of size 1 was lost."""
    values = [*(leaf for name in recording.kept for leaf in leaves(recording.kept[name])), *recording.outputs]
    return [leaf.dim() if isinstance(leaf, Tensor) else -1 for leaf in values]

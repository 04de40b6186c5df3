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

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup
from neoteny.layers.kinds import by_feature, couples, fill_features, watched_modules, width_in, width_out
from neoteny.wiring.edits import Edits, features_of
from neoteny.wiring.probe import same_leaves
from neoteny.wiring.recording import Recording
from neoteny.wiring.sandbox import Forward, Sandbox, leaves, map_tensors

Change = tuple[list[Tensor], Tensor]  # units of each group, and the sign of each group's change
_MOVES = "other layers or the output still move with its units when all their columns are zero"


class Verifier:
    """Checks groups on one example.

    Args:
        recording: of the model on this example.
        also: a recording on another example; what reaches what there counts, too.
        brief: only check each unit once, in evaluation mode.

    Attributes:
        ran_in_training: whether every check in training mode could run.
    """

    def __init__(self, recording: Recording, *, also: Recording | None = None, brief: bool = False) -> None:
        self.sandbox, self.example, self.brief = recording.sandbox, recording.example, brief
        self.recordings = [recording, *([] if also is None else [also])]
        self.ran_in_training = True

    def check(self, groups: Sequence[UnitGroup]) -> list[str | None]:
        """For each resolved group why it is wrong, or None when it passes.

        Both modes are checked: in training mode a model may hand its units to code that evaluation never runs. A model
        that cannot run the example in training mode (BatchNorm on one row) is checked in evaluation mode alone.
        """
        failures: list[str | None] = [None] * len(groups)
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
        lists: list[tuple[list[int], set[str], set[str]]] = []
        for number, group in enumerate(groups):
            places = {place for port in group.producers for reach in reaches for place in reach.get(port.module, ())}
            beyond = places - {port.module for port in (*group.consumers, *group.norms)}
            for members, reached, reached_beyond in lists:
                if beyond.isdisjoint(reached) and reached_beyond.isdisjoint(places):
                    break
            else:
                members, reached, reached_beyond = [], set(), set()
                lists.append((members, reached, reached_beyond))
            members.append(number)
            reached |= places
            reached_beyond |= beyond
        return [members for members, _, _ in lists]

    def _failure(self, groups: list[UnitGroup]) -> str | None:
        """Why some of these groups are wrong, or None when all pass."""
        generator = torch.Generator().manual_seed(0)
        with Edits(self.sandbox.model, groups) as edits:
            for training in (False,) if self.brief else (False, True):
                shuffled = [torch.randperm(group.units, generator=generator) for group in groups]
                first = [order[: (len(order) + 1) // 2] for order in shuffled]
                second = [order[(len(order) + 1) // 2 :] for order in shuffled]
                for half in (first, second):
                    try:
                        still = self._still(edits, half, self._changes(half, generator, training), training)
                    except Exception as error:
                        if training:
                            self.ran_in_training = False
                            break
                        return f"the model raised {type(error).__name__} while the group was checked: {error}"
                    if not still:
                        mode = "training" if training else "evaluation"
                        return f"{_MOVES} ({mode})"
        return None

    def _changes(self, half: list[Tensor], generator: torch.Generator, training: bool) -> list[Change]:
        """Every unit with both signs, of which one revives a dead ReLU, and single units; or every unit once."""
        if training or self.brief:
            return [(half, torch.ones(len(half)))]
        signs = torch.randint(2, (len(half),), generator=generator) * 2.0 - 1
        return [(half, signs), (half, -signs), ([units[:1] for units in half], signs)]

    def _still(self, edits: Edits, zeroed: list[Tensor], changes: list[Change], training: bool) -> bool:
        """Whether nothing moves with some units when their columns are zero."""
        run = partial(self.sandbox.forward, training=training, example=self.example)
        edits.restore()
        edits.zero_columns(zeroed)
        watch = _Watch(self.sandbox.model, edits.groups, training)
        watch.outputs = leaves(run(watch.recording()))
        for chosen, signs in changes:
            edits.restore()
            edits.change(chosen, signs)
            edits.zero_columns(zeroed)
            output = run(watch.comparing(chosen))
            if watch.moved or watch.waiting or not same_leaves(watch.outputs, leaves(output)):
                return False
        return True


class _Watch:
    """What every layer was given and returned in one pass, and whether another pass differs where it must not.

    Attributes:
        outputs: what the model returned in the first pass.
        moved: whether the second pass differs so far.
        waiting: calls of the first pass that the second has not made yet.
    """

    def __init__(self, model: nn.Module, groups: Sequence[UnitGroup], training: bool) -> None:
        self.groups = groups
        self.layers = {name: module for name, (module, kind) in watched_modules(model).items() if kind != "norm"}
        self.norms = {port.module: model.get_submodule(port.module) for group in groups for port in group.norms}
        self.norms = {name: norm for name, norm in self.norms.items() if couples(norm)}
        # how many numbers RReLU draws depends on the signs, so its noise would change with the units
        noisy = [module for module in model.modules() if training and isinstance(module, nn.RReLU)]
        self.fixed = {module: partial(F.rrelu, lower=module.lower, upper=module.upper) for module in noisy}
        self.calls: list[tuple[str, list[Tensor | float], list[Tensor | float]]] = []
        self.kept: dict[str, list[Tensor]] = {}
        self.outputs: list[Tensor | float] = []
        self.moved = False
        self.waiting: list[tuple[str, list[Tensor | float], list[Tensor | float]]] = []

    def recording(self) -> dict[nn.Module, Forward]:
        """The forwards of the first pass."""

        def layer(name: str, module: nn.Module) -> Forward:
            original = module.forward

            def forward(*args: Any, **kwargs: Any) -> Any:
                given = map_tensors(torch.clone, leaves([args, kwargs]))
                result = original(*args, **kwargs)
                self.calls.append((name, given, map_tensors(torch.clone, leaves(result))))
                return result

            return forward

        def norm(name: str, module: nn.Module) -> Forward:
            original = module.forward

            def forward(*args: Any, **kwargs: Any) -> Tensor:
                result = original(*args, **kwargs)
                self.kept.setdefault(name, []).append(result.clone())
                return result

            return forward

        return self._fakes(layer, norm)

    def comparing(self, chosen: list[Tensor]) -> dict[nn.Module, Forward]:
        """The forwards of a second pass, in which some units may move.

        A norm that couples units returns what it did before except for the units' own features: where such a norm was
        accepted, it may move the neighbours.
        """
        self.moved, self.waiting = False, self.calls[::-1]
        ports = [(port, units) for group, units in zip(self.groups, chosen, strict=True) for port in group.producers]
        rows = _masks(ports, {name: width_out(self.layers[name]) for name in {port.module for port, _ in ports}})
        ports = [(port, units) for group, units in zip(self.groups, chosen, strict=True) for port in group.consumers]
        columns = _masks(ports, {name: width_in(self.layers[name]) for name in {port.module for port, _ in ports}})
        ports = [(port, units) for group, units in zip(self.groups, chosen, strict=True) for port in group.norms]
        held = {name: iter(values) for name, values in self.kept.items()}
        own = _masks(
            [each for each in ports if each[0].module in held], {name: width_in(self.norms[name]) for name in held}
        )

        def layer(name: str, module: nn.Module) -> Forward:
            original = module.forward

            def forward(*args: Any, **kwargs: Any) -> Any:
                before = self.waiting.pop() if self.waiting else ("", [], [])
                given = leaves([args, kwargs])
                self.moved |= before[0] != name or _differ(module, before[1], given, columns.get(name))
                result = original(*args, **kwargs)
                self.moved |= _differ(module, before[2], leaves(result), rows.get(name))
                return result

            return forward

        def norm(name: str, module: nn.Module) -> Forward:
            original = module.forward
            return lambda *args, **kwargs: fill_features(module, next(held[name]), own[name], original(*args, **kwargs))

        return self._fakes(layer, norm)

    def _fakes(
        self, layer: Callable[[str, nn.Module], Forward], norm: Callable[[str, nn.Module], Forward]
    ) -> dict[nn.Module, Forward]:
        fakes: dict[nn.Module, Forward] = dict(self.fixed)
        fakes.update({module: layer(name, module) for name, module in self.layers.items()})
        fakes.update({module: norm(name, module) for name, module in self.norms.items()})
        return fakes


def verify(sandbox: Sandbox, group: UnitGroup) -> str | None:
    """Why a resolved group is wrong, or None when it passes, checked alone on the sandbox's example."""
    return Verifier(Recording(sandbox, sandbox.example)).check([group])[0]


def inert(sandbox: Sandbox, name: str, rows: Tensor) -> bool:
    """Whether nothing in the output depends on some rows of a boundary module."""
    port = Port(name, rows.reshape(-1, 1))
    baseline = leaves(sandbox.forward())
    with Edits(sandbox.model, [UnitGroup([port], [port])]) as edits:
        for sign in (1.0, -1.0):
            edits.restore()
            edits.change([torch.arange(len(rows))], torch.tensor([sign]))
            if not same_leaves(baseline, leaves(sandbox.forward())):
                return False
    return True


def _masks(ports: list[tuple[Port, Tensor]], widths: dict[str, int]) -> dict[str, Tensor]:
    """For each module the features (bool) that some units have in it."""
    masks = {name: torch.zeros(width, dtype=torch.bool) for name, width in widths.items()}
    for port, units in ports:
        masks[port.module][features_of(port, units)] = True
    return masks


def _differ(
    module: nn.Module, before: list[Tensor | float], now: list[Tensor | float], allowed: Tensor | None
) -> bool:
    """Whether a layer was given or returned something else, apart from features that are allowed to move."""
    if same_leaves(before, now):
        return False
    if allowed is None or len(before) != 1 or len(now) != 1:
        return True
    left, right = before[0], now[0]
    if not isinstance(left, Tensor) or not isinstance(right, Tensor) or left.shape != right.shape:
        return True
    other = (left != right) & ~(torch.isnan(left) & torch.isnan(right))
    return bool((by_feature(module, other).any(1).cpu() & ~allowed).any())

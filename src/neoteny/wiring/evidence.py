"""Evidence: what every layer of a model reaches, found by passes of the probe, before any layer is sorted.

Before this: `probe.py`; after it: `classify.py` sorts the layers one by one, `families.py` forms the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from neoteny.layers.groups import UnitGroup
from neoteny.layers.kinds import unwritable, width_in
from neoteny.layers.recurrent import RECURRENT, depth
from neoteny.text import compact
from neoteny.wiring.flow import OUTPUT, apart
from neoteny.wiring.modules import in_unused_adapter
from neoteny.wiring.probe import Pass, Probe
from neoteny.wiring.sandbox import leaves
from neoteny.wiring.wiring import FUNCTIONAL, NOT_CALLED

INPUT = "the model's input"


class Evidence:
    """What the layers of one model reach, and the reasons collected so far.

    Args:
        probe: the recording to work with.
        leave_out: names of layers, or of modules that hold layers, that must not become groups.
        frozen: leave out layers whose parameters do not require gradients.

    Attributes:
        left_out, refused: layers that cannot be in a group, each with the reason.
        guesses: declarations to start from, for refused layers.
        avoidable: whether it is enough to leave the refused layers out.
        bases: what each layer's units reach.
        lost: what they reach where NaN does not.
        foreign: what the inputs, embeddings and opaque modules reach.
        noted: what parameters of custom modules reach.
        inner: what the states of recurrent modules' lower layers reach.
        closed: experts, which may run or not; see `experts.py`.
    """

    def __init__(self, probe: Probe, leave_out: list[str], *, frozen: bool) -> None:
        self.probe = probe
        self.frozen = frozen
        self.model = probe.sandbox.model
        self.leave_out = {
            name for name in probe.watched for chosen in leave_out if name == chosen or name.startswith(f"{chosen}.")
        }
        self.closed = probe.recording.closed
        self.unwritable = unwritable(self.model, frozen=frozen)
        for name, keys in probe.recording.outside.items():
            self.unwritable.setdefault(name, f"its {' and '.join(sorted(keys))} is also used outside its own forward")
        self.left_out: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.guesses: dict[str, str] = {}
        self.avoidable = True
        self.bases: dict[str, Pass] = {}
        self.lost: dict[str, dict[str, Tensor]] = {}
        self.foreign: dict[str, Pass] = {}
        self.noted: dict[str, Pass] = {}
        self.inner: dict[str, Pass] = {}

    def gather(self) -> bool:
        """Run the passes; False if the model has no single wiring to find."""
        self.probe.sandbox.progress.stage = "following units"
        if not self._steady():
            return False
        self._reach(self.probe.named("boundary"))
        return not self.refused or self.avoidable

    def gather_foreign(self, everywhere: bool = False) -> None:
        """Run the passes of what else may reach the places that open layers reach, or any place."""
        reach = self.probe.recording.reach
        places = {sink for name in self.open_layers for sink in self.bases[name].hits}
        self.foreign[INPUT] = given = self.probe.taint_inputs()
        if self._strayed(given):
            self._widen(given, [*self.probe.watched, OUTPUT])
        opaque, loose = (
            [name for name in names if everywhere or reach is None or not places.isdisjoint(reach[name])]
            for names in (self.probe.named("opaque"), self.probe.recording.loose)
        )
        for name, (seen,) in self._each(opaque, lambda some: (self.probe.taint(some),)).items():
            self.foreign[f"{name} ({self.class_name(name)})"] = seen
            if self._strayed(seen):
                self._widen(seen, [*self.probe.watched, OUTPUT] if reach is None else reach[name])
        for name in self.several_layers():
            self.foreign[f"{name} (state of its lower layers)"] = self.inner[name] = self.probe.taint_inner(name)
        if loose and self.probe.taint_parameters(loose).hits:
            tainted = self._each(loose, lambda some: (self.probe.taint_parameters(some),))
            self.noted = {name: seen for name, (seen,) in tainted.items()}

    @property
    def open_layers(self) -> list[str]:
        """Layers that are neither left out nor refused so far, in the order of their calls."""
        return [name for name in self.bases if name not in self.left_out and name not in self.refused]

    def consumers(self, seen: Pass) -> dict[str, Tensor]:
        """The Linear and Conv modules that a pass reached, each with its features."""
        return {sink: hit for sink, hit in seen.hits.items() if self.probe.watched[sink][1] == "boundary"}

    def claimed(self, seen: Pass) -> dict[str, Tensor]:
        """What only one unit may reach: columns, and features of norms whose calls may be given different units."""
        watched, calls = self.probe.watched, self.probe.calls
        return {sink: hit for sink, hit in seen.hits.items() if watched[sink][1] == "boundary" or calls[sink] > 1}

    def norms(self, seen: Pass) -> list[str]:
        """The norms that a pass reached."""
        return [sink for sink in seen.hits if self.probe.watched[sink][1] == "norm"]

    def several_layers(self) -> list[str]:
        """Recurrent modules with several layers whose weights may be written."""
        return [
            name
            for name in self.probe.named("boundary")
            if isinstance(module := self.probe.module(name), RECURRENT)
            and depth(module) > 1
            and name not in {*self.leave_out, *self.unwritable, *self.refused}
        ]

    def refuse(self, name: str, reason: str, consumers: Iterable[str] = ()) -> None:
        """Refuse a layer; with known consumers, also note a declaration to start from."""
        self.refused[name] = reason
        known = [sink for sink in consumers if self.probe.watched[sink][1] == "boundary"]
        if known:
            self.guesses[name] = UnitGroup([name], known).declaration()

    def class_name(self, name: str) -> str:
        """The class of a watched module."""
        return type(self.probe.module(name)).__name__

    @property
    def uncalled(self) -> list[str]:
        """Layers that the example neither calls nor uses the weights of."""
        used = {*self.probe.calls, *self.probe.recording.functional.values()}
        return [name for name, (_, kind) in self.probe.watched.items() if kind == "boundary" and name not in used]

    def _steady(self) -> bool:
        """Refuse a model whose calls depend on the data; layers that are not called are left out."""
        probe = self.probe
        for name, (_, kind) in probe.watched.items():
            if kind != "boundary":
                continue
            if name in self.leave_out:
                self.left_out[name] = "left out on request"
            elif probe.calls[name] == 0 and in_unused_adapter(self.model, name):
                self.left_out[name] = "frozen and not in use: it runs when another adapter is chosen, or none"
            elif name in probe.recording.functional.values():
                self.left_out[name] = FUNCTIONAL
            elif probe.calls[name] == 0:
                self.left_out[name] = NOT_CALLED
        lost = probe.disturb(lambda tensor: torch.full_like(tensor, torch.nan))
        turned = probe.disturb(torch.neg)
        if any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in leaves(probe.recording.example)):
            for seen in (turned, probe.disturb(torch.zeros_like), lost):
                self._compare_calls(seen)
        for name in probe.named("boundary"):
            given = [*lost.inputs.get(name, []), *turned.inputs.get(name, [])]
            if any(values.numel() for values in given) and not any(bool(values.any()) for values in given):
                reason = (
                    "the example gives it nothing but zeros; if it is a recurrence, pass an example of several steps"
                )
                self.left_out.setdefault(name, reason)
        return self.avoidable

    def _compare_calls(self, seen: Pass) -> None:
        if seen.error is not None or seen.order == self.probe.order or self._strayed(seen):
            return
        first = next((a or b for a, b in _zip_longest(seen.order, self.probe.order) if a != b), "")
        self.refused[first] = "data-dependent control flow: whether and when it is called depends on the values"
        self.avoidable = False

    def _strayed(self, seen: Pass) -> bool:
        """Whether a pass ran other experts than the recording, and is otherwise the same as far as it went."""
        if not self.closed or (seen.error is None and seen.order == self.probe.order):
            return False
        now, then = ([name for name in order if name not in self.closed] for order in (seen.order, self.probe.order))
        return now == then[: len(now)]

    def _widen(self, seen: Pass, places: Iterable[str]) -> None:
        """Take a pass that strayed to have reached every feature of some places, since what it misses is not known."""
        for place in places:
            if self.probe.watched.get(place, (None, ""))[1] in ("boundary", "norm"):
                seen.hits[place] = torch.ones(width_in(self.probe.module(place)), dtype=torch.bool)
        seen.leaked |= OUTPUT in places

    def _each(self, names: list[str], run: Callable[[list[str]], tuple[Pass, ...]]) -> dict[str, tuple[Pass, ...]]:
        """What `run` sees of each source alone. Sources that cannot reach a common place share their passes."""
        reach = self.probe.recording.reach
        if reach is None:
            return {name: run([name]) for name in names}
        seen: dict[str, tuple[Pass, ...]] = {}

        def clash(one: str, other: str) -> bool:
            # a recurrent module takes marked states for its own where it is marked itself
            return not reach[one].isdisjoint(reach[other]) or any(
                into in reach[source] and isinstance(self.model.get_submodule(into), RECURRENT)
                for source, into in ((one, other), (other, one))
                if into in self.probe.watched
            )

        for together in apart(names, clash):
            passes = run(together)
            if len(together) == 1:
                seen[together[0]] = passes
                continue
            within = set().union(*(reach[name] for name in together))
            usual = all(p.error is None and p.order == self.probe.order and p.places() <= within for p in passes)
            for name in together:
                seen[name] = tuple(p.only(reach[name]) for p in passes) if usual else run([name])
        return {name: seen[name] for name in names}

    def _reach(self, names: list[str]) -> None:
        tainted = self._each(names, lambda some: (self.probe.taint(some),))
        moved = self._each(names, self.probe.move)
        for name in names:
            base = self.bases[name] = tainted[name][0]
            for seen in (base, *moved[name]):
                self._compare_calls(seen)
            if any(self._strayed(seen) for seen in (base, *moved[name])):
                reach = self.probe.recording.reach
                self.left_out.setdefault(name, f"its values decide which of {compact(sorted(self.closed))} run")
                self._widen(base, [*self.probe.watched, OUTPUT] if reach is None else reach[name])
                continue
            if moved[name][1].error is not None:
                continue
            hits = moved[name][1].hits
            if base.error is not None:  # finite values pass where NaN was rejected: what they reach is shared as well
                _add_hits(base, hits)
            if any((f & ~base.hits.get(sink, torch.zeros_like(f))).any() for sink, f in hits.items()):
                self.lost[name] = hits
            base.leaked |= moved[name][1].leaked


def _add_hits(seen: Pass, hits: dict[str, Tensor]) -> None:
    for sink, features in hits.items():
        seen.hits[sink] = seen.hits.get(sink, torch.zeros_like(features)) | features


def _zip_longest(left: list[str], right: list[str]) -> list[tuple[str, str]]:
    size = max(len(left), len(right))
    return list(zip(left + [""] * (size - len(left)), right + [""] * (size - len(right)), strict=True))

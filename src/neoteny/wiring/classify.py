"""Classifier: sort every layer by the evidence of the probe, and form the unit groups.

Every layer ends in exactly one place: in a group, left out (understood, but its units cannot be reset one by one) or
refused (not understood). `trace.py` reports the three.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup, describe_port
from neoteny.layers.kinds import couples, unwritable, width_in, width_out
from neoteny.wiring.probe import Pass, Probe
from neoteny.wiring.read_point import find_read_point
from neoteny.wiring.sandbox import leaves, map_tensors
from neoteny.wiring.verify import inert, verify

Owners = dict[str, Tensor]  # sink -> the unit behind each of its features, -1 none, -2 several
_MOST_SPLITS = 8  # more kinds of units than this: not a few layers in one


class Classifier:
    """Sorts the layers of one model into groups, left out and refused.

    Args:
        probe: the recording to work with.
        leave_out: names of layers, or of modules that hold layers, that must not become groups.
        accept: include units behind norms that couple them.
        frozen: leave out layers whose parameters do not require gradients.
    """

    def __init__(self, probe: Probe, leave_out: list[str], *, accept: bool, frozen: bool) -> None:
        self.probe = probe
        self.model = probe.sandbox.model
        self.leave_out = {
            name for name in probe.watched for chosen in leave_out if name == chosen or name.startswith(f"{chosen}.")
        }
        self.accept = accept
        self.unwritable = unwritable(self.model, frozen=frozen)
        for name, keys in probe.outside.items():
            self.unwritable.setdefault(name, f"its {' and '.join(sorted(keys))} is also used outside its own forward")
        self.left_out: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.guesses: dict[str, str] = {}
        self.avoidable = True
        self.bases: dict[str, Pass] = {}  # what each layer's units reach
        self.lost: dict[str, dict[str, Tensor]] = {}  # what they reach where NaN does not
        self.foreign: dict[str, Pass] = {}  # what the inputs, embeddings and closed modules reach
        self.noted: dict[str, Pass] = {}  # what parameters of custom modules reach

    def groups(self) -> list[UnitGroup]:
        """The groups found; the reasons for everything else are in `left_out` and `refused`."""
        if not self._steady():
            return []
        for name in self.probe.named("boundary"):
            self._reach(name)
        if self.refused and not self.avoidable:
            return []
        self._reach_foreign()
        for name in self.bases:
            if name not in self.left_out and name not in self.refused:
                self._classify(name)
        found = [group for family in self._families() for group in self._family_groups(family)]
        places = {name: place for place, name in enumerate(self.bases)}
        found.sort(key=lambda group: places[group.producers[0].module])
        for name in self.probe.named("opaque"):
            self.left_out[name] = f"{self._class(name)}: its units are not rows and columns of a Linear or Conv"
        called = {name: place for place, name in enumerate(dict.fromkeys(self.probe.order))}
        rank = {name: called.get(name.split("[")[0], len(called)) for name in self.left_out}
        self.left_out = {name: self.left_out[name] for name in sorted(self.left_out, key=rank.__getitem__)}
        return found

    # --- is there one wiring to find at all? -------------------------------------------------------------------------

    def _steady(self) -> bool:
        """Refuse a model whose calls depend on the data or on the mode, and layers that are not called exactly once."""
        probe = self.probe
        for name, (_, kind) in probe.watched.items():
            if kind != "boundary":
                continue
            if name in self.leave_out:
                self.left_out[name] = "left out on request"
            elif probe.calls[name] == 0:
                used = f" ({self.unwritable[name]})" if name in probe.outside else ""
                self.refused[name] = f"the example never calls it{used}, so its place is not known"
            elif probe.calls[name] > 1:
                self.refused[name] = f"it is called {probe.calls[name]} times in one forward pass"
        example = probe.sandbox.example
        floats = [leaf for leaf in leaves(example) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        if floats:
            for change in (torch.neg, torch.zeros_like, lambda tensor: torch.full_like(tensor, torch.nan)):
                changed = map_tensors(lambda t, change=change: change(t) if t.is_floating_point() else t, example)
                self._compare_calls(probe.listen(example=changed))
        training = probe.listen(training=True)
        if training is not None and set(training) != set(probe.order):
            for name in set(training) ^ set(probe.order):
                self.refused[name] = "it is called in one of training and evaluation mode only"
            self.avoidable = False
        return self.avoidable

    def _compare_calls(self, order: list[str] | None) -> None:
        if order is None or order == self.probe.order:
            return
        first = next((a or b for a, b in _zip_longest(order, self.probe.order) if a != b), "")
        self.refused[first] = "data-dependent control flow: whether and when it is called depends on the values"
        self.avoidable = False

    # --- what does each source reach? --------------------------------------------------------------------------------

    def _reach(self, name: str) -> None:
        base = self.probe.taint(name)
        moved = [] if self.probe.calls[name] > 1 else self.probe.move(name)
        for p in (base, *moved):
            if p.error is None:
                self._compare_calls(p.order)
        self.bases[name] = base
        if not moved or moved[1].error is not None:
            return
        hits = moved[1].hits
        if base.error is not None:  # finite values pass where NaN was rejected: what they reach is shared as well
            _add_hits(base, hits)
        lost = {sink: f for sink, f in hits.items() if (f & ~base.hits.get(sink, torch.zeros_like(f))).any()}
        if lost:
            self.lost[name] = hits
        base.leaked |= moved[1].leaked

    def _reach_foreign(self) -> None:
        self.foreign["the model's input"] = self.probe.taint_inputs()
        for name in self.probe.named("opaque"):
            self.foreign[f"{name} ({self._class(name)})"] = self.probe.taint(name)
        if self.probe.loose and self.probe.taint_parameters(list(self.probe.loose)).hits:
            self.noted = {name: self.probe.taint_parameters([name]) for name in self.probe.loose}

    def _consumers(self, seen: Pass) -> dict[str, Tensor]:
        return {sink: hit for sink, hit in seen.hits.items() if self.probe.watched[sink][1] == "boundary"}

    def _norms(self, seen: Pass) -> list[str]:
        return [sink for sink in seen.hits if self.probe.watched[sink][1] == "norm"]

    # --- one layer at a time -----------------------------------------------------------------------------------------

    def _classify(self, name: str) -> None:
        """Leave out or refuse what a single layer's evidence rules out."""
        base = self.bases[name]
        consumers = self._consumers(base)
        names = ", ".join(consumers)
        twice = [sink for sink in (*consumers, *self._norms(base)) if self.probe.calls[sink] > 1]
        written = [sink for sink in (*consumers, *self._norms(base)) if sink in self.unwritable]
        if name in self.unwritable:
            self.left_out[name] = self.unwritable[name]
        elif base.error is not None:
            error = f"{type(base.error).__name__}: {base.error}".splitlines()[0]
            self.left_out[name] = f"its values leave through code that rejects NaN ({error})"
        elif base.leaked and not consumers:
            self.left_out[name] = "output layer: its values are the model's output"
        elif base.leaked:
            self.left_out[name] = (
                f"its values reach the model's output directly and also feed {names} (a residual stream)"
            )
        elif base.opaque:
            closed = ", ".join(f"{sink} ({self._class(sink)})" for sink in base.opaque)
            self.left_out[name] = f"feeds {closed}, whose weights cannot be rewritten unit by unit"
        elif name in self.lost:
            sinks = [sink for sink in self.lost[name] if self.probe.watched[sink][1] == "boundary"]
            reason = f"something between it and {', '.join(sinks)} swallows NaN (torch.where, nan_to_num, a cast)"
            self._refuse(name, reason, sinks)
        elif not consumers:
            if inert(self.probe.sandbox, name, torch.arange(width_out(self.probe.module(name)))):
                self.left_out[name] = "nothing consumes it"
            else:
                self._refuse(name, "the output depends on it, but where its values go was lost on the way")
        elif twice and all(sink in self.left_out or sink not in consumers for sink in twice):
            self.left_out[name] = f"feeds {', '.join(twice)}, which is called more than once in a forward pass"
        elif twice:
            self._refuse(
                name, f"it feeds {', '.join(twice)}, which is called more than once in a forward pass", consumers
            )
        elif written:
            self.left_out[name] = f"feeds {written[0]}, which is not rewritten: {self.unwritable[written[0]]}"
        else:
            self._check_norms(name)

    def _check_norms(self, name: str) -> None:
        for sink in self._norms(self.bases[name]):
            module = self.probe.module(sink)
            if isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and len(module.normalized_shape) > 1:
                self.left_out[name] = f"{self._class(sink)} {sink} couples its units over {module.normalized_shape}"
            elif couples(module) and not self.accept:
                reason = f'{self._class(sink)} {sink} couples its units; pass norm="accept" to include them'
                self.left_out.setdefault(name, reason)

    # --- layers that share columns -----------------------------------------------------------------------------------

    def _families(self) -> list[list[str]]:
        """Sets of layers that feed exactly the same columns; a layer that shares only some of them is left out."""
        open_ = [name for name in self.bases if name not in self.left_out and name not in self.refused]
        shared: dict[str, str] = {}
        twins: dict[str, list[str]] = {name: [name] for name in open_}
        for name in open_:
            mine = self._consumers(self.bases[name])
            for source, seen in self.foreign.items():
                if columns := _overlap(mine, seen.hits):
                    shared.setdefault(name, f"its columns of {', '.join(columns)} also carry {source}")
            partners: list[str] = []
            for other, seen in self.bases.items():
                theirs = self._consumers(seen)
                if other == name or not _overlap(mine, theirs):
                    continue
                if _equal(mine, theirs) and other in open_:
                    twins[name].append(other)
                else:
                    partners.append(other)
            if partners:
                shared[name] = f"residual stream: shares columns of {', '.join(mine)} with {', '.join(partners)}"
        for name in open_:
            lost = [other for other in twins[name] if other in shared]
            if name not in shared and lost:
                self.left_out[name] = f"shares its columns with {lost[0]}, which is left out: {shared[lost[0]]}"
        self.left_out.update(shared)
        kept = [name for name in open_ if name not in self.left_out]
        families = [sorted(twins[name], key=open_.index) for name in kept]
        return [family for name, family in zip(kept, families, strict=True) if family[0] == name]

    def _family_groups(self, family: list[str]) -> list[UnitGroup]:
        decoded: dict[str, Owners] = {}
        for name in family:
            owners = self.probe.decode(name, self.bases[name])
            if owners is None:
                self._refuse(
                    name, "the model ran differently when some of its units were marked", self.bases[name].hits
                )
                return []
            decoded[name] = owners
        consumers = {
            name: {sink: owner for sink, owner in owners.items() if self.probe.watched[sink][1] == "boundary"}
            for name, owners in decoded.items()
        }
        first = consumers[family[0]]
        mixed = any((owner == -2).any() for owners in decoded.values() for owner in owners.values())
        widths = {width_out(self.probe.module(name)) for name in family}
        if len(family) > 1 and (mixed or len(widths) > 1 or not all(_equal(first, consumers[n]) for n in family)):
            for name in family:
                others = ", ".join(other for other in family if other != name)
                self.left_out[name] = f"its units and those of {others} mix in {', '.join(first)}"
            return []
        if mixed:
            self._sort_mixed(family[0], first)
            return []
        return self._split(family, decoded, widths.pop())

    def _sort_mixed(self, name: str, consumers: Owners) -> None:
        """Rows that meet in pairs (a gated product of two halves) can be declared; rows that all mix cannot."""
        units = width_out(self.probe.module(name))
        sinks = ", ".join(consumers)
        reached = sum(int((owner != -1).sum()) for owner in consumers.values())
        spread = []
        for unit in {0, units // 2, units - 1}:
            alone = self.probe.taint(name, torch.arange(units) == unit)
            spread.append(sum(int(hit.sum()) for hit in self._consumers(alone).values()))
        if sum(spread) / len(spread) * units / max(reached, 1) > 4:
            self.left_out[name] = f"its units mix before they reach {sinks} (attention, softmax, or a matrix product)"
            return
        self._refuse(name, f"several of its rows meet in one feature of {sinks} (a gated product, a pairing)")
        halves = [Port(name, torch.arange(units // 2)[:, None]), Port(name, torch.arange(units // 2, units)[:, None])]
        try:
            ports = [Port(sink).resolve(units // 2, width_in(self.probe.module(sink))) for sink in consumers]
        except (ValueError, ZeroDivisionError):
            return
        if units % 2 == 0 and verify(self.probe.sandbox, UnitGroup(halves, ports)) is None:
            declared = UnitGroup([name, Port(name, offset=units // 2)], list(consumers))
            self.guesses[name] = declared.declaration()

    def _split(self, family: list[str], decoded: dict[str, Owners], units: int) -> list[UnitGroup]:
        """One group, or several where the rows of one layer go to different places (a chunk)."""
        sinks: Owners = {}
        for sink, owner in (item for owners in decoded.values() for item in owners.items()):
            known = sinks.get(sink, torch.full_like(owner, -1))
            if ((known >= 0) & (owner >= 0) & (known != owner)).any():  # a norm that sees the twins' units crossed
                self._refuse(family[0], f"its units and those of {', '.join(family[1:])} are crossed in {sink}")
                return []
            sinks[sink] = torch.where(known >= 0, known, owner)
        counts = torch.stack(
            [torch.bincount(owner[owner >= 0], minlength=units) for owner in sinks.values()]
        )  # (sinks, U)
        kinds, kind_of_unit = torch.unique(counts, dim=1, return_inverse=True)
        if kinds.shape[1] > _MOST_SPLITS:
            self._refuse(family[0], "its units reach different numbers of features", self.bases[family[0]].hits)
            return []
        groups: list[UnitGroup] = []
        for kind in sorted(range(kinds.shape[1]), key=lambda k: int((kind_of_unit == k).nonzero()[0])):
            rows = (kind_of_unit == kind).nonzero().flatten()
            ports = {
                sink: Port(sink, _features_of(owner, rows).view(len(rows), count))
                for (sink, owner), count in zip(sinks.items(), kinds[:, kind].tolist(), strict=True)
                if count
            }
            consumers = [port for sink, port in ports.items() if self.probe.watched[sink][1] == "boundary"]
            if not consumers:
                self._settle_idle(family, rows)
                continue
            norms = [port for sink, port in ports.items() if self.probe.watched[sink][1] == "norm"]
            group = UnitGroup([Port(name, rows[:, None]) for name in family], consumers, norms)
            failure = verify(self.probe.sandbox, group)
            if failure is not None:
                self._refuse(family[0], failure)
                self.guesses[family[0]] = group.declaration()
                return []
            notes = [*group_notes(self.model, group), *self._parameter_notes(group)]
            groups.append(UnitGroup(group.producers, consumers, norms, find_read_point(self.probe, group), notes))
        return groups

    def _settle_idle(self, family: list[str], rows: Tensor) -> None:
        for name in family:
            label = describe_port(Port(name, rows[:, None]))
            if inert(self.probe.sandbox, name, rows):
                self.left_out[label] = "nothing consumes these rows"
            else:
                self._refuse(name, f"the output depends on {label}, but no consumer of these rows was found")

    def _parameter_notes(self, group: UnitGroup) -> list[str]:
        ports = (*group.consumers, *group.norms)
        mine = {port.module: _mask(port, width_in(self.probe.module(port.module))) for port in ports}
        return [
            f"also shaped by parameter {name}, left as it is"
            for name, seen in self.noted.items()
            if _overlap(mine, seen.hits)
        ]

    def _refuse(self, name: str, reason: str, consumers: Iterable[str] = ()) -> None:
        self.refused[name] = reason
        known = [sink for sink in consumers if self.probe.watched[sink][1] == "boundary"]
        if known:
            self.guesses[name] = UnitGroup([name], known).declaration()

    def _class(self, name: str) -> str:
        return type(self.probe.module(name)).__name__


def group_notes(model: nn.Module, group: UnitGroup) -> list[str]:
    """Remarks about a group for its user."""
    notes = [
        f"consumer {port.module} has no bias: its mean cannot be compensated"
        for port in group.consumers
        if model.get_submodule(port.module).bias is None
    ]
    for port in group.norms:
        module = model.get_submodule(port.module)
        if couples(module):
            notes.append(
                f"{type(module).__name__} {port.module} accepted: a reset unit still moves its neighbours there"
            )
    return notes


def _mask(port: Port, width: int) -> Tensor:
    mask = torch.zeros(width, dtype=torch.bool)
    mask[cast(Tensor, port.features).flatten()] = True
    return mask


def _features_of(owner: Tensor, rows: Tensor) -> Tensor:
    """The features that belong to some units, unit by unit, ascending within a unit."""
    ordered = torch.argsort(owner, stable=True)
    return ordered[torch.isin(owner[ordered], rows)]


def _add_hits(seen: Pass, hits: dict[str, Tensor]) -> None:
    for sink, features in hits.items():
        seen.hits[sink] = seen.hits.get(sink, torch.zeros_like(features)) | features


def _overlap(left: dict[str, Tensor], right: dict[str, Tensor]) -> list[str]:
    return [sink for sink, features in left.items() if sink in right and bool((features & right[sink]).any())]


def _equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(features, right[sink]) for sink, features in left.items())


def _zip_longest(left: list[str], right: list[str]) -> list[tuple[str, str]]:
    size = max(len(left), len(right))
    return list(zip(left + [""] * (size - len(left)), right + [""] * (size - len(right)), strict=True))

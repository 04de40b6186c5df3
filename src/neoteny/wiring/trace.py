"""trace: find the groups of hidden units in anybody's module.

The flow: run the model once on an example, probe who consumes whose units (`probe.py`), sort every layer into a group,
left out or refused (`search.py`), and let the judge (`judge.py`) check each group. `attachment.py` binds the result to
live tensors. Nothing is guessed: what is not understood is refused by name, with the declaration to pass instead.
"""

from __future__ import annotations

import contextlib
import difflib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from neoteny.layers.groups import Port, UnitGroup, describe_port
from neoteny.layers.kinds import kind_of, unwritable, width_in, width_out
from neoteny.wiring.classify import Search, group_notes
from neoteny.wiring.probe import Probe
from neoteny.wiring.read_point import read_place
from neoteny.wiring.sandbox import Stage, few_examples, leaves
from neoteny.wiring.verify import judge

Norm = Literal["refuse", "accept"]


class WiringError(ValueError):
    """The wiring of some modules cannot be told; says which, why, and what to pass instead.

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
        lines.append("Pass groups=[neoteny.UnitGroup(...), ...] with the groups you want (only those are then used)")
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
        avoidable: whether leaving the refused layers out would do.
    """

    groups: tuple[UnitGroup, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    guesses: dict[str, str] = field(default_factory=dict)
    avoidable: bool = True

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
        for group in self.groups:
            for note in group.notes:
                notes[note].append(group.name)
        if notes:
            lines += ["", "notes", *(f"  {', '.join(names)}: {note}" for note, names in notes.items())]
        for title, reasons in (("left out", self.left_out), ("refused", self.refused)):
            if reasons:
                width = max(map(len, reasons))
                lines += ["", title, *(f"  {name.ljust(width)}  {reason}" for name, reason in reasons.items())]
        return "\n".join(lines)


def trace(
    model: nn.Module,
    example: Any,
    *,
    groups: Sequence[UnitGroup] | None = None,
    leave_out: Sequence[str] = (),
    norm: Norm = "refuse",
) -> Wiring:
    """Find the groups of hidden units of a model: who produces each unit, who consumes it, where to read it.

    The model is run many times in evaluation and training mode without gradients, and left exactly as it was.

    Args:
        model: any module; a compiled one is looked at through to the original.
        example: a batch the model accepts: a tensor, a tuple of positional or a dict of keyword arguments. The first
            few examples of a large one are used where the model accepts them.
        groups: declare the groups instead of finding them. Each is still checked.
        leave_out: names of layers (or of modules that hold layers) whose units shall not become a group.
        norm: "accept" includes units behind a norm that couples them (LayerNorm, RMSNorm, GroupNorm): resetting such a
            unit still moves its neighbours through the norm's statistics. "refuse" leaves them out.

    Raises:
        WiringError: some layers could not be understood, or a declared group is wrong.
        ValueError: the example does not fit, or the model has no hidden units.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> print(trace(model, torch.zeros(3, 4)))
        group  units  producers  norms  consumers  read at
        --------------------------------------------------
        0          8  0[0:8]     -      2[0:8]     2
        <BLANKLINE>
        left out
          2  output layer: its values are the model's output
    """
    model = unwrap(model)
    few = few_examples(example)
    if few is not example:
        with contextlib.suppress(ValueError):  # an axis that only looked like the batch: the whole example will tell
            return trace(model, few, groups=groups, leave_out=leave_out, norm=norm)
    if groups is None:
        wiring = find(model, example, leave_out=leave_out, norm=norm)
    else:
        wiring = _declare(model, example, groups)
    if wiring.refused:
        raise WiringError(wiring)
    if not wiring.groups:
        reasons = "".join(f"\n  {name or 'the model itself'}: {reason}" for name, reason in wiring.left_out.items())
        raise ValueError(
            "expected a model with at least one group of hidden units (a Linear or Conv layer that feeds another one); "
            f"found none.{reasons or ' The model has no Linear, Conv1d or Conv2d.'}"
        )
    return wiring


def find(
    model: nn.Module,
    example: Any,
    *,
    leave_out: Sequence[str] = (),
    norm: Norm = "refuse",
    frozen: bool = True,
) -> Wiring:
    """As `trace`, but returns what is refused instead of raising; `frozen=False` takes frozen layers too."""
    model = unwrap(model)
    if norm not in ("refuse", "accept"):
        raise ValueError(f"norm must be 'refuse' or 'accept'; got {norm!r}.")
    if isinstance(leave_out, str):
        raise TypeError(f"leave_out must be a list of module names; got the string {leave_out!r}.")
    leave_out = [_canonical(model, name, "leave_out") for name in leave_out]
    with Stage(model, example) as stage:
        search = Search(_probe(stage), leave_out, accept=norm == "accept", frozen=frozen)
        groups = search.groups()
    return Wiring(tuple(groups), search.left_out, search.refused, search.guesses, search.avoidable)


def _declare(model: nn.Module, example: Any, groups: Sequence[UnitGroup]) -> Wiring:
    """The user's groups, resolved and judged."""
    if isinstance(groups, UnitGroup) or not all(isinstance(group, UnitGroup) for group in groups):
        raise TypeError(f"groups must be a list of neoteny.UnitGroup; got {groups!r}.")
    if not groups:
        raise ValueError("groups must name at least one UnitGroup; leave it away to find the groups.")
    resolved = [_resolve(model, group) for group in groups]
    _check_disjoint(resolved)
    reasons = unwritable(model)
    refused: dict[str, str] = {}
    done: list[UnitGroup] = []
    with Stage(model, example) as stage:
        probe = _probe(stage)
        for group in resolved:
            names = [port.module for port in (*group.producers, *group.consumers, *group.norms)]
            problems = [f"{name}: {reasons[name]}" for name in names if name in reasons]
            failure = "; ".join(problems) or judge(stage, group)
            if failure is not None:
                refused[group.name] = f"the declared group is not right: {failure}"
            read = group.read or read_place(probe, group)
            notes = [*group_notes(model, group), *(_calls_note(probe, name) for name in dict.fromkeys(names))]
            done.append(UnitGroup(group.producers, group.consumers, group.norms, read, list(filter(None, notes))))
    order = {name: place for place, name in enumerate(dict.fromkeys(probe.order))}
    done.sort(key=lambda group: order.get(group.producers[0].module, len(order)))
    claimed = {port.module for group in done for port in group.producers}
    left_out = {name: "not in a declared group" for name in probe.named("boundary") if name not in claimed}
    return Wiring(tuple(done), left_out, refused, avoidable=False)


def _resolve(model: nn.Module, group: UnitGroup) -> UnitGroup:
    """The group with every port spelled out, module names and classes checked."""
    group = _rename(model, group)
    for role, ports in (("producer", group.producers), ("consumer", group.consumers), ("norm", group.norms)):
        for port in ports:
            module = model.get_submodule(port.module)
            expected = "norm" if role == "norm" else "boundary"
            if kind_of(module) != expected:
                what = "a norm module (BatchNorm, LayerNorm, ...)" if role == "norm" else "a Linear, Conv1d or Conv2d"
                raise TypeError(f"UnitGroup({group.name!r}): {role} {port.module!r} must be {what}; got {module!r}.")
    given = [port.features for port in group.producers if port.features is not None]
    widths = [width_out(model.get_submodule(port.module)) - port.offset for port in group.producers]
    units = len(torch.as_tensor(given[0])) if given else min(widths)
    producers = []
    for port in group.producers:  # a producer's unit is one row: no run of neighbours is meant
        rows = port.features if port.features is not None else torch.arange(units) + port.offset
        producers.append(Port(port.module, rows).resolve(units, width_out(model.get_submodule(port.module))))
    others = [
        [port.resolve(units, width_in(model.get_submodule(port.module))) for port in ports]
        for ports in (group.consumers, group.norms)
    ]
    return UnitGroup(producers, others[0], others[1], group.read, group.notes)


def _rename(model: nn.Module, group: UnitGroup) -> UnitGroup:
    """The group under its modules' first names (a module may be registered twice)."""

    def first(name: str) -> str:
        return _canonical(model, name, f"UnitGroup({group.producers[0].module!r})")

    producers, consumers, norms = (
        [Port(first(port.module), port.features, port.offset) for port in ports]
        for ports in (group.producers, group.consumers, group.norms)
    )
    return UnitGroup(producers, consumers, norms, None if group.read is None else first(group.read), group.notes)


def _check_disjoint(groups: list[UnitGroup]) -> None:
    seen: dict[tuple[str, str], Tensor] = {}
    for group in groups:
        for role, ports in (("producer", group.producers), ("consumer", group.consumers), ("norm", group.norms)):
            for port in ports:
                features = torch.as_tensor(port.features).flatten()
                before = seen.get((role, port.module), torch.empty(0, dtype=torch.int64))
                if torch.isin(features, before).any():
                    raise ValueError(
                        f"UnitGroup({group.name!r}): each feature of {role} {port.module!r} belongs to one unit, "
                        "but some are claimed twice."
                    )
                seen[role, port.module] = torch.cat([before, features])


def _calls_note(probe: Probe, name: str) -> str | None:
    calls = probe.calls[name]
    if calls == 1:
        return None
    return f"{name} is called {calls} times by the example" + ("" if calls else ": that part was not checked")


def _probe(stage: Stage) -> Probe:
    """The recording pass, with errors that say what to do about the example."""
    try:
        probe = Probe(stage)
    except Exception as error:
        raise ValueError(
            f"expected an example batch the model accepts; with {_describe(stage.example)} the model raised "
            f"{type(error).__name__}: {error}: pass an example batch the model accepts (a tensor, a tuple of "
            "positional or a dict of keyword arguments)."
        ) from error
    if not any(isinstance(leaf, Tensor) for leaf in probe.outputs):
        raise ValueError("expected the model to return at least one tensor; found none in what it returned.")
    spoilt = [name for name in probe.order for kept in probe.kept[name] for leaf in leaves(kept) if _not_a_number(leaf)]
    if spoilt or any(_not_a_number(leaf) for leaf in probe.outputs):
        broken = [name for name, value in stage.model.named_parameters() if not bool(torch.isfinite(value).all())]
        if broken:
            raise ValueError(f"expected finite weights; the network has diverged: {', '.join(broken)} are not finite.")
        where = f" (first in {spoilt[0]})" if spoilt else ""
        raise ValueError(f"expected finite activations; the model gives NaN on the example{where}: pass another one.")
    return probe


def _not_a_number(leaf: Tensor | float) -> bool:
    return bool(torch.isnan(leaf).any()) if isinstance(leaf, Tensor) and leaf.is_floating_point() else False


def unwrap(model: nn.Module) -> nn.Module:
    """The module itself, without torch.compile's wrapper; refuses what cannot be looked into."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    while "_orig_mod" in model._modules:  # torch.compile's wrapper
        model = model._modules["_orig_mod"]  # pyright: ignore[reportAssignmentType]
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError(
                f"{name or 'the model'} is a scripted module, which cannot be looked into: pass the original."
            )
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ValueError(f"{name} has no shape yet: run the model once on a batch before tracing it.")
    return model


def _canonical(model: nn.Module, name: str, where: str) -> str:
    """A module's first name in the model, or an error that suggests the nearest."""
    modules = dict(model.named_modules(remove_duplicate=False))
    if name not in modules:
        near = difflib.get_close_matches(str(name), modules, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; the model has {', '.join(filter(None, modules))}."
        raise ValueError(f"{where}: the model has no module named {name!r}{hint}")
    first = {id(module): known for known, module in reversed(modules.items())}
    return first[id(modules[name])]


def _describe(example: Any) -> str:
    if isinstance(example, Tensor):
        return f"a {str(example.dtype).removeprefix('torch.')} tensor of shape {tuple(example.shape)}"
    if isinstance(example, dict):
        return "{" + ", ".join(f"{key!r}: {_describe(value)}" for key, value in example.items()) + "}"
    if isinstance(example, (tuple, list)):
        return f"a {type(example).__name__} of ({', '.join(map(_describe, example))})"
    return type(example).__name__

"""Experts: modules of a list of which each input runs some only (a sparse mixture of experts, an early exit).

Which of them run depends on the values, so the model as a whole has no single wiring to find. Each expert by itself
has: here it is traced alone, on what it was given in a pass of the model. Around them the model is traced with every
expert closed. `trace.py` comes here when a model was refused.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from neoteny.layers.groups import UnitGroup
from neoteny.layers.kinds import unwritable, watched_modules
from neoteny.wiring.families import Check
from neoteny.wiring.sandbox import Forward, Sandbox, leaves, map_tensors
from neoteny.wiring.wiring import Wiring

Given = dict[str, tuple[tuple[Any, ...], dict[str, Any]]]  # module -> the arguments of its first call
Find = Callable[[nn.Module, Any, list[str]], Wiring]  # the wiring of one expert; leave_out is the last argument

_PASSES = 3  # with other values, to see which modules run
_NOISE = 4.0  # standard deviations
UNREACHED = "the example does not reach it"


def misses_members(model: nn.Module, called: Collection[str]) -> bool:
    """Whether a member of a list of modules of one kind was not called, as experts may not be."""
    layers = [name for name, (_, kind) in watched_modules(model).items() if kind == "boundary"]
    members = [f"{name}." for some in _alike_lists(model) for name in some]
    return any(f"{name}.".startswith(member) for name in layers if name not in called for member in members)


def find_experts(sandbox: Sandbox, calls: Sequence[Any]) -> list[str]:
    """Members of lists that run for some inputs only, as passes with noise in what layers return show.

    Heads that a task number chooses run alike in all passes, so they are not among them.
    """
    lists = _alike_lists(sandbox.model)
    members = [name for some in lists for name in some]
    if not members:
        return []
    found: set[str] = set()
    for call in calls:
        usual = _calls(sandbox, call, members, None)
        for seed in range(_PASSES):
            try:
                other = _calls(sandbox, call, members, torch.Generator().manual_seed(seed))
            except Exception:  # noise is no usual input
                continue
            changed = {name for name, _ in (usual - other) + (other - usual)}
            found |= {name for some in lists if changed.intersection(some) for name in some}
    return [name for name in members if name in found]


def with_experts(
    sandbox: Sandbox,
    calls: Sequence[Any],
    around: Wiring,
    experts: Sequence[str],
    checks: Sequence[Check],
    find: Find,
    leave_out: list[str],
    frozen: bool,
) -> Wiring:
    """The wiring of a model around its experts, with the groups inside each of them.

    Args:
        sandbox, calls: run the model.
        around: the wiring with every expert closed.
        experts: their names.
        checks: the verification of groups in the whole model, for each way of running it.
        find: traces one expert.
        leave_out: names of modules that must not become groups.
        frozen: leave out layers whose parameters do not require gradients.
    """
    if around.refused:
        return around
    model, given = sandbox.model, _given(sandbox, calls, experts)
    left_out = {name: reason for name, reason in around.left_out.items() if name not in experts}
    found: list[UnitGroup] = []
    for name in experts:
        sample = name if name in given else next((each for each in given if _alike(model, each, name)), "")
        if any(name == chosen or name.startswith(f"{chosen}.") for chosen in leave_out):
            left_out[name] = "left out on request"
        elif not sample:
            left_out[name] = f"{UNREACHED}, nor another of its kind"
        else:
            own = [chosen.removeprefix(f"{name}.") for chosen in leave_out if chosen.startswith(f"{name}.")]
            expert = model.get_submodule(name)
            try:
                inside = find(expert, _example(expert, *given[sample]), own)
            except ValueError as error:
                left_out[name] = f"alone it cannot be traced: {error}".splitlines()[0]
                continue
            note = "runs for some inputs only: its units age in updates in which it runs"
            if sample != name:
                note = f"{UNREACHED}: traced alone, on what {sample} was given"
            found += [_renamed(group, name, note) for group in inside.groups]
            for inner, reason in {**inside.left_out, **inside.refused}.items():
                if reason.startswith(("output layer", "its values reach the model's output")):
                    reason = f"its values leave {name}, which runs for some inputs only"
                left_out[_joined(name, inner)] = reason
    groups = list(around.groups)
    reasons = unwritable(model, frozen=frozen)
    failures = [next(filter(None, some), None) for some in zip(*(check(found) for check in checks), strict=True)]
    for group, failure in zip(found, failures, strict=True):
        ports = (*group.producers, *group.consumers, *group.norms)
        written = [f"{port.module}: {reasons[port.module]}" for port in ports if port.module in reasons]
        if failure is None and not written:
            groups.append(group)
        else:
            left_out[group.name] = failure or written[0]
    return replace(around, groups=tuple(groups), left_out=left_out)


def reaches_all(wiring: Wiring) -> bool:
    """Whether the example reached every expert."""
    return not any(note.startswith(UNREACHED) for group in wiring.groups for note in group.notes)


def _alike_lists(model: nn.Module) -> list[list[str]]:
    """The members of each innermost list of modules of one class and shape that hold layers."""
    layers = [name for name, (_, kind) in watched_modules(model).items() if kind == "boundary"]
    lists: list[list[str]] = []
    for path, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)) and len(module) > 1:
            members = [_joined(path, key) for key in module._modules]
            alike = all(_alike(model, members[0], name) for name in members)
            if alike and any(each == members[0] or each.startswith(f"{members[0]}.") for each in layers):
                lists.append(members)
    return [some for some in lists if not any(inner[0].startswith(f"{some[0]}.") for inner in lists)]


def _alike(model: nn.Module, one: str, other: str) -> bool:
    """Whether two modules are of one class, with parameters of the same names and shapes."""
    modules = model.get_submodule(one), model.get_submodule(other)
    shapes = [{key: each.shape for key, each in module.named_parameters()} for module in modules]
    return type(modules[0]) is type(modules[1]) and shapes[0] == shapes[1]


def _calls(
    sandbox: Sandbox, call: Any, members: Sequence[str], noise: torch.Generator | None
) -> Counter[tuple[str, Any]]:
    """How often each member was called, with inputs of which shapes; with noise in what layers return."""
    calls: Counter[tuple[str, Any]] = Counter()

    def counting(name: str, original: Forward) -> Forward:
        def forward(*args: Any, **kwargs: Any) -> Any:
            given = [leaf for leaf in leaves([args, kwargs]) if isinstance(leaf, Tensor)]
            calls[name, tuple(tuple(tensor.shape) for tensor in given)] += 1
            return original(*args, **kwargs)

        return forward

    def disturbed(original: Forward) -> Forward:
        def forward(*args: Any, **kwargs: Any) -> Any:
            def add(values: Tensor) -> Tensor:
                drawn = torch.randn(values.shape, generator=noise).to(values)
                return values + drawn * (_NOISE * values.std(correction=0))

            return map_tensors(add, original(*args, **kwargs))

        return forward

    fakes: dict[nn.Module, Forward] = {}
    if noise is not None:
        for module, kind in watched_modules(sandbox.model).values():
            if kind != "norm":
                fakes[module] = disturbed(module.forward)
    for name in members:
        module = sandbox.model.get_submodule(name)
        fakes[module] = counting(name, fakes.get(module, module.forward))
    sandbox.forward(fakes, example=call)
    return calls


def _given(sandbox: Sandbox, calls: Sequence[Any], experts: Sequence[str]) -> Given:
    """What each expert was given in a pass, where that is not empty."""
    given: Given = {}

    def keeping(name: str, original: Forward) -> Forward:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if all(leaf.numel() for leaf in leaves([args, kwargs]) if isinstance(leaf, Tensor)):
                given.setdefault(name, map_tensors(lambda tensor: tensor.detach().clone(), (args, kwargs)))
            return original(*args, **kwargs)

        return forward

    modules = {name: sandbox.model.get_submodule(name) for name in experts}
    for call in calls:
        sandbox.forward({module: keeping(name, module.forward) for name, module in modules.items()}, example=call)
    return given


def _example(expert: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not kwargs:
        return args
    return kwargs if not args else dict(inspect.signature(expert.forward).bind(*args, **kwargs).arguments)


def _renamed(group: UnitGroup, prefix: str, note: str) -> UnitGroup:
    """A group of an expert as one of the whole model."""
    producers, consumers, norms = (
        [
            replace(
                port,
                module=_joined(prefix, port.module),
                norm_behind=port.norm_behind and _joined(prefix, port.norm_behind),
            )
            for port in ports
        ]
        for ports in (group.producers, group.consumers, group.norms)
    )
    notes = [each.replace("consumer ", f"consumer {prefix}.", 1) for each in group.notes]
    return UnitGroup(producers, consumers, norms, group.read and _joined(prefix, group.read), [note, *notes])


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name

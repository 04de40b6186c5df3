"""trace: find the groups of hidden units in any module.

The flow: run the model once on an example (`sandbox.py`), probe which layers consume which units (`probe.py`,
`evidence.py`), sort every layer into a group, left out or refused (`classify.py`, `families.py`), and check each group
(`verify.py`). `attachment/` and
`stacking/` bind the result to live tensors. Nothing is guessed: a layer that is not understood is refused by name, with
the declaration to pass instead.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import nn

from neoteny.layers.groups import UnitGroup
from neoteny.layers.kinds import width_in
from neoteny.wiring.calls import check_calls, split_calls
from neoteny.wiring.classify import classify
from neoteny.wiring.declare import declare, resolve_groups
from neoteny.wiring.evidence import Evidence
from neoteny.wiring.experts import find_experts, misses_members, reaches_all, with_experts
from neoteny.wiring.modules import first_name, unwrap
from neoteny.wiring.prepare import Part, prepare
from neoteny.wiring.sandbox import Sandbox, few_examples
from neoteny.wiring.saved import shapes_of
from neoteny.wiring.unite import Traced, unite
from neoteny.wiring.wiring import NOT_CALLED, Wiring, WiringError

Norm = Literal["accept", "strict", "refuse"]
LeaveOut = Sequence[str] | Literal["others"]


def trace(
    model: nn.Module,
    example: Any,
    *,
    groups: Sequence[UnitGroup] | None = None,
    leave_out: LeaveOut = (),
    norm: Norm = "accept",
    heads: bool = False,
) -> Wiring:
    """The groups of hidden units of a model: who produces each unit, who consumes it, where to read it.

    The model is run many times in evaluation and training mode without gradients, and left exactly as it was.

    Args:
        model: any module; of a compiled one the original is traced.
        example: a batch the model accepts: a tensor, a tuple of positional or a mapping of keyword arguments (what a
            tokenizer returns is one). A list holds several such calls, for a model that can be called in several ways
            (a head per task): what consumes a unit in any of them is its consumer. The first few examples of a large
            batch are used where the model accepts them.
        groups: groups that are declared, in addition to those that are found, and in place of found ones with some of
            the same rows or columns. Each is checked like a found one.
        leave_out: names of layers (or of modules that hold layers) whose units must not become a group; "others" leaves
            out all layers that are in no declared group.
        norm: "accept" includes units behind a norm that couples them (LayerNorm, RMSNorm, GroupNorm), with a note:
            parameters of other units stay as they are, but resetting a unit moves its neighbours through the shared
            statistics, by about 1 / width. "strict" leaves such units out ("refuse" is its former name).
        heads: attention heads are units, too: a head's rows of queries, keys and values, and its columns of the output
            projection. One tick then replaces a whole head.

    Raises:
        WiringError: some layers could not be understood, or a declared group is wrong.
        ValueError: the example does not fit, or the model has no hidden units.

    Example:
        >>> import torch
        >>> from torch import nn
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
    calls = split_calls(example)
    few = [few_examples(call) for call in calls]
    if any(some is not call for some, call in zip(few, calls, strict=True)):
        with contextlib.suppress(ValueError):  # it was not the batch axis: go on with the whole example
            some = few if isinstance(example, list) else few[0]
            wiring = trace(model, some, groups=groups, leave_out=leave_out, norm=norm, heads=heads)
            if reaches_all(wiring):
                return wiring
    wiring = find(model, example, groups=groups, leave_out=leave_out, norm=norm, heads=heads)
    if wiring.refused:
        raise WiringError(wiring)
    if not wiring.groups:
        raise ValueError(
            "expected a model with at least one group of hidden units (a Linear or Conv layer that feeds another one); "
            f"found none.{wiring.reasons() or ' The model has no linear layer or convolution.'}\n"
            "Units are found in modules of torch.nn (nn.Linear, nn.Conv2d, nn.LSTM). Methods that act on weights need "
            "none: neoteny.L2Init, neoteny.ShrinkAndPerturb."
        )
    _warn_uncalled(model, wiring)
    return wiring


def _warn_uncalled(model: nn.Module, wiring: Wiring) -> None:
    """Warn of layers that no example calls, where units could feed them by their number."""
    widths = {group.units for group in wiring}
    widths |= {width_in(model.get_submodule(port.module)) for group in wiring for port in group.consumers}
    fitting = [
        name
        for name in wiring.uncalled
        if wiring.left_out.get(name) == NOT_CALLED and width_in(model.get_submodule(name)) in widths
    ]
    if fitting:
        warnings.warn(
            f"the example does not call {', '.join(fitting)}, which could read the units that were found: units that "
            "are replaced would keep their weights there. Pass calls that reach them, example=[call, another], or "
            f"leave_out={fitting} if they never run.",
            RuntimeWarning,
            stacklevel=3,
        )


def find(
    model: nn.Module,
    example: Any,
    *,
    groups: Sequence[UnitGroup] | None = None,
    leave_out: LeaveOut = (),
    norm: Norm = "accept",
    heads: bool = False,
    frozen: bool = True,
) -> Wiring:
    """The wiring as of `trace`, with refused layers in it instead of an error; `frozen=False` keeps frozen layers."""
    model = unwrap(model)
    if norm not in ("accept", "strict", "refuse"):
        raise ValueError(f"norm must be 'accept' or 'strict'; got {norm!r}.")
    if isinstance(leave_out, str) and leave_out != "others":
        raise TypeError(f'leave_out must be a list of module names, or "others"; got the string {leave_out!r}.')
    if leave_out == "others" and groups is None:
        raise ValueError('leave_out="others" leaves out what is in no declared group: pass groups=[...] as well.')
    only = leave_out == "others"
    names = [] if only else [first_name(model, name, "leave_out") for name in leave_out]
    declared = None if groups is None else resolve_groups(model, groups)
    calls = split_calls(example)
    with Sandbox(model, calls[0]) as sandbox:
        if isinstance(example, list):
            check_calls(sandbox, calls)
        parts = [part for call in calls for part in prepare(sandbox, call)]
        missed = not only and misses_members(model, {name for part in parts for name in part.probe.order})
        experts = find_experts(sandbox, calls) if missed else []
        wiring = Wiring(()) if only or experts else _trace_parts(parts, names, norm, frozen, heads)
        if wiring.refused and not missed:
            experts = find_experts(sandbox, calls)
        if experts:
            parts = [part for call in calls for part in prepare(sandbox, call, experts)]
            around = _trace_parts(parts, names, norm, frozen, heads)

            def alone(expert: nn.Module, given: Any, leave_out: list[str]) -> Wiring:
                return find(expert, given, leave_out=leave_out, norm=norm, heads=heads, frozen=frozen)

            checks = [part.check for part in parts]
            wiring = with_experts(sandbox, calls, around, experts, checks, alone, names, frozen)
        if declared is not None:
            wiring = declare(model, parts, declared, wiring)
        return replace(wiring, passes=sandbox.progress.passes, shapes=shapes_of(model))


def _trace_parts(parts: Sequence[Part], leave_out: list[str], norm: Norm, frozen: bool, heads: bool) -> Wiring:
    """The wiring that holds in all ways of running a model."""
    ways: list[Traced] = []
    for part in parts:
        evidence = Evidence(part.probe, leave_out, frozen=frozen)
        several = len(parts) > 1
        found = classify(evidence, part.check, accept=norm == "accept", everywhere=several, heads=heads)
        ways.append(Traced(evidence, part.check, found))
    return unite(ways)

"""trace: find the groups of hidden units in any module.

The flow: run the model once on an example (`sandbox.py`), probe which layers consume which units (`probe.py`,
`evidence.py`), sort every layer into a group, left out or refused (`classify.py`, `families.py`), and check each group
(`verify.py`). `attachment/` and
`stacking/` bind the result to live tensors. Nothing is guessed: a layer that is not understood is refused by name, with
the declaration to pass instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import nn

from neoteny.layers.groups import UnitGroup
from neoteny.wiring.classify import classify
from neoteny.wiring.declare import declare
from neoteny.wiring.modules import first_name, unwrap
from neoteny.wiring.prepare import prepare
from neoteny.wiring.sandbox import Sandbox, as_plain, few_examples
from neoteny.wiring.saved import shapes_of
from neoteny.wiring.wiring import Wiring, WiringError

Norm = Literal["accept", "strict", "refuse"]


def trace(
    model: nn.Module,
    example: Any,
    *,
    groups: Sequence[UnitGroup] | None = None,
    leave_out: Sequence[str] = (),
    norm: Norm = "accept",
) -> Wiring:
    """The groups of hidden units of a model: who produces each unit, who consumes it, where to read it.

    The model is run many times in evaluation and training mode without gradients, and left exactly as it was.

    Args:
        model: any module; of a compiled one the original is traced.
        example: a batch the model accepts: a tensor, a tuple of positional or a dict of keyword arguments (what a
            tokenizer returns is one). The first few examples of a large one are used where the model accepts them.
        groups: declare the groups instead of finding them. Each is still checked.
        leave_out: names of layers (or of modules that hold layers) whose units must not become a group.
        norm: "accept" includes units behind a norm that couples them (LayerNorm, RMSNorm, GroupNorm), with a note:
            parameters of other units stay as they are, but resetting a unit moves its neighbours through the shared
            statistics, by about 1 / width. "strict" leaves such units out ("refuse" is its former name).

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
    example = as_plain(example)
    few = few_examples(example)
    if few is not example:
        with contextlib.suppress(ValueError):  # it was not the batch axis: go on with the whole example
            return trace(model, few, groups=groups, leave_out=leave_out, norm=norm)
    if groups is not None:
        wiring = replace(declare(model, example, groups), shapes=shapes_of(model))
    else:
        wiring = find(model, example, leave_out=leave_out, norm=norm)
    if wiring.refused:
        raise WiringError(wiring)
    if not wiring.groups:
        reasons = "".join(f"\n  {name or 'the model itself'}: {reason}" for name, reason in wiring.left_out.items())
        raise ValueError(
            "expected a model with at least one group of hidden units (a Linear or Conv layer that feeds another one); "
            f"found none.{reasons or ' The model has no linear layer or convolution.'}"
        )
    return wiring


def find(
    model: nn.Module,
    example: Any,
    *,
    leave_out: Sequence[str] = (),
    norm: Norm = "accept",
    frozen: bool = True,
) -> Wiring:
    """The wiring as of `trace`, with refused layers in it instead of an error; `frozen=False` keeps frozen layers."""
    model = unwrap(model)
    if norm not in ("accept", "strict", "refuse"):
        raise ValueError(f"norm must be 'accept' or 'strict'; got {norm!r}.")
    if isinstance(leave_out, str):
        raise TypeError(f"leave_out must be a list of module names; got the string {leave_out!r}.")
    leave_out = [first_name(model, name, "leave_out") for name in leave_out]
    with Sandbox(model, example) as sandbox:
        probe, check = prepare(sandbox)
        wiring = classify(probe, check, leave_out, accept=norm == "accept", frozen=frozen)
        return replace(wiring, passes=sandbox.progress.passes, shapes=shapes_of(model))

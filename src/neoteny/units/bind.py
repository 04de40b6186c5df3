"""From traced unit groups to live ones: what `attach` and `stack` do before the first update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from neoteny.draws.initial import Declared, declared_distributions, declared_for
from neoteny.layers.groups import UnitGroup
from neoteny.layers.parameters import layer_parameters
from neoteny.layers.parametrized import computed_from
from neoteny.units.laws import check_declared
from neoteny.units.view import LiveGroup
from neoteny.wiring.trace import LeaveOut, Norm, trace
from neoteny.wiring.wiring import Wiring


def find_groups(
    caller: str,
    model: nn.Module,
    example: Any,
    groups: Sequence[UnitGroup] | None,
    leave_out: LeaveOut,
    norm: Norm,
    wiring: Wiring | None = None,
    heads: bool = False,
) -> Wiring:
    """The unit groups of a model, traced or given; `caller` names the function whose `example` is missing."""
    if wiring is not None:
        if not isinstance(wiring, Wiring):
            raise TypeError(f"wiring must be what neoteny.trace or neoteny.Wiring.load returns; got {wiring!r}.")
        if groups is not None or leave_out or norm != "accept" or heads:
            raise ValueError(
                "wiring=... is already traced: pass groups, leave_out, norm and heads to neoteny.trace instead."
            )
        wiring.check(model)
        return wiring
    if example is None:
        raise ValueError(f"{caller} needs example=..., a batch the model accepts, to find its hidden units.")
    return trace(model, example, groups=groups, leave_out=leave_out, norm=norm, heads=heads)


def find_again(model: nn.Module, groups: Any, leave_out: Any, norm: Any, heads: bool, example: Any) -> Wiring:
    """The unit groups of a model that has changed; see `find_groups`."""
    return find_groups("refresh", model, example, groups, leave_out, norm, heads=heads)


def bind_groups(model: nn.Module, wiring: Wiring, init: Declared | None) -> list[LiveGroup]:
    """The groups bound to a model's modules and initial distributions."""
    declared = declared_distributions(model, init)
    modules = dict(model.named_modules())
    return [LiveGroup(group, modules, declared) for group in wiring.groups]


def plain_groups(wiring: Wiring, model: nn.Module) -> Wiring:
    """The wiring without groups some of whose weights are computed from other parameters, or of a recurrent layer.

    Raises:
        ValueError: no group is left.
    """

    def why(group: UnitGroup) -> str:
        for port in (*group.producers, *group.consumers):
            if port.weight != "weight":
                return f"{port.module} is recurrent, and a stack cannot train it"
            if computed_from(model.get_submodule(port.module)):
                return f"the weight of {port.module} is computed, and a stack rewrites plain weights only"
        return ""

    return without(wiring, why)


def without(wiring: Wiring, why: Callable[[UnitGroup], str]) -> Wiring:
    """The wiring without the groups for which `why` gives a reason.

    Raises:
        ValueError: no group is left.
    """
    reasons_of = {group.name: why(group) for group in wiring.groups}
    kept = tuple(group for group in wiring.groups if not reasons_of[group.name])
    left_out = {**wiring.left_out, **{name: reason for name, reason in reasons_of.items() if reason}}
    if not kept:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise ValueError(f"No hidden units are left to act on. {reasons}")
    return replace(wiring, groups=kept, left_out=left_out)


def check_initial(wiring: Wiring, model: nn.Module, init: Declared | None, label: str = "") -> None:
    """Refuse a model whose weights do not look like the distribution that new units would be drawn from."""
    declared = declared_distributions(model, init)
    check_declared(model, {name: declared_for(name, declared) for name in producers_of(wiring)}, label=label)


def check_redrawn(model: nn.Module, init: Declared | None, label: str = "") -> None:
    """Refuse a model with a layer that would be redrawn from another distribution than its weights look like.

    Weights that are all equal (an output layer that starts at zero) are put back to that value, not drawn.
    """
    declared = declared_distributions(model, init)
    constant = [name for name in redrawn_layers(model) if len(model.get_submodule(name).weight.unique()) == 1]  # pyright: ignore
    names = [name for name in redrawn_layers(model) if name not in constant]
    check_declared(model, {name: declared_for(name, declared) for name in names}, label=label)


def redrawn_layers(model: nn.Module) -> list[str]:
    """The linear layers and convolutions that have a weight of their own to train."""
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return [layer.module for layer in layer_parameters(model) if layer.weight in trained]


def producers_of(wiring: Wiring) -> list[str]:
    """The layers whose rows are units, each once; weight by weight where a layer has several."""
    return list(dict.fromkeys(port.key for group in wiring.groups for port in group.producers))


def refuse_port(groups: Sequence[LiveGroup], name: str) -> None:
    """Refuse to replace a module whose weights belong to units.

    Raises:
        ValueError: names the group.
    """
    for group in groups:
        for port in (*group.producers, *group.consumers, *group.norms):
            if f"{port.module}.".startswith(f"{name}.") or f"{name}.".startswith(f"{port.module}."):
                raise ValueError(
                    f"{name!r} cannot be replaced by another module: its weights belong to the units of group "
                    f"{group.name!r}, which another method acts on. Leave that group out (leave_out=[{group.name!r}]), "
                    "or do not combine these methods."
                )

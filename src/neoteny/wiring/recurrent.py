"""Groups of recurrent layers: from what tracing finds of a whole LSTM, GRU or RNN to its layers and directions.

The probe sees a recurrent module from outside: input features, and hidden features of its last layer. `families.py`
forms groups of those; here a port on the whole module becomes ports on its weights. The layers below the last one read
and feed each other only, so their groups follow from the module alone. All of them are checked like any other
(`verify.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.rnn import RNNBase

from neoteny.layers import recurrent
from neoteny.layers.groups import Port, UnitGroup
from neoteny.layers.recurrent import RECURRENT, Recurrent
from neoteny.wiring.wiring import Wiring

Masks = dict[str, tuple[Tensor, Tensor]]
"""Recurrent modules by name, each with the input features (bool) and the hidden ones (layers, directions, hidden) that
may move."""


def spell_out(model: nn.Module, groups: Sequence[UnitGroup]) -> list[UnitGroup]:
    """The groups with ports on the weights of recurrent modules; units of different directions in groups of their own.

    Raises:
        ValueError: two recurrent modules produce the units together, one forwards and one backwards in time.
    """
    return [part for group in groups for part in _by_direction(model, group)]


def inner_groups(name: str, module: Recurrent) -> list[UnitGroup]:
    """The groups of a module's layers below the last one."""
    hidden = module.hidden_size
    units = torch.arange(hidden)
    groups: list[UnitGroup] = []
    for layer in recurrent.hidden_layers_of(module):
        if layer.number == recurrent.depth(module) - 1:
            break
        above = recurrent.input_ports(name, module, layer.number + 1, units[:, None] + layer.direction * hidden)
        producers = recurrent.producer_ports(name, module, layer, units)
        groups.append(UnitGroup(producers, [*above, recurrent.recurrent_port(name, layer, units)], read=name))
    return groups


def is_hidden(model: nn.Module, group: UnitGroup) -> bool:
    """Whether the units of a group are hidden features of a recurrent module."""
    return any(isinstance(model.get_submodule(port.module), RECURRENT) for port in group.producers)


def without_hidden(model: nn.Module, wiring: Wiring) -> Wiring:
    """A wiring without the hidden features of recurrent modules, for measures that read inputs of layers only."""
    hidden = [group.name for group in wiring if is_hidden(model, group)]
    reasons = dict.fromkeys(hidden, "recurrent: its hidden features are not measured here")
    kept = tuple(group for group in wiring if group.name not in hidden)
    return replace(wiring, groups=kept, left_out={**wiring.left_out, **reasons})


def state_notes(states: Mapping[int, str], group: UnitGroup) -> list[str]:
    """A remark on units whose final states the model returns."""
    names = [port.module for port in group.producers if port.module in states.values()]
    return [
        f"the model returns the state of {name}, the units' own features included: give it back to the model, where "
        "a replaced unit's old state meets weights of zero; use it for nothing else"
        for name in dict.fromkeys(names)
    ]


def movable(model: nn.Module, chosen: Sequence[tuple[UnitGroup, Tensor]]) -> Masks:
    """What may move in recurrent modules with some units of groups."""
    masks: Masks = {}
    for group, units in chosen:
        for port, role in (*((p, "rows") for p in group.producers), *((p, "columns") for p in group.consumers)):
            module = model.get_submodule(port.module)
            if not isinstance(module, RECURRENT):
                continue
            layer = next(each for each in recurrent.hidden_layers_of(module) if port.weight.endswith(each.suffix))
            sizes = (recurrent.depth(module), recurrent.directions(module), module.hidden_size)
            blank = (torch.zeros(module.input_size, dtype=torch.bool), torch.zeros(sizes, dtype=torch.bool))
            columns, hidden = masks.setdefault(port.module, blank)
            features = cast(Tensor, port.features)[units]
            if role == "rows":
                hidden[layer.number, layer.direction, features.flatten() % module.hidden_size] = True
            elif port.weight.startswith("weight_ih") and layer.number == 0:
                columns[features.flatten()] = True
    return masks


def differ(
    module: Recurrent, before: list[Any], now: list[Any], allowed: tuple[Tensor, Tensor], *, given: bool
) -> bool:
    """Whether a recurrent module was given (or returned) something else, apart from features that may move.

    The first leaf is the sequence; all others that are not whole numbers are states.
    """
    if len(before) != len(now):
        return True
    columns, hidden = allowed
    first = columns if given else hidden[-1].flatten()
    for number, (left, right) in enumerate(zip(before, now, strict=True)):
        if not isinstance(left, Tensor) or not isinstance(right, Tensor) or left.shape != right.shape:
            return True
        mask = first if number == 0 else _state_mask(module, hidden, left)
        if moved(left, right, mask if left.is_floating_point() else torch.zeros((), dtype=torch.bool)):
            return True
    return False


def state_moved(module: Recurrent, left: Tensor, right: Tensor, allowed: tuple[Tensor, Tensor]) -> bool:
    """Whether a state that the model returns moved in other features than those that may."""
    return moved(left, right, _state_mask(module, allowed[1], left))


def moved(left: Tensor, right: Tensor, mask: Tensor) -> bool:
    """Whether two tensors differ where a mask is not set; NaN equals NaN."""
    if left.shape != right.shape:
        return True
    other = (left != right) & ~(torch.isnan(left) & torch.isnan(right))
    return bool((other & ~mask.to(other.device)).any())


def _state_mask(module: Recurrent, hidden: Tensor, state: Tensor) -> Tensor:
    return recurrent.state_mask(hidden, state) if isinstance(module, RNNBase) else hidden[0, 0]


def _by_direction(model: nn.Module, group: UnitGroup) -> list[UnitGroup]:
    whole = [port for port in group.producers if _is_whole(model, port)]
    if not whole:
        return [UnitGroup(group.producers, _consumers(model, group.consumers), group.norms, group.read, group.notes)]
    directions = []
    for port in whole:
        module = cast(Recurrent, model.get_submodule(port.module))
        directions.append(cast(Tensor, port.features)[:, 0] // module.hidden_size)
    if any(not torch.equal(directions[0], each) for each in directions):
        names = ", ".join(port.module for port in whole)
        raise ValueError(f"units of {names} meet, which run through time in different directions")
    return [
        _one_direction(model, group, (directions[0] == direction).nonzero().flatten(), int(direction))
        for direction in directions[0].unique()
    ]


def _one_direction(model: nn.Module, group: UnitGroup, units: Tensor, direction: int) -> UnitGroup:
    """Some units of a group, all of one direction, with ports on weights."""
    producers: list[Port] = []
    own: list[Port] = []
    hidden_first = sorted(group.producers, key=lambda port: not _is_whole(model, port))
    for port in hidden_first:
        features = cast(Tensor, port.features)[units]
        if not _is_whole(model, port):
            producers.append(Port(port.module, features, weight=port.weight))
            continue
        module = cast(Recurrent, model.get_submodule(port.module))
        layer = list(recurrent.hidden_layers_of(module))[direction - recurrent.directions(module)]
        features = features[:, 0] % module.hidden_size
        producers += recurrent.producer_ports(port.module, module, layer, features)
        own.append(recurrent.recurrent_port(port.module, layer, features))
    consumers, norms = (
        [Port(port.module, cast(Tensor, port.features)[units], weight=port.weight) for port in ports]
        for ports in (group.consumers, group.norms)
    )
    return UnitGroup(producers, [*_consumers(model, consumers), *own], norms, own[0].module, group.notes)


def _consumers(model: nn.Module, ports: Sequence[Port]) -> list[Port]:
    spelled: list[Port] = []
    for port in ports:
        if _is_whole(model, port):
            module = cast(Recurrent, model.get_submodule(port.module))
            spelled += recurrent.input_ports(port.module, module, 0, cast(Tensor, port.features))
        else:
            spelled.append(port)
    return spelled


def _is_whole(model: nn.Module, port: Port) -> bool:
    return port.weight == "weight" and isinstance(model.get_submodule(port.module), RECURRENT)

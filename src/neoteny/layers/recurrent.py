"""Recurrent layers: nn.LSTM, nn.GRU, nn.RNN and their cells, as layers of hidden units.

A unit is a hidden feature of one layer in one direction, across all gates. Its incoming weights are its rows of
`weight_ih` and `weight_hh` (row i of every gate), its outgoing ones column i of the same `weight_hh` and its columns of
what reads the layer. The module as a whole has `width_in` input features and `width_out` output features: the hidden
features of its last layer, one direction after the other.

`wiring/recurrent.py` turns what tracing finds of the whole module into groups of such units.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.rnn import RNNBase, RNNCellBase
from torch.nn.utils.rnn import PackedSequence

from neoteny.layers.groups import Port

Recurrent = RNNBase | RNNCellBase
RECURRENT = (RNNBase, RNNCellBase)


class HiddenLayer(NamedTuple):
    """One layer of a recurrent module in one direction.

    Attributes:
        number: 0 for the layer that reads the module's input.
        direction: 0 forwards in time, 1 backwards.
        suffix: of the names of its parameters: "_l0", "_l1_reverse", "" in a cell.
    """

    number: int
    direction: int
    suffix: str


def is_recurrent(module: nn.Module) -> bool:
    """Whether a module is a recurrent layer of torch whose hidden features are what it returns (no `proj_size`)."""
    return (
        isinstance(module, RECURRENT)
        and type(module).forward.__module__.startswith("torch.nn.modules")
        and "forward" not in module.__dict__
        and getattr(module, "proj_size", 0) == 0
    )


def depth(module: Recurrent) -> int:
    """The number of layers."""
    return module.num_layers if isinstance(module, RNNBase) else 1


def directions(module: Recurrent) -> int:
    """2 for a bidirectional module, else 1."""
    return 2 if isinstance(module, RNNBase) and module.bidirectional else 1


def hidden_layers_of(module: Recurrent) -> Iterator[HiddenLayer]:
    """Every layer in every direction."""
    for number in range(depth(module)):
        for direction in range(directions(module)):
            suffix = f"_l{number}" + ("_reverse" if direction else "")
            yield HiddenLayer(number, direction, suffix if isinstance(module, RNNBase) else "")


def width_out(module: Recurrent) -> int:
    """Hidden features of the last layer, over both directions."""
    return directions(module) * module.hidden_size


def weights_of(module: Recurrent) -> list[str]:
    """The names of all weights."""
    return [f"weight_{kind}{layer.suffix}" for layer in hidden_layers_of(module) for kind in ("ih", "hh")]


def gate_rows(module: Recurrent, features: Tensor) -> Tensor:
    """The rows (units, gates) of hidden features (units,) in a weight."""
    weight: Tensor = getattr(module, weights_of(module)[0])
    gates = weight.shape[0] // module.hidden_size
    return features[:, None] + torch.arange(gates) * module.hidden_size


def producer_ports(name: str, module: Recurrent, layer: HiddenLayer, features: Tensor) -> list[Port]:
    """The incoming weights of hidden features (units,) of a layer."""
    rows = gate_rows(module, features)
    return [Port(name, rows, weight=f"weight_{kind}{layer.suffix}") for kind in ("ih", "hh")]


def recurrent_port(name: str, layer: HiddenLayer, features: Tensor) -> Port:
    """The outgoing weights of hidden features (units,) to their own layer's next step."""
    return Port(name, features[:, None], weight=f"weight_hh{layer.suffix}")


def input_ports(name: str, module: Recurrent, number: int, columns: Tensor) -> list[Port]:
    """The weights by which a layer, in all directions, reads input columns (units, repeat)."""
    return [
        Port(name, columns, weight=f"weight_ih{layer.suffix}")
        for layer in hidden_layers_of(module)
        if layer.number == number
    ]


def hidden_source(weight: str) -> str:
    """The name under which the hidden states of a layer are recorded, from the name of one of its weights."""
    return weight.replace("weight_ih", "hidden").replace("weight_hh", "hidden")


def sequence(values: Any) -> Any:
    """The tensor of a sequence; of a packed one, all its steps in one axis."""
    return values.data if isinstance(values, PackedSequence) else values


def fill_hidden(module: Recurrent, returned: Any, chosen: Tensor, filling: float, *, inner: bool = False) -> Any:
    """A copy of what a module returned in which chosen features (bool, `width_out`) of its last layer hold `filling`.

    A feature's final states, hidden and cell, belong to it. With `inner`, all states of the other layers are filled
    instead.
    """
    if isinstance(module, RNNCellBase):
        return _each(returned, lambda state: _fill(state, chosen, filling))
    output, states = returned
    mask = torch.zeros(depth(module), directions(module), module.hidden_size, dtype=torch.bool)
    if inner:
        mask[:-1] = True
        chosen = torch.zeros_like(chosen)
    else:
        mask[-1] = chosen.view(directions(module), -1)
    filled = _each(states, lambda state: _fill(state, state_mask(mask, state), filling))
    if isinstance(output, PackedSequence):
        return PackedSequence(_fill(output.data, chosen, filling), *output[1:]), filled
    return _fill(output, chosen, filling), filled


def returned_states(module: Recurrent, returned: Any) -> list[Tensor]:
    """The final states, hidden and cell, in what a module returned."""
    states = returned if isinstance(module, RNNCellBase) else returned[1]
    return list(states) if isinstance(states, tuple) else [states]


def given_states(module: Recurrent, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The initial states in a call of a module; none if it starts from zeros."""
    states = args[1] if len(args) > 1 else kwargs.get("hx")
    return [] if states is None else list(states) if isinstance(states, tuple) else [states]


def state_mask(mask: Tensor, state: Tensor) -> Tensor:
    """A mask (layers, directions, hidden) over the final states that a module takes and returns."""
    rows = mask.flatten(0, 1)  # (layers * directions, hidden)
    return rows.unsqueeze(1) if state.dim() == 3 else rows


def _each(states: Any, change: Any) -> Any:
    return tuple(change(state) for state in states) if isinstance(states, tuple) else change(states)


def _fill(values: Tensor, mask: Tensor, filling: float) -> Tensor:
    return values.masked_fill(mask.to(values.device), filling)

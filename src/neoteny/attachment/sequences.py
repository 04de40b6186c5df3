"""SequenceHook: what the units of a recurrent module see and give, step by step, in training passes.

A module's output shows the hidden states of its last layer at every step. Those of the layers below it do not leave the
module, so these layers are run once more, without gradients and without dropout. Before this: the user's forward pass;
after it: `units/statistics.py` reads what was kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.rnn import RNNBase
from torch.nn.utils.rnn import PackedSequence

from neoteny.attachment.reading import ReadingHook
from neoteny.layers.recurrent import HiddenLayer, Recurrent, depth, directions, given_states, hidden_layers_of, sequence

_RUN = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu}


def sources_by_module(sources: Iterable[str]) -> dict[str, list[str]]:
    """What is recorded inside modules, by module: "lstm.hidden_l0", "lstm.weight_hh_l0"."""
    found: dict[str, list[str]] = {}
    for source in sorted(sources):
        found.setdefault(source.rpartition(".")[0], []).append(source)
    return found


class SequenceHook(ReadingHook):
    """Forward hook of a recurrent module.

    Args:
        model: the model that holds it.
        kept: where to keep what; "hidden_l0" is the hidden states of a layer, and the name of a weight is what it is
            multiplied with: "weight_hh_l0" the hidden states one step before, "weight_ih_l0" the layer's input.
    """

    def __init__(self, model: nn.Module, kept: dict[str, list[Tensor]]) -> None:
        super().__init__(model)
        self.kept = kept

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.read(args, kwargs) is None:
            return
        layer_module = cast(Recurrent, module)
        with torch.no_grad():
            given = args[0] if args else kwargs["input"]
            states = given_states(layer_module, args, kwargs)
            if isinstance(given, PackedSequence) and given.sorted_indices is not None:
                states = [state.index_select(1, given.sorted_indices) for state in states]
            inputs = self._inputs(layer_module, given, states, output)
            for layer in hidden_layers_of(layer_module):
                self._keep(layer_module, layer, inputs, states)

    def _inputs(self, module: Recurrent, given: Any, states: list[Tensor], output: Any) -> list[Any]:
        """What each layer is given, and last what the module returns."""
        if not isinstance(module, RNNBase):
            return [given, output[0] if isinstance(output, tuple) else output]
        inputs = [given]
        inner = [f"{kind}_l{number}" for number in range(depth(module) - 1) for kind in ("hidden", "weight_hh")]
        inner += [f"weight_ih_l{number}" for number in range(1, depth(module))]
        if any(name.startswith(tuple(inner)) for name in self.kept):
            for number in range(depth(module) - 1):
                inputs.append(_run_layer(module, number, inputs[-1], states))
        else:
            inputs += [None] * (depth(module) - 1)
        return [*inputs, output[0]]

    def _keep(self, module: Recurrent, layer: HiddenLayer, inputs: list[Any], states: list[Tensor]) -> None:
        below, above = inputs[layer.number], inputs[layer.number + 1]
        if (kept := self.kept.get(f"weight_ih{layer.suffix}")) is not None:
            kept.append(sequence(below).detach())
        own = slice(layer.direction * module.hidden_size, (layer.direction + 1) * module.hidden_size)
        if (kept := self.kept.get(f"hidden{layer.suffix}")) is not None:
            kept.append(sequence(above).detach()[..., own])
        if (kept := self.kept.get(f"weight_hh{layer.suffix}")) is not None:
            kept.append(_one_step_before(module, layer, above, own, states))


def _run_layer(module: RNNBase, number: int, given: Any, states: list[Tensor]) -> Any:
    """What one layer returns for its input."""
    ways = directions(module)
    share = len(module._flat_weights) // depth(module)
    weights = module._flat_weights[number * share : (number + 1) * share]
    if not states:
        rows = given.batch_sizes[0] if isinstance(given, PackedSequence) else _batch(module, given)
        zeros = sequence(given).new_zeros(ways, *rows if isinstance(rows, tuple) else (int(rows),), module.hidden_size)
        states = [zeros] * (2 if module.mode == "LSTM" else 1)
    else:
        states = [state[number * ways : (number + 1) * ways].contiguous() for state in states]
    initial: Any = tuple(states) if module.mode == "LSTM" else states[0]
    options = (module.bias, 1, 0.0, False, module.bidirectional)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*single contiguous chunk.*")  # it is one layer of several
        if isinstance(given, PackedSequence):
            data = _RUN[module.mode](given.data, given.batch_sizes, initial, weights, *options)[0]
            return PackedSequence(data, *given[1:])
        if given.dim() == 2:  # without a batch axis
            initial = tuple(each.unsqueeze(1) for each in states) if module.mode == "LSTM" else states[0].unsqueeze(1)
            return _RUN[module.mode](given.unsqueeze(1), initial, weights, *options, False)[0].squeeze(1)
        return _RUN[module.mode](given, initial, weights, *options, module.batch_first)[0]


def _batch(module: RNNBase, given: Tensor) -> tuple[int, ...]:
    return () if given.dim() == 2 else (given.shape[0 if module.batch_first else 1],)


def _one_step_before(module: Recurrent, layer: HiddenLayer, returned: Any, own: slice, states: list[Tensor]) -> Tensor:
    """The hidden states that a layer's recurrent weights are multiplied with."""
    values = sequence(returned).detach()[..., own]
    if not isinstance(module, RNNBase):
        return states[0].detach() if states else torch.zeros_like(values)
    place = layer.number * directions(module) + layer.direction
    start = states[0].detach()[place] if states else None
    if isinstance(returned, PackedSequence):
        return _before_packed(values, returned.batch_sizes.tolist(), start, backwards=layer.direction == 1)
    time = 1 if module.batch_first and values.dim() == 3 else 0
    first = torch.zeros_like(values.select(time, 0)) if start is None else start.to(values.dtype)
    steps = values.shape[time] - 1
    if layer.direction:
        return torch.cat([values.narrow(time, 1, steps), first.unsqueeze(time)], time)
    return torch.cat([first.unsqueeze(time), values.narrow(time, 0, steps)], time)


def _before_packed(values: Tensor, sizes: list[int], start: Tensor | None, *, backwards: bool) -> Tensor:
    """The same of a packed sequence (steps of all examples, hidden): the examples of step t are its first sizes[t]."""
    first = values.new_zeros(sizes[0], values.shape[-1]) if start is None else start
    steps = list(values.split(sizes))
    if not backwards:
        before = [first, *steps[:-1]]
        return torch.cat([each[:size] for each, size in zip(before, sizes, strict=True)])
    after = [*steps[1:], values[:0]]
    return torch.cat([torch.cat([each, first[len(each) : size]]) for each, size in zip(after, sizes, strict=True)])

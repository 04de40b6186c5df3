"""Which layer gives a network's output: from a pass on an example, or from a plain chain of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from neoteny.layers.kinds import kind_of
from neoteny.wiring.calls import split_calls
from neoteny.wiring.recording import Recording
from neoteny.wiring.sandbox import Sandbox


def find_output_layer(model: nn.Module, example: Any = None) -> str:
    """The name of the one linear layer or convolution whose values no other layer reads.

    Args:
        model: the network.
        example: a batch that it accepts, or None.

    Raises:
        ValueError: there are several such layers, or neither source tells; says what to pass.
    """
    return the_only(model, find_output_layers(model, example))


def find_output_layers(model: nn.Module, example: Any = None) -> tuple[str, ...]:
    """The names of all linear layers and convolutions whose values no other layer reads.

    Raises:
        ValueError: neither source tells; says what to pass.
    """
    found = _of_a_chain(model) if example is None else _of_a_pass(model, example)
    if example is None and not found:
        raise ValueError(
            f"It is not known which layer of {type(model).__name__} gives its output: pass example=..., a batch "
            "that it accepts, or name the layer, where the method has a setting for that."
        )
    return tuple(found)


def the_only(model: nn.Module, found: Sequence[str]) -> str:
    """The layer that gives the output, where there is one.

    Raises:
        ValueError: there are several, or none.
    """
    if len(found) != 1:
        said = f"{len(found)} layers give the output of" if found else "No linear layer or convolution ends"
        raise ValueError(
            f"{said} {type(model).__name__}{': ' + ', '.join(found) if found else ''}. Name the layer that is meant in "
            "the method's settings."
        )
    return found[0]


def _of_a_pass(model: nn.Module, example: Any) -> list[str]:
    """Layers whose values reach no other layer."""
    found: dict[str, bool] = {}
    with Sandbox(model, example, parameters=False) as sandbox:
        for call in split_calls(example):
            recording = Recording(sandbox, call)
            if recording.reach is None:
                raise ValueError(
                    f"The operations of {type(model).__name__} cannot be followed, so it is not known which layer "
                    "gives its output: name the layer, where the method has a setting for that."
                )
            layers = set(recording.named("boundary")) | set(recording.named("opaque"))
            for name in recording.named("boundary"):
                last = not (recording.reach[name] & (layers - {name}))
                found[name] = last and found.get(name, True)
    return [name for name, last in found.items() if last]


def _of_a_chain(model: nn.Module) -> list[str]:
    """The last layer, where a model is nothing but its children one after the other; else none."""
    if kind_of(model) == "boundary":
        return [""]
    in_order = type(model).forward is nn.Sequential.forward or getattr(model, "runs_children_in_order", False)
    if not in_order:
        return []
    for name, child in reversed(list(model.named_children())):
        if next(child.parameters(), None) is None:
            continue
        if kind_of(child) == "norm":
            continue
        return [".".join(filter(None, (name, inner))) for inner in _of_a_chain(child)]
    return []

"""Why a network cannot be trained in a stack, in words: what its forward pass does, and what to write instead.

Before this: `forward`, in which a network failed; after it: the person who wrote the network.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from neoteny.foreign_code import failing_line

_OWN_TENSOR = (
    "it writes into a tensor that it made itself; make that tensor from the inputs (x.new_zeros(...) + 0 * x), or join "
    "the parts with torch.stack and torch.cat"
)
_REASONS = (
    ("data-dependent control flow", "it branches on the values of a tensor; choose with torch.where instead"),
    (".item()", "it takes a number out of a tensor (.item(), float(...)); keep it a tensor"),
    (
        "random operation",
        "it draws from torch's global generator, so that a run would depend on its neighbours; use "
        "neoteny.nets.Dropout, which draws by (seed, step), or draw in the step of a method",
    ),
    (
        "dynamic shape",
        "the shape of a tensor depends on values (x[mask], nonzero); multiply by the mask, or use torch.where",
    ),
    ("inplace arithmetic", _OWN_TENSOR),
    ("match the broadcast shape", _OWN_TENSOR),
    ("data pointer", "it turns a tensor into a NumPy array or a list; keep it a tensor"),
    ("accessing `data`", "it uses .data; use the tensor itself, and change parameters in the step of a method"),
    ("must only return Tensors", "it returns something else than tensors"),
)


def why_not_stacked(module: nn.Module, tensors: Mapping[str, Tensor], inputs: Tensor, error: Exception) -> Exception:
    """The error to raise in the place of one that came out of the forward pass of all networks at once.

    A network that fails alone as well has an error of its own, which says more.

    Args:
        module: a module of the networks' structure.
        tensors: its tensors (n, ...).
        inputs: (n, B, ...).
        error: what was raised.
    """
    first = {name: value[0].detach().clone() for name, value in tensors.items()}
    try:
        with torch.random.fork_rng(devices=[]):
            functional_call(module, first, (inputs[0],))
    except Exception as alone:
        return alone
    text = str(error)
    known = [reason for words, reason in _REASONS if words in text]
    reason = known[0] if known else " ".join(text.split())[:200]
    line = failing_line(error)
    return ValueError(
        f"{type(module).__name__} runs alone, but not in a stack, where one pass serves all networks"
        f"{f' ({line})' if line else ''}: {reason}. Or train one network in a loop of your own, with neoteny.attach."
    )

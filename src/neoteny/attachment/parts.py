"""Parts: the layers and tensors that a model was made of when it was last looked at; before `refresh`."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_Home = Mapping[str, Tensor | None]
"""The parameters, or the buffers, of one module."""
_Known = tuple[_Home, str, Tensor, torch.Size | None]
"""Where a tensor is, its name there, the tensor and its shape (None where it has none yet)."""


class Parts:
    """What a model was made of: users put other layers in the place of some, and let weights grow.

    Args:
        modules: of the model, by name.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._tensors: dict[str, _Known] = {}
        self._parameters: list[_Known] = []
        holders: set[str] = set()
        for path, module in modules.items():
            own = _known(module._parameters)
            self._parameters += own
            for each in (*own, *_known(module._buffers)):
                self._tensors[f"{path}.{each[1]}" if path else each[1]] = each
            while own and path:  # the modules that hold the layer
                path = path.rpartition(".")[0]
                holders.add(path)
        self._children = [(modules[path]._modules, dict(modules[path]._modules)) for path in sorted(holders)]

    def changed(self) -> bool:
        """Whether a layer or a parameter is another one now, has another shape, or a layer has new neighbours.

        A parameter that is gone is not told here: who looks it up says why it may be.
        """
        for children, before in self._children:
            if children != before:
                return True
        for home, key, before, shape in self._parameters:
            value = home.get(key)
            if value is not None and (value is not before or _shape(value) != shape):
                return True
        return False

    def not_in(self, later: Parts) -> set[str]:
        """The names of the tensors that are gone, are others or have another shape in `later`.

        A buffer may be assigned at every pass: it is another one only where its module is.
        """
        found: set[str] = set()
        for name, (home, _, value, shape) in self._tensors.items():
            now = later._tensors.get(name)
            same = now is not None and (now[2] is value if isinstance(value, nn.Parameter) else now[0] is home)
            if not same or now is None or now[3] != shape:
                found.add(name)
        return found


def _known(home: _Home) -> list[_Known]:
    return [(home, key, value, _shape(value)) for key, value in home.items() if value is not None]


def _shape(tensor: Tensor) -> torch.Size | None:
    return None if is_lazy(tensor) else tensor.shape

"""Watch: what every layer is given and returns in one pass, and whether another pass differs where it must not.

`verify.py` compares a pass with another in which some units were changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup
from neoteny.layers.kinds import by_feature, couples, fill_features, kind_of, watched_modules, width_in, width_out
from neoteny.layers.recurrent import RECURRENT
from neoteny.wiring import recurrent
from neoteny.wiring.edits import features_of
from neoteny.wiring.probe import same_leaves
from neoteny.wiring.sandbox import Forward, leaves, map_tensors

Call = tuple[str, list[Tensor | float], list[Tensor | float]]  # a layer, what it was given, what it returned


class Watch:
    """Two kinds of passes: one that records, and ones that compare.

    Args:
        model: whose layers are watched.
        groups: the groups whose units are changed between passes.
        training: whether the passes run in training mode.
        states: which leaves of the model's output are states of recurrent modules, each with the module's name.

    Attributes:
        outputs: what the model returned in the first pass.
        moved: whether the second pass differs so far.
        waiting: calls of the first pass that the second has not made yet.
    """

    def __init__(
        self, model: nn.Module, groups: Sequence[UnitGroup], training: bool, states: Mapping[int, str]
    ) -> None:
        self.model, self.groups, self.states = model, groups, states
        self.hidden: recurrent.Masks = {}
        self.layers = {name: module for name, (module, kind) in watched_modules(model).items() if kind != "norm"}
        self.norms = {port.module: model.get_submodule(port.module) for group in groups for port in group.norms}
        self.norms = {name: norm for name, norm in self.norms.items() if couples(norm)}
        # how many numbers RReLU draws depends on the signs, so its noise would change with the units
        noisy = [module for module in model.modules() if training and isinstance(module, nn.RReLU)]
        self.fixed = {module: partial(F.rrelu, lower=module.lower, upper=module.upper) for module in noisy}
        self.calls: list[Call] = []
        self.kept: dict[str, list[Tensor]] = {}
        self.outputs: list[Tensor | float] = []
        self.moved = False
        self.waiting: list[Call] = []

    def recording(self) -> dict[nn.Module, Forward]:
        """The forwards of the first pass."""

        def layer(name: str, module: nn.Module) -> Forward:
            original = module.forward

            def forward(*args: Any, **kwargs: Any) -> Any:
                given = map_tensors(torch.clone, leaves([args, kwargs]))
                result = original(*args, **kwargs)
                self.calls.append((name, given, map_tensors(torch.clone, leaves(result))))
                return result

            return forward

        def norm(name: str, module: nn.Module) -> Forward:
            original = module.forward

            def forward(*args: Any, **kwargs: Any) -> Tensor:
                result = original(*args, **kwargs)
                self.kept.setdefault(name, []).append(result.clone())
                return result

            return forward

        return self._fakes(layer, norm)

    def comparing(self, chosen: list[Tensor]) -> dict[nn.Module, Forward]:
        """The forwards of a second pass, in which some units may move.

        A norm that couples units returns what it did before except for the units' own features: where such a norm was
        accepted, it may move the neighbours.
        """
        self.moved, self.waiting = False, self.calls[::-1]
        pairs = list(zip(self.groups, chosen, strict=True))
        edited = {port.module for group in self.groups for port in group.producers}
        self.hidden = recurrent.movable(self.model, pairs)
        rows = self._masks([(port, units) for group, units in pairs for port in group.producers], width_out)
        columns = self._masks([(port, units) for group, units in pairs for port in group.consumers], width_in)
        own = self._masks([(port, units) for group, units in pairs for port in group.norms], width_in)
        held = {name: iter(values) for name, values in self.kept.items()}
        attention = {name for name in edited if isinstance(self.layers.get(name), nn.MultiheadAttention)}
        # a plain Linear or Conv that is given the same returns the same
        plain = {n for n, m in self.layers.items() if kind_of(m) == "boundary" and not isinstance(m, RECURRENT)}
        unedited = plain - {*rows, *columns}

        def layer(name: str, module: nn.Module) -> Forward:
            original = module.forward

            def forward(*args: Any, **kwargs: Any) -> Any:
                before = self.waiting.pop() if self.waiting else ("", [], [])
                given = leaves([args, kwargs])
                if name in unedited and before[0] == name and same_leaves(before[1], given):
                    return cast(Tensor, before[2][0]).clone()
                hidden = self.hidden.get(name)
                if hidden is not None and isinstance(module, RECURRENT):
                    self.moved |= before[0] != name or recurrent.differ(module, before[1], given, hidden, given=True)
                    result = original(*args, **kwargs)
                    self.moved |= recurrent.differ(module, before[2], leaves(result), hidden, given=False)
                    return result
                self.moved |= before[0] != name or _differ(module, before[1], given, columns.get(name))
                result = original(*args, **kwargs)
                compared = 1 if name in attention else None  # its weights, averaged over heads, may move
                self.moved |= _differ(module, before[2][:compared], leaves(result)[:compared], rows.get(name))
                return result

            return forward

        def norm(name: str, module: nn.Module) -> Forward:
            original = module.forward
            return lambda *args, **kwargs: fill_features(module, next(held[name]), own[name], original(*args, **kwargs))

        return self._fakes(layer, norm)

    def output_moved(self, output: Any) -> bool:
        """Whether a comparing pass returned something else; the units' own features of a returned state may move."""
        now = leaves(output)
        if same_leaves(self.outputs, now):
            return False
        if len(now) != len(self.outputs):
            return True
        return any(
            not same_leaves([left], [right]) and self._state_moved(place, left, right)
            for place, (left, right) in enumerate(zip(self.outputs, now, strict=True))
        )

    def _state_moved(self, place: int, left: Tensor | float, right: Tensor | float) -> bool:
        name = self.states.get(place, "")
        if name not in self.hidden or not isinstance(left, Tensor) or not isinstance(right, Tensor):
            return True
        return recurrent.state_moved(cast(recurrent.Recurrent, self.layers[name]), left, right, self.hidden[name])

    def _fakes(
        self, layer: Callable[[str, nn.Module], Forward], norm: Callable[[str, nn.Module], Forward]
    ) -> dict[nn.Module, Forward]:
        fakes: dict[nn.Module, Forward] = {**self.fixed}
        fakes.update({module: layer(name, module) for name, module in self.layers.items()})
        fakes.update({module: norm(name, module) for name, module in self.norms.items()})
        return fakes

    def _masks(self, ports: list[tuple[Port, Tensor]], width: Callable[[nn.Module], int]) -> dict[str, Tensor]:
        """For each module the features (bool) that some units have in it."""
        masks: dict[str, Tensor] = {}
        for port, units in ports:
            layer = self.layers.get(port.module) or self.norms.get(port.module)
            if layer is None or isinstance(layer, (*RECURRENT, nn.MultiheadAttention)):
                continue  # not watched here, or by other rules
            blank = torch.zeros(width(self.model.get_submodule(port.module)), dtype=torch.bool)
            masks.setdefault(port.module, blank)[features_of(port, units)] = True
        return masks


def _differ(module: nn.Module, before: list[Tensor | float], now: list[Tensor | float], allowed: Tensor | None) -> bool:
    """Whether a layer was given or returned something else, apart from features that are allowed to move."""
    if same_leaves(before, now):
        return False
    if allowed is None or len(before) != 1 or len(now) != 1:
        return True
    left, right = before[0], now[0]
    if not isinstance(left, Tensor) or not isinstance(right, Tensor) or left.shape != right.shape:
        return True
    other = (left != right) & ~(torch.isnan(left) & torch.isnan(right))
    return bool((by_feature(module, other).any(1).cpu() & ~allowed).any())

"""verify: the check that every unit group must pass, found or declared.

A group claims that a unit affects the rest of the network only through its consumers' columns. The test: zero those
columns for some units, then change everything that produces the units (weights, biases, norm parameters, running
statistics). Neither the model's output nor any other layer's may change by one bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup
from neoteny.layers.kinds import couples, fill_features, watched_modules, width_in
from neoteny.wiring.probe import same_leaves
from neoteny.wiring.sandbox import Forward, Sandbox, leaves, map_tensors


def verify(sandbox: Sandbox, group: UnitGroup) -> str | None:
    """Why a resolved group is wrong, or None when it passes.

    Both modes are checked: in training mode a model may hand its units to code that evaluation never runs. A model
    that cannot run the example in training mode (BatchNorm on one row) is checked in evaluation mode alone.
    """
    for training in (False, True):
        for number, (chosen, sign) in enumerate(_subsets(group.units)):
            if training and number > 1:  # the first two subsets are the two halves of all units
                break
            try:
                still = _is_still(sandbox, group, chosen, sign, training)
            except Exception as error:
                if training:
                    break
                return f"the model raised {type(error).__name__} while the group was checked: {error}"
            if not still:
                mode = "training" if training else "evaluation"
                return f"other layers or the output still move with its units when all their columns are zero ({mode})"
    return None


def inert(sandbox: Sandbox, name: str, rows: Tensor) -> bool:
    """Whether nothing in the output depends on some rows of a boundary module."""
    module = sandbox.model.get_submodule(name)
    features = rows.reshape(-1, 1)
    group = UnitGroup([Port(name, features)], [Port(name, features)])
    baseline = leaves(sandbox.forward())
    for sign in (1.0, -1.0):
        with _edited([module]):
            _perturb(sandbox.model, group, torch.arange(len(features)), sign)
            if not same_leaves(baseline, leaves(sandbox.forward())):
                return False
    return True


def _is_still(sandbox: Sandbox, group: UnitGroup, chosen: Tensor, sign: float, training: bool) -> bool:
    model = sandbox.model
    modules = {port.module: model.get_submodule(port.module) for port in _all_ports(group)}
    coupled = [port for port in group.norms if couples(modules[port.module])]
    frozen: dict[str, list[Tensor]] = {port.module: [] for port in coupled}
    with _edited(list(modules.values())):
        for port in group.consumers:
            _zero_columns(modules[port.module], _features(port, chosen))
        note = {modules[port.module]: _keeping(modules[port.module], frozen[port.module]) for port in coupled}
        before = _everything(sandbox, group, note, training)
        _perturb(model, group, chosen, sign)
        hold = {
            modules[port.module]: _holding(modules[port.module], frozen[port.module], _features(port, chosen))
            for port in coupled
        }
        return same_leaves(before, _everything(sandbox, group, hold, training))


def _everything(
    sandbox: Sandbox, group: UnitGroup, fakes: dict[nn.Module, Forward], training: bool
) -> list[Tensor | float]:
    """The model's output and that of every layer but the group's own, so that a dead layer after it hides nothing."""
    seen: list[Any] = []
    own = {port.module for port in group.producers}

    def recorder(module: nn.Module) -> Forward:
        original = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            seen.append(map_tensors(torch.clone, result))
            return result

        return forward

    fakes = dict(fakes)
    for name, (module, kind) in watched_modules(sandbox.model).items():
        if kind != "norm" and name not in own:
            fakes[module] = recorder(module)
    if training:  # how many numbers RReLU draws depends on the signs, so its noise would change with the units
        for module in sandbox.model.modules():
            if isinstance(module, nn.RReLU):
                fakes[module] = partial(F.rrelu, lower=module.lower, upper=module.upper)
    return [*leaves(sandbox.forward(fakes, training=training)), *leaves(seen)]


def _subsets(units: int) -> list[tuple[Tensor, float]]:
    """Halves of the units, then single ones; every unit is changed with both signs, one revives a dead ReLU."""
    generator = torch.Generator().manual_seed(0)
    subsets: list[tuple[Tensor, float]] = []
    for sign in (1.0, -1.0):
        shuffled = torch.randperm(units, generator=generator)
        half = (units + 1) // 2
        subsets += [(shuffled[:half], sign), (shuffled[half:], sign)]
    subsets += [(torch.tensor([0]), 1.0), (torch.tensor([units - 1]), -1.0)]
    return [(chosen, sign) for chosen, sign in subsets if len(chosen)]


def _zero_columns(module: nn.Module, columns: Tensor) -> None:
    weight = cast(Tensor, module.weight).data
    groups = module.groups if isinstance(module, (nn.Conv1d, nn.Conv2d)) else 1
    # a column of a grouped convolution feeds only its own group's rows
    blocks = weight.view(groups, weight.shape[0] // groups, *weight.shape[1:])
    columns = columns.to(weight.device)
    blocks[columns // weight.shape[1], :, columns % weight.shape[1]] = 0


def _perturb(model: nn.Module, group: UnitGroup, chosen: Tensor, sign: float) -> None:
    generator = torch.Generator().manual_seed(1)
    for port in group.producers:
        module, rows = model.get_submodule(port.module), _features(port, chosen)
        weight, bias = cast(Tensor, module.weight).data, cast(Tensor | None, module.bias)
        rows = rows.to(weight.device)
        noise = torch.randn((len(rows), *weight.shape[1:]), generator=generator).to(weight)
        weight[rows] = sign * 2 * weight[rows] + noise
        if bias is not None:
            bias.data[rows] = sign * 10
    for port in group.norms:
        module, features = model.get_submodule(port.module), _features(port, chosen)
        for name, shift in (("weight", 3.0), ("bias", 3.0), ("running_mean", 3.0), ("running_var", 3.0)):
            values = getattr(module, name, None)
            if values is not None:
                moved = values.data.flatten()
                moved[features.to(moved.device)] += shift if name == "running_var" else sign * shift
                values.data.copy_(moved.view_as(values))


def _keeping(norm: nn.Module, kept: list[Tensor]) -> Forward:
    original = norm.forward

    def forward(*args: Any, **kwargs: Any) -> Tensor:
        result = original(*args, **kwargs)
        kept.append(result.clone())
        return result

    return forward


def _holding(norm: nn.Module, kept: list[Tensor], own: Tensor) -> Forward:
    """The norm's kept output except for the units' own features: an accepted norm may move the neighbours."""
    original = norm.forward
    waiting = iter(kept)

    def forward(*args: Any, **kwargs: Any) -> Tensor:
        mask = torch.zeros(width_in(norm), dtype=torch.bool)
        mask[own] = True
        return fill_features(norm, next(waiting), mask, original(*args, **kwargs))

    return forward


@contextmanager
def _edited(modules: list[nn.Module]) -> Iterator[None]:
    """A context that restores parameters and buffers of some modules bit for bit."""
    tensors = [t for m in modules for t in (*m.parameters(recurse=False), *m.buffers(recurse=False))]
    saved = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        for tensor, values in zip(tensors, saved, strict=True):
            tensor.data.copy_(values)


def _features(port: Port, chosen: Tensor) -> Tensor:
    return cast(Tensor, port.features)[chosen].flatten()


def _all_ports(group: UnitGroup) -> tuple[Port, ...]:
    return (*group.producers, *group.consumers, *group.norms)

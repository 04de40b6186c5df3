"""The numbers of every layer of hidden units on some inputs: one pass in a sandbox, read at the groups' read points.

`diagnose` measures a model and its fresh copies in this way, and `Monitor` a model while it trains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from neoteny import metrics
from neoteny.diagnosis.result import LayerDiagnosis
from neoteny.layers.groups import UnitGroup
from neoteny.layers.kinds import input_first
from neoteny.metrics.gram import ranks_by_gram
from neoteny.wiring.read_point import by_unit, read_at
from neoteny.wiring.sandbox import Sandbox
from neoteny.wiring.wiring import Wiring

MOST_ROWS = 2000
"""Rows (examples, or examples times positions) for measuring a rank: as many as in the paper; takes seconds at most."""

QUICK_ROWS = 500
"""The same where it is measured again and again while a network trains."""

_LARGE = 8192.0  # beyond it every bounded activation function is flat; a power of two stays exact in half precision
_SEED = 0

Bounds = Mapping[str, tuple[float, float] | None]
_Reader = Callable[[Tensor], None]


def _run(
    sandbox: Sandbox,
    readers: Iterable[tuple[str, _Reader]],
    constants: Mapping[str, float] | None = None,
    example: Any = None,
) -> None:
    """One pass in which `readers` see the inputs of the named modules, and `constants` replace outputs.

    A replaced module is still called through its hooks, so that a reader sees exactly what its module consumes.
    """
    by_module: dict[str, list[_Reader]] = {name: [] for name in constants or {}}
    for name, reader in readers:
        by_module.setdefault(name, []).append(reader)
    fakes = {}
    for name, some in by_module.items():
        module = sandbox.model.get_submodule(name)
        fakes[module] = _with_readers(module, some, (constants or {}).get(name))
    sandbox.forward(fakes, example=example)


def _with_readers(module: nn.Module, readers: list[_Reader], constant: float | None) -> Callable[..., Tensor]:
    def forward(*args: Any, **kwargs: Any) -> Tensor:
        values = args[0] if args else next(iter(kwargs.values()))
        for reader in readers:
            reader(values)
        outputs = type(module).forward(module, *args, **kwargs)
        return outputs if constant is None else torch.full_like(outputs, constant)

    return forward


def _rows_of(module: nn.Module, group: UnitGroup) -> Callable[[Tensor], Tensor]:
    """From a module's input to (rows, units): every example and position is a row, as is every column of a flatten."""
    return lambda values: by_unit(module, group, values).flatten(1).T


def find_bounds(sandbox: Sandbox, wiring: Wiring, example: Any) -> Bounds:
    """The limits of each layer's activation function, None where it has none.

    Found by trying: producers return huge constants of either sign, and what arrives at the reader is a
    limit if twice the constant gives the same. A norm over several units turns any constant into a limit, so behind
    one the limits are unknown; so are those of a product of two producers.
    """
    simple: list[UnitGroup] = []
    for group in wiring:
        between = [sandbox.model.get_submodule(port.module) for port in group.norms if port.module != group.read]
        if len(group.producers) == 1 and all(isinstance(module, _BatchNorm) for module in between):
            simple.append(group)
    seen: dict[str, list[Tensor]] = {group.name: [] for group in wiring}
    readers = [(read_at(group), _keep(sandbox.model, group, seen[group.name])) for group in simple]
    try:
        for constant in (_LARGE, 2 * _LARGE, -_LARGE, -2 * _LARGE):
            _run(sandbox, readers, {group.producers[0].module: constant for group in simple}, example)
    except Exception:  # the model rejects such values: its limits stay unknown
        return dict.fromkeys(seen)
    return {name: _limits(values) for name, values in seen.items()}


def _keep(model: nn.Module, group: UnitGroup, kept: list[Tensor]) -> _Reader:
    rows = _rows_of(model.get_submodule(read_at(group)), group)
    return lambda values: kept.append(rows(values).float())


def _limits(values: list[Tensor]) -> tuple[float, float] | None:
    calls = len(values) // 4  # of each of the four passes
    if not calls or len(values) % 4 or not all(bool(value.isfinite().all()) for value in values):
        return None
    up, further_up, down, further_down = (torch.cat(values[n * calls : (n + 1) * calls]) for n in range(4))
    if not (torch.allclose(up, further_up, 1e-2, 1e-2) and torch.allclose(down, further_down, 1e-2, 1e-2)):
        return None
    low, high = (float(find(torch.stack([up, down]))) for find in (torch.min, torch.max))
    return (low, high) if high - low > 0.1 else None  # a function without two ends: a bump, a constant


class _Layer:
    """Collects one layer's numbers while the pass runs, so that no activations are kept."""

    def __init__(self, module: nn.Module, group: UnitGroup, bounds: tuple[float, float] | None, most: int) -> None:
        self.bounds = bounds
        self.most = most
        self.dead: Tensor | None = None
        self.saturated: Tensor | None = None
        self.sample: list[Tensor] = []
        self.finite = True
        self._rows = _rows_of(module, group)

    def __call__(self, values: Tensor) -> None:
        rows = self._rows(values)
        self.dead = _both(self.dead, metrics.dead_units(rows))
        if self.bounds is not None:
            self.saturated = _both(self.saturated, metrics.saturated_units(rows, *self.bounds))
        self.finite = self.finite and bool(rows.isfinite().all())
        self.sample.append(_sample(rows, self.most).cpu())  # small float64 decompositions are as fast on the CPU


def _both(before: Tensor | None, now: Tensor) -> Tensor:
    return now if before is None else before & now


def _sample(rows: Tensor, most: int) -> Tensor:
    """At most `most` rows, chosen by a fixed seed; even steps would hit the same position of each image."""
    if len(rows) <= most:
        return rows
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(_SEED))[:most]
    return rows[chosen.to(rows.device)]


def measure(
    sandbox: Sandbox, wiring: Wiring, bounds: Bounds, batches: Sequence[Any] = (None,), *, quickly: bool = False
) -> dict[str, LayerDiagnosis]:
    """Every layer that a pass called, by name.

    Args:
        sandbox: holds the model, and the example that a batch of None stands for.
        wiring: its unit groups.
        bounds: of `find_bounds`.
        batches: one pass each; what they give is measured together.
        quickly: with fewer rows, and ranks by Gram matrices: a tenth of the time for wide layers, the effective rank
            to 1e-6.
    """
    most = QUICK_ROWS if quickly else MOST_ROWS
    layers = {
        group.name: _Layer(sandbox.model.get_submodule(read_at(group)), group, bounds[group.name], most)
        for group in wiring
    }
    for batch in batches:
        _run(sandbox, [(read_at(group), layers[group.name]) for group in wiring], example=batch)
    return {
        group.name: _layer_numbers(sandbox.model, group, layers[group.name], quickly)
        for group in wiring
        if layers[group.name].dead is not None
    }


def _layer_numbers(model: nn.Module, group: UnitGroup, layer: _Layer, quickly: bool) -> LayerDiagnosis:
    sample = _sample(torch.cat(layer.sample), layer.most)
    dead = int(cast(Tensor, layer.dead).sum())
    saturated = None if layer.saturated is None else float(layer.saturated.double().mean())
    ranks = ranks_by_gram(sample) if quickly else (metrics.effective_rank(sample), metrics.stable_rank(sample))
    effective_rank, stable_rank = map(float, ranks)
    return LayerDiagnosis(
        name=group.name,
        units=group.units,
        dead=dead,
        dead_share=dead / group.units if layer.finite else math.nan,
        saturated_share=saturated if layer.finite or saturated is None else math.nan,
        effective_rank=effective_rank,
        stable_rank=stable_rank,
        weight_magnitude=incoming_magnitude(model, group),
        rows=len(sample),
    )


def incoming_magnitude(model: nn.Module, group: UnitGroup) -> float:
    """Mean absolute incoming weight of a group's units."""
    incoming: list[Tensor] = []
    for port in group.producers:
        module = model.get_submodule(port.module)
        weight = cast(Tensor, module.weight)
        if input_first(module):  # (in, out / groups, ...), each group of a transposed convolution on its own
            by_group = weight.unflatten(0, (getattr(module, "groups", 1), -1))
            weight = by_group.transpose(1, 2).flatten(0, 1)
        incoming.append(weight[cast(Tensor, port.features).flatten()])
    return float(metrics.weight_magnitude(incoming))

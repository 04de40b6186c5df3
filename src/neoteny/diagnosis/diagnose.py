"""diagnose: whether a network is losing its ability to learn, layer by layer and in words.

The flow: `wiring/trace.py` finds the hidden units, one pass on the user's inputs reads them, and `metrics/` measures
them. A freshly initialised copy of the same network (`fresh_copy.py`), measured on the same inputs, shows what would be
normal. `result.py` puts the difference into words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from neoteny import metrics
from neoteny.diagnosis.fresh_copy import FreshCopies, checked_copy, has_seen_data, set_norm_statistics
from neoteny.diagnosis.result import Diagnosis, LayerDiagnosis, needs_more, sentences_on, with_copy
from neoteny.layers.groups import UnitGroup
from neoteny.wiring.modules import unwrap
from neoteny.wiring.read_point import by_unit, read_at
from neoteny.wiring.recurrent import without_hidden
from neoteny.wiring.sandbox import Sandbox, few_examples, leaves
from neoteny.wiring.trace import Norm, find
from neoteny.wiring.wiring import Wiring

MOST_ROWS = 2000
"""Rows (examples, or examples times positions) for measuring a rank: as many as in the paper; takes seconds at most."""

MOST_COPIES = 8
"""Fresh copies that are drawn where the first differs from the model: small layers differ from copy to copy."""

_LARGE = 8192.0  # beyond it every bounded activation function is flat; a power of two stays exact in half precision
_SEED = 0


def diagnose(model: nn.Module, inputs: Any, *, control: bool | nn.Module = True, norm: Norm = "accept") -> Diagnosis:
    """The measures of every layer of hidden units on some inputs, and in words what is wrong.

    The model runs in evaluation mode without gradients, and is left exactly as it was. Frozen layers count too.

    Args:
        model: any feed-forward module.
        inputs: a batch the model accepts: a tensor, a tuple of positional or a dict of keyword arguments. The more
            examples the better: a unit is dead if it is silent on all of them, and no rank exceeds their number.
        control: compare with a copy of the model whose weights are drawn again and whose batch norms, if the model's
            have seen data, have seen these inputs. Weights are drawn as an attachment draws new units, else as the
            model declares in `initial_distributions`, else by the model's own code (`_init_weights`, `init_weights`,
            `reset_parameters`), else as they still look drawn, else by torch's own. If none of these is how the model
            was initialised, pass a fresh model instead. False: no comparison.
        norm: "accept" includes units behind a LayerNorm, "refuse" leaves them out.

    Raises:
        TypeError: not a module.
        ValueError: inputs the model does not accept, fewer than two examples, or no hidden units.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 2))
        >>> with torch.no_grad():
        ...     _ = model[0].bias[:3].fill_(-1e3)
        >>> found = diagnose(model, torch.randn(64, 4))
        >>> found.layers[0].dead
        3
        >>> print(found.verdict[0])
        30% of 0's units (3 of 10) never fire on these inputs; in a fresh copy: 0%.
    """
    model = unwrap(model)
    if not isinstance(control, (bool, nn.Module)):
        raise TypeError(f"control must be True, False or a fresh nn.Module; got {type(control).__name__}.")
    _check_examples(inputs)
    wiring, example = _find(model, inputs, norm)
    notes: list[str] = []
    with Sandbox(model, inputs) as sandbox:  # it also puts the random states back that the fresh copy is drawn with
        bounds = _bounds(sandbox, wiring, example)
        layers = _measure(sandbox, wiring, bounds)
        fresh_magnitude: float | None = None
        if control is not False:
            copies = FreshCopies(model) if control is True else None
            fresh = checked_copy(model, unwrap(cast(nn.Module, control))) if copies is None else copies.draw(0)
            twins = _measure_fresh(model, fresh, inputs, wiring, bounds)
            layers = {name: replace(layer, fresh=twins.get(name)) for name, layer in layers.items()}
            fresh_magnitude = float(metrics.weight_magnitude(fresh.parameters()))
            if copies is not None:
                notes += copies.notes
                more = any(needs_more(layer) for layer in layers.values())
                for seed in range(1, MOST_COPIES) if more else ():
                    twins = _measure_fresh(model, copies.draw(seed), inputs, wiring, bounds)
                    layers = {name: with_copy(layer, twins.get(name)) for name, layer in layers.items()}
    silent = {group.name: "not called on these inputs" for group in wiring if group.name not in layers}
    short = [layer.name for layer in layers.values() if layer.rows < layer.units]
    if short:
        notes.append(f"fewer rows than units, so that no rank can reach the number of units: {', '.join(short)}")
    found = Diagnosis(
        tuple(layers.values()),
        float(metrics.weight_magnitude(model.parameters())),
        fresh_magnitude,
        (),
        {**wiring.left_out, **silent},
        wiring.refused,
        tuple(notes),
    )
    return replace(found, verdict=tuple(sentences_on(found)))


# --- where the units are ---------------------------------------------------------------------------------------------


def _check_examples(inputs: Any) -> None:
    """At least two examples: the first axis of the first tensor."""
    sizes = [leaf.shape[0] for leaf in leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()]
    if not sizes:
        raise ValueError(
            f"inputs must be a batch of examples (a tensor, a tuple or a dict of tensors); got {type(inputs).__name__} "
            "without any."
        )
    if sizes[0] < 2:
        raise ValueError(f"inputs must hold at least 2 examples, better hundreds: a rank needs rows; got {sizes[0]}.")


def _find(model: nn.Module, inputs: Any, norm: Norm) -> tuple[Wiring, Any]:
    """The unit groups, and the batch they were found with: a few examples, or all where few are not enough."""
    wiring: Wiring | None = None
    example = few_examples(inputs)
    if example is not inputs:
        try:
            wiring = find(model, example, norm=norm, frozen=False)
        except Exception:  # not the batch axis, or a fixed batch size: go on with all inputs
            wiring = None
    if wiring is None or not wiring.groups:
        example = inputs
        wiring = find(model, example, norm=norm, frozen=False)
    wiring = without_hidden(model, wiring)
    if not wiring.groups:
        reasons = {**wiring.left_out, **wiring.refused}
        listed = "".join(f"\n  {name or 'the model itself'}: {reason}" for name, reason in reasons.items())
        raise ValueError(
            "expected a model with at least one layer of hidden units (a Linear or Conv layer that feeds another one); "
            f"found none.{listed or ' The model has no linear layer or convolution.'}"
        )
    return wiring, example


# --- reading and measuring -------------------------------------------------------------------------------------------

_Bounds = Mapping[str, tuple[float, float] | None]
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


def _bounds(sandbox: Sandbox, wiring: Wiring, example: Any) -> _Bounds:
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

    def __init__(self, module: nn.Module, group: UnitGroup, bounds: tuple[float, float] | None) -> None:
        self.bounds = bounds
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
        self.sample.append(_sample(rows).cpu())  # small float64 decompositions are as fast on the CPU


def _both(before: Tensor | None, now: Tensor) -> Tensor:
    return now if before is None else before & now


def _sample(rows: Tensor) -> Tensor:
    """At most MOST_ROWS rows, chosen by a fixed seed; even steps would hit the same position of each image."""
    if len(rows) <= MOST_ROWS:
        return rows
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(_SEED))[:MOST_ROWS]
    return rows[chosen.to(rows.device)]


def _measure(sandbox: Sandbox, wiring: Wiring, bounds: _Bounds) -> dict[str, LayerDiagnosis]:
    """Every layer that the pass called, by name."""
    layers = {
        group.name: _Layer(sandbox.model.get_submodule(read_at(group)), group, bounds[group.name]) for group in wiring
    }
    _run(sandbox, [(read_at(group), layers[group.name]) for group in wiring])
    return {
        group.name: _layer_numbers(sandbox.model, group, layers[group.name])
        for group in wiring
        if layers[group.name].dead is not None
    }


def _measure_fresh(
    model: nn.Module, fresh: nn.Module, inputs: Any, wiring: Wiring, bounds: _Bounds
) -> dict[str, LayerDiagnosis]:
    if has_seen_data(model):
        set_norm_statistics(fresh, inputs)
    with Sandbox(fresh, inputs) as sandbox:
        return _measure(sandbox, wiring, bounds)


def _layer_numbers(model: nn.Module, group: UnitGroup, layer: _Layer) -> LayerDiagnosis:
    sample = _sample(torch.cat(layer.sample))
    dead = int(cast(Tensor, layer.dead).sum())
    saturated = None if layer.saturated is None else float(layer.saturated.double().mean())
    incoming = [
        cast(Tensor, model.get_submodule(port.module).weight)[cast(Tensor, port.features).flatten()]
        for port in group.producers
    ]
    return LayerDiagnosis(
        name=group.name,
        units=group.units,
        dead=dead,
        dead_share=dead / group.units if layer.finite else math.nan,
        saturated_share=saturated if layer.finite or saturated is None else math.nan,
        effective_rank=float(metrics.effective_rank(sample)),
        stable_rank=float(metrics.stable_rank(sample)),
        weight_magnitude=float(metrics.weight_magnitude(incoming)),
        rows=len(sample),
    )

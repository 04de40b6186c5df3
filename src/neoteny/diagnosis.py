"""diagnose: is a network losing its ability to learn, layer by layer and in words.

The flow: `wiring.find` says where the hidden units are, one pass on the user's inputs reads them, `metrics` measures
them, and a freshly initialised copy of the same network, measured on the same inputs, says what would be normal. The
sentences of the verdict name what differs and what to do about it.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from neoteny import metrics
from neoteny.groups import UnitGroup
from neoteny.initial import Distribution, declared_distributions, declared_for, resolve
from neoteny.kinds import BOUNDARIES, by_feature
from neoteny.stage import Stage, call, leaves, map_tensors
from neoteny.table import render
from neoteny.wiring import Norm, Wiring, find
from neoteny.wiring import unwrap as unwrap

MOST_ROWS = 2000
"""Rows (examples, or examples times positions) a rank is measured on: as many as the paper's, and seconds at most."""

TRACED_EXAMPLES = 8
"""Tracing runs the model dozens of times; the wiring does not depend on how many examples it sees."""

NOTABLE_SHARE = 0.05
"""Dead or saturated units are worth a sentence from here on: a healthy layer has a few per cent at most."""

NOTABLE_RANK = 0.5
"""An effective rank below this share of a fresh copy's: fresh copies differ by per cents, and fitting one task costs
some rank without any harm, but half of it gone is more than either."""

NOTABLE_RANK_ALONE = 0.1
"""Without a fresh copy: an effective rank below this share of the largest possible one. Fresh layers are well above."""

NOTABLE_GROWTH = 3.0
"""Weights this many times as large as a fresh copy's. Initial distributions that a model may set by hand reach 2.9
times torch's own (Kaiming for tanh), and a network that was merely initialised another way must not be called grown."""

_LARGE = 8192.0  # beyond it every bounded activation function is flat; a power of two stays exact in half precision
_SEED = 0


@dataclass(frozen=True)
class LayerDiagnosis:
    """One layer of hidden units on the given inputs.

    Attributes:
        name: the unit group's name, its first producer.
        units: how many.
        dead: how many are exactly zero on every input, as a ReLU unit that no longer learns. Smooth functions (GELU)
            hardly ever are: their rank tells more.
        dead_share: the same as a share; nan if activations are not finite.
        saturated_share: share of the units within 0.01 of a limit of their activation function on every input; None
            unless the function is bounded (tanh, sigmoid, a clamp), which is tried out, not guessed from the values.
        effective_rank, stable_rank: of the activations (rows, units), not centred.
        weight_magnitude: mean absolute incoming weight.
        rows: rows of the ranks: examples, or a fixed random choice of examples and positions.
        fresh: the same layer of the freshly initialised copy.
    """

    name: str
    units: int
    dead: int
    dead_share: float
    saturated_share: float | None
    effective_rank: float
    stable_rank: float
    weight_magnitude: float
    rows: int
    fresh: LayerDiagnosis | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return asdict(self)


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found. Print it for a table and the verdict.

    Attributes:
        layers: in the order of the forward pass.
        weight_magnitude: mean absolute weight of the whole model, biases left out.
        fresh_weight_magnitude: that of the fresh copy, or None without one.
        verdict: sentences.
        left_out, refused: layers without numbers, each with the reason.
        notes: what limits the numbers.
    """

    layers: tuple[LayerDiagnosis, ...]
    weight_magnitude: float
    fresh_weight_magnitude: float | None
    verdict: tuple[str, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts, ready for JSON (nan where nothing can be measured)."""
        plain = asdict(self)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}

    def __str__(self) -> str:
        lines = [_table(self), "", "verdict", *(f"  {sentence}" for sentence in self.verdict)]
        if self.notes:
            lines += ["", "notes", *(f"  {note}" for note in self.notes)]
        for title, reasons in (("left out", self.left_out), ("refused", self.refused)):
            if reasons:
                lines += ["", title, *(f"  {name}: {reason}" for name, reason in reasons.items())]
        return "\n".join(lines)


def diagnose(model: nn.Module, inputs: Any, *, control: bool | nn.Module = True, norm: Norm = "accept") -> Diagnosis:
    """Measure every layer of hidden units on some inputs, and say in words what is wrong.

    The model runs in evaluation mode without gradients, and is left exactly as it was. Frozen layers count too.

    Args:
        model: any feed-forward module.
        inputs: a batch the model accepts: a tensor, a tuple of positional or a dict of keyword arguments. The more
            examples the better: a unit is dead if it is silent on all of them, and no rank exceeds their number.
        control: compare with a copy of the model whose layers are drawn anew (`reset_parameters`, or what the model
            declares in `initial_distributions`) and whose batch norms, if the model's have seen data, have seen these
            inputs. If that is not how the model was initialised, pass a fresh model instead. False: no comparison.
        norm: "accept" includes units behind a LayerNorm, "refuse" leaves them out.

    Raises:
        TypeError: not a module.
        ValueError: inputs the model does not accept, fewer than two examples, or no hidden units.

    Example:
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
    examples = _examples(inputs)
    wiring, example = _find(model, inputs, examples, norm)
    notes: list[str] = []
    with Stage(model, inputs) as stage:  # it also puts the random states back that the fresh copy is drawn with
        bounds = _bounds(stage, wiring, example)
        layers = _measure(stage, wiring, bounds)
        fresh_magnitude: float | None = None
        if control is not False:
            fresh = _fresh_copy(model, notes) if control is True else _checked_copy(model, unwrap(control))
            if _has_seen_data(model):
                _settle_norms(fresh, inputs)
            with Stage(fresh, inputs) as fresh_stage:
                twins = _measure(fresh_stage, wiring, bounds)
            layers = {name: replace(layer, fresh=twins.get(name)) for name, layer in layers.items()}
            fresh_magnitude = float(metrics.weight_magnitude(fresh.parameters()))
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
    return replace(found, verdict=tuple(_verdict(found)))


# --- where the units are ---------------------------------------------------------------------------------------------


def _examples(inputs: Any) -> int:
    """The number of examples: the first axis of the first tensor."""
    sizes = [leaf.shape[0] for leaf in leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()]
    if not sizes:
        raise ValueError(
            f"inputs must be a batch of examples (a tensor, a tuple or a dict of tensors); got {type(inputs).__name__} "
            "without any."
        )
    if sizes[0] < 2:
        raise ValueError(f"inputs must hold at least 2 examples, better hundreds: a rank needs rows; got {sizes[0]}.")
    return sizes[0]


def _find(model: nn.Module, inputs: Any, examples: int, norm: Norm) -> tuple[Wiring, Any]:
    """The unit groups, and the batch they were found with: a few examples, or all where few do not do."""

    def few(tensor: Tensor) -> Tensor:
        return tensor[:TRACED_EXAMPLES] if tensor.dim() and tensor.shape[0] == examples else tensor

    wiring: Wiring | None = None
    example = inputs
    if examples > TRACED_EXAMPLES:
        example = map_tensors(few, inputs)
        try:
            wiring = find(model, example, norm=norm, frozen=False)
        except Exception:  # an axis that only looked like the batch, a fixed batch size: whatever it was, all will tell
            wiring = None
    if wiring is None or not wiring.groups:
        example = inputs
        wiring = find(model, example, norm=norm, frozen=False)
    if not wiring.groups:
        reasons = {**wiring.left_out, **wiring.refused}
        listed = "".join(f"\n  {name or 'the model itself'}: {reason}" for name, reason in reasons.items())
        raise ValueError(
            "expected a model with at least one layer of hidden units (a Linear or Conv layer that feeds another one); "
            f"found none.{listed or ' The model has no Linear, Conv1d or Conv2d.'}"
        )
    return wiring, example


# --- reading and measuring -------------------------------------------------------------------------------------------

_Bounds = Mapping[str, tuple[float, float] | None]
_Reader = Callable[[Tensor], None]


def _run(
    stage: Stage,
    readers: Iterable[tuple[str, _Reader]],
    constants: Mapping[str, float] | None = None,
    example: Any = None,
) -> None:
    """One pass in which `readers` see the inputs of the named modules, and `constants` replace outputs.

    Whoever is replaced is still called through its hooks, so that a reader sees exactly what its module consumes.
    """
    by_module: dict[str, list[_Reader]] = {name: [] for name in constants or {}}
    for name, reader in readers:
        by_module.setdefault(name, []).append(reader)
    fakes = {}
    for name, some in by_module.items():
        module = stage.model.get_submodule(name)
        fakes[module] = _overheard(module, some, (constants or {}).get(name))
    stage.forward(fakes, example=example)


def _overheard(module: nn.Module, readers: list[_Reader], constant: float | None) -> Callable[..., Tensor]:
    def forward(*args: Any, **kwargs: Any) -> Tensor:
        values = args[0] if args else next(iter(kwargs.values()))
        for reader in readers:
            reader(values)
        outputs = type(module).forward(module, *args, **kwargs)
        return outputs if constant is None else torch.full_like(outputs, constant)

    return forward


def _read_at(group: UnitGroup) -> str:
    return group.read or group.consumers[0].module


def _rows_of(module: nn.Module, group: UnitGroup) -> Callable[[Tensor], Tensor]:
    """From a module's input to (rows, units): every example and position is a row, as is every column of a flatten."""
    port = next(port for port in (*group.consumers, *group.norms) if port.module == _read_at(group))
    features = cast(Tensor, port.features)

    def rows(values: Tensor) -> Tensor:
        per_unit = by_feature(module, values)[features.to(values.device)]  # (U, repeat, examples and positions)
        return per_unit.flatten(1).T

    return rows


def _bounds(stage: Stage, wiring: Wiring, example: Any) -> _Bounds:
    """The limits of each layer's activation function, None where it has none.

    Tried out rather than guessed: producers return huge constants of either sign, and what arrives at the reader is a
    limit if twice the constant gives the same. A norm over several units turns any constant into a limit, so behind
    one there is no telling; nor for the product of two producers.
    """
    simple: list[UnitGroup] = []
    for group in wiring:
        between = [stage.model.get_submodule(port.module) for port in group.norms if port.module != group.read]
        if len(group.producers) == 1 and all(isinstance(module, _BatchNorm) for module in between):
            simple.append(group)
    seen: dict[str, list[Tensor]] = {group.name: [] for group in wiring}
    readers = [(_read_at(group), _keep(stage.model, group, seen[group.name])) for group in simple]
    try:
        for constant in (_LARGE, 2 * _LARGE, -_LARGE, -2 * _LARGE):
            _run(stage, readers, {group.producers[0].module: constant for group in simple}, example)
    except Exception:  # the model rejects such values; it was not asked whether it accepts them
        return dict.fromkeys(seen)
    return {name: _limits(values) for name, values in seen.items()}


def _keep(model: nn.Module, group: UnitGroup, kept: list[Tensor]) -> _Reader:
    rows = _rows_of(model.get_submodule(_read_at(group)), group)
    return lambda values: kept.append(rows(values).float())


def _limits(values: list[Tensor]) -> tuple[float, float] | None:
    if len(values) != 4 or not all(bool(value.isfinite().all()) for value in values):
        return None
    up, further_up, down, further_down = values
    if not (torch.allclose(up, further_up, 1e-2, 1e-2) and torch.allclose(down, further_down, 1e-2, 1e-2)):
        return None
    low, high = (float(find(torch.stack([up, down]))) for find in (torch.min, torch.max))
    return (low, high) if high - low > 0.1 else None  # a function without two ends: a bump, a constant


class _Layer:
    """Gathers what one layer's numbers need while the pass runs, so that no activations are kept."""

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
        self.sample.append(_sample(rows).cpu())  # float64 decompositions: no accelerator is better at small ones


def _both(before: Tensor | None, now: Tensor) -> Tensor:
    return now if before is None else before & now


def _sample(rows: Tensor) -> Tensor:
    """At most MOST_ROWS rows, always the same ones of as many; even steps would hit the same position of each image."""
    if len(rows) <= MOST_ROWS:
        return rows
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(_SEED))[:MOST_ROWS]
    return rows[chosen.to(rows.device)]


def _measure(stage: Stage, wiring: Wiring, bounds: _Bounds) -> dict[str, LayerDiagnosis]:
    """Every layer that the pass called, by name."""
    layers = {
        group.name: _Layer(stage.model.get_submodule(_read_at(group)), group, bounds[group.name]) for group in wiring
    }
    _run(stage, [(_read_at(group), layers[group.name]) for group in wiring])
    return {
        group.name: _layer_numbers(stage.model, group, layers[group.name])
        for group in wiring
        if layers[group.name].dead is not None
    }


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


# --- the fresh copy --------------------------------------------------------------------------------------------------


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise ValueError(
            f"control=True needs a copy of the model, but copying it raised {type(error).__name__}: {error}: pass "
            "control=False, or a fresh model as control."
        ) from error


@torch.no_grad()
def _fresh_copy(model: nn.Module, notes: list[str]) -> nn.Module:
    """The model with every layer drawn anew; parameters that nobody can draw keep their values, and a note says so."""
    fresh = _copy(model)
    before = {name: (parameter, parameter._version) for name, parameter in fresh.named_parameters()}
    torch.manual_seed(_SEED)
    for module in reversed(list(fresh.modules())):  # a parent's own way of drawing comes last, as in its constructor
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if callable(reset):
            with contextlib.suppress(Exception):  # it may take arguments that only its author knows
                reset()
    declared = declared_distributions(model, None)
    for name, module in fresh.named_modules():
        distribution = None
        if isinstance(module, BOUNDARIES) and declared_for(name, declared) != "default":
            distribution = resolve(module, declared_for(name, declared))
        if isinstance(distribution, Distribution):
            scale = distribution.scale
            uniform = distribution.family == "uniform"
            module.weight.uniform_(-scale, scale) if uniform else module.weight.normal_(0.0, scale)  # pyright: ignore
            if module.bias is not None:
                cast(Tensor, module.bias).zero_()
    after = dict(fresh.named_parameters())
    kept = [name for name, (old, version) in before.items() if after.get(name) is old and old._version == version]
    if kept:
        notes.append(f"the fresh copy keeps parameters that nothing says how to draw: {', '.join(kept)}")
    return fresh


def _checked_copy(model: nn.Module, fresh: nn.Module) -> nn.Module:
    """The user's fresh model, on the model's device and in its precision; its own stays as it is."""
    shapes, others = ({name: tuple(p.shape) for name, p in some.named_parameters()} for some in (model, fresh))
    if shapes != others:
        name = next(name for name in {**shapes, **others} if shapes.get(name) != others.get(name))
        raise ValueError(
            f"control must be a fresh model of the same architecture; its {name!r} has shape {others.get(name)}, "
            f"the model's {shapes.get(name)}."
        )
    like = next(model.parameters())
    return _copy(fresh).to(like.device, like.dtype)


def _has_seen_data(model: nn.Module) -> bool:
    """Whether the batch norms have statistics; those of a model that never trained are as fresh as a fresh copy's."""
    counts = [module.num_batches_tracked for module in model.modules() if isinstance(module, _NormBase)]
    return any(count is not None and bool(count) for count in counts)


def _settle_norms(fresh: nn.Module, inputs: Any) -> None:
    """Let batch norms take their statistics from these inputs.

    With the mean 0 and variance 1 that they start with they would not normalise at all, as no network in training does.
    """
    tracking = [module for module in fresh.modules() if isinstance(module, _NormBase) and module.track_running_stats]
    if not tracking:
        return
    fresh.eval()
    momenta = [module.momentum for module in tracking]
    for module in tracking:
        module.train()
        module.momentum = 1.0
    with torch.no_grad():
        call(fresh, inputs)
    for module, momentum in zip(tracking, momenta, strict=True):
        module.eval()
        module.momentum = momentum


# --- words -----------------------------------------------------------------------------------------------------------

_REPLACE = (
    "Consider neoteny.ContinualBackprop: neoteny.attach(model, optimizer, neoteny.ContinualBackprop(), example=inputs, "
    "trained=True) replaces units that contribute little."
)
_SHRINK = "Consider neoteny.L2 or neoteny.ShrinkAndPerturb, which keep weights small, or a smaller step size."
_BROKEN = "Look for a diverged loss or inputs out of range before anything else: training cannot repair these values."


def _verdict(found: Diagnosis) -> list[str]:
    """Sentences on what stands out, then what to do; one sentence if nothing does."""
    sentences: list[str] = []
    advice: list[str] = []
    for layer in found.layers:
        if not math.isfinite(layer.effective_rank):
            sentences.append(f"{layer.name}'s activations are not all finite on these inputs.")
            advice.append(_BROKEN)
            continue
        for sentence, remedy in (_on_silence(layer), _on_rank(layer), _on_growth(layer)):
            sentences += [sentence] if sentence else []
            advice += [remedy] if remedy else []
    fresh = found.fresh_weight_magnitude
    if _SHRINK not in advice and fresh and found.weight_magnitude >= NOTABLE_GROWTH * fresh:
        times = found.weight_magnitude / fresh
        sentences.append(f"The model's weights are {times:.1f} times as large as a fresh copy's, hidden layers apart.")
        advice.append(_SHRINK)
    if not advice and sentences:
        sentences.append("Nothing else stands out, compared with a fresh copy.")
    elif not advice:
        compared = "" if fresh is None else ", compared with a fresh copy"
        sentences.append(
            f"Nothing is wrong with these layers on these inputs{compared}: few dead or saturated units, "
            f"no collapsed rank{'' if fresh is None else ', no grown weights'}."
        )
    return [*sentences, *dict.fromkeys(advice)]


def _on_silence(layer: LayerDiagnosis) -> tuple[str, str]:
    """Dead units, or saturated ones where the activation function is bounded (there a dead unit is saturated too)."""
    share, what = layer.dead_share, "never fire on these inputs"
    before = None if layer.fresh is None else layer.fresh.dead_share
    if layer.saturated_share is not None:
        share, what = layer.saturated_share, "sit at a limit of their activation function on all these inputs"
        before = None if layer.fresh is None else layer.fresh.saturated_share
    if share < NOTABLE_SHARE:
        return "", ""
    count = round(share * layer.units)
    sentence = f"{share:.0%} of {layer.name}'s units ({count} of {layer.units}) {what}"
    if before is None:
        return f"{sentence}.", _REPLACE
    # Counts of two fresh copies differ by chance: two standard deviations of the difference are not worth blaming.
    chance = 2.0 * math.sqrt(2.0 * before * layer.units)
    if count - before * layer.units < max(NOTABLE_SHARE * layer.units - 0.5, chance):
        return f"{sentence}; so do {before:.0%} in a fresh copy, so training is not the cause.", ""
    return f"{sentence}; in a fresh copy: {before:.0%}.", _REPLACE


def _on_rank(layer: LayerDiagnosis) -> tuple[str, str]:
    sentence = f"{layer.name}'s effective rank is {layer.effective_rank:.1f} of {layer.units} units"
    if layer.fresh is None:
        most = min(layer.units, layer.rows)
        low = layer.effective_rank < NOTABLE_RANK_ALONE * most
        return (f"{sentence} (at most {most} with these inputs).", _REPLACE) if low else ("", "")
    before = layer.fresh.effective_rank
    low = layer.effective_rank < NOTABLE_RANK * before
    return (f"{sentence}; a fresh copy has {before:.1f}.", _REPLACE) if low else ("", "")


def _on_growth(layer: LayerDiagnosis) -> tuple[str, str]:
    before = 0.0 if layer.fresh is None else layer.fresh.weight_magnitude
    if not before or layer.weight_magnitude < NOTABLE_GROWTH * before:
        return "", ""
    times = layer.weight_magnitude / before
    return f"The weights of {layer.name} are {times:.1f} times as large as a fresh copy's.", _SHRINK


def _table(found: Diagnosis) -> str:
    """One row a layer and one for the model; columns that no layer fills are left away."""
    columns: list[tuple[str, Callable[[LayerDiagnosis], str]]] = [
        ("layer", lambda layer: layer.name),
        ("units", lambda layer: str(layer.units)),
        ("dead", lambda layer: f"{layer.dead_share:.0%}"),
        ("fresh", lambda layer: f"{layer.fresh.dead_share:.0%}" if layer.fresh else "-"),
        ("saturated", lambda layer: _percent(layer.saturated_share)),
        ("fresh", lambda layer: _percent(layer.fresh.saturated_share) if layer.fresh else "-"),
        ("effective rank", lambda layer: f"{layer.effective_rank:.1f}"),
        ("fresh", lambda layer: f"{layer.fresh.effective_rank:.1f}" if layer.fresh else "-"),
        ("stable rank", lambda layer: f"{layer.stable_rank:.1f}"),
        ("mean |w|", lambda layer: f"{layer.weight_magnitude:.4f}"),
        ("fresh", lambda layer: f"{layer.fresh.weight_magnitude:.4f}" if layer.fresh else "-"),
    ]
    filled = [(title, [cell(layer) for layer in found.layers]) for title, cell in columns]
    filled = [(title, cells) for title, cells in filled if any(cell != "-" for cell in cells)]
    whole = {"mean |w|": f"{found.weight_magnitude:.4f}", "layer": "whole model"}
    last: Sequence[str] = [whole.get(title, "-") for title, _ in filled]
    if found.fresh_weight_magnitude is not None:
        last = [*last[:-1], f"{found.fresh_weight_magnitude:.4f}"]
    rows = [*map(list, zip(*(cells for _, cells in filled), strict=True)), last]
    return render([title for title, _ in filled], rows)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"

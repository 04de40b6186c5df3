"""The result of a diagnosis: numbers per layer, a table, and sentences on what differs and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from neoteny.diagnosis.probe import Probed
from neoteny.text import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOTABLE_SHARE = 0.05
"""From this share on, dead or saturated units get a sentence: a healthy layer has a few per cent at most."""

NOTABLE_RANK = 0.5
"""An effective rank below this share of a fresh copy's: fresh copies differ by per cents, and fitting one task costs
some rank without any harm, but half of it gone is more than either."""

NOTABLE_RANK_ALONE = 0.1
"""Without a fresh copy: an effective rank below this share of the largest possible one. Fresh layers are well above."""

NOTABLE_GROWTH = 3.0
"""Weights this many times as large as a fresh copy's. Initial distributions that a model may set by hand reach 2.9
times torch's own (Kaiming for tanh), and a network that was merely initialised another way must not be called grown."""


class Words(NamedTuple):
    """What a layer is compared with, as it stands in sentences."""

    inside: str
    has: str


FRESH_COPY = Words("in a fresh copy", "a fresh copy has")
FIRST_SAMPLES = Words("in the first samples", "the first samples had")


@dataclass(frozen=True)
class LayerDiagnosis:
    """One layer of hidden units on the given inputs.

    Attributes:
        name: the unit group's name, its first producer.
        units: how many.
        dead: how many are exactly zero on every input, as a ReLU unit that no longer learns. Smooth functions (GELU)
            almost never are: use their rank.
        dead_share: the same as a share; nan if activations are not finite.
        saturated_share: share of the units within 0.01 of a limit of their activation function on every input; None
            unless the function is bounded (tanh, sigmoid, a clamp), which is found by trying, not guessed.
        effective_rank, stable_rank: of the activations (rows, units), not centred.
        weight_magnitude: mean absolute incoming weight.
        rows: rows of the ranks: examples, or a fixed random choice of examples and positions.
        fresh: the same layer of the freshly initialised copy.
        fresh_most: the largest share of dead (or saturated) units in any fresh copy, where several were drawn.
        fresh_least_rank: the smallest effective rank in any of them.
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
    fresh_most: float | None = None
    fresh_least_rank: float | None = None

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
        probe: what discarded copies gave that learned new data; None without `probe=`.
    """

    layers: tuple[LayerDiagnosis, ...]
    weight_magnitude: float
    fresh_weight_magnitude: float | None
    verdict: tuple[str, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    probe: Probed | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts, ready for JSON (nan where nothing can be measured)."""
        plain = asdict(self) | {"probe": None if self.probe is None else self.probe.as_dict()}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in plain.items()}

    def plot(self) -> Figure:
        """A matplotlib figure: per layer dead units, effective rank and weights, beside a fresh copy's.

        Raises:
            ImportError: matplotlib is not installed.
        """
        from neoteny.diagnosis.plot import plot_diagnosis

        return plot_diagnosis(self)

    def __str__(self) -> str:
        lines = [_table(self), "", "verdict", *(f"  {sentence}" for sentence in self.verdict)]
        if self.notes:
            lines += ["", "notes", *(f"  {note}" for note in self.notes)]
        for title, reasons in (("left out", self.left_out), ("refused", self.refused)):
            if reasons:
                lines += ["", title, *(f"  {name}: {reason}" for name, reason in reasons.items())]
        return "\n".join(lines)


REPLACE = (
    "Consider neoteny.ContinualBackprop: neoteny.attach(model, optimizer, neoteny.ContinualBackprop(), example=inputs, "
    "trained=True) replaces units that contribute little."
)
SHRINK = "Consider neoteny.L2 or neoteny.ShrinkAndPerturb, which keep weights small, or a smaller step size."
BROKEN = "Look for a diverged loss or inputs out of range before anything else: training cannot repair these values."


def sentences_on(found: Diagnosis) -> list[str]:
    """Sentences on what stands out, then what to do; one sentence if nothing does."""
    sentences: list[str] = []
    advice: list[str] = []
    for layer in found.layers:
        for sentence, remedy in findings(layer).values():
            sentences.append(sentence)
            advice += [remedy] if remedy else []
    fresh = found.fresh_weight_magnitude
    if SHRINK not in advice and fresh and found.weight_magnitude >= NOTABLE_GROWTH * fresh:
        times = found.weight_magnitude / fresh
        sentences.append(f"The model's weights are {times:.1f} times as large as a fresh copy's, hidden layers apart.")
        advice.append(SHRINK)
    if not advice and sentences:
        sentences.append("Nothing else stands out, compared with a fresh copy.")
    elif not advice:
        compared = "" if fresh is None else ", compared with a fresh copy"
        sentences.append(
            f"Nothing is wrong with these layers on these inputs{compared}: few dead or saturated units, "
            f"no collapsed rank{'' if fresh is None else ', no grown weights'}."
        )
    if found.probe is not None:
        sentences.append(found.probe.sentence())
        advice += [REPLACE] if found.probe.learns_slowly and not advice else []
    return [*sentences, *dict.fromkeys(advice)]


def findings(layer: LayerDiagnosis, words: Words = FRESH_COPY) -> dict[str, tuple[str, str]]:
    """What stands out in a layer, by kind: a sentence, and what to do ("" where training is not the cause)."""
    if not math.isfinite(layer.effective_rank):
        return {"not finite": (f"{layer.name}'s activations are not all finite on these inputs.", BROKEN)}
    found = {"dead": on_dead_units(layer, words), "rank": _on_rank(layer, words), "growth": _on_growth(layer)}
    return {kind: (sentence, remedy) for kind, (sentence, remedy) in found.items() if sentence}


def on_dead_units(layer: LayerDiagnosis, words: Words = FRESH_COPY) -> tuple[str, str]:
    """Dead units, or saturated ones where the activation function is bounded (there a dead unit is saturated too)."""
    share, what = lost_share(layer), "never fire on these inputs"
    if layer.saturated_share is not None:
        what = "sit at a limit of their activation function on all these inputs"
    first = None if layer.fresh is None else lost_share(layer.fresh)
    before = first if layer.fresh_most is None else layer.fresh_most
    if share < NOTABLE_SHARE:
        return "", ""
    count = round(share * layer.units)
    sentence = f"{share:.0%} of {layer.name}'s units ({count} of {layer.units}) {what}"
    if before is None or first is None:
        return f"{sentence}.", REPLACE
    # Counts of two fresh copies differ by chance: up to two standard deviations of the difference are not reported.
    chance = 2.0 * math.sqrt(2.0 * before * layer.units)
    if count - before * layer.units < max(NOTABLE_SHARE * layer.units - 0.5, chance):
        return f"{sentence}; so do {before:.0%} {words.inside}, so training is not the cause.", ""
    return f"{sentence}; {words.inside}: {first:.0%}.", REPLACE


def needs_more(layer: LayerDiagnosis) -> bool:
    """Whether a layer differs so much from its fresh copy that further copies are worth drawing."""
    return math.isfinite(layer.effective_rank) and bool(on_dead_units(layer)[1] or _on_rank(layer)[1])


def with_copy(layer: LayerDiagnosis, copy: LayerDiagnosis | None) -> LayerDiagnosis:
    """The layer compared with one more fresh copy, if that copy called it."""
    if copy is None:
        return layer
    first = layer.fresh or copy
    most = lost_share(first) if layer.fresh_most is None else layer.fresh_most
    least = first.effective_rank if layer.fresh_least_rank is None else layer.fresh_least_rank
    return replace(layer, fresh_most=max(most, lost_share(copy)), fresh_least_rank=min(least, copy.effective_rank))


def lost_share(layer: LayerDiagnosis) -> float:
    """The share of saturated units where the activation function is bounded, else of dead ones."""
    return layer.dead_share if layer.saturated_share is None else layer.saturated_share


def _on_rank(layer: LayerDiagnosis, words: Words = FRESH_COPY) -> tuple[str, str]:
    sentence = f"{layer.name}'s effective rank is {layer.effective_rank:.1f} of {layer.units} units"
    if layer.fresh is None:
        most = min(layer.units, layer.rows)
        low = layer.effective_rank < NOTABLE_RANK_ALONE * most
        return (f"{sentence} (at most {most} with these inputs).", REPLACE) if low else ("", "")
    before = layer.fresh.effective_rank
    least = before if layer.fresh_least_rank is None else layer.fresh_least_rank
    low = layer.effective_rank < NOTABLE_RANK * min(before, least)
    return (f"{sentence}; {words.has} {before:.1f}.", REPLACE) if low else ("", "")


def _on_growth(layer: LayerDiagnosis) -> tuple[str, str]:
    before = 0.0 if layer.fresh is None else layer.fresh.weight_magnitude
    if not before or layer.weight_magnitude < NOTABLE_GROWTH * before:
        return "", ""
    times = layer.weight_magnitude / before
    return f"The weights of {layer.name} are {times:.1f} times as large as a fresh copy's.", SHRINK


def _table(found: Diagnosis) -> str:
    """One row per layer and one for the model; columns that no layer fills are left out."""
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

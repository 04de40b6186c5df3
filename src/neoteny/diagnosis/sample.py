"""Samples of a network in training, and when a series of them means that it is losing plasticity.

`Monitor` takes a sample at regular intervals. What is judged is what `diagnose` judges, with its sentences and its
limits (`result.py`); where `diagnose` compares with a fresh copy, a series is compared with its own first samples, and
weights with what a fresh copy's would be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from neoteny.diagnosis.result import BROKEN, FIRST_SAMPLES, REPLACE, LayerDiagnosis, findings

FIRST = 3
"""How many samples are the beginning, with which later ones are compared: one batch alone may be odd."""

LATEST = 3
"""In how many samples one after the other something must stand out: one batch alone may be odd."""

COLUMNS: dict[str, type] = {
    "step": int,
    "layer": str,
    "units": int,
    "rows": int,
    "dead_share": float,
    "saturated_share": float,
    "effective_rank": float,
    "stable_rank": float,
    "weight_magnitude": float,
    "weight_growth": float,
    "gradient_norm": float,
    "replaced": int,
    "losing_plasticity": int,
}
"""A row of a table of samples: one layer at one step. What was not measured is empty."""


@dataclass(frozen=True)
class LayerSample:
    """One layer at one step.

    Attributes:
        numbers: as `diagnose` measures them, without a fresh copy.
        fresh_weight_magnitude: what a fresh copy's mean absolute incoming weight was when the monitor began.
        gradient_norm: of the incoming weights, if the monitor knows the optimizer.
        replaced: units replaced so far, if something is attached to the model.
    """

    numbers: LayerDiagnosis
    fresh_weight_magnitude: float
    gradient_norm: float | None = None
    replaced: int | None = None

    @property
    def weight_growth(self) -> float:
        """Mean absolute incoming weight over a fresh copy's; nan if a fresh copy's are zero."""
        fresh = self.fresh_weight_magnitude
        return self.numbers.weight_magnitude / fresh if fresh else math.nan


@dataclass(frozen=True)
class Sample:
    """Every layer at one step.

    Attributes:
        step: steps made when it was taken.
        layers: in the order of the forward pass.
        findings: what stands out against the first samples, in words; empty if nothing does, or if it is too early.
    """

    step: int
    layers: tuple[LayerSample, ...]
    findings: tuple[str, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """One row per layer, with the columns `COLUMNS`."""
        return [
            {
                "step": self.step,
                "layer": layer.numbers.name,
                **{name: getattr(layer.numbers, name) for name in COLUMNS if hasattr(layer.numbers, name)},
                "weight_growth": layer.weight_growth,
                "gradient_norm": layer.gradient_norm,
                "replaced": layer.replaced,
                "losing_plasticity": int(bool(self.findings)),
            }
            for layer in self.layers
        ]

    def values(self) -> dict[str, float]:
        """The same for a logger: numbers by name, such as `plasticity/fc1/dead_share`; nothing that is not measured."""
        found: dict[str, float] = {}
        for row in self.rows():
            for name in list(COLUMNS)[4:-1]:
                if row[name] is not None:
                    found[f"plasticity/{row['layer'] or 'model'}/{name}"] = float(row[name])
        return {**found, "plasticity/losing_plasticity": float(bool(self.findings))}

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts."""
        return {
            "step": self.step,
            "layers": [asdict(layer) for layer in self.layers],
            "findings": list(self.findings),
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Sample:
        """What `as_dict` gave."""
        layers = tuple(
            LayerSample(**{**each, "numbers": LayerDiagnosis(**each["numbers"])}) for each in saved["layers"]
        )
        return cls(saved["step"], layers, tuple(saved["findings"]))


def judge(samples: Sequence[Sample]) -> tuple[str, ...]:
    """What stands out in each of the latest samples against the first ones: sentences, then what to do; else nothing.

    The limits are those of `diagnose`: units that are dead (or saturated) beyond 5% and beyond chance, an effective
    rank below half, weights three times as large as a fresh copy's.

    Args:
        samples: the series, the first ones included.
    """
    if len(samples) < FIRST + LATEST:
        return ()
    first = _mean(samples[:FIRST])
    seen: list[dict[tuple[str, str], tuple[str, str]]] = []
    for sample in samples[-LATEST:]:
        compared = {layer.numbers.name: _compared(layer, first.get(layer.numbers.name)) for layer in sample.layers}
        seen.append(
            {
                (name, kind): found
                for name, layer in compared.items()
                for kind, found in findings(layer, FIRST_SAMPLES).items()
                if found[1]
            }
        )
    lasting = [found for key, found in seen[-1].items() if all(key in each for each in seen)]
    return (*(sentence for sentence, _ in lasting), *dict.fromkeys(remedy for _, remedy in lasting))


def announce(sample: Sample, words: Sequence[str]) -> str:
    """The warning for a sample with findings, in these words."""
    grown_alone = not {REPLACE, BROKEN} & set(sample.findings)  # weights may grow for a good reason
    verdict = "may be losing plasticity" if grown_alone else "is losing plasticity"
    return f"After {sample.step} steps the network {verdict}. {' '.join(words)}"


def _mean(samples: Sequence[Sample]) -> dict[str, LayerDiagnosis]:
    """The mean of each layer's dead and saturated shares and effective ranks, by its name."""
    series: dict[str, list[LayerDiagnosis]] = {}
    for sample in samples:
        for layer in sample.layers:
            series.setdefault(layer.numbers.name, []).append(layer.numbers)
    return {
        name: replace(
            some[0],
            dead_share=sum(each.dead_share for each in some) / len(some),
            saturated_share=None
            if some[0].saturated_share is None
            else sum(each.saturated_share or 0.0 for each in some) / len(some),
            effective_rank=sum(each.effective_rank for each in some) / len(some),
        )
        for name, some in series.items()
    }


def _compared(layer: LayerSample, first: LayerDiagnosis | None) -> LayerDiagnosis:
    """The layer with its first samples, and the weights of a fresh copy, in the place of a fresh copy."""
    if first is None:
        return layer.numbers
    return replace(layer.numbers, fresh=replace(first, weight_magnitude=layer.fresh_weight_magnitude))

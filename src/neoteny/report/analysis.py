"""Analysis: what an experiment says of its results, as one value that can be saved in their folder and shown later.

Charts and verdicts of a user's experiment are made by the code in its file. They are saved when that file runs, so that
reading a results folder never has to run a file that lies in it. Before this: `experiments`, which makes an analysis;
after it: the page, and what `neoteny claims` prints.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from neoteny.report.chart import Chart, Series
from neoteny.report.claim import Coverage, Outcome, Unchecked, Verdict
from neoteny.suite.store.documents import read_document, write_document
from neoteny.suite.store.errors import Damaged
from neoteny.suite.store.files import hold_lock
from neoteny.suite.store.shapes import ANALYSIS

T = TypeVar("T")
FILE = "analysis.json"
FORMAT = 1
_AXES = ("x", "y", "low", "high")


@dataclass(frozen=True)
class Stated:
    """A claim without its check: its name, the statement, and where it is made."""

    name: str
    statement: str
    source: str


@dataclass(frozen=True)
class Analysis:
    """What an experiment says of its results.

    Args:
        title, description: of the experiment.
        metric: of performance, which the table of numbers is about.
        higher_is_better: whether more of it is better.
        charts: its figures.
        claims: with their verdicts.
        unchecked: statements that these results cannot test.
        chosen: (what, value, reason) where the paper is silent.
        failures: what could not be drawn or checked because the experiment's own code failed.
    """

    title: str
    description: str
    metric: str
    higher_is_better: bool
    charts: Sequence[Chart] = ()
    claims: Sequence[tuple[Stated, Verdict]] = ()
    unchecked: Sequence[Unchecked] = ()
    chosen: Sequence[tuple[str, str, str]] = ()
    failures: Sequence[str] = ()


@dataclass(frozen=True)
class Saved:
    """An analysis that was saved: when, of how many finished runs, and by which file (its SHA-256)."""

    analysis: Analysis
    when: str
    runs: int
    sha256: str


def save_analysis(folder: Path, analysis: Analysis, runs: int, sha256: str) -> None:
    """Save an analysis in a results folder."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    content = {"format": FORMAT, "when": now, "runs": runs, "sha256": sha256, **_to_json(analysis)}
    with hold_lock(folder / "locks" / "analysis.lock"):
        write_document(folder / FILE, content)


def read_saved(folder: Path, must_be_sealed: bool = True) -> Saved | None:
    """The analysis that was saved in a results folder, or None.

    Args:
        folder: where.
        must_be_sealed: whether it must have a checksum; see `ResultsFolder.sealed`.

    Raises:
        Damaged: it is there and is not one.
    """
    path = folder / FILE
    if not path.exists():
        return None
    content = read_document(path, ANALYSIS, must_be_sealed)
    try:
        if content["format"] != FORMAT:
            raise ValueError(f"it is of format {content['format']}, not {FORMAT}")
        return Saved(_from_json(content), content["when"], content["runs"], content["sha256"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"it is not a saved analysis ({type(error).__name__}: {error})"
        raise Damaged(path, reason, ANALYSIS.remedy) from error


def _to_json(analysis: Analysis) -> dict[str, Any]:
    return {
        **{name: getattr(analysis, name) for name in ("title", "description", "metric", "higher_is_better")},
        "charts": [_chart_to_json(chart) for chart in analysis.charts],
        "claims": [
            {
                **asdict(claim),
                "outcome": verdict.outcome,
                "evidence": verdict.evidence,
                "coverage": verdict.coverage.value,
            }
            for claim, verdict in analysis.claims
        ],
        "unchecked": [asdict(one) for one in analysis.unchecked],
        "chosen": [list(one) for one in analysis.chosen],
        "failures": list(analysis.failures),
    }


def _from_json(content: Mapping[str, Any]) -> Analysis:
    better = content["higher_is_better"]
    if not isinstance(better, bool):
        raise TypeError(f"higher_is_better is {better!r:.80}")
    return Analysis(
        **{name: _text(content[name]) for name in ("title", "description", "metric")},
        higher_is_better=better,
        charts=_each(content["charts"], _chart_from_json),
        claims=_each(content["claims"], _claim_from_json),
        unchecked=_each(content["unchecked"], lambda one: Unchecked(*_texts(one, "statement", "source", "reason"))),
        chosen=_each(content["chosen"], _chosen_from_json),
        failures=_each(content["failures"], _text),
    )


def _chart_to_json(chart: Chart) -> dict[str, Any]:
    described = {one.name: getattr(chart, one.name) for one in fields(chart) if one.name != "series"}
    series = [
        {
            **{one.name: getattr(line, one.name) for one in fields(line) if one.name not in _AXES},
            **{
                axis: [float(value) if math.isfinite(value) else None for value in getattr(line, axis)]
                for axis in _AXES
            },
        }
        for line in chart.series
    ]
    return {**described, "series": series}


def _chart_from_json(one: Any) -> Chart:
    series = _each(one["series"], lambda line: Series(**{**line, **{axis: _numbers(line[axis]) for axis in _AXES}}))
    return Chart(**{**one, "series": series})


def _claim_from_json(one: Any) -> tuple[Stated, Verdict]:
    verdict = Verdict(Outcome(one["outcome"]), _text(one["evidence"]), Coverage(one["coverage"]))
    return Stated(*_texts(one, "name", "statement", "source")), verdict


def _chosen_from_json(one: Any) -> tuple[str, str, str]:
    what, value, reason = _each(one, _text)
    return what, value, reason


def _each(values: Any, read: Callable[[Any], T]) -> tuple[T, ...]:
    if not isinstance(values, list):
        raise TypeError(f"expected a list, got {type(values).__name__}")
    return tuple(read(value) for value in values)


def _numbers(values: Any) -> tuple[float, ...]:
    return _each(values, lambda value: math.nan if value is None else _number(value))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"expected a number, got {value!r:.80}")
    return float(value)


def _texts(one: Any, *names: str) -> list[str]:
    return [_text(one[name]) for name in names]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r:.80}")
    return value

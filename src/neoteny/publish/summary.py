"""The summary of a results folder: its verdicts, its charts and its command, small enough to be committed.

`keep` makes one for each view of a folder (with the library's own judging and drawing) and writes it as JSON;
pages and figures are made from summaries alone, so that they need no folder that is too large for the repository.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from neoteny import experiments
from neoteny.cli.analysis import read_frame
from neoteny.cli.trust import is_ours
from neoteny.report.chart import Chart, Series
from neoteny.report.claim import Claim, Coverage, Outcome, Verdict
from neoteny.suite.store.errors import StoreError
from neoteny.suite.store.files import read_json, write_atomically
from neoteny.suite.store.results import Results

DIGITS = {"x": 9, "y": 4, "low": 4, "high": 4}
"""Of the numbers in charts; more than a picture shows."""


@dataclass(frozen=True)
class Judged:
    """A claim as a folder's experiment words it, with its verdict.

    `tested` is False where the runs cannot speak to it: they are not of the scale that it is about, or have nothing of
    what it compares. `partly` is True where it is undecided and some of what it compares has no runs. `at_this_scale`
    is what the numbers say of a claim about the paper's own numbers, which these runs cannot judge.
    """

    name: str
    statement: str
    source: str
    outcome: str
    evidence: str
    tested: bool
    partly: bool = False
    at_this_scale: str = ""

    @property
    def said(self) -> str:
        """What the numbers say at the scale of the runs."""
        return self.at_this_scale or self.outcome

    @property
    def base(self) -> str:
        """The name without a tag."""
        return self.name.partition("@")[0]

    @property
    def tag(self) -> str:
        """Which of several settings it is about, where a folder judges a claim more than once."""
        return self.name.partition("@")[2]


@dataclass(frozen=True)
class Summary:
    """What pages and figures need to know of a view of a results folder."""

    experiment: str
    scale: str
    command: str
    finished: int
    planned: int
    verdicts: tuple[Judged, ...]
    charts: tuple[Chart, ...]


def summarise(
    results: Results,
    command: str,
    so_far: bool = False,
    tasks: int | None = None,
    judged: pd.DataFrame | None = None,
) -> Summary:
    """Judge and draw a results folder as `neoteny claims` and `neoteny report` do.

    Args:
        results: the folder.
        command: that makes it again.
        so_far, tasks: as their options.
        judged: the table on which claims are judged, if not all rows.
    """
    if not is_ours(results):
        raise StoreError(f"{results.root} is not of an experiment of the package; what is published is made by those.")
    experiment = experiments.load(results.about["experiment"])
    frame = read_frame(results, experiment, so_far, tasks)
    plan, finished = results.plan()["runs"], results.finished_runs()
    return Summary(
        experiment=experiment.name,
        scale=results.about["scale"],
        command=command,
        finished=len(finished.intersection(plan)) if plan else len(finished),
        planned=len(plan) or len(finished),
        verdicts=judge(experiment, frame if judged is None else judged),
        charts=tuple(experiment.draw(frame)),
    )


def judge(experiment: experiments.Experiment, frame: pd.DataFrame) -> tuple[Judged, ...]:
    """The verdicts on all claims of an experiment."""
    return tuple(_record(claim, experiment.evaluate(claim, frame)) for claim in experiment.claims)


def _record(claim: Claim, verdict: Verdict) -> Judged:
    tested = verdict.coverage is not Coverage.NOTHING
    said = verdict.at_this_scale or verdict.outcome
    partly = verdict.coverage is Coverage.PART and said is Outcome.INCONCLUSIVE
    here = str(verdict.at_this_scale or "")
    words = (claim.name, claim.statement, claim.source)
    return Judged(*words, str(verdict.outcome), verdict.evidence, tested, partly, here)


def write_summary(path: Path, summary: Summary) -> None:
    """Write it as JSON with every list of numbers on one line, so that a difference shows whose it is."""
    content = asdict(summary)
    content["charts"] = [_round_chart(chart) for chart in content["charts"]]
    text = json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True)
    text = re.sub(r"\[\n([^\[\]{}]*?)\n *\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def read_summary(path: Path) -> Summary:
    """Read what `write_summary` wrote."""
    content: dict[str, Any] = read_json(path)
    content["verdicts"] = tuple(Judged(**one) for one in content["verdicts"])
    content["charts"] = tuple(
        Chart(**{**chart, "series": tuple(_read_series(one) for one in chart["series"])}) for chart in content["charts"]
    )
    return Summary(**content)


def _round_chart(chart: dict[str, Any]) -> dict[str, Any]:
    series = [{**one, **{axis: _round(one[axis], DIGITS[axis]) for axis in DIGITS}} for one in chart["series"]]
    return {**chart, "series": series}


def _round(values: Sequence[float], digits: int) -> list[float | None]:
    """Numbers as JSON knows them: null where there is none."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]


def _read_series(one: dict[str, Any]) -> Series:
    axes = {axis: [math.nan if value is None else value for value in one[axis]] for axis in DIGITS}
    return Series(**{**one, **axes})

"""The summary of a results folder: its verdicts, its charts and how it was made, small enough to be committed.

`keeping.py` makes one for each view of a folder (with the library's own judging and drawing) and writes it as JSON;
pages and figures are made from summaries alone, so that they need no folder that is too large for the repository.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neoteny.commands import find_experiment, read_frame
from neoteny.engine.episodes import CURVE
from neoteny.engine.files import read_json, write_atomically
from neoteny.engine.store import Results
from neoteny.report.chart import Chart, Series
from neoteny.report.claim import Claim, Outcome, Verdict

if TYPE_CHECKING:
    import pandas as pd

DIGITS = {"x": 9, "y": 4, "low": 4, "high": 4}
"""Of the numbers in charts; more than a picture shows."""
_ABSENT = re.compile(r"not in these results|\b0 runs\)|a share of it means something")
"""What the library's verdicts say of a comparison for which there are no runs."""


@dataclass(frozen=True)
class Judged:
    """A claim as a folder's experiment words it, with its verdict.

    `tested` is False where the runs cannot speak to it: they are not of the scale that it is about, or have nothing of
    what it compares. `partly` is True where it is undecided and some of what it compares has no runs.
    """

    name: str
    statement: str
    source: str
    outcome: str
    evidence: str
    tested: bool
    partly: bool = False


@dataclass(frozen=True)
class Summary:
    """What pages and figures need to know of a view of a results folder.

    `unfinished` says of the runs that count without being finished how far they are, `missing` names the methods of the
    experiment without runs that count.
    """

    experiment: str
    scale: str
    command: str
    finished: int
    planned: int
    diverged: int
    unfinished: tuple[str, ...]
    missing: tuple[str, ...]
    seconds: float
    machines: tuple[str, ...]
    verdicts: tuple[Judged, ...]
    charts: tuple[Chart, ...]


def summarise(results: Results, command: str, so_far: bool = False, tasks: int | None = None) -> Summary:
    """Judge and draw a results folder as `neoteny claims` and `neoteny report` do.

    Args:
        results: the folder.
        command: that makes it again.
        so_far, tasks: as their options.
    """
    experiment = find_experiment(results)
    scale = results.about["scale"]
    frame = read_frame(results, experiment, so_far, tasks)
    parts, plan = results.parts(), results.plan()["runs"]
    finished = results.finished_runs()
    begun = _find_unfinished(results, frame)
    methods = dict.fromkeys(setting.method for setting in experiment.make_sweep(scale).settings)
    return Summary(
        experiment=experiment.name,
        scale=scale,
        command=command,
        finished=len(finished.intersection(plan)) if plan else len(finished),
        planned=len(plan) or len(finished),
        diverged=sum(run["diverged_at_update"] is not None for part in parts for run in part["runs"]),
        unfinished=tuple(_say_how_far(one, frame) for one in begun),
        missing=tuple(method for method in methods if method not in set(frame["method"])),
        seconds=round(sum(one["seconds"] for one in [*parts, *begun]), 1),
        machines=tuple(
            sorted({part["machine"] for part in parts} or {one["path"].rpartition(" on ")[2] for one in begun})
        ),
        verdicts=tuple(_record(claim, experiment.judge(claim, frame), scale) for claim in experiment.claims),
        charts=tuple(experiment.draw(frame)),
    )


def _find_unfinished(results: Results, frame: pd.DataFrame) -> list[dict[str, Any]]:
    """What is known of the stacks whose runs count without being finished."""
    runs = set(frame["run_id"].unique()) - results.finished_runs()
    return [one for _, one in sorted(results.progress().items()) if runs.intersection(one["runs"])]


def _say_how_far(one: dict[str, Any], frame: pd.DataFrame) -> str:
    mine = frame[frame["run_id"].isin(one["runs"]) & ~frame["metric"].str.endswith(CURVE)]
    runs = mine["run_id"].nunique()
    counted = f"{runs} run{'s' if runs != 1 else ''}"
    return f"{one['name']}: {counted}, the first {mine['task'].max() + 1:,} tasks of {one['tasks']:,}"


def _record(claim: Claim, verdict: Verdict, scale: str) -> Judged:
    absent = [bool(_ABSENT.search(piece)) for piece in verdict.evidence.split("; ")]
    tested = not all(absent) and (claim.scale != "paper" or scale == "paper")
    partly = tested and any(absent) and verdict.outcome is Outcome.INCONCLUSIVE
    return Judged(claim.name, claim.statement, claim.source, str(verdict.outcome), verdict.evidence, tested, partly)


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
    for name in ("unfinished", "missing", "machines"):
        content[name] = tuple(content[name])
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

"""Published numbers beside ours: from results folders of `neoteny run published` to a table of docs/field.md.

A results folder becomes one JSON file in `evidence/published/` (`keep_published`): for each number our values by seed.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from neoteny import experiments
from neoteny.experiments.published.numbers import Published
from neoteny.publish.keep import EvidenceError
from neoteny.publish.markdown import write_table
from neoteny.report.statistics import estimate
from neoteny.report.verdict import Outcome
from neoteny.suite.store.files import write_atomically
from neoteny.suite.store.results import Results

FOLDER = Path("evidence") / "published"
NOT_RUN = {
    "permuted MNIST and regression of the paper": "it prints curves; [Results](results.md) judges its sentences",
    "label-permuted MNIST": "UPGD's authors print curves, on EMNIST and CIFAR-10",
    "warm start": "FIRE's authors, CIFAR-10, ResNet-18, 10% of the images first, 3 seeds, read off a figure: plain "
    "Adam .778, from scratch .847, FIRE .829. Needs CIFAR-10 and hours on a GPU",
    "class-incremental images": "the paper in Nature, CIFAR-100 at 100 classes, ResNet-18, read off a figure: plain "
    "SGD .711, from scratch .760, continual backpropagation .761. Six hours per run on a GPU",
    "permuted Shakespeare": "SNR's authors print curves of the loss",
}
"""Problems of the field without a number that could be made again here, and why."""
_UPGD, _L2_INIT, _RANDOM, _CONTROL = (
    "UPGD's input-permuted MNIST",
    "L2-init's permuted MNIST",
    "L2-init's random-label MNIST",
    "control with shifting observations",
)
WHY_NOT = {
    _UPGD: "UPGD is apart by .001 and less, which is more than runs differ among themselves. AdamW's weight decay is "
    "not in the notes; without any it agrees",
    _L2_INIT: "the notes name neither the step size nor the slope of the leaky ReLU; of L2-init's number they have the "
    "strength and the 20 tasks. Its number lies between two step sizes, and none that is named gives it",
    _RANDOM: "the notes name neither step size nor slope, nor whether the mean is over all updates of a task, as here. "
    "ReLU agrees at the other step size that its authors search. The number of leaky ReLU lies between two slopes",
    _CONTROL: "the order of the four is the published one; all are lower here, and TRAC agrees only because our three "
    "runs lie so far apart. Part of it may be what the mean is taken over, which the notes do not say: here all "
    "episodes of a task, and short ones are many. The notes name neither the strength of L2-init nor the bound of "
    "clipping nor the initial weights; other values were not tried out",
}
"""Of problems on which some number disagrees, what is known of the reason."""
TRIED = (
    (_UPGD, "UPGD with the scale of its code in place of the paper's, 60 tasks", ".7786 [.7772, .7799]", ".7777"),
    (_UPGD, "AdamW without weight decay, in place of torch's 0.01, 60 tasks", ".7560 [.7524, .7596]", ".7553"),
    (_UPGD, "the same, all tasks", ".7197 [.7148, .7246]", ".7190"),
    (_L2_INIT, "L2-init with 1e-4, the other step size that its authors search", ".756 [.752, .760]", ".811"),
    (_L2_INIT, "L2-init with 3e-4", ".838", ".811"),
    (_L2_INIT, "L2-init with plain SGD at 0.1, and at 0.01", ".860, .780", ".811"),
    (_L2_INIT, "twice the strength: the penalty without its half", ".002 to .006 more", ".811"),
    (_RANDOM, "ReLU with 1e-4, the other step size that its authors search", ".220 [.152, .289]", ".2003"),
    (_RANDOM, "leaky ReLU with slopes of 0.3 and 0.5", ".904, .910", ".9153"),
    (_RANDOM, "leaky ReLU with a slope of 0.7", ".922 [.918, .925]", ".9153"),
    (_CONTROL, "PPO, mean over equal stretches of time", "44", "62"),
    (_CONTROL, "PPO and L2-init, the same", "153", "266"),
    (_CONTROL, "PPO and TRAC, the same", "196", "217"),
    (_CONTROL, "PPO and weight clipping, the same", "66", "154"),
)
"""What was tried out where numbers disagree: problem, change, our value, published value."""
_BY = "`benchmarks/published_trials/`, 3 to 5 runs each; of control another mean of the same runs"


@dataclass(frozen=True)
class Kept:
    """What is kept of one experiment.

    Attributes:
        experiment, scale: whose results.
        metric: the performance.
        values: by the name of a number, our values by seed; nan for a run that diverged.
    """

    experiment: str
    scale: str
    metric: str
    values: Mapping[str, Mapping[str, float | None]]

    @property
    def numbers(self) -> Sequence[Published]:
        """The published numbers, as the experiment lists them."""
        return _numbers(self.experiment)

    def ours(self, number: Published) -> pd.Series:
        """Our values that are compared with a number, by seed."""
        found = self.values.get(number.name, {})
        return pd.Series(
            {int(seed): math.nan if value is None else value for seed, value in found.items()}, dtype=float
        )


def _numbers(experiment: str) -> Sequence[Published]:
    return importlib.import_module(experiments.module_of(experiment)).NUMBERS


def keep_published(root: Path, results: Results) -> Path:
    """Keep our values beside every number of an experiment; returns the file."""
    name, scale = results.about["experiment"], results.about["scale"]
    metric = experiments.load(name).make_sweep(scale).problem.performance
    frame = results.frame()
    values = {
        number.name: {
            str(seed): float(f"{value:.6g}") if math.isfinite(value) else None
            for seed, value in number.ours(frame, metric).items()
        }
        for number in _numbers(name)
    }
    path = root / FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"experiment": name, "scale": scale, "metric": metric, "values": values}, indent=1)
    write_atomically(path, lambda file: file.write((text + "\n").encode()))
    return path


def read_published(root: Path) -> list[Kept]:
    """What is kept, in the order of the experiments.

    Raises:
        EvidenceError: a file is not what `keep_published` writes.
    """
    found = []
    for name in experiments.PUBLISHED:
        path = root / FOLDER / f"{name}.json"
        if not path.is_file():
            continue
        try:
            found.append(Kept(**json.loads(path.read_text())))
        except (TypeError, ValueError) as error:
            raise EvidenceError(
                f"{path} does not hold published numbers ({error}). Keep it again: python -m neoteny.publish --field "
                "DIR"
            ) from error
    return found


def write_published(kept: Sequence[Kept]) -> list[str]:
    """The section of docs/field.md, as paragraphs of Markdown."""
    words = {Outcome.HOLDS: "yes", Outcome.FAILS: "**no**", Outcome.INCONCLUSIVE: "too few runs"}
    rows, apart_on = [], []
    for one in kept:
        title = experiments.load(one.experiment).title.removeprefix("Published numbers of ")
        for number in one.numbers:
            ours = one.ours(number)
            found = estimate(ours)
            if not found.runs:
                continue
            tasks = f"the first {number.tasks} tasks" if number.tasks else "all tasks"
            published = f"{number.value:g} ({number.seeds} seeds; {number.source})"
            outcome = number.compare(ours).outcome
            apart_on += [title] if outcome is Outcome.FAILS and title not in apart_on else []
            agrees = words[outcome]
            allowed = number.allow(found)
            apart = "" if math.isnan(allowed) else f": {found.mean - number.value:+.3g}, allowed {allowed:.2g}"
            rows.append([title, number.setting, f"{one.metric}, {tasks}", published, str(found), agrees + apart])
    heads = ["problem", "setting", "mean of", "published", "ours, same sizes", "agree"]
    parts = ["## Beside published numbers"]
    if rows:
        parts += [
            "Made again with the published sizes and settings (`neoteny run published`, then `python -m "
            "neoteny.publish --field results/published-laptop`). Agree: the means differ by no more than the 95% "
            "interval of their difference; where no spread was published, runs there are presumed to spread as ours "
            "do.",
            write_table(heads, rows),
        ]
    if apart_on:
        reasons = [[title, WHY_NOT.get(title, "not known")] for title in apart_on]
        parts += ["Where they disagree:", write_table(["problem", "what is known of the reason"], reasons)]
        tried = [list(row) for row in TRIED if row[0] in apart_on]
        if tried:
            heads = ["problem", "changed", "ours", "published"]
            parts += [f"What was tried out for it ({_BY}):", write_table(heads, tried)]
    missing = [name for name in experiments.PUBLISHED if name not in {one.experiment for one in kept}]
    if missing:
        parts.append("Not run yet: " + ", ".join(f"`neoteny run {name}`" for name in missing) + ".")
    return [
        *parts,
        "Problems without a number that could be made again:",
        write_table(["problem", "why"], [[name, why] for name, why in NOT_RUN.items()]),
    ]

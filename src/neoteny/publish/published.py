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
WHY_NOT = {
    "UPGD's input-permuted MNIST": "UPGD is apart by .001 and less, which is more than runs differ among themselves; "
    "the scale of its code in place of the paper's gives the same, .7786 [.7772, .7799] over 60 tasks. AdamW's weight "
    "decay is not in the notes: without any, in place of torch's 0.01, it is .7560 [.7524, .7596] over 60 tasks, which "
    "agrees, and .7197 [.7148, .7246] over all (published .7190), which agrees too",
    "L2-init's permuted MNIST": "the notes name neither the step size nor the slope of the leaky ReLU. Of L2-init's "
    "number they have the strength and the 20 tasks. With 1e-4, the other step size that its authors search, ours is "
    ".756 [.752, .760], with 3e-4 .838, with plain SGD .860 (0.1) and .780 (0.01); twice the strength, the penalty "
    "without its half, adds .002 to .006. So the published .811 lies between two step sizes, and none that is named "
    "gives it",
    "L2-init's random-label MNIST": "the notes name neither step size nor slope, nor whether the mean is over all "
    "updates of a task, as here. With 1e-4, the other step size that its authors search, ReLU is .220 [.152, .289], "
    "which agrees. Leaky ReLUs are .904 with a slope of 0.3, .910 with 0.5 and .922 [.918, .925] with 0.7: the "
    "published .915 lies between two slopes, and torch's 0.01 is far off",
    "control with shifting observations": "the order of the four is the published one; all are lower here, and TRAC "
    "agrees only because our three runs lie so far apart. Part of it may be what the mean is taken over, which the "
    "notes do not say: here all episodes of a task, and short ones are many. Over equal stretches of time ours are 44 "
    "(published 62), 153 (266), 196 (217) and 66 (154). The notes name neither the strength of L2-init nor the bound "
    "of clipping nor the initial weights; other values were not tried out",
}
"""Of problems on which some number disagrees, what is known of the reason."""
_TRIED = "what was tried out was run by the experiments in `benchmarks/published_trials/`, 3 to 5 runs each"


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
        parts += [f"Where they disagree ({_TRIED}):", write_table(["problem", "what is known of the reason"], reasons)]
    missing = [name for name in experiments.PUBLISHED if name not in {one.experiment for one in kept}]
    if missing:
        parts.append("Not run yet: " + ", ".join(f"`neoteny run {name}`" for name in missing) + ".")
    return [
        *parts,
        "Problems without a number that could be made again:",
        write_table(["problem", "why"], [[name, why] for name, why in NOT_RUN.items()]),
    ]

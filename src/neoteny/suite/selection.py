"""The paper's protocol: after a first round of runs, the best setting of each method gets more."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from neoteny.suite.sweep import Setting, Sweep, seeds_of
from neoteny.text import nearest

if TYPE_CHECKING:
    import pandas as pd


def check_columns(sweep: Sweep) -> None:
    """Refuse to choose within a column that no setting of the sweep has.

    Not when the sweep is made: `--methods` leaves settings out, and the others need not have every column.
    """
    known = ["method", *dict.fromkeys(name for setting in sweep.settings for name in setting.details)]
    for name in sweep.selection.by if sweep.selection is not None else ():
        if name not in known:
            raise ValueError(
                f"Selection: by names a column that no setting has in its details: {name!r}.{nearest(name, known)} "
                f"Known are {', '.join(known)}."
            )


def choose(sweep: Sweep, frame: pd.DataFrame) -> list[Setting]:
    """The setting of each group with the best mean performance over all tasks and first-round runs.

    A setting with a run that diverged is chosen only if all have one; between equals the first in the sweep wins.
    """
    assert sweep.selection is not None
    metric, sign = sweep.problem.performance, 1.0 if sweep.problem.higher_is_better else -1.0
    seeds = {setting.label: seeds_of(sweep, setting) for setting in sweep.settings}
    rows = frame[(frame["metric"] == metric) & frame["setting"].isin(seeds)]
    ends = rows["setting"].map({label: each.stop for label, each in seeds.items()})
    first = rows[(rows["seed"] >= sweep.first_seed) & (rows["seed"] < ends)]
    means = first.groupby("setting")["value"].agg(lambda values: values.mean(skipna=False))
    best: dict[tuple[object, ...], tuple[float, Setting]] = {}
    for setting in sweep.settings:
        group = tuple(setting.method if name == "method" else setting.details.get(name) for name in sweep.selection.by)
        mean = float(means.get(setting.label, math.nan))
        score = -math.inf if math.isnan(mean) else sign * mean
        if group not in best or score > best[group][0]:
            best[group] = (score, setting)
    return [setting for _, setting in best.values()]

"""Comparison of many methods on one problem: tuned on some seeds, judged on others, in pairs, with ranks.

Scores are a table with one row per run: `method`, `role` ("published" or "searched"), `setting`, `seed`, `value` (the
mean over all tasks; nan for a run that diverged). Tuning seeds are those that every setting has; the seeds behind them
judge. From scores (`read_scores` makes them of a results frame) to `Standing`, one per method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from neoteny.report.statistics import Estimate, estimate, paired
from neoteny.report.verdict import holm

COLUMNS = ("method", "role", "setting", "seed", "value")
PUBLISHED = "published"
LEVEL = 0.05


@dataclass(frozen=True)
class Standing:
    """One method on one problem, over the judging seeds.

    Attributes:
        method: its name.
        setting: the best of its settings by the tuning seeds.
        value: performance at that setting.
        published: performance at the published setting.
        gains: by baseline, how much better than it, paired by seed: positive is better, also where less error is.
        certain: by baseline, whether the gain differs from 0 at 5%, corrected for the number of methods (Holm).
        rank: mean rank among all methods, 1 the best.
        diverged: judging runs that diverged, of `value.runs`.
    """

    method: str
    setting: str
    value: Estimate
    published: Estimate
    gains: Mapping[str, Estimate]
    certain: Mapping[str, bool]
    rank: Estimate
    diverged: int


def read_scores(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """One row per run of a results frame: its mean of a metric over all tasks."""
    rows = frame[frame["metric"] == metric]
    if rows.empty:
        return pd.DataFrame({name: [] for name in COLUMNS})
    keys = ["method", "role", "setting", "seed"]
    means = rows.groupby(keys, sort=False)["value"].agg(lambda values: values.mean(skipna=False))
    return means.reset_index().astype({"seed": int, "value": float})


def split_seeds(scores: pd.DataFrame) -> tuple[list[int], list[int]]:
    """Tuning seeds, which every setting has, and judging seeds, which are behind them."""
    counts = scores.groupby("seed")["setting"].nunique()
    tuning = sorted(counts.index[counts == scores["setting"].nunique()])
    last = max(tuning, default=-1)
    return tuning, sorted(seed for seed in counts.index if seed > last)


def choose_settings(scores: pd.DataFrame, higher_is_better: bool) -> dict[str, str]:
    """The best setting of each method by the tuning seeds, of those that judging seeds ran; the first of equals.

    A setting with a run that diverged is chosen only where all have one.
    """
    tuning, judging = split_seeds(scores)
    judged = set(scores.loc[scores["seed"].isin(judging), "setting"])
    first = scores[scores["seed"].isin(tuning) & scores["setting"].isin(judged)]
    means = first.groupby("setting", sort=False)["value"].agg(lambda values: values.mean(skipna=False))
    best: dict[str, tuple[float, str]] = {}
    owners = dict(zip(first["setting"], first["method"], strict=True))
    for setting, mean in zip(map(str, means.index), means.to_numpy(dtype=np.float64), strict=True):
        score = -math.inf if math.isnan(mean) else float(mean) if higher_is_better else -float(mean)
        method = str(owners[setting])
        if method not in best or score > best[method][0]:
            best[method] = (score, setting)
    return {method: setting for method, (_, setting) in best.items()}


def judged_values(scores: pd.DataFrame, setting: str) -> pd.Series:
    """The values of a setting's judging runs, indexed by seed."""
    _, judging = split_seeds(scores)
    rows = scores[(scores["setting"] == setting) & scores["seed"].isin(judging)]
    return rows.set_index("seed")["value"].sort_index()


def rank_methods(values: Mapping[str, pd.Series], higher_is_better: bool) -> pd.DataFrame:
    """The rank of each method (columns) for each seed (rows), 1 the best; equals share their mean rank.

    Seeds that some method lacks are left out. A run that diverged is behind all others.
    """
    table = pd.concat(values, axis=1, join="inner")
    return table.rank(axis=1, ascending=not higher_is_better, na_option="bottom")


def compare(values: Mapping[str, pd.Series], baseline: str, higher_is_better: bool) -> dict[str, tuple[Estimate, bool]]:
    """Each method's gain over a baseline, paired by seed, and whether it is certain after Holm's correction.

    A method of which a run diverged has no gain: its estimate is nan, and nothing is certain.
    """
    sign = 1.0 if higher_is_better else -1.0
    gains = {name: paired(sign * each, sign * values[baseline]) for name, each in values.items() if name != baseline}
    p_values = [min(1.0, 2 * min(gain.p_above(0.0), gain.p_below(0.0))) for gain in gains.values()]
    corrected = holm(p_values)
    return {name: (gain, p < LEVEL) for (name, gain), p in zip(gains.items(), corrected, strict=True)}


def find_standings(scores: pd.DataFrame, baselines: tuple[str, ...], higher_is_better: bool) -> list[Standing]:
    """Every method with judging runs, the best mean rank first.

    Args:
        scores: one row per run.
        baselines: the methods to compare with; those without judging runs are left out.
        higher_is_better: whether more of the value is better.
    """
    chosen = choose_settings(scores, higher_is_better)
    values = {method: judged_values(scores, setting) for method, setting in chosen.items()}
    if not values:
        return []
    ranks = rank_methods(values, higher_is_better)
    against = {name: compare(values, name, higher_is_better) for name in baselines if name in values}
    published = scores[scores["role"] == PUBLISHED].drop_duplicates("method").set_index("method")["setting"]
    found = [
        Standing(
            method=method,
            setting=chosen[method],
            value=estimate(each),
            published=estimate(judged_values(scores, str(published[method])) if method in published.index else []),
            gains={name: rows[method][0] for name, rows in against.items() if method in rows},
            certain={name: rows[method][1] for name, rows in against.items() if method in rows},
            rank=estimate(ranks[method]),
            diverged=int((~np.isfinite(each)).sum()),
        )
        for method, each in values.items()
    ]
    return sorted(found, key=lambda standing: (math.isnan(standing.rank.mean), standing.rank.mean))

"""How many methods are compared on one problem, in plain loops over lists: tuned on some seeds, judged on others."""

from __future__ import annotations

import math

from scipy import stats

Runs = dict[tuple[str, str], dict[int, float]]
"""(method, setting) -> seed -> value."""


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def interval(values: list[float]) -> tuple[float, float, float]:
    """Mean with the ends of Student's 95% interval."""
    middle = mean(values)
    variance = sum((value - middle) ** 2 for value in values) / (len(values) - 1)
    half = float(stats.t.ppf(0.975, len(values) - 1)) * math.sqrt(variance / len(values))
    return middle, middle - half, middle + half


def best_settings(runs: Runs, tuning: list[int], judged: set[str], higher: bool) -> dict[str, str]:
    best: dict[str, str] = {}
    for (method, setting), values in runs.items():
        if setting not in judged:
            continue
        score = mean([values[seed] for seed in tuning])
        if method not in best:
            best[method] = setting
            continue
        other = mean([runs[method, best[method]][seed] for seed in tuning])
        if (score > other) if higher else (score < other):
            best[method] = setting
    return best


def ranks(values: dict[str, dict[int, float]], seeds: list[int], higher: bool) -> dict[str, list[float]]:
    """For each method its rank for each seed: 1 plus the number of better ones, plus half of the equal others."""
    found: dict[str, list[float]] = {method: [] for method in values}
    for seed in seeds:
        for method in values:
            mine = values[method][seed]
            others = [values[other][seed] for other in values if other != method]
            better = sum((other > mine) if higher else (other < mine) for other in others)
            equal = sum(other == mine for other in others)
            found[method].append(1 + better + equal / 2)
    return found


def gain(first: dict[int, float], second: dict[int, float], seeds: list[int], higher: bool) -> list[float]:
    return [(first[seed] - second[seed]) * (1 if higher else -1) for seed in seeds]


def two_sided_p(values: list[float]) -> float:
    """Of Student's t test that the mean is 0."""
    middle = mean(values)
    variance = sum((value - middle) ** 2 for value in values) / (len(values) - 1)
    statistic = abs(middle) / math.sqrt(variance / len(values))
    return 2 * float(stats.t.sf(statistic, len(values) - 1))


def holm(p_values: list[float]) -> list[float]:
    """Each p-value times the number of hypotheses not below it, made monotone."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    found, highest = [0.0] * len(p_values), 0.0
    for place, i in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[i]))
        found[i] = highest
    return found

"""Naive statistics of one unit whose update has several passes, where each pass is forgotten before the next.

By h(k, b) is meant the activation of example b in pass k, by f and p the running mean and eta^age before the update.

    m(k)   = mean of h over the passes 1 .. k
    c(k)   = (eta f + (1 - eta) m(k)) / (1 - eta p)      the corrected mean, as known in pass k
    c      = c(last)
    D      = mean over all b, k of s(k, b) (h(k, b) - c), with s(k, b) = sign(h(k, b) - c(k))

An activation that equals c(1) counts |h - c| instead. If no activation lies between c(k) and c, then D is the mean of
|h - c|.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def deviation(passes: Sequence[np.ndarray], mean: float, power: float, decay: float) -> tuple[float, float]:
    """D and c of one unit; each pass is (examples,)."""
    centres: list[float] = []
    for k in range(len(passes)):
        seen = [float(h) for each in passes[: k + 1] for h in each]
        centres.append((decay * mean + (1.0 - decay) * sum(seen) / len(seen)) / (1.0 - decay * power))
    centre = centres[-1]
    total, count = 0.0, 0
    for guess, each in zip(centres, passes, strict=True):
        for value in each:
            h = float(value)
            if h == centres[0]:
                total += abs(h - centre)
            else:
                total += float(np.sign(h - guess)) * (h - centre)
            count += 1
    return total / count, centre


def most_wrong(passes: Sequence[np.ndarray], mean: float, power: float, decay: float) -> float:
    """The largest possible difference between D and the mean of |h - c|: twice the distance of what lies between."""
    _, centre = deviation(passes, mean, power, decay)
    total, count = 0.0, 0
    for k, each in enumerate(passes):
        seen = [float(h) for other in passes[: k + 1] for h in other]
        guess = (decay * mean + (1.0 - decay) * sum(seen) / len(seen)) / (1.0 - decay * power)
        low, high = min(guess, centre), max(guess, centre)
        total += sum(2.0 * abs(float(h) - centre) for h in each if low <= float(h) <= high)
        count += len(each)
    return total / count

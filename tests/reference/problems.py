"""Slowly-changing regression, transcribed from the paper's appendix: one run, one example at a time, plain numbers.

An input is f slow bits, m - f random bits and a constant 1. The target network has LTUs with weights of +1 or -1; S_i
is the number of negative weights among the m + 1 into unit i, and its threshold is theta_i = (m + 1) * beta - S_i.
Its output layer has a bias, as the table of parameters says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def threshold(weights: Sequence[float], beta: float) -> float:
    """theta_i of a unit with these m + 1 incoming weights."""
    negative = sum(1 for weight in weights if weight < 0)
    return len(weights) * beta - negative


def linear_threshold_unit(inputs: Sequence[float], weights: Sequence[float], beta: float) -> int:
    """1 if the weighted sum is above the threshold, 0 otherwise."""
    total = 0.0
    for value, weight in zip(inputs, weights, strict=True):
        total += value * weight
    return 1 if total > threshold(weights, beta) else 0


def target(inputs: np.ndarray, hidden: np.ndarray, output: np.ndarray, bias: float, beta: float) -> float:
    """What the target network says of one input; hidden (units, m + 1), output (units,)."""
    answer = bias
    for weights, sign in zip(hidden, output, strict=True):
        answer += sign * linear_threshold_unit(list(inputs), list(weights), beta)
    return answer


def slow_bits(initial: Sequence[int], flips: Sequence[int]) -> list[list[int]]:
    """The slow bits during each task: one bit flips at each change."""
    states = [list(initial)]
    for place in flips:
        following = list(states[-1])
        following[place] = 1 - following[place]
        states.append(following)
    return states

"""The replacement schedule of a whole block of updates, before the block: how many units are due, when, in each run.

The same arithmetic as `schedule.Schedule`, one run after the other. It needs the units' birth steps and nothing else of
the network, so that a kernel only looks up whether a replacement is due.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from neoteny.backends.kernel.options import Numbers
from neoteny.backends.kernel.pack import Packed
from neoteny.jit import compiler


def due_counts(packed: Packed, numbers: Numbers, steps: int) -> np.ndarray:
    """Units to replace at each of the next `steps` updates, int32 (n, hidden, steps); moves the accumulators on."""
    runs, hidden = packed.accumulator.shape
    counts = np.zeros((runs, hidden, steps), dtype=np.int32)
    if not packed.options.replaces:
        return counts
    born = packed.born.cpu().numpy()
    for layer in range(hidden):
        unit, units = packed.layout.unit[layer], packed.layout.outputs[layer]
        accumulator = packed.accumulator[:, layer].copy()
        _compiled()(
            np.sort(born[:, unit : unit + units], axis=1),
            accumulator,
            numbers.replacement_rate,
            numbers.maturity_threshold,
            packed.options.count_layer,
            packed.step,
            counts[:, layer],
        )
        packed.accumulator[:, layer] = accumulator
    return counts


def count_ahead(born, accumulator, rate, threshold, count_layer, step, counts):
    """Fill counts (n, steps) for one layer; born (n, units) ascending, accumulator (n,) is changed in place."""
    runs, steps = counts.shape
    units = born.shape[1]
    mature_at = np.empty(units + steps, np.int64)  # a queue: units mature in the order of their birth
    number = np.empty(units + steps, np.int64)
    for run in range(runs):
        mature_at[:units] = born[run] + (threshold[run] + 1)
        number[:units] = 1
        first, last, eligible = 0, units, 0
        due = accumulator[run]
        for k in range(steps):
            now = step + 1 + k
            while first < last and mature_at[first] <= now:
                eligible += number[first]
                first += 1
            if eligible == 0:
                continue
            due += rate[run] * units if count_layer else rate[run] * eligible
            if due >= 1.0:
                whole = np.floor(due)
                due -= whole
                count = min(int(whole), eligible)
                counts[run, k] = count
                eligible -= count
                mature_at[last] = now + threshold[run] + 1
                number[last] = count
                last += 1
        accumulator[run] = due


@functools.cache
def _compiled() -> Callable[..., None]:
    """Compiled exactly: rounded otherwise than by `Schedule`, what is due at exactly 1 comes a step late."""
    compile_ = compiler(exact=True)
    return count_ahead if compile_ is None else compile_(count_ahead)

"""The replacement schedule of a whole block of updates, before the block: how many units are due, when, in each run.

It needs the units' birth steps and nothing else of the network, so that a kernel only looks up whether a replacement is
due.
"""

from __future__ import annotations

import numpy as np

from neoteny.backends.kernel.options import Numbers
from neoteny.backends.kernel.pack import Packed
from neoteny.units.schedule import compiled_count_ahead


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
        compiled_count_ahead()(
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

"""Measures of a network: pure functions from tensors to numbers, one file per family.

Every function takes one network or a stack: axes are counted from the right and leading axes (*R) are runs, so a value
(or a mask) comes back for each run. A run whose numbers are not finite measures as nan and does not affect the others.
Measures are float64 and carry no gradient.

- `ranks`: effective_rank, stable_rank, rank_99 of a matrix (*R, n, m); `gram` computes the first faster;
- `activity`: dead and saturated units of activations (*R, n, U);
- `weights`: weight_magnitude, weight_drift, gradient_norm of one tensor or of all the tensors of a network.
"""

from neoteny.metrics.activity import dead_share, dead_units, saturated_share, saturated_units
from neoteny.metrics.ranks import effective_rank, rank_99, stable_rank
from neoteny.metrics.weights import gradient_norm, weight_drift, weight_magnitude

__all__ = [
    "dead_share",
    "dead_units",
    "effective_rank",
    "gradient_norm",
    "rank_99",
    "saturated_share",
    "saturated_units",
    "stable_rank",
    "weight_drift",
    "weight_magnitude",
]

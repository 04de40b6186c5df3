"""Measures of a network: pure functions from tensors to numbers, one file per family.

Every function takes one network or a stack: axes are counted from the right and leading axes (*R) are runs, so a value
(or a mask) comes back for each run. A run whose numbers are not finite measures as nan and does not affect the others.
Measures are float64 and carry no gradient.

- `ranks`: effective_rank, stable_rank, rank_99 of a matrix (*R, n, m); `gram` computes the first faster;
- `activity`: dead, saturated and linearised units of activations (*R, n, U); `duplicates`: duplicate units;
- `weights`: weight_magnitude, weight_drift, gradient_norm of one tensor or of all the tensors of a network;
- `isometry`: distance_from_isometry of weights;
- `example_gradients`: gradient_agreement and gradient_strength of the gradients of single examples;
- `updates`: one_step_plasticity and churn, from losses and outputs before and after an update.
"""

from neoteny.metrics.activity import (
    dead_share,
    dead_units,
    linearised_share,
    linearised_units,
    saturated_share,
    saturated_units,
)
from neoteny.metrics.duplicates import duplicate_share, duplicate_units
from neoteny.metrics.example_gradients import gradient_agreement, gradient_strength
from neoteny.metrics.isometry import distance_from_isometry
from neoteny.metrics.ranks import effective_rank, rank_99, stable_rank
from neoteny.metrics.updates import churn, one_step_plasticity
from neoteny.metrics.weights import gradient_norm, weight_drift, weight_magnitude

__all__ = [
    "churn",
    "dead_share",
    "dead_units",
    "distance_from_isometry",
    "duplicate_share",
    "duplicate_units",
    "effective_rank",
    "gradient_agreement",
    "gradient_norm",
    "gradient_strength",
    "linearised_share",
    "linearised_units",
    "one_step_plasticity",
    "rank_99",
    "saturated_share",
    "saturated_units",
    "stable_rank",
    "weight_drift",
    "weight_magnitude",
]

"""The utilities of a unit, each as the terms that it multiplies (equations 2 to 8 of the paper, and its ablation).

A utility is the running average of a product of terms: how far the unit's activations are from zero (equation 2) or
from their mean (equation 5), times its outgoing weights, divided by its incoming weights (equation 6). This table is
the only place that says which utility has which terms: the library, the compiled tick, the CPU kernel and the CUDA
kernel branch on the terms. A seventh utility, from gradients, is computed by the library alone: compiled ticks and
kernels refuse its term.

The numbers are bits because a compiled function takes one number at a third of the cost of five. They are compiled
into machine code that numba keeps on disk: do not change the number of a term.
"""

from __future__ import annotations

ACTIVITY = 1
"""The mean of |h|, or of |h - mean| if CENTRED."""
CENTRED = 2
"""The running mean is taken from the activations."""
OUTGOING = 4
"""Times the mean absolute outgoing weight."""
INCOMING = 8
"""Divided by the mean absolute incoming weight; 0 for a unit without incoming weights."""
RANDOM = 16
"""A new draw whenever units are chosen; nothing is measured."""

GRADIENT = 32
"""The first-order cost of the reset, from the gradient at the unit's output; excludes all other terms."""

UTILITIES = {
    "overall": ACTIVITY | CENTRED | OUTGOING | INCOMING,
    "mean_corrected_contribution": ACTIVITY | CENTRED | OUTGOING,
    "contribution": ACTIVITY | OUTGOING,
    "adaptation": INCOMING,
    "weight_magnitude": OUTGOING,
    "random": RANDOM,
    "gxd": GRADIENT,
}
"""Name to terms, the paper's own utility first."""

"""The mean that a convolution without bias leaves behind, as its batch norm's running mean takes it up.

Unit c of the layer below contributes to output channel k, on average over examples and output positions, the sum over
taps of (mean input under the tap) * (weight of the tap). When the unit's outgoing weights become zero, that much is
missing from channel k. In evaluation mode the norm computes (z - running_mean) / sqrt(running_var + eps): with the same
amount missing from the running mean, the mean of what it returns stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .conv import tap_inputs


def running_mean_after(
    running_mean: np.ndarray, h: np.ndarray, weight: np.ndarray, units: Sequence[int], stride: int, padding: int
) -> np.ndarray:
    """The running mean (K,) after `units` are replaced; h (B, U, H, W), weight (K, U, kh, kw) before the reset."""
    windows = tap_inputs(h, weight.shape[2], weight.shape[3], stride, padding)  # (B, H', W', U, kh, kw)
    result = running_mean.astype(np.float64).copy()
    for k in range(len(weight)):
        for c in units:
            for row in range(weight.shape[2]):
                for column in range(weight.shape[3]):
                    result[k] -= windows[:, :, :, c, row, column].mean() * weight[k, c, row, column]
    return result

"""Compiled online normalisation for the CPU kernel: `nets.OnlineNorm` for one example, forward and backward."""

from __future__ import annotations

import math

import numpy as np

from neoteny.draws.philox import compiled

_MU, _VAR, _EY, _E1 = (np.uint64(k) for k in range(4))


@compiled
def normalize(
    z, layer, count, unit, buffers, run, p, scale, shift, decay, eps, y, root, one
):  # pragma: no cover - compiled
    """z[layer] = its normalised value; y and root keep what the backward pass needs. Returns the layer's scaling."""
    square = one - one
    for j in range(count):
        mu, var = buffers[_MU, run, unit + j], buffers[_VAR, run, unit + j]
        off = z[layer, j] - mu
        root[layer, j] = one / math.sqrt(var + eps)
        y[layer, j] = off * root[layer, j]
        square += y[layer, j] * y[layer, j]
        buffers[_VAR, run, unit + j] = decay * var + decay * (one - decay) * off * off
        buffers[_MU, run, unit + j] = decay * mu + (one - decay) * z[layer, j]
    scaling = one / math.sqrt(square / count + eps)
    for j in range(count):
        z[layer, j] = y[layer, j] * (one * scaling) * p[scale + j] + p[shift + j]
    return scaling


@compiled
def normalize_back(
    g, layer, count, unit, buffers, run, p, scale, scaling, gain, y, root, for_scale, for_shift, one
):  # pragma: no cover - compiled
    """g[layer] from the gradient of the normalised value to that of what came in; those of scale and shift besides."""
    factor = one * scaling
    dot = one - one
    for j in range(count):
        for_shift[layer, j] = g[layer, j]
        for_scale[layer, j] = g[layer, j] * y[layer, j] * factor
        g[layer, j] *= p[scale + j]
        dot += g[layer, j] * y[layer, j]
    dot = dot * factor * factor * factor / (one * count)
    for j in range(count):
        ey, e1 = buffers[_EY, run, unit + j], buffers[_E1, run, unit + j]
        steered = factor * g[layer, j] - y[layer, j] * dot - gain * ey * y[layer, j]
        buffers[_EY, run, unit + j] = ey + steered * y[layer, j]
        steered = steered * root[layer, j] - gain * e1
        buffers[_E1, run, unit + j] = e1 + steered
        g[layer, j] = steered

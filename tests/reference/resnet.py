"""A residual network for small images, forward: plain loops over stages and blocks, batch norm by its formula.

- stem: 3x3 convolution, stride 1, padding 1; batch norm; ReLU.
- block: 3x3 convolution (stride 2 in the first block of every stage but the first), norm, ReLU, 3x3 convolution, norm;
  plus the input, through a 1x1 convolution of the same stride and a norm where stride or channels change; ReLU.
- mean over positions, linear output.

In training a norm takes mean and variance of each channel over batch and positions, and moves its running statistics a
tenth of the way to them, the variance with n - 1 in the denominator. In evaluation it takes the running statistics.

Tensors are in a dict by names: conv, norm, stages.S.B.conv1 and so on, each with .weight, .bias, .running_mean, ...
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reference.conv import conv2d

Tensors = dict[str, np.ndarray]


def forward(
    tensors: Tensors, x: np.ndarray, widths: Sequence[int], blocks: Sequence[int], training: bool
) -> np.ndarray:
    """Outputs of images x (B, C, H, W); in training the running statistics in `tensors` are changed."""
    x = _relu(_norm(tensors, "norm", _conv(tensors, "conv", x, 1, 1), training))
    channels = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks[stage]):
            name = f"stages.{stage}.{block}"
            stride = 2 if stage > 0 and block == 0 else 1
            inner = _relu(_norm(tensors, f"{name}.norm1", _conv(tensors, f"{name}.conv1", x, stride, 1), training))
            inner = _norm(tensors, f"{name}.norm2", _conv(tensors, f"{name}.conv2", inner, 1, 1), training)
            if stride != 1 or channels != width:
                x = _conv(tensors, f"{name}.shortcut.0", x, stride, 0)
                x = _norm(tensors, f"{name}.shortcut.1", x, training)
            x = _relu(inner + x)
            channels = width
    return x.mean(axis=(2, 3)) @ tensors["out.weight"].T + tensors["out.bias"]


def _conv(tensors: Tensors, name: str, x: np.ndarray, stride: int, padding: int) -> np.ndarray:
    weight = tensors[f"{name}.weight"]
    bias = tensors.get(f"{name}.bias", np.zeros(len(weight)))
    return conv2d(x, weight, bias, stride, padding)


def _norm(tensors: Tensors, name: str, x: np.ndarray, training: bool) -> np.ndarray:
    result = np.empty_like(x)
    for channel in range(x.shape[1]):
        values = x[:, channel]
        mean, variance = tensors[f"{name}.running_mean"][channel], tensors[f"{name}.running_var"][channel]
        if training:
            mean, variance = values.mean(), values.var()
            unbiased = variance * values.size / (values.size - 1)
            tensors[f"{name}.running_mean"][channel] *= 0.9
            tensors[f"{name}.running_mean"][channel] += 0.1 * mean
            tensors[f"{name}.running_var"][channel] *= 0.9
            tensors[f"{name}.running_var"][channel] += 0.1 * unbiased
        scale, shift = tensors[f"{name}.weight"][channel], tensors[f"{name}.bias"][channel]
        result[:, channel] = (values - mean) / np.sqrt(variance + 1e-5) * scale + shift
    return result


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)

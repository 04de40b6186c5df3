"""Compiled passes over all weights of a run: loss terms, the update, noise, slow weights.

Every pass is a loop over a row of parameters, gradients and states that lie side by side; padding is zero in all of
them and stays zero.
"""

from __future__ import annotations

import math

import numpy as np

from neoteny.backends.kernel.cpu.layers import exponential
from neoteny.backends.kernel.dense.places import BIAS, INPUTS, OUTPUTS, PURPOSES, STRIDE, UNIT, WEIGHT
from neoteny.draws.philox import add_noise_to_matrix, add_noise_to_vector, compiled

_ZERO, _ONE, _TWO, _THREE = (np.uint64(k) for k in range(4))


@compiled
def add_terms(p, grad, anchor, shape, l2, pull, zero):  # pragma: no cover - compiled
    """grad += l2 * p, and pull * (p - anchor) but for norms."""
    if l2 != zero:
        for k in range(p.size):
            grad[k] += l2 * p[k]
    if anchor.size > 0 and pull != zero:
        for layer in range(shape.shape[1]):
            for k in range(shape[WEIGHT, layer], shape[BIAS, layer] + shape[STRIDE, layer]):
                grad[k] += pull * (p[k] - anchor[k])


@compiled
def descend(p, grad, first, step_size, momentum):  # pragma: no cover - compiled
    """SGD; with momentum its velocity is `first` (empty: none)."""
    if first.size == 0:
        for k in range(p.size):
            p[k] -= step_size * grad[k]
        return
    for k in range(p.size):
        velocity = momentum * first[k] + grad[k]
        first[k] = velocity
        p[k] -= step_size * velocity


@compiled
def start_powers(since, unit, shape, options, step, power1, power2):  # pragma: no cover - compiled
    """The decay rates to the power of the age, of what feeds every matrix (row 2 l) and what it feeds (row 2 l + 1)."""
    layers = shape.shape[1]
    for side in range(2 * layers):
        born_layer = side // 2 - 1 + side % 2
        for j in range(power1.shape[1]):
            age = np.int64(step)
            if 0 <= born_layer < layers - 1:
                units = shape[OUTPUTS, born_layer]
                if j < units * (np.uint64(options.copies) if side % 2 == 0 else _ONE):
                    age -= since[unit + shape[UNIT, born_layer] + np.uint64(j) % units]
            power1[side, j], power2[side, j] = options.beta1**age, options.beta2**age


@compiled
def advance_powers(options, power1, power2, scale1, scale2):  # pragma: no cover - compiled
    """One update later: scale1 = 1 / (1 - power1), scale2 = 1 / sqrt(1 - power2)."""
    for side in range(power1.shape[0]):
        for j in range(power1.shape[1]):
            power1[side, j] *= options.beta1
            power2[side, j] *= options.beta2
            scale1[side, j] = 1.0 / (1.0 - power1[side, j])
            scale2[side, j] = 1.0 / math.sqrt(1.0 - power2[side, j])


@compiled
def _rows(shape, options, layer):  # pragma: no cover - compiled
    """Rows of a layer: those of its matrix, then its bias and, with a norm, gain and offset."""
    return shape[INPUTS, layer] + (_THREE if options.norm and layer < np.uint64(shape.shape[1]) - _ONE else _ONE)


@compiled
def adam(
    p, grad, first, second, shape, options, step_size, keep, one_minus_beta1, one_minus_beta2, beta2, eps, scale1,
    scale2, drawn, by_age1, by_age2, now, zero,
):  # pragma: no cover - compiled  # fmt: skip
    """Adam with a step count for every weight: that of the younger of the two units that it joins.

    Where single weights are redrawn, no units are: then a weight's count is its own, since `drawn` (else empty).
    """
    for k in range(p.size):
        gradient = grad[k]
        p[k] *= keep
        first[k] += one_minus_beta1 * (gradient - first[k])
        second[k] = beta2 * second[k] + one_minus_beta2 * gradient * gradient
    for layer in range(np.uint64(shape.shape[1])):
        stride, by_input, by_output = shape[STRIDE, layer], _TWO * layer, _TWO * layer + _ONE
        for i in range(_rows(shape, options, layer)):
            row, matrix = shape[WEIGHT, layer] + i * stride, i < shape[INPUTS, layer]
            of_row, root_of_row = (scale1[by_input, i], scale2[by_input, i]) if matrix else (zero, zero)
            if matrix and drawn.size > 0:
                for j in range(stride):
                    age = min(np.int64(now) - drawn[row + j], by_age1.size - 1)
                    root = math.sqrt(second[row + j]) * by_age2[age]
                    p[row + j] -= by_age1[age] * step_size * first[row + j] / (root + eps)
                continue
            for j in range(stride):
                size = max(of_row, scale1[by_output, j]) * step_size
                root = math.sqrt(second[row + j]) * max(root_of_row, scale2[by_output, j])
                p[row + j] -= size * first[row + j] / (root + eps)


@compiled
def spare_useful(
    p, grad, average, noise, shape, options, step_size, one_minus_decay, keep, tiny, scale1, length, one
):  # pragma: no cover - compiled
    """UPGD's update; `noise` is drawn, `keep` is what weight decay leaves, `length` a work row.

    Two passes over the layers: the first finds the largest utility.
    """
    zero = one - one
    for k in range(p.size):
        average[k] += one_minus_decay * (-grad[k] * p[k] - average[k])
    largest, inverse = zero, one
    for moves in range(2):
        for layer in range(np.uint64(shape.shape[1])):
            inputs, stride = shape[INPUTS, layer], shape[STRIDE, layer]
            by_input, by_output = _TWO * layer, _TWO * layer + _ONE
            length[:stride] = zero
            for i in range(_rows(shape, options, layer) if moves == 0 or options.scale == 2 else _ZERO):
                row, of_row = shape[WEIGHT, layer] + i * stride, scale1[by_input, i] if i < inputs else zero
                for j in range(stride):
                    utility = average[row + j]
                    largest = max(
                        largest, utility if options.scale == 1 else utility * max(of_row, scale1[by_output, j])
                    )
                for j in range(stride if i < inputs else _ZERO):
                    utility = average[row + j] * max(of_row, scale1[by_output, j])
                    length[j] += utility * utility
            if moves == 0:
                continue
            inverse = one / max(largest, tiny)
            for j in range(stride):
                length[j] = one / max(math.sqrt(length[j]), tiny) if options.scale == 2 else inverse
            for i in range(_rows(shape, options, layer)):
                row, of_row = shape[WEIGHT, layer] + i * stride, scale1[by_input, i] if i < inputs else zero
                if options.scale == 2 and i >= inputs:  # a vector is one row
                    square = zero
                    for j in range(stride):
                        utility = average[row + j] * scale1[by_output, j]
                        square += utility * utility
                    length[:stride] = one / max(math.sqrt(square), tiny)
                for j in range(stride):
                    utility = average[row + j] * max(of_row, scale1[by_output, j]) * length[j]
                    changeable = one / (one + exponential(utility, p.itemsize == 8))
                    gradient, shake = grad[row + j], noise[row + j]
                    direction = (gradient + shake) * changeable if options.protect else gradient + shake * changeable
                    p[row + j] = p[row + j] * keep - direction * step_size


@compiled
def perturb(p, shape, options, first_purpose, seed, step, std, one, words):  # pragma: no cover - compiled
    """p += std * normal for every parameter; `first_purpose`: row of the purposes for the weights."""
    for layer in range(np.uint64(shape.shape[1])):
        outputs, stride = shape[OUTPUTS, layer], shape[STRIDE, layer]
        add_noise_to_matrix(
            p, shape[WEIGHT, layer], shape[INPUTS, layer], outputs, stride, seed, step,
            shape[PURPOSES + first_purpose, layer], std, one, words,
        )  # fmt: skip
        for part in range(_rows(shape, options, layer) - shape[INPUTS, layer]):
            add_noise_to_vector(
                p, shape[BIAS, layer] + part * stride, outputs, seed, step,
                shape[PURPOSES + np.uint64(first_purpose) + _ONE + part, layer], std, one,
            )  # fmt: skip


@compiled
def follow(p, slow, share, copies):  # pragma: no cover - compiled
    """slow += share * (p - slow); with `copies` then p = slow."""
    for k in range(p.size):
        slow[k] += share * (p[k] - slow[k])
    if copies:
        for k in range(p.size):
            p[k] = slow[k]


@compiled
def clip(p, shape, options, bound, one):  # pragma: no cover - compiled
    """Hold weights and biases within bound / sqrt(inputs)."""
    most = np.empty(1, p.dtype)
    for layer in range(shape.shape[1] - (1 if options.spare_output else 0)):
        most[0] = bound / math.sqrt(shape[INPUTS, layer])
        for k in range(shape[WEIGHT, layer], shape[BIAS, layer] + shape[STRIDE, layer]):
            p[k] = min(max(p[k], -most[0]), most[0])

"""Compiled passes over all weights of a run: loss terms, the update, noise, slow weights.

Every pass is a loop over a row of parameters, gradients and states that lie side by side; padding is zero in all of
them and stays zero.
"""

from __future__ import annotations

import math

import numpy as np

from neoteny.backends.kernel.cpu.layers import exponential
from neoteny.draws.philox import add_noise_to_matrix, add_noise_to_vector, compiled

_ZERO, _ONE, _TWO, _FOUR = (np.uint64(k) for k in (0, 1, 2, 4))


@compiled
def add_terms(p, grad, anchor, shape, l2, pull, zero):  # pragma: no cover - compiled
    """grad += l2 * p, and pull * (p - anchor) but for norms."""
    if l2 != zero:
        for k in range(p.size):
            grad[k] += l2 * p[k]
    if anchor.size > 0 and pull != zero:
        for layer in range(len(shape.inputs)):
            for k in range(shape.weight[layer], shape.bias[layer] + shape.stride[layer]):
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
    layers = len(shape.inputs)
    for side in range(2 * layers):
        born_layer = side // 2 - 1 + side % 2
        for j in range(power1.shape[1]):
            age = np.int64(step)
            if 0 <= born_layer < layers - 1:
                units = shape.outputs[born_layer]
                if j < units * (np.uint64(options.copies) if side % 2 == 0 else _ONE):
                    age -= since[unit + shape.unit[born_layer] + np.uint64(j) % units]
            power1[side, j], power2[side, j] = options.beta1**age, options.beta2**age


@compiled
def advance_powers(shape, options, power1, power2, scale1, scale2):  # pragma: no cover - compiled
    """One update later: scale1 = 1 / (1 - power1), scale2 = 1 / sqrt(1 - power2)."""
    for side in range(power1.shape[0]):
        for j in range(power1.shape[1]):
            power1[side, j] *= options.beta1
            power2[side, j] *= options.beta2
            scale1[side, j] = 1.0 / (1.0 - power1[side, j])
            scale2[side, j] = 1.0 / math.sqrt(1.0 - power2[side, j])


@compiled
def adam(
    p, grad, first, second, shape, options, step_size, one_minus_beta1, one_minus_beta2, beta2, eps, scale1, scale2
):  # pragma: no cover - compiled
    """Adam with a step count for every weight: that of the younger of the two units that it joins."""
    for k in range(p.size):
        gradient = grad[k]
        first[k] += one_minus_beta1 * (gradient - first[k])
        second[k] = beta2 * second[k] + one_minus_beta2 * gradient * gradient
    for layer in range(np.uint64(len(shape.inputs))):
        stride, by_input, by_output = shape.stride[layer], _TWO * layer, _TWO * layer + _ONE
        for i in range(shape.inputs[layer]):
            row = shape.weight[layer] + i * stride
            of_row, root_of_row = scale1[by_input, i], scale2[by_input, i]
            for j in range(stride):
                size = max(of_row, scale1[by_output, j]) * step_size
                root = math.sqrt(second[row + j]) * max(root_of_row, scale2[by_output, j])
                p[row + j] -= size * first[row + j] / (root + eps)
        for part in range(_vectors(options, layer, shape)):
            at = shape.bias[layer] + np.uint64(part) * stride
            for j in range(stride):
                root = math.sqrt(second[at + j]) * scale2[by_output, j]
                p[at + j] -= step_size * scale1[by_output, j] * first[at + j] / (root + eps)


@compiled
def _vectors(options, layer, shape):  # pragma: no cover - compiled
    """Vectors behind the matrix of a layer: bias, gain, offset."""
    return 3 if options.norm and layer < np.uint64(len(shape.inputs)) - _ONE else 1


@compiled
def spare_useful(
    p, grad, average, noise, shape, options, step_size, one_minus_decay, keep, factor, tiny, scale1, length, one
):  # pragma: no cover - compiled
    """UPGD's update; `noise` is drawn, `keep` is what weight decay leaves, `length` a work row."""
    for k in range(p.size):
        average[k] += one_minus_decay * (-grad[k] * p[k] - average[k])
    largest = one - one
    if options.scale == 1:
        for k in range(p.size):
            largest = max(largest, average[k])
    elif options.scale == 0:
        for layer in range(np.uint64(len(shape.inputs))):
            largest = max(largest, _largest(average, shape, options, layer, scale1, one))
    for layer in range(np.uint64(len(shape.inputs))):
        stride, by_input, by_output = shape.stride[layer], _TWO * layer, _TWO * layer + _ONE
        if options.scale == 2:
            length[:stride] = one - one
            for i in range(shape.inputs[layer]):
                row = shape.weight[layer] + i * stride
                for j in range(stride):
                    utility = average[row + j] * max(scale1[by_input, i], scale1[by_output, j])
                    length[j] += utility * utility
            for j in range(stride):
                length[j] = math.sqrt(length[j])
        else:
            length[:stride] = largest
        for j in range(stride):
            length[j] = one / max(length[j], tiny)
        for i in range(shape.inputs[layer]):
            row = shape.weight[layer] + i * stride
            of_row = scale1[by_input, i]
            for j in range(stride):
                utility = average[row + j] * max(of_row, scale1[by_output, j])
                _move(p, grad, noise, row + j, utility * length[j], options.protect, step_size, keep, factor, one)
        for part in range(_vectors(options, layer, shape)):
            at = shape.bias[layer] + np.uint64(part) * stride
            if options.scale == 2:
                square = one - one
                for j in range(stride):
                    utility = average[at + j] * scale1[by_output, j]
                    square += utility * utility
                length[:stride] = one / max(math.sqrt(square), tiny)
            for j in range(stride):
                utility = average[at + j] * scale1[by_output, j]
                _move(p, grad, noise, at + j, utility * length[j], options.protect, step_size, keep, factor, one)


@compiled
def _largest(average, shape, options, layer, scale1, one):  # pragma: no cover - compiled
    """The largest corrected average of a layer, at least 0."""
    stride, by_input, by_output = shape.stride[layer], _TWO * layer, _TWO * layer + _ONE
    largest = one - one
    for i in range(shape.inputs[layer]):
        row = shape.weight[layer] + i * stride
        of_row = scale1[by_input, i]
        for j in range(stride):
            largest = max(largest, average[row + j] * max(of_row, scale1[by_output, j]))
    for part in range(_vectors(options, layer, shape)):
        at = shape.bias[layer] + np.uint64(part) * stride
        for j in range(stride):
            largest = max(largest, average[at + j] * scale1[by_output, j])
    return largest


@compiled
def _move(p, grad, noise, k, utility, protect, step_size, keep, factor, one):  # pragma: no cover - compiled
    changeable = one / (one + exponential(utility, p.itemsize == 8))
    if protect:
        direction = (grad[k] + noise[k]) * changeable
    else:
        direction = grad[k] + noise[k] * changeable
    p[k] = p[k] * keep - direction * (step_size * factor)


@compiled
def perturb(p, shape, options, first_purpose, seed, step, std, one, words):  # pragma: no cover - compiled
    """p += std * normal for every parameter; `first_purpose`: row of the purposes for the weights."""
    for layer in range(np.uint64(len(shape.inputs))):
        outputs, stride = shape.outputs[layer], shape.stride[layer]
        add_noise_to_matrix(
            p, shape.weight[layer], shape.inputs[layer], outputs, stride, seed, step,
            shape.purposes[first_purpose, layer], std, one, words,
        )  # fmt: skip
        for part in range(_vectors(options, layer, shape)):
            add_noise_to_vector(
                p, shape.bias[layer] + np.uint64(part) * stride, outputs, seed, step,
                shape.purposes[first_purpose + 1 + part, layer], std, one,
            )  # fmt: skip


@compiled
def follow(p, slow, share, copies):  # pragma: no cover - compiled
    """slow += share * (p - slow); with `copies` then p = slow."""
    for k in range(p.size):
        slow[k] += share * (p[k] - slow[k])
    if copies:
        for k in range(p.size):
            p[k] = slow[k]

"""Naive signs of plasticity: linear and duplicate units, isometry, churn, gradients of examples, and a probe."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def linearised_units(activations: np.ndarray, share: float) -> np.ndarray:
    """Which units are positive on at least this share of the examples: (examples, units) to bool (units,)."""
    found = []
    for unit in activations.T:
        positive = sum(1 for value in unit if value > 0.0)
        found.append(positive >= share * len(unit))
    return np.array(found, dtype=bool)


def duplicate_units(activations: np.ndarray, correlation: float) -> np.ndarray:
    """Which units have another one whose Pearson correlation with them is beyond `correlation` in absolute value.

    A unit that never changes is correlated with nothing.
    """
    units = activations.shape[1]
    found = np.zeros(units, dtype=bool)
    for i in range(units):
        for j in range(units):
            a, b = activations[:, i], activations[:, j]
            if i == j or np.ptp(a) == 0.0 or np.ptp(b) == 0.0:
                continue
            covariance = float(np.mean((a - a.mean()) * (b - b.mean())))
            if abs(covariance / (a.std() * b.std())) > correlation:
                found[i] = True
    return found


def distance_from_isometry(weights: Sequence[np.ndarray], scaled: bool) -> float:
    """Mean over the matrices of how far their singular values are from 1.

    A weight with more than two axes is a matrix with one row per output. Unscaled: sum of (s^2 - 1)^2 over its
    min(rows, columns) singular values. Scaled: the mean of the same after dividing the matrix by the root of its mean
    s^2. A matrix of zeros cannot be scaled and has s = 0.
    """
    found = []
    for weight in weights:
        values = np.linalg.svd(weight.reshape(len(weight), -1), compute_uv=False)
        size = math.sqrt(float(np.mean(values**2)))
        if scaled and size > 0.0:
            values = values / size
        terms = [(float(value) ** 2 - 1.0) ** 2 for value in values]
        found.append(sum(terms) / (len(terms) if scaled else 1))
    return sum(found) / len(found)


def churn(outputs: np.ndarray, previous: np.ndarray) -> float:
    """Mean over examples of the squared length of the change of an example's output."""
    total = 0.0
    for now, before in zip(outputs, previous, strict=True):
        total += float(np.sum((now - before) ** 2))
    return total / len(outputs)


def one_step_plasticity(losses: Sequence[float], losses_after: Sequence[float]) -> float:
    """Mean over updates of max(1 - after / max(before, 1e-8), 0), both losses on the batch of the update."""
    found = [max(1.0 - after / max(before, 1e-8), 0.0) for before, after in zip(losses, losses_after, strict=True)]
    return sum(found) / len(found)


def gradient_agreement(gradients: np.ndarray) -> float:
    """Mean cosine over all pairs of different examples, (examples, parameters); that with a zero gradient is 0."""
    total, pairs = 0.0, 0
    for i, one in enumerate(gradients):
        for j, other in enumerate(gradients):
            if i == j:
                continue
            pairs += 1
            lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
            total += float(one @ other) / lengths if lengths > 0.0 else 0.0
    return total / pairs


def gradient_strength(gradients: np.ndarray) -> float:
    """Mean length of the gradients of single examples, (examples, parameters)."""
    return sum(float(np.linalg.norm(gradient)) for gradient in gradients) / len(gradients)


class ProbedMLP:
    """One ReLU network with mean squared error that is trained with plain SGD; the losses come before each update."""

    def __init__(self, weights: Sequence[np.ndarray], biases: Sequence[np.ndarray]) -> None:
        self.weights = [weight.copy() for weight in weights]
        self.biases = [bias.copy() for bias in biases]

    def outputs(self, inputs: np.ndarray) -> list[np.ndarray]:
        """What each layer gives, (examples, features); the last has no ReLU."""
        values = [inputs]
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            value = values[-1] @ weight.T + bias
            values.append(np.maximum(value, 0.0) if number < len(self.weights) - 1 else value)
        return values

    def loss(self, inputs: np.ndarray, targets: np.ndarray) -> float:
        """Mean over examples and outputs of the squared error."""
        return float(np.mean((self.outputs(inputs)[-1] - targets) ** 2))

    def gradients(self, inputs: np.ndarray, targets: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Of the loss, by weights and by biases."""
        values = self.outputs(inputs)
        delta = 2.0 * (values[-1] - targets) / targets.size
        of_weights: list[np.ndarray] = []
        of_biases: list[np.ndarray] = []
        for number in range(len(self.weights) - 1, -1, -1):
            of_weights.insert(0, delta.T @ values[number])
            of_biases.insert(0, delta.sum(0))
            delta = delta @ self.weights[number] * (values[number] > 0.0)
        return of_weights, of_biases

    def probe(self, inputs: np.ndarray, targets: np.ndarray, step_size: float) -> tuple[float, float]:
        """Mean loss before the updates on batches (updates, examples, ...), and mean one-step plasticity."""
        before, after = [], []
        for x, y in zip(inputs, targets, strict=True):
            before.append(self.loss(x, y))
            of_weights, of_biases = self.gradients(x, y)
            for weight, bias, dw, db in zip(self.weights, self.biases, of_weights, of_biases, strict=True):
                weight -= step_size * dw
                bias -= step_size * db
            after.append(self.loss(x, y))
        return sum(before) / len(before), one_step_plasticity(before, after)

"""A naive multilayer perceptron: forward, the two losses, and backpropagation by hand.

A network is a list of (weight, bias) pairs, weight (out, in) and bias (out,), as in torch. Every layer but the last is
followed by an activation; the last is linear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Layers = list[tuple[np.ndarray, np.ndarray]]

LEAKY_SLOPE = 0.01
ELU_ALPHA = 1.0


def _sigmoid(z: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(z))  # never overflows
    return np.where(z >= 0, 1.0 / (1.0 + small), small / (1.0 + small))


def _elu_negative(z: np.ndarray) -> np.ndarray:
    return ELU_ALPHA * np.expm1(np.minimum(z, 0.0))


# name -> h(z)
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": lambda z: z,
    "relu": lambda z: np.maximum(z, 0.0),
    "leaky_relu": lambda z: np.where(z > 0, z, LEAKY_SLOPE * z),
    "elu": lambda z: np.where(z > 0, z, _elu_negative(z)),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "swish": lambda z: z * _sigmoid(z),
}

# name -> dh/dz at z; at a kink the value of the left side, as torch has it
DERIVATIVES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": lambda z: np.ones_like(z),
    "relu": lambda z: np.where(z > 0, 1.0, 0.0),
    "leaky_relu": lambda z: np.where(z > 0, 1.0, LEAKY_SLOPE),
    "elu": lambda z: np.where(z > 0, 1.0, _elu_negative(z) + ELU_ALPHA),
    "tanh": lambda z: 1.0 - np.tanh(z) ** 2,
    "sigmoid": lambda z: _sigmoid(z) * (1.0 - _sigmoid(z)),
    "swish": lambda z: _sigmoid(z) * (1.0 + z * (1.0 - _sigmoid(z))),
}


def forward(layers: Layers, activations: Sequence[str], x: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Run a batch through the network.

    Args:
        layers: the (weight, bias) pairs.
        activations: one name for each hidden layer.
        x: inputs (B, in).

    Returns:
        The pre-activations z_1 .. z_L+1, and the values h_0 = x, h_1 .. h_L, h_L+1 = the network's output.
    """
    if len(activations) != len(layers) - 1:
        raise ValueError(f"expected one activation for each of {len(layers) - 1} hidden layers, got {activations!r}")
    pre_activations: list[np.ndarray] = []
    values = [np.asarray(x, dtype=np.float64)]
    for (weight, bias), name in zip(layers, [*activations, "linear"], strict=True):
        z = values[-1] @ weight.T + bias
        pre_activations.append(z)
        values.append(ACTIVATIONS[name](z))
    return pre_activations, values


def squared_error(output: np.ndarray, target: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean over the batch of the sum over outputs of (output - target)^2, and its gradient at the output."""
    error = output - target
    return float(np.mean(np.sum(error**2, axis=1))), 2.0 * error / len(output)


def cross_entropy(output: np.ndarray, target: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean over the batch of -log softmax(output)[target], target (B,) integers, and its gradient at the output."""
    shifted = output - output.max(axis=1, keepdims=True)
    probability = np.exp(shifted) / np.sum(np.exp(shifted), axis=1, keepdims=True)
    loss = 0.0
    gradient = probability.copy()
    for example, label in enumerate(target):
        loss -= shifted[example, label] - np.log(np.sum(np.exp(shifted[example])))
        gradient[example, label] -= 1.0
    return float(loss / len(output)), gradient / len(output)


LOSSES: dict[str, Callable[[np.ndarray, np.ndarray], tuple[float, np.ndarray]]] = {
    "squared_error": squared_error,
    "cross_entropy": cross_entropy,
}


def backward(
    layers: Layers,
    activations: Sequence[str],
    pre_activations: list[np.ndarray],
    values: list[np.ndarray],
    output_gradient: np.ndarray,
) -> Layers:
    """Gradients of the loss for every (weight, bias), from `forward`'s two lists and the gradient at the output."""
    gradients: Layers = []
    names = [*activations, "linear"]
    delta = output_gradient  # dL/dh of the layer at hand
    for index in reversed(range(len(layers))):
        delta = delta * DERIVATIVES[names[index]](pre_activations[index])  # dL/dz
        gradients.insert(0, (delta.T @ values[index], delta.sum(axis=0)))
        delta = delta @ layers[index][0]
    return gradients

"""Naive continual backpropagation on a multilayer perceptron: the paper's Algorithm 1 and its version with Adam.

Equations of the paper, for unit i of hidden layer l at time t with age a, decay rate eta and outgoing weights w_k:

    (2)  c     = eta c + (1 - eta) |h| sum_k |w_k|                       contribution
    (3)  f     = eta f + (1 - eta) h                                     running mean activation
    (4)  f-hat = f / (1 - eta^a)                                         corrected mean activation
    (5)  z     = eta z + (1 - eta) |h - f-hat| sum_k |w_k|               mean-corrected contribution
    (6)  y     = |h - f-hat| sum_k |w_k| / sum_j |incoming w_j|          overall, of this step
    (7)  u     = eta u + (1 - eta) y                                     overall
    (8)  u-hat = u / (1 - eta^a)                                         what units are ranked by

Where this differs from the paper's text:

- (4) and (8) use f(t) and u(t), not f(t-1) and u(t-1): with exponent a(t) only the former are properly corrected means;
- (8) is applied to every utility but the random one;
- sums of absolute weights are means, which ranks the units of one layer alike;
- with a batch, h in (3) is its mean over the batch, and |h|, |h - f-hat| are means over the batch of these magnitudes;
- all layers are measured before the first is reset; ties go to the lowest index;
- the number to replace accumulates, so that 0.01 units per step become one unit every 100 steps.

Activations come from the forward pass before the gradient step, weights from after it.

A seventh utility, "gxd", is the first-order cost of the reset itself, with r = f-hat if compensating, else 0:

    u = eta u + (1 - eta) E|dL/dh (h - r)|,  dL/dh from the backward pass of the same batch
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np

from . import mlp, philox

Utility = Literal[
    "overall", "mean_corrected_contribution", "contribution", "adaptation", "weight_magnitude", "random", "gxd"
]
Count = Literal["eligible", "layer"]
Distribution = Literal["uniform", "normal"]


class Optimizer(Protocol):
    """A gradient rule whose per-weight state can be cleared: state[name][layer] is a (weight, bias) pair of arrays."""

    state: dict[str, mlp.Layers]

    def start(self, layers: mlp.Layers) -> None: ...

    def update(self, layers: mlp.Layers, gradients: mlp.Layers) -> None: ...


def _zeros_like(layers: mlp.Layers) -> mlp.Layers:
    return [(np.zeros_like(weight), np.zeros_like(bias)) for weight, bias in layers]


class SGD:
    """w -= step_size * buffer with buffer = momentum * buffer + gradient; momentum 0 is plain gradient descent."""

    def __init__(self, step_size: float, momentum: float = 0.0) -> None:
        self.step_size = step_size
        self.momentum = momentum
        self.state: dict[str, mlp.Layers] = {}

    def start(self, layers: mlp.Layers) -> None:
        self.state = {"momentum": _zeros_like(layers)}

    def update(self, layers: mlp.Layers, gradients: mlp.Layers) -> None:
        for layer in range(len(layers)):
            for part in (0, 1):  # weight, bias
                buffer = self.state["momentum"][layer][part]
                buffer[...] = self.momentum * buffer + gradients[layer][part]
                layers[layer][part][...] -= self.step_size * buffer


class Adam:
    """Adam with a time step for every weight (the paper's "CBP with Adam"): a reset weight starts again at t = 0."""

    def __init__(self, step_size: float, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8) -> None:
        self.step_size = step_size
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.state: dict[str, mlp.Layers] = {}

    def start(self, layers: mlp.Layers) -> None:
        self.state = {name: _zeros_like(layers) for name in ("first_moment", "second_moment", "time_step")}

    def update(self, layers: mlp.Layers, gradients: mlp.Layers) -> None:
        for layer in range(len(layers)):
            for part in (0, 1):  # weight, bias
                g = gradients[layer][part]
                m = self.state["first_moment"][layer][part]
                v = self.state["second_moment"][layer][part]
                t = self.state["time_step"][layer][part]
                t += 1
                m[...] = self.beta1 * m + (1 - self.beta1) * g
                v[...] = self.beta2 * v + (1 - self.beta2) * g**2
                m_hat = m / (1 - self.beta1**t)
                v_hat = v / (1 - self.beta2**t)
                layers[layer][part][...] -= self.step_size * m_hat / (np.sqrt(v_hat) + self.epsilon)


def step_utility(utility: Utility, magnitude: float, centred: float, out_mag: float, in_mag: float) -> float:
    """One unit's utility of this step alone, Eqs. 2, 5, 6 and the paper's ablation; the random one is drawn elsewhere.

    Args:
        utility: which one.
        magnitude: mean over the batch of |h|.
        centred: mean over the batch of |h - f-hat|.
        out_mag: mean absolute outgoing weight.
        in_mag: mean absolute incoming weight.
    """
    if utility == "overall":
        return centred * out_mag / in_mag if in_mag > 0.0 else 0.0
    if utility == "mean_corrected_contribution":
        return centred * out_mag
    if utility == "contribution":
        return magnitude * out_mag
    if utility == "adaptation":
        return 1.0 / in_mag if in_mag > 0.0 else 0.0
    if utility == "weight_magnitude":
        return out_mag
    raise ValueError(f"expected a utility of the paper other than 'random', got {utility!r}")


def choose_units(
    scores: Sequence[float] | np.ndarray,
    ages: Sequence[int] | np.ndarray,
    accumulator: float,
    *,
    replacement_rate: float,
    maturity_threshold: int,
    count: Count,
) -> tuple[list[int], float]:
    """The units of one layer to replace now, lowest score first, and the new accumulator.

    A unit is eligible when its age is above the threshold. `count="eligible"` accumulates rho * (eligible units);
    `count="layer"` rho * (all units) while any unit is eligible, and drops what more than the eligible could pay.
    """
    eligible = [unit for unit in range(len(ages)) if ages[unit] > maturity_threshold]
    if count == "eligible":
        accumulator += replacement_rate * len(eligible)
        number = min(math.floor(accumulator), len(eligible))
        accumulator -= number
    elif count == "layer":
        if eligible:
            accumulator += replacement_rate * len(ages)
        number = min(math.floor(accumulator), len(eligible))
        accumulator -= math.floor(accumulator)
    else:
        raise ValueError(f"expected count 'eligible' or 'layer', got {count!r}")
    ranked = sorted(eligible, key=lambda unit: (scores[unit], unit))
    return ranked[:number], accumulator


def draw_incoming(
    seed: int, tick: int, layer_name: str, unit: int, fan_in: int, scale: float, distribution: Distribution
) -> np.ndarray:
    """Fresh incoming weights (fan_in,): uniform in (-scale, scale), or normal with standard deviation `scale`."""
    purpose = f"{layer_name}.weight"
    if distribution == "uniform":
        return scale * (2.0 * philox.uniform(seed, tick, purpose, unit, fan_in) - 1.0)
    if distribution == "normal":
        return scale * philox.normal(seed, tick, purpose, unit, fan_in)
    raise ValueError(f"expected distribution 'uniform' or 'normal', got {distribution!r}")


class NaiveCBP:
    """A learner: `step` is one pass of the loop of Algorithm 1 on one batch.

    Attributes:
        layers: list of (weight, bias), changed in place.
        ticks: how many steps were taken; the first step's draws have step number 1.
        age, mean, utility: for each hidden layer an array (U,): a, f and u of the equations.
        mean_hat, score: for each hidden layer an array (U,): f-hat, and what the units were last ranked by.
        accumulator: for each hidden layer, the fraction of a unit still to be replaced.
        replaced: for each tick the list of (layer name, unit), layers forward, lowest score first.
    """

    def __init__(
        self,
        layers: mlp.Layers,
        activations: str | Sequence[str],
        *,
        layer_names: Sequence[str],
        optimizer: Optimizer,
        scales: Sequence[float],
        distribution: Distribution = "uniform",
        loss: str = "squared_error",
        seed: int = 0,
        replacement_rate: float = 1e-4,
        decay_rate: float = 0.99,
        maturity_threshold: int = 100,
        utility: Utility = "overall",
        count: Count = "eligible",
        compensate: bool = True,
        l2_strength: float = 0.0,
        noise_std: float = 0.0,
    ) -> None:
        """
        Args:
            layers: initial (weight, bias) pairs; copied.
            activations: one name for all hidden layers, or one for each.
            layer_names: a name for every layer, the output layer included.
            optimizer: a fresh `SGD` or `Adam`.
            scales: for each hidden layer the bound (uniform) or the standard deviation (normal) of new weights.
        """
        self.layers: mlp.Layers = [
            (np.array(weight, dtype=np.float64), np.array(bias, dtype=np.float64)) for weight, bias in layers
        ]
        hidden = len(layers) - 1
        self.activations = [activations] * hidden if isinstance(activations, str) else list(activations)
        if len(layer_names) != len(layers) or len(scales) != hidden:
            raise ValueError(
                f"expected {len(layers)} layer names and {hidden} scales, got {list(layer_names)} and {list(scales)}"
            )
        self.layer_names = list(layer_names)
        self.optimizer = optimizer
        self.optimizer.start(self.layers)
        self.scales = list(scales)
        self.distribution: Distribution = distribution
        self.loss = loss
        self.seed = seed
        self.replacement_rate = replacement_rate
        self.decay_rate = decay_rate
        self.maturity_threshold = maturity_threshold
        self.utility_name: Utility = utility
        self.count: Count = count
        self.compensate = compensate
        self.l2_strength = l2_strength
        self.noise_std = noise_std

        sizes = [len(bias) for _, bias in self.layers[:-1]]
        self.ticks = 0
        self.age = [np.zeros(size, dtype=np.int64) for size in sizes]
        self.mean = [np.zeros(size) for size in sizes]
        self.utility = [np.zeros(size) for size in sizes]
        self.mean_hat = [np.zeros(size) for size in sizes]
        self.score = [np.zeros(size) for size in sizes]
        self.accumulator = [0.0] * hidden
        self.replaced: list[list[tuple[str, int]]] = []
        self.output_gradients: list[np.ndarray] = []  # dL/dh (B, U) of every hidden layer, of the last batch

    def step(self, x: np.ndarray, target: np.ndarray) -> float:
        """Learn from a batch x (B, in), then reinitialize; returns the loss from before the update."""
        self.ticks += 1
        loss, hidden = self.learn(x, target)
        self.perturb()
        self.reinitialize(hidden)
        return loss

    def learn(self, x: np.ndarray, target: np.ndarray) -> tuple[float, list[np.ndarray]]:
        """Forward, backward and the optimizer's update; returns the loss and the hidden activations before it."""
        pre_activations, values = mlp.forward(self.layers, self.activations, x)
        loss, output_gradient = mlp.LOSSES[self.loss](values[-1], target)
        gradients = mlp.backward(self.layers, self.activations, pre_activations, values, output_gradient)
        delta, self.output_gradients = output_gradient, []
        for index in reversed(range(1, len(self.layers))):
            delta = delta @ self.layers[index][0]
            self.output_gradients.insert(0, delta)
            delta = delta * mlp.DERIVATIVES[self.activations[index - 1]](pre_activations[index - 1])
        for layer, pair in enumerate(gradients):
            for part in (0, 1):  # weight, bias: the penalty is on both
                pair[part][...] += self.l2_strength * self.layers[layer][part]
        self.optimizer.update(self.layers, gradients)
        return loss, values[1:-1]

    def perturb(self) -> None:
        """Shrink and perturb's noise on all weights and biases; the shrinking is the L2 gradient."""
        if self.noise_std == 0.0:
            return
        for name, (weight, bias) in zip(self.layer_names, self.layers, strict=True):
            for row in range(weight.shape[0]):
                noise = philox.normal(self.seed, self.ticks, f"{name}.weight/perturb", row, weight.shape[1])
                weight[row] += self.noise_std * noise
            bias += self.noise_std * philox.normal(self.seed, self.ticks, f"{name}.bias/perturb", 0, len(bias))

    def reinitialize(self, hidden: list[np.ndarray]) -> None:
        """The inner loop of Algorithm 1, from the hidden activations (B, U) of every hidden layer."""
        for layer, h in enumerate(hidden):
            self._measure(layer, h)
        replaced: list[tuple[str, int]] = []
        for layer in range(len(hidden)):
            units, self.accumulator[layer] = choose_units(
                self.score[layer],
                self.age[layer],
                self.accumulator[layer],
                replacement_rate=self.replacement_rate,
                maturity_threshold=self.maturity_threshold,
                count=self.count,
            )
            self._reset(layer, units)
            replaced.extend((self.layer_names[layer], unit) for unit in units)
        self.replaced.append(replaced)

    def _measure(self, layer: int, h: np.ndarray) -> None:
        """Update age, f, u of every unit of a hidden layer."""
        eta = self.decay_rate
        incoming = self.layers[layer][0]  # (U, in)
        outgoing = self.layers[layer + 1][0]  # (out, U)
        units = incoming.shape[0]
        draws = (
            philox.uniform(self.seed, self.ticks, f"{self.layer_names[layer]}/utility", 0, units)
            if self.utility_name == "random"
            else None
        )
        for i in range(units):
            self.age[layer][i] += 1
            correction = 1.0 - eta ** int(self.age[layer][i])
            self.mean[layer][i] = eta * self.mean[layer][i] + (1 - eta) * np.mean(h[:, i])  # Eq. 3
            mean_hat = self.mean[layer][i] / correction  # Eq. 4
            self.mean_hat[layer][i] = mean_hat
            if draws is not None:
                self.score[layer][i] = draws[i]
                continue
            if self.utility_name == "gxd":
                r = mean_hat if self.compensate else 0.0
                y = float(np.mean(np.abs(self.output_gradients[layer][:, i] * (h[:, i] - r))))
                self.utility[layer][i] = eta * self.utility[layer][i] + (1 - eta) * y
                self.score[layer][i] = self.utility[layer][i] / correction
                continue
            y = step_utility(
                self.utility_name,
                magnitude=float(np.mean(np.abs(h[:, i]))),
                centred=float(np.mean(np.abs(h[:, i] - mean_hat))),
                out_mag=float(np.mean(np.abs(outgoing[:, i]))),
                in_mag=float(np.mean(np.abs(incoming[i, :]))),
            )
            self.utility[layer][i] = eta * self.utility[layer][i] + (1 - eta) * y  # Eqs. 2, 5, 7
            self.score[layer][i] = self.utility[layer][i] / correction  # Eq. 8

    def _reset(self, layer: int, units: list[int]) -> None:
        """Replace units of a hidden layer: compensate, then cut the outgoing side, then redraw the incoming side."""
        weight, bias = self.layers[layer]
        next_weight, next_bias = self.layers[layer + 1]
        if self.compensate:
            for i in units:
                next_bias += self.mean_hat[layer][i] * next_weight[:, i]
        for i in units:
            next_weight[:, i] = 0.0
            weight[i, :] = draw_incoming(
                self.seed,
                self.ticks,
                self.layer_names[layer],
                i,
                weight.shape[1],
                self.scales[layer],
                self.distribution,
            )
            bias[i] = 0.0
            for state in self.optimizer.state.values():
                state[layer][0][i, :] = 0.0
                state[layer][1][i] = 0.0
                state[layer + 1][0][:, i] = 0.0
            self.age[layer][i] = 0
            self.mean[layer][i] = 0.0
            self.utility[layer][i] = 0.0

"""Naive PPO and Continual PPO: the paper's last appendix, one example at a time.

Symbols, for step t with reward r, observation value v and value v' of the observation that followed:

    delta_t = r_t + discount * v'_t * [not terminated_t] - v_t
    A_t     = delta_t + discount * trace_decay * A_{t+1} * [not ended_t]      A = 0 behind the last step
    G_t     = A_t + v_t                                                       what the value network learns
    loss    = -mean(min(ratio * A, clip(ratio) * A)) + mean((V - G)^2)        ratio = new / old probability density

A time limit ends an episode but does not terminate it: its last step bootstraps from v', as the last step of an
iteration does, and the trace stops there. Advantages are normalised over the whole iteration. The policy is a Gaussian
whose mean is a network and whose log standard deviation is a free vector.

The optimizer acts first, then the noise of shrink and perturb, then continual backpropagation on the hidden layers of
both networks, after every mini-batch. The L2 term and the noise are on every parameter, the log standard deviation
included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import cbp, mlp, philox


def gae(
    rewards: Sequence[float] | np.ndarray,
    values: Sequence[float] | np.ndarray,
    next_values: Sequence[float] | np.ndarray,
    terminated: Sequence[bool] | np.ndarray,
    ended: Sequence[bool] | np.ndarray,
    discount: float,
    trace_decay: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages A and returns G of one iteration, each (T,); `ended` is terminated or truncated."""
    advantages = np.zeros(len(rewards))
    following = 0.0
    for t in reversed(range(len(rewards))):
        bootstrap = 0.0 if terminated[t] else next_values[t]
        delta = rewards[t] + discount * bootstrap - values[t]
        trace = 0.0 if ended[t] else following
        following = delta + discount * trace_decay * trace
        advantages[t] = following
    return advantages, advantages + np.asarray(values)


def normalise(advantages: np.ndarray) -> np.ndarray:
    """(A - mean) / (population standard deviation + 1e-8)."""
    mean = math.fsum(advantages) / len(advantages)
    variance = math.fsum((a - mean) ** 2 for a in advantages) / len(advantages)
    return (advantages - mean) / (math.sqrt(variance) + 1e-8)


def log_density(action: np.ndarray, mean: np.ndarray, log_std: np.ndarray) -> float:
    """Log density of one action under independent Gaussians, summed over the action's dimensions."""
    total = 0.0
    for a, mu, s in zip(action, mean, log_std, strict=True):
        total -= 0.5 * ((a - mu) / math.exp(s)) ** 2 + s + 0.5 * math.log(2.0 * math.pi)
    return total


def gaussian_kl(old_mean: np.ndarray, old_log_std: np.ndarray, mean: np.ndarray, log_std: np.ndarray) -> float:
    """KL(old || new) of two Gaussians with independent dimensions, for one observation."""
    total = 0.0
    for m0, s0, m1, s1 in zip(old_mean, old_log_std, mean, log_std, strict=True):
        total += s1 - s0 + (math.exp(2 * s0) + (m0 - m1) ** 2) / (2 * math.exp(2 * s1)) - 0.5
    return total


def explained_variance(values: np.ndarray, returns: np.ndarray) -> float:
    """1 - var(G - v) / var(G); 0 where the returns do not vary."""
    spread = float(np.var(returns))
    return 0.0 if spread == 0.0 else 1.0 - float(np.var(returns - values)) / spread


def clipped_objective(ratio: float, advantage: float, clip: float) -> tuple[float, float]:
    """min(ratio * A, clip(ratio) * A) of one example, and its derivative for the ratio.

    Inside the clip range both sides are the same function. Outside, the clipped side is constant, and is the smaller
    one exactly where moving on would raise the objective further. At an edge of the range the inner derivative holds.
    """
    clipped = min(max(ratio, 1.0 - clip), 1.0 + clip)
    held = (advantage > 0.0 and ratio > 1.0 + clip) or (advantage < 0.0 and ratio < 1.0 - clip)
    return min(ratio * advantage, clipped * advantage), 0.0 if held else advantage


@dataclass
class Gradients:
    """What `NaivePPO.differentiate` gives: both parts of the loss, gradients, and the hidden activations (B, U)."""

    policy_loss: float
    value_loss: float
    policy: mlp.Layers
    value: mlp.Layers
    log_std: np.ndarray
    policy_hidden: list[np.ndarray]
    value_hidden: list[np.ndarray]


class NaivePPO:
    """An agent: `update` is one mini-batch, `learn` a whole iteration of epochs and mini-batches.

    Attributes:
        policy, value: the two networks with their optimizers and the statistics of their hidden units.
        log_std: (actions,) log standard deviations, changed in place.
        ticks: mini-batches so far; the first one's draws have step number 1.
    """

    def __init__(
        self,
        policy: mlp.Layers,
        value: mlp.Layers,
        log_std: np.ndarray,
        *,
        names: Sequence[str] = ("fc1", "fc2", "out"),
        activation: str = "tanh",
        step_size: float = 1e-4,
        clip: float = 0.2,
        seed: int = 0,
        l2_strength: float = 0.0,
        noise_std: float = 0.0,
        **continual: Any,
    ) -> None:
        """
        Args:
            policy, value: initial (weight, bias) pairs; copied.
            log_std: (actions,), copied.
            names: of each network's layers; draws are made for "policy." or "value." and the name.
            continual: settings of continual backpropagation, as `cbp.NaiveCBP` takes them; none: not done.
        """

        def make(network: str, layers: mlp.Layers) -> cbp.NaiveCBP:
            return cbp.NaiveCBP(
                layers,
                activation,
                layer_names=[f"{network}.{name}" for name in names],
                optimizer=cbp.Adam(step_size),
                scales=[math.sqrt(3.0 / weight.shape[1]) for weight, _ in layers[:-1]],  # LeCun: variance 1 / inputs
                seed=seed,
                l2_strength=l2_strength,
                noise_std=noise_std,
                **continual,
            )

        self.continual = bool(continual)
        self.policy, self.value = make("policy", policy), make("value", value)
        self.log_std = np.array(log_std, dtype=np.float64)
        self.optimizer = cbp.Adam(step_size)
        self.optimizer.start(self._spread())
        self.clip = clip
        self.seed = seed
        self.l2_strength = l2_strength
        self.noise_std = noise_std
        self.ticks = 0

    @property
    def replaced(self) -> list[list[tuple[str, int]]]:
        """For each mini-batch the (layer name, unit) of all replaced units, the policy's first; [] without CBP."""
        return [a + b for a, b in zip(self.policy.replaced, self.value.replaced, strict=True)]

    def means(self, observations: np.ndarray) -> np.ndarray:
        """The policy's means (B, actions)."""
        return mlp.forward(self.policy.layers, self.policy.activations, observations)[1][-1]

    def values(self, observations: np.ndarray) -> np.ndarray:
        """(B,)"""
        return mlp.forward(self.value.layers, self.value.activations, observations)[1][-1][:, 0]

    def log_densities(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """(B,)"""
        means = self.means(observations)
        return np.array([log_density(a, m, self.log_std) for a, m in zip(actions, means, strict=True)])

    def differentiate(
        self,
        observations: np.ndarray,
        actions: np.ndarray,
        old_log_densities: np.ndarray,
        advantages: np.ndarray,
        returns: np.ndarray,
    ) -> Gradients:
        """Loss and gradients of one mini-batch, without the L2 term."""
        size = len(observations)
        policy_z, policy_h = mlp.forward(self.policy.layers, self.policy.activations, observations)
        value_z, value_h = mlp.forward(self.value.layers, self.value.activations, observations)
        means, values = policy_h[-1], value_h[-1]
        mean_gradient, value_gradient = np.zeros_like(means), np.zeros_like(values)
        log_std_gradient = np.zeros_like(self.log_std)
        policy_loss = value_loss = 0.0
        for b in range(size):
            ratio = math.exp(log_density(actions[b], means[b], self.log_std) - old_log_densities[b])
            objective, slope = clipped_objective(ratio, advantages[b], self.clip)
            policy_loss -= objective / size
            at_log_density = -slope * ratio / size  # d ratio / d log density = ratio
            for k, s in enumerate(self.log_std):
                distance = (actions[b, k] - means[b, k]) / math.exp(s)
                mean_gradient[b, k] = at_log_density * distance / math.exp(s)
                log_std_gradient[k] += at_log_density * (distance**2 - 1.0)
            error = values[b, 0] - returns[b]
            value_loss += error**2 / size
            value_gradient[b, 0] = 2.0 * error / size
        return Gradients(
            policy_loss,
            value_loss,
            mlp.backward(self.policy.layers, self.policy.activations, policy_z, policy_h, mean_gradient),
            mlp.backward(self.value.layers, self.value.activations, value_z, value_h, value_gradient),
            log_std_gradient,
            policy_h[1:-1],
            value_h[1:-1],
        )

    def update(
        self,
        observations: np.ndarray,
        actions: np.ndarray,
        old_log_densities: np.ndarray,
        advantages: np.ndarray,
        returns: np.ndarray,
    ) -> Gradients:
        """Learn from one mini-batch, then perturb, then reinitialize; returns what was known before the update."""
        self.ticks += 1
        found = self.differentiate(observations, actions, old_log_densities, advantages, returns)
        for network, gradients in ((self.policy, found.policy), (self.value, found.value)):
            network.ticks = self.ticks
            network.optimizer.update(network.layers, self._with_penalty(network.layers, gradients))
        own = [(found.log_std, np.zeros(0))]
        self.optimizer.update(self._spread(), self._with_penalty(self._spread(), own))
        self.policy.perturb()
        self.value.perturb()
        if self.noise_std:
            noise = philox.normal(self.seed, self.ticks, "log_std/perturb", 0, len(self.log_std))
            self.log_std += self.noise_std * noise
        if self.continual:
            self.policy.reinitialize(found.policy_hidden)
            self.value.reinitialize(found.value_hidden)
        return found

    def learn(
        self,
        observations: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        next_observations: np.ndarray,
        terminated: np.ndarray,
        ended: np.ndarray,
        minibatches: Iterable[Sequence[int] | np.ndarray],
        *,
        discount: float = 0.99,
        trace_decay: float = 0.95,
    ) -> dict[str, float]:
        """Learn from T steps of the current policy: every mini-batch of every epoch, as lists of step numbers.

        Args:
            observations, next_observations: (T, inputs) before and after each step; after the last step of an episode
                that is its own last observation, not the first one of the next.
            actions: (T, actions), before any clipping.
            rewards, terminated, ended: (T,)

        Returns:
            `kl` of the policy before to the one after, `explained_variance` and `value_loss` (mean over mini-batches).
        """
        values = self.values(observations)
        advantages, returns = gae(
            rewards, values, self.values(next_observations), terminated, ended, discount, trace_decay
        )
        advantages = normalise(advantages)
        log_densities = self.log_densities(observations, actions)
        old_means, old_log_std = self.means(observations), self.log_std.copy()
        value_losses = []
        for indices in minibatches:
            rows = np.asarray(indices)
            found = self.update(observations[rows], actions[rows], log_densities[rows], advantages[rows], returns[rows])
            value_losses.append(found.value_loss)
        divergences = [
            gaussian_kl(old, old_log_std, new, self.log_std)
            for old, new in zip(old_means, self.means(observations), strict=True)
        ]
        return {
            "kl": float(np.mean(divergences)),
            "explained_variance": explained_variance(values, returns),
            "value_loss": float(np.mean(value_losses)),
        }

    def _spread(self) -> mlp.Layers:
        """The log standard deviations as a layer without bias, which is what the optimizer takes."""
        return [(self.log_std, np.zeros(0))]

    def _with_penalty(self, layers: mlp.Layers, gradients: mlp.Layers) -> mlp.Layers:
        """Gradients of the loss with l2_strength / 2 * |w|^2 added."""
        strength = self.l2_strength
        return [(gw + strength * w, gb + strength * b) for (gw, gb), (w, b) in zip(gradients, layers, strict=True)]

"""Naive PPO with a choice among actions: one example at a time, every gradient written out.

For an observation the policy network gives logits l, one per action:

    p_k   = exp(l_k) / sum_j exp(l_j)
    H     = -sum_k p_k log p_k
    loss  = -mean(min(ratio * A, clip(ratio) * A)) + mean((V - G)^2) - entropy * mean(H)

    d log p_a / d l_k = [k = a] - p_k            d H / d l_k = -p_k (log p_k + H)

An action is drawn as argmax_k (l_k + g_k) with Gumbel numbers g = -log(-log(u)), u uniform. Advantages, returns and the
clipped objective are those of `ppo`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from . import cbp, mlp, philox, ppo


def probabilities(logits: np.ndarray) -> list[float]:
    """p, from the logits of one observation."""
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def log_probability(logits: np.ndarray, action: int) -> float:
    top = max(logits)
    return logits[action] - top - math.log(math.fsum(math.exp(logit - top) for logit in logits))


def entropy(logits: np.ndarray) -> float:
    return -math.fsum(p * log_probability(logits, k) for k, p in enumerate(probabilities(logits)))


def divergence(old: np.ndarray, new: np.ndarray) -> float:
    """KL(old || new) of two policies, for one observation."""
    return math.fsum(p * (log_probability(old, k) - log_probability(new, k)) for k, p in enumerate(probabilities(old)))


def draw_action(logits: np.ndarray, seed: int, iteration: int, step: int) -> int:
    """The action at a step of an iteration."""
    numbers = philox.uniform(seed, iteration, "agent.choice", step, len(logits))
    scores = [logit - math.log(-math.log(u)) for logit, u in zip(logits, numbers, strict=True)]
    return scores.index(max(scores))


class NaiveCategoricalPPO:
    """An agent without standard deviations; `update` is one mini-batch, `learn` a whole iteration."""

    def __init__(
        self,
        policy: mlp.Layers,
        value: mlp.Layers,
        *,
        activation: str = "tanh",
        step_size: float,
        clip: float,
        entropy: float = 0.0,
        reward_scale: float = 1.0,
    ) -> None:
        self.policy = [(weight.copy(), bias.copy()) for weight, bias in policy]
        self.value = [(weight.copy(), bias.copy()) for weight, bias in value]
        self.activations = [activation] * (len(policy) - 1)
        self.optimizers = (cbp.Adam(step_size), cbp.Adam(step_size))
        self.optimizers[0].start(self.policy)
        self.optimizers[1].start(self.value)
        self.clip, self.entropy, self.reward_scale = clip, entropy, reward_scale

    def logits(self, observations: np.ndarray) -> np.ndarray:
        """(B, actions)"""
        return mlp.forward(self.policy, self.activations, observations)[1][-1]

    def values(self, observations: np.ndarray) -> np.ndarray:
        """(B,)"""
        return mlp.forward(self.value, self.activations, observations)[1][-1][:, 0]

    def update(
        self,
        observations: np.ndarray,
        actions: np.ndarray,
        old_log_probabilities: np.ndarray,
        advantages: np.ndarray,
        returns: np.ndarray,
    ) -> float:
        """Learn from one mini-batch; the value loss before it."""
        size = len(observations)
        policy_z, policy_h = mlp.forward(self.policy, self.activations, observations)
        value_z, value_h = mlp.forward(self.value, self.activations, observations)
        by_logits, by_value = np.zeros_like(policy_h[-1]), np.zeros_like(value_h[-1])
        value_loss = 0.0
        for b in range(size):
            logits = policy_h[-1][b]
            ratio = math.exp(log_probability(logits, actions[b]) - old_log_probabilities[b])
            _, slope = ppo.clipped_objective(ratio, advantages[b], self.clip)
            uncertainty = entropy(logits)
            for k, p in enumerate(probabilities(logits)):
                chosen = 1.0 if k == actions[b] else 0.0
                by_logits[b, k] = -slope * ratio * (chosen - p) / size
                by_logits[b, k] += self.entropy * p * (log_probability(logits, k) + uncertainty) / size
            error = value_h[-1][b, 0] - returns[b]
            value_loss += error**2 / size
            by_value[b, 0] = 2.0 * error / size
        of_policy = mlp.backward(self.policy, self.activations, policy_z, policy_h, by_logits)
        of_value = mlp.backward(self.value, self.activations, value_z, value_h, by_value)
        self.optimizers[0].update(self.policy, of_policy)
        self.optimizers[1].update(self.value, of_value)
        return value_loss

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
        discount: float,
        trace_decay: float,
    ) -> dict[str, float]:
        """Learn from T steps; arguments as for `ppo.NaivePPO.learn`, actions (T,) whole numbers."""
        values = self.values(observations)
        scaled = [reward * self.reward_scale for reward in rewards]
        advantages, returns = ppo.gae(
            scaled, values, self.values(next_observations), terminated, ended, discount, trace_decay
        )
        advantages = ppo.normalise(advantages)
        before = self.logits(observations)
        old = np.array([log_probability(row, action) for row, action in zip(before, actions, strict=True)])
        losses = []
        for indices in minibatches:
            rows = np.asarray(indices)
            losses.append(self.update(observations[rows], actions[rows], old[rows], advantages[rows], returns[rows]))
        after = self.logits(observations)
        return {
            "kl": float(np.mean([divergence(one, other) for one, other in zip(before, after, strict=True)])),
            "explained_variance": ppo.explained_variance(values, returns),
            "value_loss": float(np.mean(losses)),
            "policy_entropy": float(np.mean([entropy(row) for row in after])),
        }

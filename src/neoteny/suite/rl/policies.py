r"""Policies: what a policy network's outputs say about actions, as PPO needs it.

- `Gaussian`: outputs are means, beside them a vector of log standard deviations; an action is a vector.
- `Categorical`: outputs are logits, one per action; an action is a whole number.

Each gives log probabilities, entropies and divergences for autograd, and the gradients of PPO's loss by the outputs,
written out. Before this: `nets.ActorCritic`; after it: `ppo`.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from neoteny.problems.problem import SimulationError

_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


class Evaluated(NamedTuple):
    """Log probabilities (B,), and tensors from which their gradients follow."""

    log_probs: Tensor
    kept: tuple[Tensor, ...]


class Policy(Protocol):
    """A family of distributions over actions; `log_std` is None where it has no standard deviations."""

    metric: str
    """The name of `spread` in the results."""

    def choose(self, outputs: np.ndarray, std: np.ndarray | None, noise: np.ndarray) -> np.ndarray:
        """The action for the outputs of one observation, given noise of their shape.

        Raises:
            SimulationError: a choice cannot be made, because the outputs are not finite.
        """
        ...

    def log_probability(self, actions: Tensor, outputs: Tensor, log_std: Tensor | None) -> Tensor:
        """The logarithm of the actions' probabilities, one for each observation, (...)."""
        ...

    def entropy(self, outputs: Tensor, log_std: Tensor | None) -> Tensor:
        """The entropies, (...)."""
        ...

    def divergence(self, old: Tensor, old_log_std: Tensor | None, new: Tensor, new_log_std: Tensor | None) -> Tensor:
        """Kullback-Leibler divergence KL(old || new) for each observation, (B,)."""
        ...

    def spread(self, outputs: Tensor, log_std: Tensor | None) -> Tensor:
        """How undecided the policy is: one number."""
        ...

    def evaluate(self, actions: Tensor, outputs: Tensor, log_std: Tensor | None) -> Evaluated:
        """The log probabilities of a mini-batch, and what `differentiate` needs of them."""
        ...

    def differentiate(self, found: Evaluated, by_log_prob: Tensor, entropy: float) -> tuple[Tensor, Tensor | None]:
        """Gradients of a mini-batch's loss by outputs (B, outputs) and by `log_std`, written out.

        Args:
            found: of `evaluate`.
            by_log_prob: the gradient by the log probability of each action, (B,).
            entropy: what the mean entropy is multiplied by before it is subtracted from the loss.
        """
        ...


class Gaussian:
    """Independent normal distributions, with standard deviations that do not depend on the observation."""

    metric = "policy_std"

    def choose(self, outputs: np.ndarray, std: np.ndarray | None, noise: np.ndarray) -> np.ndarray:
        assert std is not None
        return outputs + noise * std

    def log_probability(self, actions: Tensor, outputs: Tensor, log_std: Tensor | None) -> Tensor:
        assert log_std is not None
        return log_probability(actions, outputs, log_std)

    def entropy(self, outputs: Tensor, log_std: Tensor | None) -> Tensor:
        assert log_std is not None
        return (log_std + (_HALF_LOG_TAU + 0.5)).sum(-1).expand(outputs.shape[:-1])

    def divergence(self, old: Tensor, old_log_std: Tensor | None, new: Tensor, new_log_std: Tensor | None) -> Tensor:
        assert old_log_std is not None
        assert new_log_std is not None
        return divergence(old, old_log_std, new, new_log_std)

    def spread(self, outputs: Tensor, log_std: Tensor | None) -> Tensor:
        assert log_std is not None
        return log_std.exp().mean()

    def evaluate(self, actions: Tensor, outputs: Tensor, log_std: Tensor | None) -> Evaluated:
        assert log_std is not None
        distance = (actions - outputs) * torch.exp(-log_std)  # in standard deviations
        square = distance.square()
        log_probs = square.sum(-1).mul_(-0.5) - (log_std.sum() + len(log_std) * _HALF_LOG_TAU)
        return Evaluated(log_probs, (distance, square, log_std))

    def differentiate(self, found: Evaluated, by_log_prob: Tensor, entropy: float) -> tuple[Tensor, Tensor | None]:
        distance, square, log_std = found.kept
        each = by_log_prob.unsqueeze(-1)
        by_log_std = (each * (square - 1.0)).sum(0)
        if entropy:
            by_log_std = by_log_std - entropy
        return each * distance * torch.exp(-log_std), by_log_std


class Categorical:
    """A choice among actions, with the softmax of the outputs as probabilities; noise is of Gumbel's distribution."""

    metric = "policy_entropy"

    def choose(self, outputs: np.ndarray, std: np.ndarray | None, noise: np.ndarray) -> np.ndarray:
        scores = outputs + noise
        best = np.argmax(scores)  # the first nan, where there is one
        if not math.isfinite(scores[best]):
            raise SimulationError(f"The policy's outputs are not finite: {outputs.tolist()}. Has it diverged?")
        return np.asarray(best)

    def log_probability(self, actions: Tensor, outputs: Tensor, log_std: Tensor | None) -> Tensor:
        each = torch.log_softmax(outputs, -1)
        return each.gather(-1, actions.expand(outputs.shape[:-1]).unsqueeze(-1)).squeeze(-1)

    def entropy(self, outputs: Tensor, log_std: Tensor | None) -> Tensor:
        each = torch.log_softmax(outputs, -1)
        return -(each.exp() * each).sum(-1)

    def divergence(self, old: Tensor, old_log_std: Tensor | None, new: Tensor, new_log_std: Tensor | None) -> Tensor:
        before = torch.log_softmax(old, -1)
        return (before.exp() * (before - torch.log_softmax(new, -1))).sum(-1)

    def spread(self, outputs: Tensor, log_std: Tensor | None) -> Tensor:
        return self.entropy(outputs, log_std).mean()

    def evaluate(self, actions: Tensor, outputs: Tensor, log_std: Tensor | None) -> Evaluated:
        each = torch.log_softmax(outputs, -1)
        return Evaluated(each.gather(-1, actions.unsqueeze(-1)).squeeze(-1), (actions, each))

    def differentiate(self, found: Evaluated, by_log_prob: Tensor, entropy: float) -> tuple[Tensor, Tensor | None]:
        actions, each = found.kept
        shares = each.exp()
        by_outputs = shares * -by_log_prob.unsqueeze(-1)
        by_outputs.scatter_add_(-1, actions.unsqueeze(-1), by_log_prob.unsqueeze(-1))
        if entropy:
            terms = shares * each  # their sum is minus the entropy
            by_outputs += (terms - shares * terms.sum(-1, keepdim=True)) * (entropy / len(actions))
        return by_outputs, None


def log_probability(actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """The logarithm of a Gaussian policy's density at actions (..., outputs), (...)."""
    distance = (actions - mean) * torch.exp(-log_std)
    return -0.5 * distance.square().sum(-1) - log_std.sum(-1) - actions.shape[-1] * _HALF_LOG_TAU


def divergence(mean: Tensor, log_std: Tensor, new_mean: Tensor, new_log_std: Tensor) -> Tensor:
    """Kullback-Leibler divergence KL(old || new) of two Gaussian policies for each observation, (B,)."""
    variances = torch.exp(2.0 * (log_std - new_log_std))
    distance = (mean - new_mean) * torch.exp(-new_log_std)
    return (new_log_std - log_std + 0.5 * (variances + distance.square() - 1.0)).sum(-1)

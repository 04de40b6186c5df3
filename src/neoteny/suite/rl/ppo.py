r"""Proximal policy optimisation (Schulman et al. 2017), and with continual backpropagation *Continual PPO*.

The paper's Appendix E, Algorithm 3: collect `iteration_steps` steps with the current policy, then for some epochs
shuffle them into mini-batches, and at each mini-batch let Adam and then every other method update both networks.

With \(\rho\) the ratio of the new to the old probability of an action, \(A\) its advantage, \(G\) its return and
\(H\) the policy's entropy, the loss of a mini-batch is

.. math::
    -\mathrm{mean} \min(\rho A, \mathrm{clip}(\rho, 1 - c, 1 + c) A) + \mathrm{mean} (V - G)^2 - e\, \mathrm{mean} H.

The paper has no term of entropy, e = 0. Policies are Gaussian, or a choice among actions (`policies`).

Advantages are generalised advantage estimates (Schulman et al. 2016); an episode that only ran out of time is followed
by the value of its last observation, one that terminated by nothing.

Before this: `agent`, which acts, and `policies`; after it: the methods, which see both networks as one stack of one.
The same update exists twice: by autograd (backend "reference"), and with gradients written out (backend "cpu",
`backends.actor_critic`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from neoteny.backends.actor_critic import CompiledActorCritic, why_not_covered
from neoteny.methods.method import Method
from neoteny.nets import ActorCritic
from neoteny.problems.draws import shuffle
from neoteny.problems.problem import NEW_FIELD, Worlds
from neoteny.stacking.stack import Stack, stack
from neoteny.suite.rl.agent import AgentTraining, Experience
from neoteny.suite.rl.policies import Categorical, Gaussian, Policy
from neoteny.suite.stacks import PlannedStack
from neoteny.suite.sweep import Agent, Setting
from neoteny.text import check_share, check_whole

_MOST_LOG_RATIO = 60.0  # above, an infinite ratio would make a gradient nan that clipping sets to zero


@dataclass(frozen=True)
class PPO(Agent):
    """Proximal policy optimisation with the paper's settings; what updates its networks are the setting's methods.

    Args:
        iteration_steps: steps between learning.
        epochs: passes over the steps of an iteration.
        minibatch: steps in a mini-batch; it divides `iteration_steps`.
        trace_decay: lambda of generalised advantage estimation, in [0, 1].
        discount: gamma, in [0, 1].
        clip: how far the ratio of probabilities may leave 1.
        entropy: what the policy's entropy is multiplied by before it is subtracted from the loss.
        reward_scale: what rewards are multiplied by before they are learned from; returns are reported without it.

    Example:
        >>> PPO(clip=0.1).minibatch
        128
    """

    iteration_steps: int = 4096
    epochs: int = 10
    minibatch: int = 128
    trace_decay: float = 0.95
    discount: float = 0.99
    clip: float = 0.2
    entropy: float = field(default=0.0, metadata=NEW_FIELD)
    reward_scale: float = field(default=1.0, metadata=NEW_FIELD)

    def __post_init__(self) -> None:
        check_whole(self, iteration_steps=1, epochs=1, minibatch=1)
        if self.iteration_steps % self.minibatch:
            raise ValueError(
                f"PPO: minibatch must divide iteration_steps, so that every step counts alike; got {self.minibatch} "
                f"and {self.iteration_steps}."
            )
        check_share(self, "trace_decay", "discount")
        check_share(self, "clip", inside=True)
        for name, positive in (("entropy", False), ("reward_scale", True)):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not 0 <= value < math.inf or (positive and not value):
                wanted = "above 0" if positive else "of at least 0"
                raise ValueError(f"PPO: {name} must be a finite number {wanted}; got {value!r}.")

    def train(self, planned: PlannedStack, worlds: Worlds) -> AgentTraining:
        """The training of one run, at its start; initial weights follow from the seed alone."""
        run = planned.runs[0]
        network = run.make_network(getattr(torch, planned.sweep.dtype))
        if not isinstance(network, ActorCritic):
            raise TypeError(
                f"PPO trains an ActorCritic; setting {run.setting.label!r} has a {type(network).__name__}. For a model "
                "of your own, attach the methods to it and keep your own loop: neoteny.attach(..., auto=True)."
            )
        if network.discrete != planned.problem.discrete:
            problem = type(planned.problem).__name__
            kind = "a choice" if planned.problem.discrete else "a vector of numbers"
            raise ValueError(
                f"PPO: an action in {problem} is {kind}, but setting {run.setting.label!r} has "
                f"discrete={network.discrete}; write network(ActorCritic, discrete={planned.problem.discrete}, ...)."
            )
        learner = Learner(network, run.setting.methods, run.seed, self, planned.backend)
        return AgentTraining(planned, worlds, learner, self.iteration_steps)

    def why_not_compiled(self, setting: Setting) -> str:
        """Why gradients are left to autograd, in words; "" if they are written out."""
        for method in setting.methods:
            if method.needs_loss:
                return f"{type(method).__name__} reads the loss"
        return why_not_covered(setting.network.build, dict(setting.network.options))


class Batch(NamedTuple):
    """Steps to learn from: observations (B, inputs), actions (B, outputs) or choices (B,), and for each step the
    logarithm of its old probability, its advantage (over the iteration of mean 0 and standard deviation 1) and its
    return, (B,)."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor

    def take(self, steps: Tensor | slice) -> Batch:
        """Some of the steps, in this order."""
        return Batch(*(values[steps] for values in self))


class Learner:
    """Both networks of an agent, and what updates them.

    Args:
        network: policy and value function; copied.
        methods: an optimizer first, then the others in the order in which they act.
        seed: of the run.
        agent: the settings.
        backend: "reference" (autograd) or "cpu" (gradients written out).
    """

    def __init__(self, network: ActorCritic, methods: Sequence[Method], seed: int, agent: PPO, backend: str) -> None:
        inputs = network.policy.get_parameter("fc1.weight" if hasattr(network.policy, "fc1") else "out.weight")
        example = torch.zeros(2, inputs.shape[1], dtype=inputs.dtype)
        self.stack: Stack = stack([network], *methods, example=example, seeds=[seed])
        self.agent = agent
        self.policy: Policy = Categorical() if network.discrete else Gaussian()
        self.metric_names = ("value_loss", "kl", "explained_variance", self.policy.metric)
        self._seed = seed
        self._network = _share_tensors(self.stack)
        self._compiled = CompiledActorCritic(self.stack, agent.minibatch) if backend == "cpu" else None

    def network(self) -> ActorCritic:
        """A copy of both networks as they are now."""
        network = self.stack.module(0)
        assert isinstance(network, ActorCritic)
        return network

    @torch.no_grad()
    def act(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """The action for one observation, given noise: normal for a Gaussian policy, Gumbel's for a choice."""
        if self._compiled is not None:
            return self.policy.choose(*self._compiled.respond(observation), noise)
        outputs = self._network.policy(torch.from_numpy(observation).unsqueeze(0)).squeeze(0)
        std = None if self._log_std is None else self._log_std.exp().numpy()
        return self.policy.choose(outputs.numpy(), std, noise)

    @property
    def _log_std(self) -> Tensor | None:
        """The logarithm of the policy's standard deviations, if it has any."""
        return None if self._network.discrete else self._network.log_std

    def learn(self, experience: Experience, iteration: int) -> dict[str, float]:
        """All epochs over one iteration's steps."""
        agent = self.agent
        batch, old, values = self._prepare(experience)
        old_log_std = None if self._log_std is None else self._log_std.detach().clone()
        orders = shuffle([self._seed], iteration, "ppo.shuffle", len(values), rounds=agent.epochs)[0].long()
        losses: list[Tensor] = []
        for order in orders:  # each epoch
            shuffled = batch.take(order)
            for start in range(0, len(values), agent.minibatch):
                losses.append(self.update(shuffled.take(slice(start, start + agent.minibatch))))
        with torch.no_grad():
            new = self._network.policy(batch.observations)
            kl = self.policy.divergence(old, old_log_std, new, self._log_std).mean()
            spread = self.policy.spread(new, self._log_std)
        return {
            "value_loss": float(torch.stack(losses).double().mean()),
            "kl": float(kl),
            "explained_variance": explained_variance(values, batch.returns),
            self.policy.metric: float(spread),
        }

    def update(self, batch: Batch) -> Tensor:
        """One update of both networks from one mini-batch, by all methods; the value loss before it."""
        if self._compiled is not None:
            return self._update_compiled(batch)
        value_losses: list[Tensor] = []

        def loss(outputs: tuple[Tensor, Tensor]) -> Tensor:
            given, value = outputs  # (1, B, outputs), (1, B)
            stds = self.stack.view.tensors.get("log_std")  # (1, outputs)
            log_std = None if stds is None else stds.unsqueeze(1)
            log_ratio = self.policy.log_probability(batch.actions, given, log_std) - batch.log_probs
            ratio = torch.exp(log_ratio.clamp(max=_MOST_LOG_RATIO))
            clipped = ratio.clamp(1.0 - self.agent.clip, 1.0 + self.agent.clip)
            policy_loss = -torch.minimum(ratio * batch.advantages, clipped * batch.advantages).mean(-1)
            value_loss = (value - batch.returns).square().mean(-1)
            value_losses.append(value_loss.detach().squeeze(0))
            total = policy_loss + value_loss
            if self.agent.entropy:
                total = total - self.agent.entropy * self.policy.entropy(given, log_std).mean(-1)
            return total

        self.stack.learn(batch.observations.unsqueeze(0), loss)
        return value_losses[0]

    @torch.no_grad()
    def _update_compiled(self, batch: Batch) -> Tensor:
        """`update`, with the gradients of its loss by the outputs of both networks written out."""
        compiled = self._compiled
        assert compiled is not None
        size = len(batch.returns)
        given, value, log_std = compiled.forward(batch.observations)
        found = self.policy.evaluate(batch.actions, given, log_std)
        log_ratio = found.log_probs - batch.log_probs
        ratio = torch.exp(log_ratio.clamp(max=_MOST_LOG_RATIO))
        gain = ratio * batch.advantages
        clipped = ratio.clamp(1.0 - self.agent.clip, 1.0 + self.agent.clip) * batch.advantages
        # Where the clipped term is the smaller one, the ratio is outside the range and has no gradient.
        flows = (gain <= clipped) & (log_ratio <= _MOST_LOG_RATIO)
        by_log_prob = (gain * flows).mul_(-1.0 / size)
        by_outputs, by_log_std = self.policy.differentiate(found, by_log_prob, self.agent.entropy)
        error = value - batch.returns
        compiled.apply(by_outputs, by_log_std, by_value=error * (2.0 / size))
        return error.square().mean()

    @torch.no_grad()
    def _prepare(self, experience: Experience) -> tuple[Batch, Tensor, Tensor]:
        """The steps with advantages and returns; the policy's outputs and the values before learning."""
        agent, network = self.agent, self._network
        dtype = experience.observations.dtype
        outputs, values = network(experience.observations)
        next_values = torch.empty_like(values)
        next_values[:-1] = values[1:]
        next_values[-1:] = network.value(experience.next_observation.unsqueeze(0)).squeeze(-1)
        if len(experience.final_observations):
            next_values[experience.ended] = network.value(experience.final_observations).squeeze(-1)
        rewards = experience.rewards if agent.reward_scale == 1.0 else experience.rewards * agent.reward_scale
        advantages = estimate_advantages(
            rewards.to(dtype),
            values,
            next_values,
            experience.terminated,
            experience.ended,
            agent.discount,
            agent.trace_decay,
        )
        normal = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
        log_probs = self.policy.log_probability(experience.actions, outputs, self._log_std)
        batch = Batch(experience.observations, experience.actions, log_probs, normal, advantages + values)
        return batch, outputs, values


def estimate_advantages(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    ended: Tensor,
    discount: float,
    trace_decay: float,
) -> Tensor:
    r"""Generalised advantage estimates of T steps in order, (T,).

    .. math::
        \delta_t = r_t + \gamma V(s'_t) - V(s_t), \qquad A_t = \delta_t + \gamma \lambda A_{t+1}

    with no \(V(s'_t)\) where the world terminated, and no \(A_{t+1}\) where the episode ended. The recurrence is solved
    for all steps at once, by doubling: after k rounds, A holds the sum over the next 2^k steps.

    Args:
        rewards, values: of each step, (T,).
        next_values: the value of the observation that followed it, in the same episode.
        terminated: where nothing follows.
        ended: where the episode ended, by the world or by its limit of time.
        discount, trace_decay: gamma and lambda.

    Example:
        >>> one, no = torch.ones(3), torch.zeros(3, dtype=torch.bool)
        >>> estimate_advantages(one, 0 * one, 0 * one, no, no, 1.0, 0.5)
        tensor([1.7500, 1.5000, 1.0000])
    """
    total = rewards + discount * next_values.masked_fill(terminated, 0.0) - values
    factor = torch.full_like(total, discount * trace_decay).masked_fill_(ended, 0.0)
    reach = 1
    while reach < len(total):
        ahead = torch.zeros_like(total)
        ahead[:-reach] = total[reach:]
        total = total + factor * ahead
        further = torch.zeros_like(factor)
        further[:-reach] = factor[reach:]
        factor = factor * further
        reach *= 2
    return total


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - var(returns - values) / var(returns): 1 for a perfect critic, 0 for a constant one, or for equal returns."""
    spread = returns.double().var(correction=0)
    return float(1.0 - (returns - values).double().var(correction=0) / spread) if spread > 0 else 0.0


def _share_tensors(stack: Stack) -> ActorCritic:
    """The networks as a module over the stack's own memory."""
    network = stack.module(0)
    assert isinstance(network, ActorCritic)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(False)
        module, _, key = name.rpartition(".")
        setattr(network.get_submodule(module), key, nn.Parameter(stack.view.tensors[name].detach()[0], False))
    return network

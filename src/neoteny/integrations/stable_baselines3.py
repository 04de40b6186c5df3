"""Stable-Baselines3: `model.learn(..., callback=Plasticity(neoteny.ContinualBackprop(1e-4)))` and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

try:
    from stable_baselines3.common.callbacks import BaseCallback
except ImportError as error:
    raise ImportError(
        "neoteny.integrations.stable_baselines3 needs Stable-Baselines3: pip install stable-baselines3"
    ) from error

from neoteny.integrations.attaching import Attaching
from neoteny.methods.method import Method


class Plasticity(BaseCallback):
    """Attaches methods to the networks of an agent while it learns, and ticks after every optimizer step.

    One network for PPO, A2C and DQN, actor and critic for SAC, and so for agents that are built like these. A second
    `learn` goes on with the statistics of the first. `model.save` knows nothing of callbacks: keep `state_dict()`
    beside it, and give it to `load_state_dict` before the loaded agent learns.

    Args:
        methods: as for `neoteny.attach`.
        options: the options of `neoteny.attach` (seed, leave_out, init, ...).
    """

    def __init__(self, *methods: Method, verbose: int = 0, **options: Any) -> None:
        super().__init__(verbose)
        self._methods, self._options = methods, options
        self._parts: dict[str, Attaching] = {}
        Attaching(methods, None, options)  # refuses wrong options now

    @property
    def replaced(self) -> dict[str, int]:
        """How many units of each group were replaced so far."""
        return {f"{part}.{name}": count for part, each in self._parts.items() for name, count in each.replaced.items()}

    def state_dict(self) -> dict[str, Any]:
        """The state of every part."""
        return {part: each.state_dict() for part, each in self._parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict()`, at once or when the agent learns."""
        for part, saved in state.items():
            self._part(part).load_state_dict(saved)

    def _part(self, name: str) -> Attaching:
        return self._parts.setdefault(name, Attaching(self._methods, None, self._options))

    def _on_training_start(self) -> None:
        for name, network, optimizer, example in _networks(self.model):
            self._part(name).start(network, [optimizer], example)

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.logger.record("plasticity/replaced", sum(self.replaced.values()))

    def _on_training_end(self) -> None:
        for each in self._parts.values():
            each.stop()


def _networks(model: Any) -> Iterator[tuple[str, nn.Module, Optimizer, Any]]:
    """The networks of an agent that are trained: name, module, optimizer, example."""
    policy = model.policy
    observation, _ = policy.obs_to_tensor(model._last_obs)
    if hasattr(policy, "critic"):
        action = torch.zeros(len(model._last_obs), model.action_space.shape[0], device=model.device)
        yield "critic", policy.critic, policy.critic.optimizer, (observation, action)
        yield "actor", policy.actor, policy.actor.optimizer, (observation,)
    elif hasattr(policy, "q_net"):
        yield "q_net", policy.q_net, policy.optimizer, (observation,)
    else:
        yield "policy", policy, policy.optimizer, (observation,)

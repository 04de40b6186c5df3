"""ActorCritic: a policy and a value function, two networks that share nothing (the paper's Appendix E)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from neoteny.draws.initial import Initial
from neoteny.nets.mlp import MLP


class ActorCritic(nn.Module):
    """A policy network, a value network, and a standard deviation for each action that does not depend on the state.

    With `discrete` an action is one of `outputs` choices: the policy gives their logits, and there are no standard
    deviations.

    Args:
        inputs: size of an observation.
        outputs: size of an action, or with `discrete` the number of actions.
        hidden: units of each hidden layer, the same in both networks.
        activation: as for `MLP`.
        init: as for `MLP`; in every layer of both networks, the output layers included.
        initial_std: the policy's standard deviation before learning; with `discrete` it has no effect.
        discrete: whether an action is a choice.

    Example:
        >>> net = ActorCritic(28, 8)
        >>> mean, value = net(torch.zeros(5, 28))
        >>> mean.shape, value.shape, net.log_std.shape
        (torch.Size([5, 8]), torch.Size([5]), torch.Size([8]))
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        hidden: Sequence[int] = (256, 256),
        activation: str = "tanh",
        init: str = "lecun_uniform",
        initial_std: float = 1.0,
        discrete: bool = False,
    ) -> None:
        if not 0.0 < initial_std < math.inf:
            raise ValueError(f"ActorCritic: initial_std must be a positive number; got {initial_std!r}.")
        if not isinstance(discrete, bool):
            raise ValueError(f"ActorCritic: discrete must be True or False; got {discrete!r}.")
        super().__init__()
        self.discrete = discrete
        self.policy = MLP(inputs, hidden, outputs, activation=activation, init=init)
        self.value = MLP(inputs, hidden, 1, activation=activation, init=init)
        if not discrete:
            self.log_std = nn.Parameter(torch.full((outputs,), math.log(initial_std)))
        # What `attach` and `stack` draw new units from.
        self.initial_distributions: dict[str, Initial] = {
            f"{name}.{layer}": distribution
            for name, network in (("policy", self.policy), ("value", self.value))
            for layer, distribution in network.initial_distributions.items()
        }

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Observations (B, inputs) to the means of actions, or their logits, (B, outputs), and the values (B,)."""
        return self.policy(observations), self.value(observations).squeeze(-1)

"""The paper's networks and the architectural remedies, as plain nn.Modules.

- `mlp.MLP`, `convnet.ConvNet` and `actor_critic.ActorCritic`: the networks of the paper's experiments;
- `dropout.Dropout` and `online_norm.OnlineNorm`: layers whose state and random draws belong to one run, so that a
  network behaves the same alone and inside a stack.
"""

from neoteny.nets.actor_critic import ActorCritic
from neoteny.nets.convnet import ConvNet
from neoteny.nets.dropout import Dropout
from neoteny.nets.mlp import MLP
from neoteny.nets.online_norm import OnlineNorm

__all__ = ["MLP", "ActorCritic", "ConvNet", "Dropout", "OnlineNorm"]

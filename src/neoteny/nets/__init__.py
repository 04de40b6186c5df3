"""The paper's networks and the architectural remedies, as plain nn.Modules.

- `mlp.MLP`, `convnet.ConvNet` and `actor_critic.ActorCritic`: the networks of the paper's experiments;
- `resnet.ResNet`: residual networks for streams of images of many classes;
- `gpt.GPT`: a small transformer, for permuted Shakespeare;
- `dropout.Dropout` and `online_norm.OnlineNorm`: layers whose state and random draws belong to one run, so that a
  network behaves the same alone and inside a stack;
- `paired.CReLU`, `paired.DeepFourier`, `aid.AID` and `smooth_leaky`: activation functions with which units keep
  learning, for any model, and by name in the networks here (`activations.make_activation`).
"""

from neoteny.nets.actor_critic import ActorCritic
from neoteny.nets.aid import AID
from neoteny.nets.convnet import ConvNet
from neoteny.nets.dropout import Dropout
from neoteny.nets.gpt import GPT
from neoteny.nets.mlp import MLP
from neoteny.nets.online_norm import OnlineNorm
from neoteny.nets.paired import CReLU, DeepFourier
from neoteny.nets.resnet import ResNet
from neoteny.nets.smooth_leaky import RandomizedSmoothLeaky, SmoothLeaky

__all__ = [
    "AID",
    "GPT",
    "MLP",
    "ActorCritic",
    "CReLU",
    "ConvNet",
    "DeepFourier",
    "Dropout",
    "OnlineNorm",
    "RandomizedSmoothLeaky",
    "ResNet",
    "SmoothLeaky",
]

"""Models as people write them themselves, in the usual ways."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo_parts.entry import Entry
from zoo_parts.handwritten_sequences import ENTRIES as SEQUENCES


class LeNet(nn.Module):
    """LeNet-5 with functional activations and pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16 * 5 * 5, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.tanh(self.conv1(x)), 2)
        x = F.max_pool2d(torch.tanh(self.conv2(x)), 2).flatten(1)
        return self.fc3(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))


def twice(inputs: int, outputs: int) -> nn.Sequential:
    """Two convolutions with BatchNorm and ReLU."""
    return nn.Sequential(
        *(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)),
        *(nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)),
    )


class UNet(nn.Module):
    """Two levels down, two up, skips by concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = twice(3, 16), twice(16, 32), twice(32, 64)
        self.lift2, self.lift1 = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.up2, self.up1 = twice(64, 32), twice(32, 16)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        x = self.bottom(F.max_pool2d(two, 2))
        x = self.up2(torch.cat([two, self.lift2(x)], 1))
        return self.out(self.up1(torch.cat([one, self.lift1(x)], 1)))


def dcgan_generator() -> nn.Module:
    """The generator of DCGAN, 32 pixels."""

    def up(inputs: int, outputs: int, stride: int, padding: int) -> list[nn.Module]:
        lift = nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)
        return [lift, nn.BatchNorm2d(outputs), nn.ReLU(True)]

    last = nn.ConvTranspose2d(32, 3, 4, 2, 1, bias=False)
    return nn.Sequential(*up(64, 128, 1, 0), *up(128, 64, 2, 1), *up(64, 32, 2, 1), last, nn.Tanh())


def dcgan_discriminator() -> nn.Module:
    """The discriminator of DCGAN, 32 pixels."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(32, 64, 4, 2, 1, bias=False), nn.BatchNorm2d(64), nn.LeakyReLU(0.2)),
        *(nn.Conv2d(64, 128, 4, 2, 1, bias=False), nn.BatchNorm2d(128), nn.LeakyReLU(0.2)),
        nn.Conv2d(128, 1, 4, 1, 0, bias=False),
    )


class GCN(nn.Module):
    """Graph convolutions over a list of edges."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 4)

    @staticmethod
    def spread(x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        degree = torch.zeros(len(x)).index_add_(0, target, torch.ones(len(target))).clamp_min(1.0)
        return torch.zeros_like(x).index_add_(0, target, x[source]) / degree[:, None]

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.relu(self.spread(self.one(x), edge_index))
        x = F.relu(self.spread(self.two(x), edge_index))
        return self.out(x)


class DeepSets(nn.Module):
    """A mean over the members of a set that are present."""

    def __init__(self) -> None:
        super().__init__()
        self.member = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.whole = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        members = self.member(x).masked_fill(~mask[..., None], 0.0)
        return self.whole(members.sum(1) / mask.sum(1, keepdim=True))


class Siamese(nn.Module):
    """One branch, called for both inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return (self.branch(one) - self.branch(other)).square().sum(-1)


class MultiHead(nn.Module):
    """A head per task; the example calls one of them."""

    def __init__(self, tasks: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(64, 5) for _ in range(tasks))

    def forward(self, x: Tensor, task: int = 0) -> Tensor:
        return self.heads[task](self.body(x))


class VAE(nn.Module):
    """A variational autoencoder of images of digits."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.mean, self.log_variance = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
        self.fc3, self.fc4 = nn.Linear(20, 400), nn.Linear(400, 784)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = F.relu(self.fc1(x.flatten(1)))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return torch.sigmoid(self.fc4(F.relu(self.fc3(code)))), mean, log_variance


class NeRF(nn.Module):
    """The network of NeRF: positions come in again half way, directions at the end."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        sizes = [63, width, width, width, width + 63, width, width]
        self.layers = nn.ModuleList(nn.Linear(size, width) for size in sizes)
        self.density, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        self.view, self.colour = nn.Linear(width + 27, width // 2), nn.Linear(width // 2, 3)

    def forward(self, place: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        x = place
        for number, layer in enumerate(self.layers):
            x = F.relu(layer(torch.cat([x, place], -1) if number == 4 else x))
        view = F.relu(self.view(torch.cat([self.feature(x), direction], -1)))
        return torch.sigmoid(self.colour(view)), F.relu(self.density(x))


class DuelingDQN(nn.Module):
    """Atari's network with a stream for the value and one for the advantages."""

    def __init__(self, actions: int = 6) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten()),
        )
        self.value = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 1))
        self.advantage = nn.Sequential(nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, actions))

    def forward(self, frames: Tensor) -> Tensor:
        x = self.body(frames / 255.0)
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(1, keepdim=True)


class ActorCritic(nn.Module):
    """SAC: a squashed Gaussian actor, and two critics of its action."""

    def __init__(self, observations: int = 11, actions: int = 3) -> None:
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(observations, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.mean, self.log_std = nn.Linear(256, actions), nn.Linear(256, actions)
        inputs = observations + actions
        self.critics = nn.ModuleList(
            nn.Sequential(nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
            for _ in range(2)
        )

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        x = self.actor(observation)
        mean, log_std = self.mean(x), self.log_std(x).clamp(-20, 2)
        action = torch.tanh(mean + torch.randn_like(mean) * log_std.exp())
        return torch.min(*(critic(torch.cat([observation, action], -1)) for critic in self.critics)), log_std


class Experts(nn.Module):
    """A layer of experts; a gate chooses two per example and weighs them."""

    def __init__(self, width: int = 32, hidden: int = 64, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width)) for _ in range(experts)
        )
        self.out = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                mixed = mixed.index_add(0, rows, expert(x[rows]) * weights[rows, places, None])
        return self.out(mixed)


def mlp(*between: Any) -> nn.Module:
    """784-256-256-10 with modules after each hidden layer."""
    hidden = [layer for size in (784, 256) for layer in (nn.Linear(size, 256), *(make() for make in between))]
    return nn.Sequential(*hidden, nn.Linear(256, 10))


def autoencoder() -> nn.Module:
    """Convolutions down to 8 pixels, transposed ones up again."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()),
        *(nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1)),
    )


def cnn() -> nn.Module:
    """Three convolutions with pooling and a linear head."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10)),
    )


def set_batch() -> tuple[Tensor, Tensor]:
    """Sets of up to nine members."""
    return torch.randn(8, 9, 8), torch.arange(9)[None] < torch.randint(1, 10, (8, 1))


def sb3_policy() -> nn.Module:
    """Stable-Baselines3's CnnPolicy for frames of 36 pixels."""
    import gymnasium
    import numpy as np
    from stable_baselines3.common.policies import ActorCriticCnnPolicy

    frames = gymnasium.spaces.Box(0, 255, (4, 36, 36), np.uint8)
    return ActorCriticCnnPolicy(frames, gymnasium.spaces.Discrete(6), lambda _: 1e-4)


ENTRIES = [
    Entry("MLP", lambda: mlp(nn.ReLU), lambda: torch.randn(16, 784)),
    Entry("MLP, LayerNorm", lambda: mlp(lambda: nn.LayerNorm(256), nn.ReLU), lambda: torch.randn(16, 784)),
    Entry("MLP, BatchNorm", lambda: mlp(lambda: nn.BatchNorm1d(256), nn.GELU), lambda: torch.randn(16, 784)),
    Entry("CNN", cnn, lambda: torch.randn(8, 3, 32, 32)),
    Entry("LeNet", LeNet, lambda: torch.randn(8, 1, 32, 32)),
    Entry("U-Net", UNet, lambda: torch.randn(2, 3, 32, 32)),
    Entry("DCGAN generator", dcgan_generator, lambda: torch.randn(4, 64, 1, 1)),
    Entry("DCGAN discriminator", dcgan_discriminator, lambda: torch.randn(4, 3, 32, 32)),
    Entry("convolutional autoencoder", autoencoder, lambda: torch.randn(4, 1, 28, 28)),
    Entry("VAE", VAE, lambda: torch.rand(8, 1, 28, 28)),
    Entry("GCN", GCN, lambda: (torch.randn(30, 16), torch.randint(0, 30, (2, 120)))),
    Entry("DeepSets", DeepSets, set_batch),
    Entry("Siamese", Siamese, lambda: (torch.randn(8, 16), torch.randn(8, 16))),
    Entry("a head per task", MultiHead, lambda: torch.randn(8, 16)),
    Entry("NeRF", NeRF, lambda: (torch.randn(64, 63), torch.randn(64, 27))),
    Entry("dueling DQN", DuelingDQN, lambda: torch.rand(2, 4, 84, 84) * 255),
    Entry("SB3 CnnPolicy", sb3_policy, lambda: torch.randint(0, 256, (4, 4, 36, 36), dtype=torch.uint8)),
    Entry("SAC actor-critic", ActorCritic, lambda: torch.randn(16, 11)),
    Entry("mixture of experts", Experts, lambda: torch.randn(32, 32)),
    *SEQUENCES,
]

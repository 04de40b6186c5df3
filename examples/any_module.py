"""Continual backpropagation on six kinds of module, none of which knows about it.

For each: `neoteny.trace` prints the groups of hidden units it finds (and checks each of them on the model itself), then
`neoteny.attach` adds the method to a short training run with the optimizer that such a network might use.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal

import neoteny
from neoteny.nets import ConvNet

STEPS = 50
# Far more and far earlier than in real training (1e-4 and 100, say), so that fifty steps show some replacements.
METHOD = neoteny.ContinualBackprop(replacement_rate=0.02, maturity_threshold=10)


class Block(nn.Module):
    """A residual block: the units behind conv1 are its own; those behind conv2 are added to the stream."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != width:
            self.skip = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(h + self.skip(x))


class ResNet18(nn.Module):
    """The eighteen layers of ResNet-18, an eighth as wide."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        widths = [(8, 8, 1), (8, 8, 1), (8, 16, 2), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]
        self.blocks = nn.Sequential(*(Block(*width) for width in widths))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class ActorCritic(nn.Module):
    """Two heads on one trunk: a unit of the trunk has two consumers. One output is a distribution."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.actor, self.critic = nn.Linear(64, 2), nn.Linear(64, 1)
        self.log_std = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> tuple[Normal, Tensor]:
        h = self.trunk(x)
        return Normal(self.actor(h), self.log_std.exp()), self.critic(h).squeeze(-1)


class Branches(nn.Module):
    """An image and a vector, concatenated: each unit's columns in `head` start where its branch does."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.vector = nn.Conv2d(1, 8, 3), nn.Linear(5, 16)
        self.head, self.out = nn.Linear(8 * 3 * 3 + 16, 32), nn.Linear(32, 1)

    def forward(self, image: Tensor, vector: Tensor) -> Tensor:
        pixels = F.max_pool2d(F.relu(self.image(image)), 2).flatten(1)
        both = torch.cat([pixels, F.relu(self.vector(vector))], dim=1)
        return self.out(F.relu(self.head(both))).squeeze(-1)


def train(
    title: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    example: Tensor | tuple[Tensor, ...],
    loss_of: Callable[[], Tensor],
) -> None:
    """Trace, attach, train, report."""
    wiring = neoteny.trace(model, example)
    print(f"\n=== {title}, {type(optimizer).__module__.split('.')[0]} {type(optimizer).__name__} ===\n\n{wiring}\n")
    # trace raises for a group that fails its check: with the units' outgoing weights at zero, nothing that is done to
    # their incoming weights, biases and norms may move the model's output.
    print(f"groups that passed the check on the model itself: {len(wiring)} of {len(wiring)}")
    plastic = neoteny.attach(model, optimizer, METHOD, example=example, seed=0)
    losses: list[float] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        plastic.step()  # the one new line in the loop
        losses.append(loss.item())
    first, last = sum(losses[:10]) / 10, sum(losses[-10:]) / 10
    print(f"loss {first:.3f} -> {last:.3f} in {STEPS} steps (mean of ten)")
    print(f"replaced: {', '.join(f'{name} {count}' for name, count in plastic.replaced.items())}")


def main() -> None:
    """Six models, five optimizers."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    start = time.perf_counter()

    x, y = torch.randn(64, 20), torch.randint(0, 5, (64,))
    mlp = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    sgd = torch.optim.SGD(mlp.parameters(), lr=0.05, momentum=0.9)
    train("MLP", mlp, sgd, x, lambda: F.cross_entropy(mlp(x), y))

    images, labels = torch.randn(8, 3, 32, 32), torch.randint(0, 2, (8,))
    conv = ConvNet()
    adam = torch.optim.Adam(conv.parameters(), lr=1e-3)
    train("The paper's conv net", conv, adam, images, lambda: F.cross_entropy(conv(images), labels))

    classes = torch.randint(0, 10, (8,))
    resnet = ResNet18()
    adamw = torch.optim.AdamW(resnet.parameters(), lr=3e-3, weight_decay=0.01)
    train("ResNet-18", resnet, adamw, images, lambda: F.cross_entropy(resnet(images), classes))

    states, actions, returns = torch.randn(64, 8), torch.randn(64, 2), torch.randn(64)
    agent = ActorCritic()

    def actor_critic_loss() -> Tensor:
        policy, value = agent(states)
        return F.mse_loss(value, returns) - policy.log_prob(actions).mean()

    # This Adam counts steps for every weight, so that new units start with a proper bias correction.
    train("Actor-critic", agent, neoteny.optim.Adam(agent.parameters(), lr=3e-3), states, actor_critic_loss)

    pixels, vector, target = torch.randn(64, 1, 8, 8), torch.randn(64, 5), torch.randn(64)
    branches = Branches()
    rmsprop = torch.optim.RMSprop(branches.parameters(), lr=1e-3)
    train("Branches", branches, rmsprop, (pixels, vector), lambda: F.mse_loss(branches(pixels, vector), target))

    tokens, wanted = torch.randn(16, 10, 32), torch.randn(16, 10, 32)
    encoder = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True)
    adam = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    train("Transformer encoder layer", encoder, adam, tokens, lambda: F.mse_loss(encoder(tokens), wanted))

    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()

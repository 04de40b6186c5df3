"""Small models that a tracer meets in other people's code: ordinary ones, and ones it has to refuse."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal


class FunctionalMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(5, 7), nn.Linear(7, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class ConvNet(nn.Module):
    """The paper's network for Continual ImageNet (pooling with stride 2)."""

    def __init__(self, pool: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1, self.conv2, self.conv3 = nn.Conv2d(3, 32, 5), nn.Conv2d(32, 64, 3), nn.Conv2d(64, 128, 3)
        self.fc1, self.fc2, self.fc3 = nn.Linear(512, 128), nn.Linear(128, 128), nn.Linear(128, 2)
        self.pool = pool or nn.MaxPool2d(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        for conv in (self.conv1, self.conv2, self.conv3):
            x = self.pool(F.relu(conv(x)))
        x = F.relu(self.fc2(F.relu(self.fc1(x.flatten(1)))))
        return self.fc3(x)


class BasicBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or channels_in != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + identity)


class ResNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (8, 12, 16, 20), blocks: int = 2, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0])
        stages, before = [], widths[0]
        for number, width in enumerate(widths):
            for block in range(blocks):
                stages.append(BasicBlock(before, width, 2 if number and not block else 1))
                before = width
        self.blocks = nn.Sequential(*stages)
        self.fc = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn1(self.conv1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh())
        self.actor, self.critic = nn.Linear(6, 2), nn.Linear(6, 1)
        self.log_std = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> dict[str, object]:
        h = self.trunk(x)
        return {"policy": Normal(self.actor(h), self.log_std.exp()), "value": self.critic(h).squeeze(-1)}


class Branches(nn.Module):
    """Two convolutions, concatenated, pooled, reshaped."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(1, 5, 1)
        self.head = nn.Linear(8 * 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([F.relu(self.a(x)), torch.tanh(self.b(x))], dim=1)
        return self.head(F.avg_pool2d(h, 2).reshape(len(x), -1))


class Permuted(nn.Module):
    """Channels last before the flatten: a channel's columns are not neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 3, 3), nn.Linear(3 * 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv(x)).permute(0, 2, 3, 1).contiguous().view(len(x), -1))


class PreNormBlock(nn.Module):
    """A transformer block written by hand, with its own attention."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 20), nn.Linear(20, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.proj(y)
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class SwiGLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(4, 6, bias=False), nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Chunked(nn.Module):
    """One layer whose rows go to different places."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.a, self.b = nn.Linear(4, 10), nn.Linear(6, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        left, right = F.relu(self.fc(x)).split([6, 4], dim=-1)
        return self.a(left) + self.b(right)


class Gated(nn.Module):
    """F.glu multiplies two rows of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(4, 12), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.glu(self.fc(x)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.before = nn.Embedding(10, 4), nn.Linear(4, 5)
        self.lstm = nn.LSTM(5, 6, batch_first=True)
        self.hidden, self.head = nn.Linear(6, 7), nn.Linear(7, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(F.relu(self.before(self.embed(tokens))))
        return self.head(F.relu(self.hidden(states[:, -1])))


class Branching(nn.Module):
    """Chooses a layer by the data: by the hidden values, or by the input."""

    def __init__(self, on: str) -> None:
        super().__init__()
        self.on = on
        self.fc1, self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.fc1(x))
        if (h if self.on == "hidden" else x).mean() > 0:
            return self.a(h) + self.b(h)
        return self.b(h) + self.a(h)


class UsedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.again, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.again(F.relu(self.again(F.relu(self.fc1(x)))))))


class FunctionalWeight(nn.Module):
    """Uses a layer's weight without calling the layer, and perhaps calls it, too."""

    def __init__(self, call: bool) -> None:
        super().__init__()
        self.call = call
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.a(x))
        h = F.relu(self.b(h)) if self.call else h
        return self.c(F.relu(F.linear(h, self.b.weight)))


class Swallow(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.fc1, self.fc2 = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc1(x)
        if self.how == "where":
            return self.fc2(torch.where(h > 0, h, torch.zeros_like(h)))
        if self.how == "nan_to_num":
            return self.fc2(torch.nan_to_num(h))
        if self.how == "sign":  # one path shows the units, the other hides them
            return self.fc2(F.relu(h)) + (h > 0).sum(-1, keepdim=True)
        return self.fc2(F.relu(h)) + h.argmax(-1, keepdim=True)


class Auxiliary(nn.Module):
    """A second head in training only, or hidden values handed out in training only."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.fc1, self.fc2 = nn.Linear(4, 6), nn.Linear(6, 2)
        if how == "head":
            self.aux = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        h = F.relu(self.fc1(x))
        if self.training:
            return self.fc2(h), (self.aux(h) if self.how == "head" else h)
        return self.fc2(h)


class Residual(nn.Module):
    """h + f(h), with `skip` the input, an embedding or a parameter added to the hidden units."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.fc1, self.head = nn.Linear(6, 6), nn.Linear(6, 2)
        if source == "parameter":
            self.scale = nn.Parameter(torch.ones(6))
        if source == "embedding":
            self.table = nn.Embedding(3, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.fc1(x))
        if self.source == "input":
            h = h + x
        elif self.source == "embedding":
            h = h + self.table(torch.zeros(len(x), dtype=torch.int64, device=x.device))
        else:
            h = h * self.scale
        return self.head(h)


class Stateful(nn.Module):
    """Touches everything a forward pass can touch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn, self.fc2 = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros(()))
        self.log: list[Tensor] = []
        self.memory = torch.zeros(6)
        self.last: Tensor | None = None
        self.drop.eval()

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn(self.fc1(x + 0 * torch.rand(()))))
        self.count += 1
        self.log.append(h)
        self.memory.add_(h.sum(0).detach())
        self.last = h
        return self.fc2(self.drop(h))

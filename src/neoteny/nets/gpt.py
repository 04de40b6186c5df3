"""GPT: a small decoder-only transformer for permuted Shakespeare, norms before attention and feed-forward layers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from neoteny.draws.initial import Initial
from neoteny.text import nearest

_ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}
_STD = 0.02


class GPT(nn.Module):
    """Tokens to the logits of the token behind each of them.

    `width`, `heads` and `hidden` are those of the published permuted Shakespeare at its smallest scale. The number of
    blocks, the activation and the initial weights (normal with standard deviation 0.02, in the layers that write to the
    residual stream divided by sqrt(2 * blocks); biases zero) are GPT-2's habits, because that protocol does not give
    them here.

    Args:
        inputs: the most tokens of a sequence (the context); each position has a learned vector.
        outputs: number of different tokens.
        width: of the residual stream; a multiple of `heads`.
        heads: of attention.
        hidden: units of each block's feed-forward layer.
        blocks: attention and feed-forward layers, one after the other.
        activation: of the feed-forward layers, "gelu" or "relu".
        tied: whether the output layer has the weights of the token vectors.

    Example:
        >>> net = GPT(16, 50, blocks=1)
        >>> net(torch.zeros(2, 16, dtype=torch.int64)).shape
        torch.Size([2, 16, 50])
        >>> [name for name, _ in net.blocks.named_children()], [name for name, _ in net.blocks[0].named_children()]
        (['0'], ['norm1', 'qkv', 'project', 'norm2', 'fc1', 'act1', 'fc2'])
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        width: int = 32,
        heads: int = 2,
        hidden: int = 256,
        blocks: int = 2,
        activation: str = "gelu",
        tied: bool = False,
    ) -> None:
        sizes = {"inputs": inputs, "outputs": outputs, "width": width, "heads": heads, "hidden": hidden}
        for name, value in {**sizes, "blocks": blocks}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"GPT: {name} must be a whole number of at least 1; got {value!r}.")
        if width % heads:
            raise ValueError(f"GPT: width must be a multiple of heads; got {width} and {heads}.")
        if activation not in _ACTIVATIONS:
            raise ValueError(
                f'GPT: activation must be "gelu" or "relu"; got {activation!r}.{nearest(activation, _ACTIVATIONS)}'
            )
        if not isinstance(tied, bool):
            raise ValueError(f"GPT: tied must be True or False; got {tied!r}.")
        super().__init__()
        self.tokens = nn.Embedding(outputs, width)
        self.positions = nn.Embedding(inputs, width)
        self.blocks = nn.Sequential(*(Block(width, heads, hidden, activation) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, outputs, bias=False)
        # What `attach` and `stack` draw new units from.
        self.initial_distributions: dict[str, Initial] = {}
        for name, layer in self.named_modules():
            if isinstance(layer, (nn.Linear, nn.Embedding)):
                into_stream = name.endswith(("project", "fc2"))
                std = _STD / math.sqrt(2 * blocks) if into_stream else _STD
                nn.init.normal_(layer.weight, std=std)
                if isinstance(layer, nn.Linear):
                    self.initial_distributions[name] = Initial("normal", scale=std)
                    if layer.bias is not None:
                        nn.init.zeros_(layer.bias)
        if tied:
            self.out.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T), int64, to logits (B, T, outputs); T is at most `inputs`."""
        length = tokens.shape[-1]
        if length > self.positions.num_embeddings:
            raise ValueError(f"GPT: expected at most {self.positions.num_embeddings} tokens; got {length}.")
        stream = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        return self.out(self.norm(self.blocks(stream)))


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each behind a norm and added to the residual stream."""

    def __init__(self, width: int, heads: int, hidden: int, activation: str) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, hidden)
        self.act1 = _ACTIVATIONS[activation]()
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, stream: Tensor) -> Tensor:
        """The residual stream (B, T, width) with what this block adds to it."""
        stream = stream + self.project(self._attend(self.norm1(stream)))
        return stream + self.fc2(self.act1(self.fc1(self.norm2(stream))))

    def _attend(self, x: Tensor) -> Tensor:
        """What the heads give, side by side: (B, T, width)."""
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0)  # (3, B, T, heads, size)
        queries, keys, values = (part.transpose(-3, -2) for part in parts)
        later = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool, device=x.device).triu(1)
        scores = (queries @ keys.mT) / math.sqrt(queries.shape[-1])
        weights = scores.masked_fill(later, -math.inf).softmax(-1)
        return (weights @ values).transpose(-3, -2).flatten(-2)

    def extra_repr(self) -> str:
        """What a stack compares: modules of other numbers of heads have tensors of the same shapes."""
        return f"heads={self.heads}"

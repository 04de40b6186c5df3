"""How long tracing the wiring of published models takes, on one CPU core.

    python benchmarks/tracing.py [name ...]

Builds each model from its configuration (nothing is downloaded) and prints CPU seconds, wall seconds, forward passes,
groups and units. Needs torchvision and transformers for their models.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoteny.wiring.sandbox import few_examples
from neoteny.wiring.trace import find

VISION = ["resnet18", "resnet50", "vgg11", "mobilenet_v2", "efficientnet_b0", "densenet121", "swin_t", "vit_b_16"]


class Block(nn.Module):
    """A block of a transformer with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A language model of 124 million parameters."""

    def __init__(self, width: int = 768, heads: int = 12, depth: int = 12, tokens: int = 50257) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(tokens, width), nn.Embedding(1024, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def bert() -> tuple[nn.Module, Any]:
    """BERT-base of transformers on 32 tokens."""
    transformers = importlib.import_module("transformers")
    return transformers.BertModel(transformers.BertConfig()), {"input_ids": torch.randint(1000, (8, 32))}


def vision(name: str) -> tuple[nn.Module, Any]:
    """A model of torchvision on images of 224 pixels."""
    models = importlib.import_module("torchvision").models
    return models.get_model(name, weights=None), torch.randn(8, 3, 224, 224)


def main(names: list[str]) -> None:
    """Print one line per model."""
    torch.set_num_threads(1)
    builders: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
        **{name: lambda name=name: vision(name) for name in VISION},
        "gpt_124m": lambda: (GPT(), torch.randint(50257, (8, 32))),
        "bert_base": bert,
    }
    unknown = [name for name in names if name not in builders]
    if unknown:
        raise SystemExit(f"tracing.py knows no model {unknown[0]!r}. It knows {', '.join(builders)}.")
    print(f"{'model':16}  {'CPU s':>6}  {'wall s':>6}  {'passes':>6}  {'groups':>6}  {'units':>6}")
    for name in names or builders:
        torch.manual_seed(0)
        try:
            model, example = builders[name]()
        except ImportError as missing:
            print(f"{name:16}  needs {missing.name}, which is not installed")
            continue
        cpu, wall = time.process_time(), time.monotonic()
        wiring = find(model, few_examples(example))
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
        units = sum(group.units for group in wiring)
        print(f"{name:16}  {cpu:6.1f}  {wall:6.1f}  {wiring.passes:6}  {len(wiring):6}  {units:6}", flush=True)
        if wiring.refused:
            print(f"  refused: {', '.join(wiring.refused)}")


if __name__ == "__main__":
    main(sys.argv[1:])

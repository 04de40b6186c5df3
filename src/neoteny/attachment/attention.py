"""AttentionHook: what the output projection of torch's attention layer is given, which no hook of its own shows.

nn.MultiheadAttention multiplies with the weight of `out_proj` without calling it. So its heads are computed once more,
without gradients, dropout and output projection. Before this: the user's forward pass; after it: `units/statistics.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoteny.attachment.reading import ReadingHook


def is_inside_attention(name: str, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a module is the output projection of torch's attention layer."""
    owner, _, key = name.rpartition(".")
    return key == "out_proj" and isinstance(modules.get(owner), nn.MultiheadAttention)


class AttentionHook(ReadingHook):
    """Forward hook of an attention layer.

    Args:
        model: the model that holds it.
        kept: where to keep what its heads give, (length, batch, features).
    """

    def __init__(self, model: nn.Module, kept: list[Tensor]) -> None:
        super().__init__(model)
        self.kept = kept

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.read(args, kwargs) is not None:
            with torch.no_grad():
                self.kept.append(_heads(cast(nn.MultiheadAttention, module), args, kwargs))


def _heads(module: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    call = inspect.signature(nn.MultiheadAttention.forward).bind(module, *args, **kwargs)
    call.apply_defaults()
    given = call.arguments
    turn = module.batch_first and given["query"].dim() == 3
    query, key, value = (given[name].transpose(0, 1) if turn else given[name] for name in ("query", "key", "value"))
    weight = module.out_proj.weight
    return F.multi_head_attention_forward(
        query,
        key,
        value,
        module.embed_dim,
        module.num_heads,
        module.in_proj_weight,
        module.in_proj_bias,
        module.bias_k,
        module.bias_v,
        module.add_zero_attn,
        0.0,
        torch.eye(len(weight), dtype=weight.dtype, device=weight.device),
        cast(Tensor, None),
        training=False,
        key_padding_mask=given["key_padding_mask"],
        need_weights=False,
        attn_mask=given["attn_mask"],
        is_causal=given["is_causal"] and given["attn_mask"] is not None,
    )[0].detach()

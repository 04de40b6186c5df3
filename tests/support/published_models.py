"""Published models at a small size, built from configurations: a function per model, by library and name.

Each gives the model and a batch. Nothing is downloaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, Any]

_SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
_TEXT = {**_SMALL, "vocab_size": 300, "max_position_embeddings": 64}


def _text(config: str, model: str, **options: Any) -> Callable[[], Made]:
    def make() -> Made:
        transformers = importlib.import_module("transformers")
        built = getattr(transformers, model)(getattr(transformers, config)(**options))
        return built, {"input_ids": torch.randint(0, 300, (16, 12))}

    return make


def _image(config: str, model: str, **options: Any) -> Callable[[], Made]:
    def make() -> Made:
        transformers = importlib.import_module("transformers")
        built = getattr(transformers, model)(getattr(transformers, config)(**options))
        return built, {"pixel_values": torch.randn(16, 3, 32, 32)}

    return make


def _torchvision(make_model: Callable[[Any], nn.Module], size: int = 32) -> Callable[[], Made]:
    def make() -> Made:
        return make_model(importlib.import_module("torchvision.models")), torch.randn(16, 3, size, size)

    return make


def _timm(name: str, **options: Any) -> Callable[[], Made]:
    def make() -> Made:
        return importlib.import_module("timm").create_model(name, num_classes=5, **options), torch.randn(16, 3, 32, 32)

    return make


def _grouped(**options: Any) -> dict[str, Any]:
    return {**_TEXT, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **options}


PUBLISHED: dict[str, Callable[[], Made]] = {
    "transformers bert": _text("BertConfig", "BertModel", **_TEXT),
    "transformers roberta": _text("RobertaConfig", "RobertaModel", **{**_TEXT, "max_position_embeddings": 70}),
    "transformers electra": _text("ElectraConfig", "ElectraModel", embedding_size=32, **_TEXT),
    "transformers distilbert": _text(
        "DistilBertConfig", "DistilBertModel", dim=64, hidden_dim=128, n_layers=2, n_heads=4, vocab_size=300
    ),
    "transformers llama": _text("LlamaConfig", "LlamaModel", **_grouped()),
    "transformers qwen2": _text("Qwen2Config", "Qwen2Model", **_grouped()),
    "transformers mistral": _text("MistralConfig", "MistralModel", **_grouped(head_dim=16)),
    "transformers gemma": _text("GemmaConfig", "GemmaModel", **_grouped(head_dim=16)),
    "transformers opt": _text(
        "OPTConfig", "OPTModel", hidden_size=64, ffn_dim=128, num_hidden_layers=2, num_attention_heads=4,
        vocab_size=300, max_position_embeddings=64, word_embed_proj_dim=64,
    ),
    "transformers t5": _text(
        "T5Config", "T5EncoderModel", d_model=64, d_ff=128, num_heads=4, d_kv=16, num_layers=2, vocab_size=300
    ),
    "transformers vit": _image("ViTConfig", "ViTModel", **_SMALL, image_size=32, patch_size=8),
    "transformers siglip": _image("SiglipVisionConfig", "SiglipVisionModel", **_SMALL, image_size=32, patch_size=8),
    "transformers dinov2": _image("Dinov2Config", "Dinov2Model", **_SMALL, image_size=32, patch_size=8),
    "torchvision resnet": _torchvision(
        lambda models: models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=5)
    ),
    "torchvision squeezenet": _torchvision(lambda models: models.squeezenet1_1(num_classes=5), 64),
    "torchvision mobilenet_v2": _torchvision(
        lambda models: models.MobileNetV2(
            num_classes=5, width_mult=0.5, inverted_residual_setting=[[1, 16, 1, 1], [6, 24, 1, 2]]
        )
    ),
    "torchvision densenet": _torchvision(
        lambda models: models.DenseNet(growth_rate=8, block_config=(2, 2), num_init_features=16, num_classes=5)
    ),
    "torchvision convnext": _torchvision(
        lambda models: models.ConvNeXt(
            [models.convnext.CNBlockConfig(32, 64, 1), models.convnext.CNBlockConfig(64, None, 1)], num_classes=5
        )
    ),
    "torchvision vit": _torchvision(lambda models: models.VisionTransformer(32, 8, 2, 4, 64, 128, num_classes=5)),
    "timm resnet": _timm("resnet10t"),
    "timm vit": _timm("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4),
    "timm deit": _timm("deit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4),
    "timm convnext": _timm("convnext_atto", depths=(1, 1, 1, 1), dims=(16, 16, 24, 24)),
    "torch transformer encoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2, enable_nested_tensor=False),
        torch.randn(16, 6, 32),
    ),
    "torch transformer": lambda: (
        nn.Transformer(32, 4, 1, 1, 64, batch_first=True), (torch.randn(16, 6, 32), torch.randn(16, 5, 32))
    ),
}  # fmt: skip

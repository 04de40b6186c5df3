"""Models of transformers from configurations: the true structure, fewer layers and narrower where the note says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from zoo_parts.entry import Entry
from zoo_parts.operators import prepare_torchvision

prepare_torchvision()
import transformers  # noqa: E402  # pyright: ignore[reportMissingImports]

SMALL = "2 layers of width 64"
_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_TEXT: dict[str, Any] = {**_SIZES, "vocab_size": 300, "max_position_embeddings": 64}
_GROUPED: dict[str, Any] = {**_TEXT, "num_key_value_heads": 2, "head_dim": 16}
_TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def tokens(batch: int = 2, length: int = 16, words: int = 300) -> Callable[[], dict[str, Any]]:
    """Sentences without padding."""
    return lambda: {"input_ids": torch.randint(3, words, (batch, length))}


def pixels(size: int = 32) -> Callable[[], dict[str, Any]]:
    """Images."""
    return lambda: {"pixel_values": torch.randn(2, 3, size, size)}


def model(
    name: str, kind: str, example: Callable[[], Any], note: str = SMALL, config: str = "", **options: Any
) -> Entry:
    """A model by its class, with the options of its configuration."""

    def build() -> torch.nn.Module:
        cls = getattr(transformers, kind)
        made = getattr(transformers, config) if config else cls.config_class
        options.setdefault("use_cache", False)
        return cls(made(**options))

    return Entry(name, build, example, note=note)


def _both(words: int = 300) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, words, (2, 12)), "decoder_input_ids": torch.randint(3, words, (2, 8))}


ENTRIES = [
    model("bert", "BertForMaskedLM", tokens(), **_TEXT),
    model("roberta", "RobertaForSequenceClassification", tokens(), **{**_TEXT, "max_position_embeddings": 80}),
    model("albert", "AlbertForSequenceClassification", tokens(), embedding_size=32, **_TEXT),
    model(
        "distilbert", "DistilBertForSequenceClassification", tokens(),
        dim=64, hidden_dim=128, n_layers=2, n_heads=4, vocab_size=300,
    ),
    model(
        "deberta-v2", "DebertaV2ForSequenceClassification", tokens(),
        **_TEXT, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm",
        share_att_key=True,
    ),
    model("electra", "ElectraForPreTraining", tokens(), embedding_size=32, **_TEXT),
    model("modernbert", "ModernBertForSequenceClassification", tokens(), **_TEXT, **_TOKENS, local_attention=8),
    model("gpt2", "GPT2LMHeadModel", tokens(), n_embd=64, n_layer=2, n_head=4, vocab_size=300, n_positions=64),
    model("gpt_neox", "GPTNeoXForCausalLM", tokens(), **_TEXT),
    model(
        "opt", "OPTForCausalLM", tokens(),
        hidden_size=64, ffn_dim=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=300,
        max_position_embeddings=64, word_embed_proj_dim=64,
    ),
    model("llama", "LlamaForCausalLM", tokens(), **_GROUPED),
    model("mistral", "MistralForCausalLM", tokens(), **_GROUPED, sliding_window=8),
    model("qwen2", "Qwen2ForCausalLM", tokens(), **_TEXT, num_key_value_heads=2),
    model("qwen3", "Qwen3ForCausalLM", tokens(), **_GROUPED),
    model("gemma", "GemmaForCausalLM", tokens(), **_GROUPED),
    model("phi3", "Phi3ForCausalLM", tokens(), **_TEXT, num_key_value_heads=2, **_TOKENS),
    model("falcon", "FalconForCausalLM", tokens(), **{**_SIZES, "vocab_size": 300}),
    model(
        "mixtral", "MixtralForCausalLM", tokens(), **_GROUPED, num_local_experts=4, num_experts_per_tok=2
    ),
    model(
        "t5", "T5ForConditionalGeneration", _both,
        d_model=64, d_ff=128, num_heads=4, d_kv=16, num_layers=2, vocab_size=300,
    ),
    model(
        "bart", "BartForConditionalGeneration", _both,
        d_model=64, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=128, decoder_ffn_dim=128,
        encoder_attention_heads=4, decoder_attention_heads=4, vocab_size=300, max_position_embeddings=64, **_TOKENS,
    ),
    model(
        "whisper", "WhisperForConditionalGeneration",
        lambda: {"input_features": torch.randn(2, 16, 64), "decoder_input_ids": torch.randint(3, 300, (2, 8))},
        d_model=64, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=128, decoder_ffn_dim=128,
        encoder_attention_heads=4, decoder_attention_heads=4, vocab_size=300, num_mel_bins=16,
        max_source_positions=32, max_target_positions=32, decoder_start_token_id=1, **_TOKENS,
    ),
    model(
        "wav2vec2", "Wav2Vec2ForSequenceClassification", lambda: {"input_values": torch.randn(2, 8000)},
        **_SIZES, conv_dim=(32,) * 7, vocab_size=32, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
    ),
    model("vit", "ViTForImageClassification", pixels(), **_SIZES, image_size=32, patch_size=8),
    model("dinov2", "Dinov2ForImageClassification", pixels(), **_SIZES, image_size=32, patch_size=8),
    model(
        "clip", "CLIPModel",
        lambda: {"input_ids": torch.randint(3, 300, (2, 12)), "pixel_values": torch.randn(2, 3, 32, 32)},
        text_config={**_TEXT, **_TOKENS}, vision_config={**_SIZES, "image_size": 32, "patch_size": 8},
        projection_dim=32,
    ),
    model(
        "segformer", "SegformerForSemanticSegmentation", pixels(64), "b0 with half the width",
        depths=[2, 2, 2, 2], hidden_sizes=[16, 32, 80, 128], decoder_hidden_size=64,
    ),
    model("mamba", "MambaForCausalLM", tokens(), hidden_size=64, num_hidden_layers=2, vocab_size=300, state_size=8),
    model(
        "patchtst", "PatchTSTForPrediction", lambda: {"past_values": torch.randn(2, 64, 3)},
        d_model=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4, context_length=64, prediction_length=8,
        patch_length=8, patch_stride=8, num_input_channels=3,
    ),
    model("bert-base", "BertForSequenceClassification", tokens(length=16, words=30000), "full size"),
    model("gpt2-small", "GPT2LMHeadModel", tokens(length=16, words=50000), "full size"),
]  # fmt: skip

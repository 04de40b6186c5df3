"""Models of timm at their published size (the smallest of each family), on small images."""

from __future__ import annotations

from typing import Any

import torch

from zoo_parts.entry import Entry
from zoo_parts.operators import prepare_torchvision

prepare_torchvision()
import timm  # noqa: E402  # pyright: ignore[reportMissingImports]


def model(name: str, size: int = 64, note: str = "", **options: Any) -> Entry:
    """A model by its name."""
    return Entry(
        name,
        lambda: timm.create_model(name, pretrained=False, num_classes=10, **options),
        lambda: torch.randn(2, 3, size, size),
        note=note,
    )


ENTRIES = [
    model("resnetv2_50", 32),
    model("resnest14d"),
    model("efficientnetv2_rw_t"),
    model("mixer_s16_224", 32, img_size=32),
    model("resmlp_12_224", 32, img_size=32),
    model("gmlp_ti16_224", 32, img_size=32),
    model("deit_tiny_patch16_224", 32, img_size=32),
    model("beit_base_patch16_224", 32, "6 of 12 blocks", img_size=32, depth=6),
    model("cait_xxs24_224", 32, "12 of 24 blocks", img_size=32, depth=12),
    model("convnextv2_atto"),
    model("coatnet_nano_rw_224", 64, img_size=64),
    model("davit_tiny"),
    model("edgenext_xx_small"),
    model("efficientformer_l1", 224),
    model("fastvit_t8"),
    model("ghostnet_100"),
    model("hrnet_w18_small"),
    model("levit_128s", 224),
    model("mobilevit_xxs"),
    model("nfnet_l0", 32),
    model("poolformer_s12"),
    model("pvt_v2_b0"),
    model("regnetx_002"),
    model("repvgg_a0"),
    model("rexnet_100"),
    model("tresnet_m"),
    model("twins_svt_small", 64, img_size=64),
    model("visformer_tiny", 64, img_size=64),
    model("volo_d1_224", 64, img_size=64),
    model("xcit_nano_12_p16_224", 64, img_size=64),
]

"""Models of torchvision at their published size, on small images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from zoo_parts.entry import Entry, added
from zoo_parts.operators import has_operators, prepare_torchvision

prepare_torchvision()
import torchvision.models as models  # noqa: E402  # pyright: ignore[reportMissingImports]


def images(size: int = 64, batch: int = 2) -> Callable[[], Tensor]:
    """A batch of images."""
    return lambda: torch.randn(batch, 3, size, size)


def model(name: str, size: int = 64, note: str = "", **options: Any) -> Entry:
    """A model by its name."""
    return Entry(name, lambda: models.get_model(name, weights=None, **options), images(size), note=note)


def vgg(name: str) -> Entry:
    """A VGG with a narrow head."""

    def build() -> nn.Module:
        made = models.get_model(name, weights=None)
        made.classifier[0], made.classifier[3] = nn.Linear(512 * 49, 256), nn.Linear(256, 256)
        made.classifier[6] = nn.Linear(256, 10)
        return made

    return Entry(name, build, images(32), note="256 units in the head instead of 4096")


def video(name: str, frames: int = 4, size: int = 32) -> Entry:
    """A model of clips."""
    build: Callable[[], nn.Module] = lambda: models.get_model(name, weights=None)  # noqa: E731
    return Entry(name, build, lambda: torch.randn(2, 3, frames, size, size))


def maxvit() -> nn.Module:
    """maxvit_t for small images."""
    channels, layers = [64, 128, 256, 512], [2, 2, 5, 2]
    return models.MaxVit((64, 64), 64, 2, channels, layers, head_dim=32, stochastic_depth_prob=0.2)


def detection_batch() -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Two images with one box each."""
    boxes = torch.tensor([[8.0, 8.0, 40.0, 40.0]])
    return [torch.rand(3, 64, 64) for _ in range(2)], [{"boxes": boxes, "labels": torch.tensor([1])} for _ in range(2)]


NO_BACKBONE: dict[str, Any] = {"weights_backbone": None}


def detection(name: str) -> Entry:
    """A model that returns its own losses in training; it needs torchvision's compiled operators."""
    return Entry(name, lambda: models.get_model(name, weights=None, **NO_BACKBONE), detection_batch, added)


ENTRIES = [
    model("alexnet"),
    vgg("vgg11"),
    vgg("vgg11_bn"),
    model("resnet18"),
    model("resnet50"),
    model("wide_resnet50_2", 32),
    model("resnext50_32x4d", 32),
    model("squeezenet1_1"),
    model("mobilenet_v2"),
    model("mobilenet_v3_small"),
    model("efficientnet_b0"),
    model("densenet121", 32),
    model("googlenet", 64, init_weights=False),
    model("inception_v3", 80, "without its auxiliary head", init_weights=False, aux_logits=False),
    model("shufflenet_v2_x1_0"),
    model("mnasnet1_0"),
    model("regnet_y_400mf"),
    model("convnext_tiny", 32),
    model("vit_b_16", 32, image_size=32),
    model("swin_t", 32),
    Entry("maxvit_t", maxvit, images(64), note="windows of 2 x 2 instead of 7 x 7"),
    model("fcn_resnet50", 32, **NO_BACKBONE),
    model("deeplabv3_resnet50", 32, **NO_BACKBONE),
    model("lraspp_mobilenet_v3_large", 64, **NO_BACKBONE),
    *([detection("ssdlite320_mobilenet_v3_large")] if has_operators() else []),
    video("r3d_18"),
    video("swin3d_t"),
]

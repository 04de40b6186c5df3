"""Lets torchvision be imported beside a torch that its compiled operators do not fit."""

from __future__ import annotations

import contextlib
import importlib.util

import torch


def prepare_torchvision() -> None:
    """Import torchvision where it is installed; if its operators did not load, define the two that it asks for.

    A wheel built for CUDA does not load beside a torch for the CPU. Its models are plain Python and need none of them
    here; timm and transformers import torchvision, too.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    with contextlib.suppress(RuntimeError):  # operator torchvision::nms does not exist
        import torchvision  # noqa: F401  # pyright: ignore[reportMissingImports]

        return
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):  # defined before
            signature = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", signature)


def has_operators() -> bool:
    """Whether torchvision's compiled operators did load."""
    from torchvision.extension import _has_ops  # pyright: ignore[reportMissingImports]

    return _has_ops()

"""LabelledImages: a set of images with labels, one copy per device.

Before this: `mnist/images.py` and `relabelled/images.py` read them; after it: the plans that pick images by number.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(eq=False)
class LabelledImages:
    """Images (N, pixels), uint8, and labels (N,), whole numbers; `on` keeps one copy for each device that asked."""

    images: Tensor
    labels: Tensor
    fingerprint: str
    _copies: dict[torch.device, LabelledImages] = field(default_factory=dict, repr=False)

    def on(self, device: torch.device) -> LabelledImages:
        """The same images on a device."""
        if device == self.images.device:
            return self
        if device not in self._copies:
            self._copies[device] = LabelledImages(self.images.to(device), self.labels.to(device), self.fingerprint)
        return self._copies[device]

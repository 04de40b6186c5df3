"""From bytes to numbers: how pixels enter a network."""

from __future__ import annotations

import numpy as np

PIXEL = float(np.float32(1 / 255))
"""A byte times this, in float32, is its share of 255. A product, because devices differ in how they divide."""

MIDDLE = 0.5
"""Subtracted from the pixels of colour images, so that inputs are centred near zero."""

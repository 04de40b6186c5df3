"""The names of the backends, as they stand in the configuration of a run; importing this costs nothing."""

from __future__ import annotations

DESCRIPTIONS = {
    "reference": "library",
    "cpu": "compiled kernel",
    "cuda": "compiled kernel",
    "graphs": "CUDA graphs",
}
"""Each backend in words, for progress lines."""

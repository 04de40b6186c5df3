"""Inputs for the diagnosis of small networks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor


@pytest.fixture
def inputs() -> Tensor:
    return torch.randn(300, 10, generator=torch.Generator().manual_seed(1))

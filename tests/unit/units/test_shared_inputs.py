"""Where several groups read one input it is averaged once: replaced units and statistics are those of each alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny


class Dense(nn.Module):
    """Every layer reads the units of all layers before it; kernels of one tap and of nine, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.Conv2d(2 + 4 * n, 4, size, padding=size // 2) for n, size in enumerate((1, 1, 3, 1))
        )
        self.out = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, torch.relu(layer(x))], 1)
        return self.out(x.mean((2, 3))[:, 2:])


def _train(utility: str, *, shared: bool) -> tuple[dict[str, Any], list[Tensor]]:
    model = Dense().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    method = neoteny.ContinualBackprop(0.05, maturity_threshold=3, utility=utility)
    x = torch.randn(16, 5, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    plastic = neoteny.attach(model, optimizer, method, example=x[0], seed=1, init="default")
    assert plastic.view.shared_inputs._keys == {"layers.2", "layers.3", "out"}
    if not shared:
        plastic.view.shared_inputs._keys = set()
    for step, batch in enumerate(x):
        model.layers[1].requires_grad_(step not in (5, 6))  # its units do not age meanwhile, those of others do
        if step == 11:
            plastic.load_state_dict(plastic.state_dict())
        for part in (batch[:2], batch[2:]):  # gradients are accumulated over passes of different size
            model(part).square().mean().backward()
        if step == 9:  # a pass with NaN in it changes no mean
            model(torch.full_like(batch, torch.nan)).sum()
        optimizer.step()
        plastic.step()
        optimizer.zero_grad()
    assert min(plastic.replaced.values()) > 0
    return plastic.state_dict(), [value.detach() for value in model.parameters()]


@pytest.mark.parametrize("utility", ["overall", "contribution"])
def test_groups_that_share_inputs_are_measured_as_each_alone(utility: str) -> None:
    (state, weights), (expected_state, expected_weights) = (_train(utility, shared=shared) for shared in (True, False))
    torch.testing.assert_close(weights, expected_weights, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(_tensors(state), _tensors(expected_state), rtol=1e-11, atol=1e-13)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in _tensors(item)]

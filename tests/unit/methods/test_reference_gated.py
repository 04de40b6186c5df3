"""Continual backpropagation on LSTM and GRU layers against a NumPy transcription, update by update in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neoteny
from reference.gated import NaiveGatedCBP


class Sequences(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(3, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor, start: Tensor) -> Tensor:
        states, _ = self.rnn(x, (start, torch.zeros_like(start)) if isinstance(self.rnn, nn.LSTM) else start)
        return self.head(states[-1])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_gated_layer_matches_the_transcription(kind: str) -> None:
    torch.manual_seed(3)
    model = Sequences(kind).double()
    setting = {"replacement_rate": 0.08, "maturity_threshold": 4, "decay_rate": 0.9}
    start = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}
    naive = NaiveGatedCBP(kind, start, seed=11, step_size=0.1, momentum=0.9, **setting)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    example = (torch.randn(5, 4, 3).double(), torch.randn(1, 4, 6).double())
    plastic = neoteny.attach(model, optimizer, neoteny.ContinualBackprop(**setting), example=example, seed=11)
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        x = torch.randn(5, 4, 3, generator=generator, dtype=torch.float64)
        h = torch.randn(1, 4, 6, generator=generator, dtype=torch.float64).tanh()
        target = torch.stack([x.sum((0, 2)), x[:, :, 0].max(0).values], 1)
        loss = F.mse_loss(model(x, h), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        plastic.step()
        assert loss.item() == pytest.approx(naive.step(x.numpy(), h[0].numpy(), target.numpy()), rel=1e-9)
        for name, value in model.named_parameters():
            np.testing.assert_allclose(value.detach().numpy(), naive.weights[name], rtol=1e-8, atol=1e-11, err_msg=name)
            buffer = optimizer.state[value]["momentum_buffer"].numpy()
            np.testing.assert_allclose(buffer, naive.momentum[name], rtol=1e-7, atol=1e-10, err_msg=name)
    assert plastic.replaced["rnn.l0"] == sum(map(len, naive.replaced)) >= 10

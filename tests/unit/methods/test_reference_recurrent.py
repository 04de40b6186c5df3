"""Continual backpropagation on a hand-written recurrence agrees with the naive transcription, step by step."""

from __future__ import annotations

import numpy as np
import torch

import neoteny
from reference.recurrent import NaiveRecurrentCBP
from support.shared_models import Rnn

_LAYERS = ("ih", "hh", "out")


def test_a_recurrence_agrees_with_the_naive_transcription() -> None:
    torch.manual_seed(0)
    model = Rnn().double()
    setting = {"replacement_rate": 0.3, "maturity_threshold": 3, "decay_rate": 0.9}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    method = neoteny.ContinualBackprop(**setting)
    start = {name: [p.detach().numpy().copy() for p in model.get_submodule(name).parameters()] for name in _LAYERS}
    x = torch.randn(40, 5, 4, 3, dtype=torch.float64)
    targets = torch.randn(40, 5, 2, dtype=torch.float64)
    plastic = neoteny.attach(model, optimizer, method, example=x[0], seed=7, init="default")
    naive = NaiveRecurrentCBP(start, seed=7, step_size=0.05, momentum=0.9, **setting)
    diagonal = 0
    for inputs, target in zip(x, targets, strict=True):
        naive.step(inputs.numpy(), target.numpy())
        (0.5 * (model(inputs)[:, 0] - target).square().sum(1).mean()).backward()
        optimizer.step()
        plastic.step()
        optimizer.zero_grad()
        for name in _LAYERS:
            for part, parameter in enumerate(model.get_submodule(name).parameters()):
                np.testing.assert_allclose(parameter.detach().numpy(), naive.layers[name][part], rtol=1e-10, atol=1e-13)
                momentum = optimizer.state[parameter]["momentum_buffer"].numpy()
                np.testing.assert_allclose(momentum, naive.buffers[name][part], rtol=1e-10, atol=1e-13)
        for unit in naive.replaced[-1]:
            assert not model.hh.weight[:, naive.replaced[-1]].any(), "outgoing, so zero: also from a unit to itself"
            assert model.hh.weight[unit].any()
            diagonal += 1
    assert plastic.replaced == {"ih": sum(map(len, naive.replaced))}
    assert diagonal > 20
    assert any(len(units) > 1 for units in naive.replaced)

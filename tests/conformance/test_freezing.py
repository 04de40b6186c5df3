"""Parameters may be frozen before attach, later, and unfrozen again: no method moves a frozen one or trips over it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from support.method_cases import FOUND, Attached, make, network, stream


def set_trainable(layer: nn.Module, trainable: bool) -> None:
    for parameter in layer.parameters():
        parameter.requires_grad_(trainable)
        if not trainable:
            parameter.grad = None


def numbers_of(layer: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in layer.parameters()]


def is_same(layer: nn.Module, numbers: list[torch.Tensor]) -> bool:
    return all(torch.equal(now, then) for now, then in zip(layer.parameters(), numbers, strict=True))


@pytest.mark.parametrize("layer", [0, 2, 4], ids=["first", "middle", "output"])
@pytest.mark.parametrize("name", FOUND)
class TestALayer:
    def test_frozen_before_attach_and_unfrozen_later_joins_in(self, name: str, layer: int) -> None:
        model = network()
        set_trainable(model[layer], False)
        start = numbers_of(model[layer])
        if FOUND[name].needs_units and layer == 2:  # every unit of this network has a weight in that layer
            with pytest.raises(ValueError, match=r"2: .*frozen \(requires_grad=False\)"):
                Attached(make(name), model=model)
            return
        run = Attached(make(name), model=model)
        batches = stream(30)
        run.train(batches[:10])
        assert is_same(model[layer], start)
        set_trainable(model[layer], True)
        run.train(batches[10:20])
        assert not is_same(model[layer], start)
        late = network(3)  # what is kept for late parameters can be saved and loaded
        set_trainable(late[layer], False)
        other = Attached(make(name), model=late)
        set_trainable(late[layer], True)
        other.load(run.save())
        assert other.train(batches[20:]) == run.train(batches[20:])

    def test_frozen_after_attach_rests_until_it_is_unfrozen(self, name: str, layer: int) -> None:
        run = Attached(make(name))
        batches = stream(30)
        run.train(batches[:10])
        set_trainable(run.model[layer], False)
        then = numbers_of(run.model[layer])
        run.train(batches[10:20])
        assert is_same(run.model[layer], then)
        set_trainable(run.model[layer], True)
        losses = run.train(batches[20:])
        assert not is_same(run.model[layer], then)
        assert all(bool(weight.isfinite().all()) for weight in run.weights())
        assert max(losses) < 50.0

"""Adam in one launch on CUDA is torch's Adam until something is reset, and then the general path's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.layers.regions import Region
from neoteny.optim import adam as module

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHAPES: dict[str, tuple[tuple[int, ...], bool, int]] = {
    "matrix": ((64, 48), False, 1),
    "odd matrix": ((7, 5), False, 1),
    "vector": ((300,), False, 1),
    "convolution": ((16, 8, 3, 3), False, 1),
    "channels last": ((16, 8, 3, 3), True, 1),
    "grouped": ((16, 4, 3, 3), False, 2),
}


def twins(shape: tuple[int, ...], channels_last: bool, count: int) -> list[nn.Parameter]:
    torch.manual_seed(0)
    weight = torch.randn(shape, device="cuda")
    weight = weight.contiguous(memory_format=torch.channels_last) if channels_last else weight
    return [nn.Parameter(weight.clone(memory_format=torch.preserve_format)) for _ in range(count)]


def reset(optimizer: Any, parameter: Tensor, groups: int) -> None:
    optimizer.clear_elements(parameter, Region("x", (torch.tensor([[1], [3]], device="cuda"),)))
    if parameter.dim() > 1:
        column = torch.tensor([[2]], device="cuda")
        group = torch.full_like(column, groups - 1)
        optimizer.clear_elements(parameter, Region("x", (group, column), groups))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
@pytest.mark.parametrize("name", SHAPES)
def test_with_and_without_resets(name: str, kind: str, weight_decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, channels_last, groups = SHAPES[name]
    parameters = twins(shape, channels_last, 3)
    options: dict[str, Any] = {"lr": 1e-2, "weight_decay": weight_decay}
    ours, general = (getattr(neoteny.optim, kind)([each], **options) for each in parameters[:2])
    theirs = getattr(torch.optim, kind)([parameters[2]], **options)
    for step in range(30):
        gradient = torch.randn(shape, device="cuda")
        for each in parameters:
            each.grad = torch.empty_like(each).copy_(gradient)
        ours.step()
        theirs.step()
        with monkeypatch.context() as patch:
            patch.setattr(module, "serves", lambda *_: False)
            general.step()
        if step == 9:
            torch.testing.assert_close(parameters[0], parameters[2], rtol=2e-6, atol=2e-6)
        if step in (10, 17):
            with torch.no_grad():
                reset(ours, parameters[0], groups)
                reset(general, parameters[1], groups)
    torch.testing.assert_close(parameters[0], parameters[1], rtol=2e-6, atol=2e-6)


def test_parameters_without_a_gradient_and_a_restored_state() -> None:
    one, other = twins((8, 8), False, 1)[0], twins((5,), False, 1)[0]
    optimizer = neoteny.optim.Adam([one, other], lr=0.1)
    copies = [nn.Parameter(each.detach().clone()) for each in (one, other)]
    reference = torch.optim.Adam(copies, lr=0.1)
    for step in range(12):
        for mine, theirs in zip((one, other), copies, strict=True):
            skip = step % 3 == 0 and mine is other
            mine.grad = None if skip else torch.randn_like(mine)
            theirs.grad = None if mine.grad is None else mine.grad.clone()
        optimizer.step()
        reference.step()
        if step == 6:
            restored = neoteny.optim.Adam([one, other], lr=0.5)
            restored.load_state_dict(optimizer.state_dict())
            optimizer = restored
    for mine, theirs in zip((one, other), copies, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-6, atol=2e-6)

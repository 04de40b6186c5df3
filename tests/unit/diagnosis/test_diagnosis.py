"""diagnose: nothing left behind, the printed table, plain numbers, bad input."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch import Tensor, nn

import neoteny
from support.diagnosed_models import mlp

# --- nothing left behind ---------------------------------------------------------------------------------------------


def test_the_model_is_left_exactly_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(8, 4, 3))
    model.add_module("tail", nn.Sequential(nn.Flatten(), nn.Linear(4 * 16, 5), nn.Tanh(), nn.Linear(5, 2)).eval())
    images = torch.randn(30, 3, 8, 8)
    model(images).sum().backward()
    loss = model(images).sum()  # its graph must survive
    kept = images.clone()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}  # pyright: ignore
    modes = [module.training for module in model.modules()]
    random = torch.get_rng_state()
    keys = [set(module.__dict__) for module in model.modules()]
    neoteny.diagnose(model, images)
    assert torch.equal(torch.get_rng_state(), random)
    assert modes == [module.training for module in model.modules()]
    assert keys == [set(module.__dict__) for module in model.modules()]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, gradients[name])  # pyright: ignore
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert torch.equal(images, kept)
    loss.backward()


def test_an_attached_model_can_be_diagnosed_between_updates(inputs: Tensor) -> None:
    def train(diagnosed: bool) -> Tensor:
        model = mlp(10, 40, 30, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        method = neoteny.ContinualBackprop(0.05, maturity_threshold=2)
        plastic = neoteny.attach(model, optimizer, method, example=inputs, seed=0)
        for _ in range(10):
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            if diagnosed:
                assert neoteny.diagnose(model, inputs).layers[0].units == 40
            loss.backward()
            optimizer.step()
            plastic.step()
        assert sum(plastic.replaced.values()) > 0
        return model.get_parameter("fc1.weight").detach()

    assert torch.equal(train(True), train(False))


# --- printing and plain numbers --------------------------------------------------------------------------------------


def test_prints_an_aligned_table_and_the_verdict(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2)
    with torch.no_grad():
        model.get_parameter("fc2.bias")[:15] = -1e3
        model.get_parameter("fc2.bias")[15:] = 1.0
    lines = str(neoteny.diagnose(model, inputs)).splitlines()
    header = lines[0].split("  ")
    assert [title.strip() for title in header if title.strip()] == [
        "layer", "units", "dead", "fresh", "effective rank", "fresh", "stable rank", "mean |w|", "fresh"
    ]  # fmt: skip
    assert lines[1].split()[:4] == ["fc1", "40", "0%", "0%"]
    assert lines[2].split()[:4] == ["fc2", "30", "50%", "7%"]
    assert lines[3].startswith("whole model      -     -")
    assert len({len(line) for line in lines[:4]}) == 1
    assert lines[5] == "verdict"
    assert lines[6] == "  50% of fc2's units (15 of 30) never fire on these inputs; in a fresh copy: 7%."
    assert "  fc3: output layer: its values are the model's output" in lines
    alone = str(neoteny.diagnose(mlp(10, 40, 2, act=nn.Tanh), inputs, control=False)).splitlines()
    assert "fresh" not in alone[0]
    assert "saturated" in alone[0]


def test_as_dict_is_plain(inputs: Tensor) -> None:
    found = neoteny.diagnose(mlp(10, 40, 2), inputs)
    plain = json.loads(json.dumps(found.as_dict()))
    assert plain["layers"][0]["fresh"]["units"] == 40
    assert plain["layers"][0]["effective_rank"] == found.layers[0].effective_rank
    assert plain == found.as_dict()
    assert found.layers[0].as_dict()["dead"] == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.weight_magnitude = 0.0  # pyright: ignore


# --- bad input -------------------------------------------------------------------------------------------------------


def test_bad_input_is_refused_by_name(inputs: Tensor) -> None:
    model = mlp(10, 40, 2)
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module; got str"):
        neoteny.diagnose("model", inputs)  # pyright: ignore
    with pytest.raises(TypeError, match=r"control must be True, False or a fresh nn\.Module; got int"):
        neoteny.diagnose(model, inputs, control=3)  # pyright: ignore
    with pytest.raises(ValueError, match=r"at least 2 examples.*got 1"):
        neoteny.diagnose(model, inputs[:1])
    with pytest.raises(ValueError, match=r"batch of examples.*got int"):
        neoteny.diagnose(model, 3)
    with pytest.raises(ValueError, match=r"a float32 tensor of shape \(300, 9\)"):
        neoteny.diagnose(model, inputs[:, :9])
    with pytest.raises(ValueError, match="norm must be 'accept' or 'strict'"):
        neoteny.diagnose(model, inputs, norm="maybe")  # pyright: ignore
    with pytest.raises(ValueError, match="found none"):
        neoteny.diagnose(nn.Linear(10, 2), inputs)
    with pytest.raises(ValueError, match="has no linear layer"):
        neoteny.diagnose(nn.ReLU(), inputs)


def test_a_model_that_cannot_be_copied_is_told_so(inputs: Tensor) -> None:
    model = mlp(10, 40, 2)
    model.kept = model.get_parameter("fc1.weight") * 2  # not a leaf: deepcopy refuses it
    with pytest.raises(ValueError, match="control=False"):
        neoteny.diagnose(model, inputs)
    assert neoteny.diagnose(model, inputs, control=False).layers

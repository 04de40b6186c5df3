"""diagnose: one sentence for each thing that is wrong."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neoteny
from neoteny.diagnosis import diagnose as diagnosis
from neoteny.diagnosis import result as verdict
from neoteny.nets import MLP
from support.diagnosed_models import healthy, mlp


def problems(found: diagnosis.Diagnosis) -> list[str]:
    """The verdict without advice."""
    return [sentence for sentence in found.verdict if not sentence.startswith("Consider")]


def test_a_fresh_network_has_nothing_wrong(inputs: Tensor) -> None:
    for model in (mlp(10, 40, 30, 2), mlp(10, 40, 30, 2, act=nn.Tanh), mlp(10, 40, 30, 2, act=nn.GELU)):
        assert healthy(neoteny.diagnose(model, inputs))
        assert healthy(neoteny.diagnose(model, inputs, control=False))


def test_says_which_share_never_fires_and_what_to_do(inputs: Tensor) -> None:
    model = mlp(10, 100, 100, 2)
    with torch.no_grad():
        model.get_parameter("fc2.bias")[:23] = -1e3
    found = neoteny.diagnose(model, inputs)
    assert problems(found) == ["23% of fc2's units (23 of 100) never fire on these inputs; in a fresh copy: 0%."]
    assert found.verdict[-1].startswith("Consider neoteny.ContinualBackprop")
    alone = neoteny.diagnose(model, inputs, control=False)
    assert problems(alone) == ["23% of fc2's units (23 of 100) never fire on these inputs."]


@pytest.mark.parametrize(("dead", "worth_a_sentence"), [(4, False), (5, True)])
def test_a_few_dead_units_are_no_news(inputs: Tensor, dead: int, worth_a_sentence: bool) -> None:
    model = mlp(10, 100, 100, 2)
    with torch.no_grad():
        model.get_parameter("fc2.bias")[:dead] = -1e3
    assert healthy(neoteny.diagnose(model, inputs)) is not worth_a_sentence


def test_dead_units_that_a_fresh_copy_has_too_are_not_blamed_on_training() -> None:
    narrow = torch.full((50, 10), 3.0) + 0.01 * torch.randn(50, 10, generator=torch.Generator().manual_seed(0))
    found = neoteny.diagnose(mlp(10, 200, 2), narrow)
    assert len(found.verdict) == 2
    assert "never fire" in found.verdict[0]
    assert "training is not the cause" in found.verdict[0]
    assert found.verdict[1] == "Nothing else stands out, compared with a fresh copy."


def test_says_that_units_are_saturated(inputs: Tensor) -> None:
    model = mlp(10, 50, 50, 2, act=nn.Tanh)
    with torch.no_grad():
        model.get_parameter("fc1.bias")[:20] = torch.tensor([20.0, -20.0]).repeat(10)
    found = neoteny.diagnose(model, inputs)
    assert problems(found) == [
        "40% of fc1's units (20 of 50) sit at a limit of their activation function on all these inputs; "
        "in a fresh copy: 0%."
    ]
    assert found.layers[0].saturated_share == 0.4
    assert found.layers[0].dead == 0


def test_says_that_the_rank_has_collapsed(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2)
    with torch.no_grad():
        model.get_parameter("fc2.weight")[:] = model.get_parameter("fc2.weight")[:1]
        model.get_parameter("fc2.bias").fill_(0.5)
    found = neoteny.diagnose(model, inputs)
    assert found.layers[1].effective_rank == pytest.approx(1.0)
    assert found.layers[1].stable_rank == pytest.approx(1.0)
    fresh = found.layers[1].fresh
    assert fresh is not None
    assert fresh.effective_rank > 10
    assert problems(found) == [f"fc2's effective rank is 1.0 of 30 units; a fresh copy has {fresh.effective_rank:.1f}."]
    alone = neoteny.diagnose(model, inputs, control=False)
    assert problems(alone) == ["fc2's effective rank is 1.0 of 30 units (at most 30 with these inputs)."]


def test_says_that_weights_have_grown(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2)
    with torch.no_grad():
        model.get_parameter("fc1.weight").mul_(3.5)
        model.get_parameter("fc2.weight").mul_(2.5)
    found = neoteny.diagnose(model, inputs)
    times = found.layers[0].weight_magnitude / found.layers[0].fresh.weight_magnitude  # pyright: ignore
    assert problems(found) == [f"The weights of fc1 are {times:.1f} times as large as a fresh copy's."]
    assert found.verdict[-1].startswith("Consider neoteny.L2")
    assert healthy(neoteny.diagnose(model, inputs, control=False))


def test_says_that_weights_outside_the_hidden_layers_have_grown(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2)
    with torch.no_grad():
        model.get_parameter("fc3.weight").mul_(1e3)
    found = neoteny.diagnose(model, inputs)
    assert len(problems(found)) == 1
    assert problems(found)[0].startswith("The model's weights are ")


def test_says_that_activations_are_not_finite(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2)
    inputs[200, 0] = math.inf
    found = neoteny.diagnose(model, inputs)
    assert found.verdict[0] == "fc1's activations are not all finite on these inputs."
    assert math.isnan(found.layers[0].dead_share)
    assert "diverged" in found.verdict[-1]
    assert "nan" in str(found)


def test_a_network_that_training_has_killed_gets_the_verdict() -> None:
    torch.manual_seed(0)
    model = MLP(20, [64, 64], 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)  # far too high
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(10, 20, generator=generator)
    label = torch.randint(0, 10, (300, 32), generator=generator)
    batches = centres[label] + torch.randn(300, 32, 20, generator=generator)
    before = neoteny.diagnose(model, batches.flatten(0, 1)[:1000])
    for x, y in zip(batches, label, strict=True):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    found = neoteny.diagnose(model, batches.flatten(0, 1)[:1000])
    assert healthy(before)
    assert found.layers[1].dead_share > 0.2
    assert any("of fc2's units" in sentence and "never fire" in sentence for sentence in found.verdict)
    assert any(sentence.startswith("Consider neoteny.ContinualBackprop") for sentence in found.verdict)


def test_the_advice_runs(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2)
    with torch.no_grad():
        model.get_parameter("fc2.bias")[:10] = -1e3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    advice = next(s for s in neoteny.diagnose(model, inputs).verdict if s.startswith("Consider"))
    line = advice.partition(": ")[2].partition(" replaces")[0]
    plastic = eval(line, {"neoteny": neoteny, "model": model, "optimizer": optimizer, "inputs": inputs})
    assert set(plastic.replaced) == {"fc1", "fc2"}


@pytest.mark.parametrize(("methods", "leave_out", "advice"), [
    ((neoteny.ContinualBackprop(0.01),), (), "Consider a replacement_rate above 0.01: the model has ContinualBackprop "
     "attached, which has replaced 0 units so far."),
    ((neoteny.L2(1e-4), neoteny.ReDo(50)), (), "Consider settings that replace more units: the model has L2 and ReDo "
     "attached, which has replaced 0 units so far."),
    ((neoteny.ContinualBackprop(),), ("fc2",), "Consider why fc2 is left out: the model has ContinualBackprop "
     "attached, which replaces no units there. print(plastic) gives the reason."),
    ((neoteny.L2(1e-4),), (), "Consider neoteny.ContinualBackprop too: the model has L2 attached, which replaces no "
     "units. Call neoteny.detach(model), then attach all methods at once, with trained=True."),
])  # fmt: skip
def test_the_advice_counts_in_what_is_attached(
    inputs: Tensor, methods: tuple[neoteny.methods.Method, ...], leave_out: tuple[str, ...], advice: str
) -> None:
    model = mlp(10, 40, 30, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    plastic = neoteny.attach(model, optimizer, *methods, example=inputs, leave_out=leave_out)
    with torch.no_grad():
        model.get_parameter("fc2.bias")[:10] = -1e3
    assert neoteny.diagnose(model, inputs).verdict[1:] == (advice,)
    assert neoteny.diagnose(nn.Sequential(OrderedDict(part=model)), inputs).verdict[1:] == (
        advice.replace("fc2", "part.fc2"),
    )
    plastic.detach()
    assert neoteny.diagnose(model, inputs).verdict[1:] == (verdict.REPLACE,)


def test_advice_on_grown_weights_counts_in_what_is_attached(inputs: Tensor) -> None:
    model = mlp(10, 40, 30, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    neoteny.attach(model, optimizer, neoteny.L2(1e-4))
    with torch.no_grad():
        model.get_parameter("fc3.weight").mul_(1e3)
    assert neoteny.diagnose(model, inputs).verdict[1:] == (
        "Consider a strength above 0.0001, or a smaller step size: the model has L2 attached.",
    )


def test_one_unit_more_than_a_fresh_copy_is_chance() -> None:
    def layer(dead: int) -> diagnosis.LayerDiagnosis:
        return diagnosis.LayerDiagnosis("fc1", 20, dead, dead / 20, None, 15.0, 5.0, 0.1, 100)

    def blamed(dead: int, fresh: int) -> bool:
        return bool(verdict.on_dead_units(dataclasses.replace(layer(dead), fresh=layer(fresh)))[1])

    assert not blamed(2, 1)
    assert not blamed(6, 4)
    assert blamed(1, 0)
    assert blamed(6, 1)

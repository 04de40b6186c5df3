"""neoteny.Probe: what copies learn, in numbers and words; the user's model, optimizer and random state stay."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import neoteny
from neoteny.diagnosis.probe import Probed
from neoteny.diagnosis.result import REPLACE
from neoteny.nets import MLP
from reference.plasticity_metrics import ProbedMLP

Batch = tuple[Tensor, Tensor]


def make(seed: int = 0, *, inputs: int = 6, outputs: int = 2) -> tuple[MLP, Tensor, list[Batch]]:
    """A network, inputs, and batches to learn."""
    torch.manual_seed(seed)
    model = MLP(inputs, [16], outputs)
    batches = [(torch.randn(8, inputs), torch.randn(8, outputs)) for _ in range(5)]
    return model, torch.randn(40, inputs), batches


def kill_units(model: MLP) -> None:
    """Leave one unit of the hidden layer alive."""
    with torch.no_grad():
        model.get_parameter("fc1.bias")[1:] = -1e3


def probe(model: nn.Module, inputs: Tensor, probe: neoteny.Probe, **options: Any) -> Probed:
    found = neoteny.diagnose(model, inputs, probe=probe, **options).probe
    assert found is not None
    return found


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_the_copies_learn_as_the_reference_does() -> None:
    model, inputs, batches = make()
    model, fresh = model.double(), make(3)[0].double()
    batches = [(x.double(), y.double()) for x, y in batches]
    found = probe(model, inputs.double(), neoteny.Probe(batches, updates=12, step_size=0.05), control=fresh)
    for network, loss in ((model, found.loss), (fresh, found.fresh[0])):
        weights, biases = (
            [network.get_parameter(f"{name}.{kind}").detach().numpy() for name in ("fc1", "out")]
            for kind in ("weight", "bias")
        )
        x, y = (np.stack([batches[k % 5][part].numpy() for k in range(12)]) for part in range(2))
        assert loss == pytest.approx(ProbedMLP(weights, biases).probe(x, y, 0.05)[0], rel=1e-12)
    assert len(found.losses) == 12
    assert len(found.fresh_losses) == 1
    assert found.excess == pytest.approx(100 * (found.loss / found.fresh[0] - 1))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_network_with_dead_units_learns_more_slowly_than_fresh_ones(optimizer: str) -> None:
    model, inputs, _ = make(outputs=1)
    kill_units(model)
    batches = [(x, x.abs().sum(1, keepdim=True)) for x in torch.randn(20, 16, 6)]
    step_size = {"sgd": 0.02, "adam": 0.01}[optimizer]
    probing = neoteny.Probe(batches, updates=60, step_size=step_size, optimizer=optimizer)
    found = neoteny.diagnose(model, inputs, probe=probing)
    assert found.probe is not None
    assert found.probe.learns_slowly
    assert len(found.probe.fresh) == 3
    assert (found.probe.excess or 0.0) > 20.0
    words = found.probe.sentence()
    assert f"{found.probe.excess:.0f}% more: it learns more slowly than a new network" in words
    assert words in found.verdict
    assert f"  {words}\n" in str(found)


def test_slow_learning_alone_gets_advice_too() -> None:
    """Output weights that are wrong in size: no unit is dead and no rank is low, yet learning begins far away."""
    model, inputs, batches = make()
    with torch.no_grad():
        model.get_parameter("out.bias").fill_(30.0)
    plain = neoteny.diagnose(model, inputs)
    found = neoteny.diagnose(model, inputs, probe=neoteny.Probe(batches, updates=20))
    assert len(plain.verdict) == 1
    assert found.verdict[0] == plain.verdict[0]
    assert "learns more slowly" in found.verdict[1]
    assert found.verdict[2] == REPLACE


def test_without_control_only_the_model_is_probed() -> None:
    model, inputs, batches = make()
    found = probe(model, inputs, neoteny.Probe(batches, updates=5), control=False)
    assert found.fresh == ()
    assert found.fresh_loss is None
    assert found.excess is None
    assert not found.learns_slowly
    assert found.sentence().endswith(f"for 5 updates with a mean loss of {found.loss:.3g}.")


def test_a_diagnosis_with_a_probe_is_plain_numbers() -> None:
    model, inputs, batches = make()
    found = neoteny.diagnose(model, inputs, probe=neoteny.Probe(batches, updates=4))
    plain = json.loads(json.dumps(found.as_dict()))
    assert plain == found.as_dict()
    assert len(plain["probe"]["losses"]) == 4
    assert [len(each) for each in plain["probe"]["fresh_losses"]] == [4, 4, 4]
    assert neoteny.diagnose(model, inputs).as_dict()["probe"] is None


@pytest.mark.parametrize(("losses", "fresh", "words"), [
    ((2.0, 2.0), ((1.0, 1.0), (1.5, 1.5)), "a fresh copy with 1.25, from 1 to 1.5. That is 60% more: it learns more s"),
    ((1.6, 1.6), ((1.0, 1.0), (1.5, 1.5)), "It learns about as fast as a new network."),
    ((0.5, 0.5), ((1.0, 1.0),), "a fresh copy with 1. That is 50% less: it learns faster than a new network."),
    ((1.0, math.inf), ((1.0, 1.0),), "diverged within 2 updates; a fresh copy with 1. It has lost plasticity, or"),
    ((1.0, 1.0), ((1.0, math.nan),), "a fresh copy diverged: choose a smaller step_size for the probe."),
])  # fmt: skip
def test_the_result_in_words(losses: Any, fresh: Any, words: str) -> None:
    found = Probed(losses, fresh)
    assert words in found.sentence()
    assert found.learns_slowly == ("more s" in words or "lost" in words)


# --- data ------------------------------------------------------------------------------------------------------------


def test_lists_loaders_functions_and_iterators_give_the_same_batches() -> None:
    model, inputs, batches = make()
    x, y = (torch.cat(each) for each in zip(*batches, strict=True))
    given = iter(batches * 3)
    several: list[Any] = [
        batches,
        DataLoader(TensorDataset(x, y), batch_size=8),
        lambda: next(given),
        (batch for batch in batches * 2),
    ]
    found = [probe(model, inputs, neoteny.Probe(data, updates=9)).losses for data in several]
    assert all(each == found[0] for each in found)


def test_whole_targets_are_classes_and_a_loss_of_ones_own_counts() -> None:
    model, inputs, _ = make(outputs=3)
    x, y = torch.randn(10, 6), torch.randint(0, 3, (10,))
    usual = probe(model, inputs, neoteny.Probe([(x, y)], updates=3))
    own = probe(model, inputs, neoteny.Probe([(x, y)], updates=3, loss=F.cross_entropy))
    assert usual == own
    assert usual.losses[0] == pytest.approx(F.cross_entropy(model(x), y).item(), rel=1e-6)
    named = probe(model, inputs, neoteny.Probe([({"x": x}, y)], updates=3))
    assert named == usual


def endless() -> Iterator[Batch]:
    yield from [(torch.zeros(2, 6), torch.zeros(2, 2))] * 3


@pytest.mark.parametrize(("build", "error", "message"), [
    (lambda: neoteny.Probe(torch.zeros(3)), TypeError, "or a function that returns one; got Tensor"),  # pyright: ignore[reportArgumentType]
    (lambda: neoteny.Probe([], updates=0), ValueError, "updates must be a whole number of at least 1; got 0"),
    (lambda: neoteny.Probe([], step_size=-1.0), ValueError, "step_size must be a number above 0; got -1.0"),
    (lambda: neoteny.Probe([], optimizer="lion"), ValueError, "optimizer must be \"sgd\" or \"adam\"; got 'lion'"),
    (lambda: neoteny.Probe([], loss="mse"), TypeError, "loss must be a function of outputs and targets; got str"),  # pyright: ignore[reportArgumentType]
    (lambda: neoteny.Probe([]), ValueError, "data gave 0 batches and cannot be gone through again"),
    (lambda: neoteny.Probe(endless()), ValueError, "data gave 3 batches and cannot .* but updates=100"),
    (lambda: neoteny.Probe([torch.zeros(4, 6)]), TypeError, r"pairs \(inputs, targets\); got a Tensor"),  # pyright: ignore[reportArgumentType]
    (lambda: neoteny.Probe([(1, 2, 3)]), TypeError, "got a tuple of 3"),  # pyright: ignore[reportArgumentType]
    (lambda: neoteny.Probe([(torch.zeros(4, 6), torch.zeros(4))]), ValueError, r"outputs, \(4, 2\); got \(4,\)"),
    (lambda: neoteny.Probe([(torch.zeros(4, 6), torch.zeros(4, 2))], loss=lambda a, b: a - b), ValueError,
     r"loss must give a tensor with one number; got shape \(4, 2\)"),
    (lambda: neoteny.Probe([(torch.zeros(4, 6), torch.zeros(4, 2))], loss=lambda a, b: a.detach().sum()), ValueError,
     "the loss has no gradient"),
    (lambda: "a probe", TypeError, "probe must be a neoteny.Probe, .* got str"),
])  # fmt: skip
def test_bad_probes_are_refused(build: Any, error: type[Exception], message: str) -> None:
    model, inputs, _ = make()
    with pytest.raises(error, match=message):
        neoteny.diagnose(model, inputs, probe=build())


def test_a_model_with_nothing_to_train_is_refused() -> None:
    model, inputs, batches = make()
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that is trained"):
        neoteny.diagnose(model, inputs, probe=neoteny.Probe(batches))


# --- nothing left behind ---------------------------------------------------------------------------------------------


def test_model_optimizer_modes_gradients_and_random_states_are_left_as_they_were() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 2))
    model[1].eval()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    x = torch.randn(16, 6)
    model(x).square().mean().backward()
    optimizer.step()
    pending = model(x).sum()  # its graph must survive
    state = {name: value.clone() for name, value in model.state_dict().items()}
    moments = {key: value.clone() for key, value in optimizer.state[model.get_parameter("0.weight")].items()}
    gradients = [parameter.grad.clone() for parameter in model.parameters()]  # pyright: ignore[reportOptionalMemberAccess]
    modes = [module.training for module in model.modules()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # pyright: ignore

    def draw() -> Batch:
        random.random()
        np.random.rand()
        return torch.randn(8, 6), torch.randn(8, 2)

    first = neoteny.diagnose(model, x, probe=neoteny.Probe(draw, updates=10, step_size=0.1))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])  # pyright: ignore
    assert modes == [module.training for module in model.modules()]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))  # pyright: ignore
    assert all(
        torch.equal(optimizer.state[model.get_parameter("0.weight")][key], value) for key, value in moments.items()
    )
    pending.backward()
    torch.manual_seed(1)
    second = neoteny.diagnose(model, x, probe=neoteny.Probe(draw, updates=10, step_size=0.1))
    assert first.probe != second.probe  # other data: that of the user's own random state


def test_an_attachment_and_a_monitor_do_not_see_the_copies() -> None:
    def train(probed: bool) -> tuple[dict[str, Tensor], dict[str, int], int]:
        model, inputs, batches = make()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        method = neoteny.ContinualBackprop(0.05, maturity_threshold=2)
        plastic = neoteny.attach(model, optimizer, method, example=inputs, seed=0)
        with neoteny.Monitor(model, every=4, to=[]) as monitor:
            for number, (x, y) in enumerate(batches * 2):
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                plastic.step()
                if probed and number in (3, 6):
                    assert probe(model, inputs, neoteny.Probe(batches, updates=2)).fresh
            return dict(model.state_dict()), dict(plastic.replaced), len(monitor.samples)

    (one, replaced, samples), (other, expected, same) = train(True), train(False)
    assert all(torch.equal(value, one[name]) for name, value in other.items())
    assert replaced == expected
    assert sum(expected.values()) > 0
    assert samples == same > 0

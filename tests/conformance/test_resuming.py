"""A run that stops in mid-period, is saved to a file and loaded elsewhere goes on bit for bit."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

import neoteny
from neoteny.methods import Method
from support.method_cases import FOUND, INPUTS, OTHERS, OUTPUTS, Attached, go_together, make, network, stacked, stream

STOP = 23  # no example's period divides it


def chains() -> list[tuple[str, ...]]:
    """Every method alone, and every method but an optimizer together with continual backpropagation."""
    others = [name for name in OTHERS if name != "ContinualBackprop" and go_together(name, "ContinualBackprop")]
    return [(name,) for name in FOUND] + [(name, "ContinualBackprop") for name in others]


@pytest.mark.parametrize("chain", chains(), ids="+".join)
class TestASavedRun:
    def test_attached(self, chain: tuple[str, ...]) -> None:
        batches = stream(36)
        run = Attached(*map(make, chain))
        run.train(batches[:STOP])
        file = run.save()
        expected = run.train(batches[STOP:])
        other = Attached(*map(make, chain), model=network(5), seed=99)
        other.train(stream(3, seed=8))  # what it had learned is overwritten
        other.load(file)
        assert other.train(batches[STOP:]) == expected
        for ours, theirs in zip(other.weights(), run.weights(), strict=True):
            assert torch.equal(ours, theirs)
        if run.plastic is not None and other.plastic is not None:
            assert other.plastic.replaced == run.plastic.replaced

    def test_stacked(self, chain: tuple[str, ...]) -> None:
        batches = stream(36)
        runs = stacked(*map(make, chain))
        for x, y in batches[:STOP]:
            runs.step(x, y)
        file = io.BytesIO()
        torch.save(runs.state_dict(), file)
        file.seek(0)
        other = stacked(*map(make, chain), seeds=[40, 50, 60])
        other.step(*stream(1, seed=8)[0])
        other.load_state_dict(torch.load(file, weights_only=True))
        for x, y in batches[STOP:]:
            assert torch.equal(runs.step(x, y).losses, other.step(x, y).losses)
        for group, counts in runs.replaced.items():
            assert torch.equal(counts, other.replaced[group])

    def test_a_state_of_other_settings_is_refused_and_changes_nothing(self, chain: tuple[str, ...]) -> None:
        runs = stacked(*map(make, chain))
        first = make(chain[0])
        setting, value = next(
            (name, value) for name, value in first.hyperparameters().items() if type(value) in (float, int)
        )
        others = stacked(
            make(chain[0], **{setting: value / 2 if type(value) is float else value + 1}), *map(make, chain[1:])
        )
        before = [value.clone() for value in others.view.tensors.values()]
        with pytest.raises(ValueError, match=r"other methods or settings.*" + chain[0]):
            others.load_state_dict(runs.state_dict())
        for old, new in zip(before, others.view.tensors.values(), strict=True):
            assert torch.equal(old, new)


def noisy(seed: int) -> nn.Sequential:
    """A network that draws masks and keeps statistics of its own."""
    torch.manual_seed(seed)
    first = [nn.Linear(INPUTS, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*first, nn.Linear(9, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, OUTPUTS)).double()


@pytest.mark.parametrize("adam", [False, True], ids=["sgd", "adam"])
@pytest.mark.parametrize("name", [*OTHERS, "gxd"])
def test_a_module_with_dropout_and_batch_norm_goes_on_too(name: str, adam: bool) -> None:
    def method() -> Method:
        return neoteny.ContinualBackprop(0.05, 5, utility="gxd") if name == "gxd" else make(name)

    batches = stream(60)
    run = Attached(method(), model=noisy(0), adam=adam)
    run.train(batches[:30])
    file, random = run.save(), torch.get_rng_state()
    expected = run.train(batches[30:])
    other = Attached(method(), model=noisy(5), seed=99, adam=adam)
    other.load(file)
    torch.set_rng_state(random)
    assert other.train(batches[30:]) == expected
    for key, value in run.model.state_dict().items():
        assert torch.equal(other.model.state_dict()[key], value), key

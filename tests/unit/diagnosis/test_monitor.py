"""Monitor: the numbers of `diagnose` during training, which stays as it is; a warning when plasticity is lost."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.diagnosis import monitor as monitoring
from support.drifting import DIM, batches, network, train


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.05)


def adam(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), rate)


def test_training_is_the_same_to_the_last_bit() -> None:
    def run(monitored: bool) -> tuple[list[float], dict[str, Tensor]]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(DIM, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 16), nn.ReLU(),
            nn.Linear(16, 10),
        )  # fmt: skip
        optimizer = adam(model, 1e-2)
        monitor = neoteny.Monitor(model, 5, examples=64) if monitored else None
        losses = train(model, optimizer, batches(20))
        if monitor is not None:
            assert [sample.step for sample in monitor.samples] == [1, 6, 11, 16]
        return losses, model.state_dict()

    (plain, weights), (watched, same) = run(False), run(True)
    assert plain == watched
    assert all(torch.equal(weights[name], same[name]) for name in weights)


def test_a_sample_has_the_numbers_of_diagnose() -> None:
    model = network()
    inputs = torch.cat([x for x, _ in batches(10)])
    with neoteny.Monitor(model, inputs=inputs) as monitor:
        sample = monitor.measure()
        found = neoteny.diagnose(model, inputs)
    for mine, theirs in zip(sample.layers, found.layers, strict=True):
        for name in ("dead_share", "effective_rank", "stable_rank", "weight_magnitude", "rows", "units", "name"):
            value = getattr(theirs, name)
            assert getattr(mine.numbers, name) == (value if isinstance(value, str) else pytest.approx(value, rel=1e-5))
        assert theirs.fresh is not None
        assert mine.fresh_weight_magnitude == pytest.approx(theirs.fresh.weight_magnitude, rel=1e-9)


@pytest.mark.parametrize(("optimizer", "rate"), [(torch.optim.SGD, 0.05), (torch.optim.Adam, 1e-3)])
def test_no_alarm_in_stationary_training(optimizer: Callable[..., Any], rate: float) -> None:
    model = network()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with neoteny.Monitor(model, 30, examples=300) as monitor:
            losses = train(model, optimizer(model.parameters(), rate), batches(300))
    assert len(monitor.samples) == 10
    assert sum(losses[-50:]) < 0.3 * sum(losses[:50])  # it did learn
    assert not any(sample.findings for sample in monitor.samples)


def test_one_alarm_when_a_network_loses_plasticity() -> None:
    model = network()
    optimizer = adam(model, 1e-2)  # a large step: units die, and weights grow
    with (
        neoteny.Monitor(model, 40, optimizer=optimizer, examples=300) as monitor,
        pytest.warns(RuntimeWarning, match="the network is losing plasticity") as caught,
    ):
        losses = train(model, optimizer, batches(500, period=100))
    assert sum(losses[400:]) > 1.5 * sum(losses[:100])  # it does lose it: the same task takes longer each time
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "units (" in message
    assert "never fire on these inputs; in the first samples:" in message
    assert "neoteny.attach(" in message
    assert monitor.warned


def test_the_alarm_counts_in_what_is_attached() -> None:
    model = network()
    optimizer = adam(model, 1e-2)
    method = neoteny.ContinualBackprop(1e-9)  # far too low a rate
    neoteny.attach(model, optimizer, method, example=torch.zeros(2, DIM), auto=True)
    with neoteny.Monitor(model, 40, optimizer=optimizer, examples=300), pytest.warns(RuntimeWarning) as caught:
        train(model, optimizer, batches(500, period=100))
    assert "neoteny.attach(" not in str(caught[0].message)
    assert "Consider a replacement_rate above 1e-09" in str(caught[0].message)


def test_passes_without_training_do_not_count() -> None:
    model = network()
    with neoteny.Monitor(model, 2, examples=32) as monitor:
        model.eval()
        model(torch.randn(32, DIM))
        model.train()
        with torch.no_grad():
            model(torch.randn(32, DIM))
        assert (monitor.steps, monitor.samples) == (0, [])
        train(model, sgd(model), batches(5))
    assert (monitor.steps, [sample.step for sample in monitor.samples]) == (5, [0, 2, 4])
    train(model, sgd(model), batches(2))
    assert monitor.steps == 5  # closed


def test_with_an_optimizer_steps_are_updates() -> None:
    model = network()
    optimizer = sgd(model)
    plastic = neoteny.attach(
        model, optimizer, neoteny.ContinualBackprop(0.5, maturity_threshold=1), example=torch.zeros(2, DIM), auto=True
    )
    with neoteny.Monitor(model, 4, optimizer=optimizer, examples=32) as monitor:
        for inputs, labels in batches(8):
            for half, some in zip(inputs.chunk(2), labels.chunk(2), strict=True):  # gradient accumulation
                nn.functional.cross_entropy(model(half), some).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert monitor.steps == 8
    assert [sample.step for sample in monitor.samples] == [1, 5]
    for layer in monitor.samples[-1].layers:
        assert layer.gradient_norm is not None
        assert layer.gradient_norm > 0
        assert layer.replaced is not None
        assert 0 < layer.replaced <= plastic.replaced[layer.numbers.name]


def test_small_batches_are_gathered_and_measured_together() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    torch.manual_seed(0)
    rows = torch.randn(60, 4)
    with neoteny.Monitor(model, 100, examples=50) as monitor:
        for row in rows:
            model(row[None]).sum().backward()
    (sample,) = monitor.samples
    assert (sample.step, sample.layers[0].numbers.rows) == (49, 50)
    assert sample.layers[0].numbers == neoteny.Monitor(model, inputs=rows[:50]).measure().layers[0].numbers


def test_arguments_of_other_lengths_are_measured_batch_by_batch() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = nn.Linear(4, 8), nn.Linear(8, 1)

        def forward(self, words: Tensor, *, scale: float = 1.0) -> Tensor:
            return self.out(torch.relu(self.hidden(words)) * scale).sum(1)

    model = Padded()
    with neoteny.Monitor(model, 100, examples=12) as monitor:
        for length in (5, 3, 7):
            model(torch.randn(4, length, 4), scale=2.0).sum().backward()
    assert monitor.samples[0].layers[0].numbers.rows == 4 * (5 + 3 + 7)


def test_only_the_first_process_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    model, seen = network(), []
    with neoteny.Monitor(model, 2, examples=32, to=seen.append) as monitor:
        train(model, sgd(model), batches(4))
    assert (monitor.steps, monitor.samples, seen) == (4, [], [])


def test_a_copied_model_is_not_monitored_and_a_copied_monitor_keeps_its_samples() -> None:
    model: Any = network()
    monitor = model.monitor = neoteny.Monitor(model, 2, examples=32)
    train(model, sgd(model), batches(3))
    assert len(monitor.samples) == 2
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        train(twin, sgd(twin), batches(4))
        assert (len(monitor.samples), monitor.steps) == (2, 3)
        assert twin.monitor.samples == monitor.samples
        assert twin.monitor.state_dict() == monitor.state_dict()
        with pytest.raises(RuntimeError, match="copy of a monitor"):
            twin.monitor.measure(torch.randn(4, DIM))


def test_a_resumed_monitor_equals_one_that_never_stopped() -> None:
    def parts(stops: tuple[int, ...]) -> list[Any]:
        model = network()
        optimizer, data, state = adam(model, 1e-2), batches(24, period=8), {}
        for start, stop in itertools.pairwise((0, *stops)):
            monitor = neoteny.Monitor(model, 4, examples=32)
            if state:
                monitor.load_state_dict(state)
            train(model, optimizer, itertools.islice(data, stop - start))
            state = monitor.state_dict()
            monitor.close()
        return state["samples"]

    assert parts((24,)) == parts((10, 24))


def test_memory_is_bounded_and_keeps_the_first_and_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "MOST_SAMPLES", 12)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    with neoteny.Monitor(model, 1, examples=2) as monitor:
        for _ in range(40):
            model(torch.randn(2, 4)).sum().backward()
    steps = [sample.step for sample in monitor.samples]
    assert len(steps) <= 12
    assert (steps[:3], steps[-3:]) == ([0, 1, 2], [37, 38, 39])


class Agent(nn.Module):
    """Trained by `evaluate`, never by a call."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).argmax(-1)

    def evaluate(self, x: Tensor) -> Tensor:
        return self.net(x)


def test_a_model_that_is_never_called_is_told_and_inputs_help() -> None:
    agent = Agent()
    optimizer = sgd(agent)

    def update(times: int) -> None:
        for _ in range(times):
            optimizer.zero_grad()
            agent.evaluate(torch.randn(2, 4)).sum().backward()
            optimizer.step()

    with neoteny.Monitor(agent, optimizer=optimizer), pytest.warns(RuntimeWarning, match="Agent was not called"):
        update(100)
    with neoteny.Monitor(agent.net, 10, optimizer=optimizer, inputs=lambda: torch.randn(50, 4)) as monitor:
        update(20)
    assert [sample.step for sample in monitor.samples] == [1, 10, 20]
    with pytest.warns(RuntimeWarning, match="Agent was not called"):
        neoteny.Monitor(agent).close()


class NotCopied(nn.Linear):
    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("this layer stays here")


def test_a_model_that_cannot_be_copied_is_compared_with_its_start_and_a_note_says_so() -> None:
    model = nn.Sequential(NotCopied(4, 8), nn.ReLU(), nn.Linear(8, 1))
    monitor = neoteny.Monitor(model, inputs=torch.randn(20, 4))
    assert monitor.measure().layers[0].weight_growth == 1.0
    assert [note.partition(":")[0] for note in monitor.notes] == [
        "weights are compared with those at the start, as there is no copy"
    ]
    grown = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    assert neoteny.Monitor(grown, inputs=torch.randn(20, 4)).notes == ()


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"model": 3}, TypeError, "must be a torch.nn.Module; got int"),
        ({"every": 0}, ValueError, "every must be a whole number of at least 1; got 0"),
        ({"examples": 1}, ValueError, "examples must be a whole number of at least 2"),
        ({"optimizer": "sgd"}, TypeError, "must be a torch.optim.Optimizer; got str"),
        ({"to": 3}, TypeError, "to must be a path .*got int"),
        ({"inputs": torch.zeros(4, 3)}, ValueError, "mat1 and mat2"),
    ],
)
def test_wrong_arguments_are_refused_and_leave_no_hook(given: dict[str, Any], error: type, match: str) -> None:
    model = network()
    with pytest.raises(error, match=match):
        neoteny.Monitor(**{"model": model, **given})
    assert not model._forward_pre_hooks


def test_another_state_is_refused() -> None:
    monitor = neoteny.Monitor(network())
    with pytest.raises(ValueError, match="expected the state of a Monitor of version 1; got another: it has no"):
        monitor.load_state_dict({"steps": 3})
    assert monitor.steps == 0


@pytest.mark.slow
def test_a_compiled_model_is_monitored_outside_of_its_code() -> None:
    compiled: list[int] = []

    def backend(module: Any, _: Any) -> Any:
        compiled.append(1)
        return module.forward

    model = network()
    outer = torch.compile(model, backend=backend)
    assert isinstance(outer, nn.Module)
    with neoteny.Monitor(outer, 5, examples=32) as monitor:
        train(outer, sgd(model), batches(12))
    assert (len(compiled), [sample.step for sample in monitor.samples]) == (1, [0, 5, 10])
    model.compile(backend=backend)
    with pytest.raises(ValueError, match="leaves no place for a hook"):
        neoteny.Monitor(model)

"""The plasticity probe of a sweep: what copies learn is right, and the run does not notice them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from neoteny import metrics
from neoteny.cli.catalogue import list_things
from neoteny.methods import SGD, Adam, ContinualBackprop, HareAndTortoise, Method
from neoteny.nets import MLP, ActorCritic, ConvNet
from neoteny.problems import ContinualImageNet, PermutedMNIST, SlipperyAnt
from neoteny.problems.problem import Plan, Stream
from neoteny.stacking.stack import Stack
from neoteny.suite.checked_stream import CheckedStream
from neoteny.suite.environment import open_problems
from neoteny.suite.measures import MEASURES
from neoteny.suite.plasticity_probe import GRADIENT_EXAMPLES, LEARNING_MEASURES
from neoteny.suite.rl.ppo import PPO
from neoteny.suite.stacks import runs_of, stacks_of
from neoteny.suite.sweep import Setting, Sweep, network
from neoteny.suite.training import Training
from reference import plasticity_metrics as reference
from support.small_sweeps import CPU, NET, PROBLEM, make_sweep

ALL = tuple(LEARNING_MEASURES)
CBP = Setting("CBP", NET, (Adam(0.01), ContinualBackprop(0.02, maturity_threshold=5)))
IMAGES = ContinualImageNet(tasks=2, source="synthetic", train_images=4, test_images=1, batch_size=4, epochs=5)


def begin(sweep: Sweep, kernel: str = "reference") -> Training:
    """All runs of a sweep as one stack, not trained."""
    (one,) = stacks_of(sweep, runs_of(sweep, sweep.settings, kernel), ())
    stream = open_problems(sweep, None)[one.problem]
    assert isinstance(stream, Stream)
    return Training(one, stream, CPU)


def train(sweep: Sweep, kernel: str = "reference") -> Training:
    training = begin(sweep, kernel)
    training.run(lambda: None)
    return training


def probed(setting: Setting = CBP, measures: Sequence[str] = ALL, **options: Any) -> Sweep:
    return make_sweep(setting, measures=tuple(measures), probe_updates=15, probe_examples=20, **options)


# The run does not notice


def cases() -> dict[str, tuple[Setting, dict[str, Any], str]]:
    images = network(ConvNet)
    reset: tuple[Method, ...] = (SGD(0.1), ContinualBackprop(0.02, maturity_threshold=1))
    averaged = (SGD(0.01, momentum=0.9), HareAndTortoise(0.9))
    dropout = network(MLP, hidden=(5,), dropout=0.2)
    return {
        "library": (CBP, {}, "reference"),
        "kernel": (Setting("CBP", NET, (SGD(0.01), ContinualBackprop(0.02, maturity_threshold=5))), {}, "cpu"),
        "dropout": (Setting("BP", dropout, averaged), {"dtype": "float64"}, "reference"),
        "convolutions, told of tasks": (
            Setting("CBP", images, reset),
            {"problem": IMAGES, "runs": 1, "probe_step_size": 0.3},
            "reference",
        ),
    }


@pytest.mark.parametrize("case", cases())
def test_a_run_is_the_same_to_the_last_bit_with_and_without_the_probe(case: str) -> None:
    setting, options, kernel = cases()[case]
    torch.manual_seed(5)
    expected = torch.get_rng_state()
    with_probe, without = train(probed(setting, **options), kernel), train(probed(setting, (), **options), kernel)
    assert torch.equal(torch.get_rng_state(), expected)
    found, plain = with_probe.table(), without.table()
    assert {name for name in found if not name.endswith(".tasks")} - set(plain) == set(ALL)
    for name, values in plain.items():
        assert torch.equal(values, found[name])
    ends = [each.state_dict()["stack"]["tensors"] for each in (with_probe, without)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[1])
    assert all(found[name].isfinite().all() for name in ALL)
    assert (found["probe_excess"][0] == 0).all()  # before the first update a network is a fresh one
    assert (found["probe_excess"][1:] != 0).all()
    assert torch.equal(found["probe_loss"][0], found["probe_loss_fresh"][1])  # the same task all along


def test_a_resumed_run_gives_the_same_table() -> None:
    class Stop(Exception):
        pass

    def pause() -> None:
        if first.task == 2:
            raise Stop

    expected = train(probed()).table()
    first = begin(probed())
    with pytest.raises(Stop):
        first.run(pause)
    second = begin(probed())
    second.load_state_dict(first.state_dict())
    second.run(lambda: None)
    found = second.table()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_run_is_probed_alike_alone_and_in_a_stack_and_every_few_tasks() -> None:
    together = train(probed(runs=3, dtype="float64")).table()
    alone = train(probed(runs=1, dtype="float64", measure_every=2)).table()
    assert alone["probe_loss.tasks"].tolist() == [0, 2]
    for name in ALL:
        torch.testing.assert_close(together[name][[0, 2], :1], alone[name], rtol=1e-9, atol=1e-12)


def test_a_run_that_diverged_is_nan_and_the_other_is_not() -> None:
    settings = [Setting("BP", NET, (SGD(size),), {"step_size": size}) for size in (0.01, 1e30)]
    found = train(make_sweep(*settings, runs=1, measures=ALL, probe_updates=5, probe_examples=20)).table()
    for name in ALL:
        assert found[name][1:, 0].isfinite().all()
        assert found[name][1:, 1].isnan().all()


# What the copies learn


def arrays(stack: Stack, run: int) -> reference.ProbedMLP:
    tensors = {name: tensor[run].detach().numpy() for name, tensor in stack.view.tensors.items()}
    return reference.ProbedMLP(*([tensors[f"{name}.{kind}"] for name in ("fc1", "out")] for kind in ("weight", "bias")))


def test_probes_are_those_of_the_reference() -> None:
    training = train(probed(measures=(), dtype="float64"))
    stack, plan = training._stack, training._stream.unseen([0, 1])
    training.planned.sweep.__dict__["probe_updates"] = 15
    inputs = plan.probe(20, CPU).double()
    found = training._probing().measure(ALL, stack, inputs)
    x, y = (each.double().numpy() for each in plan.batches(0, 40, CPU))
    for run in range(2):
        network_now = arrays(stack, run)
        single: list[np.ndarray] = []
        for one, target in zip(x[:GRADIENT_EXAMPLES, run], y[:GRADIENT_EXAMPLES, run], strict=True):
            of_weights, of_biases = network_now.gradients(one, target)
            single.append(np.concatenate([each.ravel() for each in (*of_weights, *of_biases)]))
        before = network_now.outputs(inputs[run].numpy())[-1]
        loss, plasticity = network_now.probe(x[:15, run], y[:15, run], 0.01)
        expected = {
            "probe_loss": loss,
            "one_step_plasticity": plasticity,
            "churn": reference.churn(network_now.outputs(inputs[run].numpy())[-1], before),
            "gradient_agreement": reference.gradient_agreement(np.stack(single)),
            "gradient_strength": reference.gradient_strength(np.stack(single)),
        }
        for name, value in expected.items():
            assert found[name][run].item() == pytest.approx(value, rel=1e-9), name
        torch.testing.assert_close(
            found["probe_excess"], 100 * (found["probe_loss"] / found["probe_loss_fresh"] - 1), rtol=1e-12, atol=1e-12
        )
        assert found["gradient_agreement"][run].item() == pytest.approx(
            metrics.gradient_agreement(torch.tensor(np.stack(single))).item(), rel=1e-9
        )


def test_the_optimizer_its_step_size_and_the_budget_count() -> None:
    base = train(probed(measures=("probe_loss",))).table()["probe_loss"]
    changes: list[dict[str, Any]] = [{"probe_optimizer": "adam"}, {"probe_step_size": 0.001}]
    for change in changes:
        assert not torch.equal(train(probed(measures=("probe_loss",), **change)).table()["probe_loss"], base)
    most = [make_sweep(CBP, measures=("probe_loss",), probe_updates=updates) for updates in (40, 4000)]
    first, second = (train(sweep).table()["probe_loss"] for sweep in most)
    assert torch.equal(first, second)  # at most the updates of a task


# Unseen tasks


def test_no_run_sees_the_unseen_task() -> None:
    stream = PermutedMNIST(tasks=4, examples_per_task=20, source="synthetic").open()
    unseen = stream.unseen([0, 1])
    for seed in range(4):
        for task in range(4):
            seen = stream.plan([seed], task)
            assert not (unseen.permutation == seen.permutation).all(-1).any()  # pyright: ignore[reportAttributeAccessIssue]
    images = ContinualImageNet(tasks=700, source="synthetic", train_images=5, test_images=1, batch_size=10).open()
    for seed in range(3):
        (pair,) = images.unseen([seed]).classes.tolist()
        assert pair not in images.pairs(seed)[:700].tolist()
    regression = PROBLEM.open()
    assert not torch.equal(regression.unseen([0]).hidden, regression.plan([0], 0).hidden)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_stream_without_an_unseen_task_says_so() -> None:
    all_pairs = ContinualImageNet(tasks=780, source="synthetic", train_images=5, test_images=1, batch_size=10)
    with pytest.raises(ValueError, match=r"all 780 pairs .* none is left that a run does not see; choose fewer tasks"):
        all_pairs.open().unseen([0])


class Own(Stream):
    """A user's stream."""

    def __init__(self, unseen: Any) -> None:
        self.given = unseen

    def plan(self, seeds: Sequence[int], task: int) -> Plan:
        return PROBLEM.open().plan(seeds, task)

    def unseen(self, seeds: Sequence[int]) -> Plan:
        return self.given


def test_the_unseen_task_of_a_users_problem_is_looked_at() -> None:
    with pytest.raises(ValueError, match=r"Own\.unseen must return a Plan whose steps .* got str"):
        CheckedStream(PROBLEM, Own("a plan")).unseen([0])
    plan = CheckedStream(PROBLEM, Own(PROBLEM.open().plan([0, 1], 0))).unseen([0])
    with pytest.raises(ValueError, match=r"inputs of shape \(1, 1, batch, 22\) on cpu; got \(1, 2, 1, 22\)"):
        plan.batches(0, 1, CPU)


# Descriptions


def test_ids_of_runs_without_the_probe_stay_and_with_it_its_settings_count() -> None:
    def ids(**options: Any) -> list[str]:
        sweep = make_sweep(**options)
        return [run.run_id for run in runs_of(sweep, sweep.settings, "reference")]

    assert ids() == ids(probe_updates=7, probe_optimizer="adam", probe_step_size=0.5)
    assert "probe" not in runs_of(make_sweep(), make_sweep().settings, "reference")[0].configuration
    base = ids(measures=("probe_loss",))
    for change in ({"probe_updates": 7}, {"probe_optimizer": "adam"}, {"probe_step_size": 0.5}):
        assert set(base).isdisjoint(ids(measures=("probe_loss",), **change))


@pytest.mark.parametrize(("options", "message"), [
    ({"probe_optimizer": "rmsprop"}, 'probe_optimizer must be "sgd" or "adam"; got \'rmsprop\''),
    ({"probe_step_size": 0.0}, "probe_step_size must be a number above 0; got 0.0"),
    ({"probe_step_size": "big"}, "probe_step_size must be a number above 0; got 'big'"),
    ({"probe_updates": 0}, "probe_updates must be a whole number of at least 1; got 0"),
    ({"measures": ("probe_los",)}, "Unknown measure 'probe_los'. Did you mean 'probe_loss'"),
])  # fmt: skip
def test_impossible_probes_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_sweep(**options)


def test_an_agent_has_nothing_that_a_probe_could_learn() -> None:
    setting = Setting("PPO", network(ActorCritic, hidden=(4,)), (Adam(1e-3),), agent=PPO())
    with pytest.raises(ValueError, match="'churn' needs examples with targets, which SlipperyAnt, a problem"):
        make_sweep(setting, problem=SlipperyAnt(), measures=("dead_units", "churn"))


def test_the_catalogue_lists_every_measure_with_a_line() -> None:
    listed = dict(list_things()["measure"])
    assert list(listed) == [*MEASURES, *LEARNING_MEASURES]
    assert all(listed.values())


def test_measures_are_recorded_in_the_order_of_the_sweep() -> None:
    names = ("probe_loss", "dead_units", "churn")
    table: dict[str, Tensor] = train(probed(measures=names)).table()
    assert [name for name in table if name in names] == list(names)

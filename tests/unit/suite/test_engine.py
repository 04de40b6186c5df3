"""Runs, stacks, the run loop and the two-stage protocol."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from neoteny.methods import L2, SGD, Adam, ContinualBackprop
from neoteny.nets import MLP, ConvNet
from neoteny.problems import ContinualImageNet, PermutedMNIST, SlowlyChangingRegression
from neoteny.stacking.stack import stack
from neoteny.suite.configuration import canonical
from neoteny.suite.identity import RESULTS_VERSION, digest
from neoteny.suite.measures import MEASURES, measure
from neoteny.suite.running import choose_device, choose_kernel, open_problems
from neoteny.suite.selection import choose
from neoteny.suite.stacks import StackOfRuns, runs_of, stacks_of
from neoteny.suite.store.checkpoints import Checkpoints
from neoteny.suite.store.results import Results
from neoteny.suite.sweep import Selection, Setting, Sweep, network
from neoteny.suite.training import Training

PROBLEM = SlowlyChangingRegression(tasks=3, examples_per_task=40)
NET = network(MLP, hidden=(5,))
CPU = torch.device("cpu")


def make_sweep(*settings: Setting, **options) -> Sweep:
    settings = settings or (Setting("BP", NET, (SGD(0.01),)),)
    return Sweep(**{"problem": PROBLEM, "settings": settings, "runs": 2, **options})


def train(sweep: Sweep) -> Training:
    """All runs of a sweep as one stack."""
    (one,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    training = Training(one, open_problems(sweep, None)[one.problem], CPU)
    training.run(lambda: None)
    return training


# What is refused


def test_an_unknown_network_option_names_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"MLP has no option 'activatoin'. Did you mean 'activation'\?"):
        network(MLP, hidden=(5,), activatoin="relu")


def test_two_settings_of_one_label_are_refused() -> None:
    with pytest.raises(ValueError, match="two settings have the label 'BP'"):
        make_sweep(Setting("BP", NET, (SGD(0.01),)), Setting("BP", NET, (SGD(0.1),)))


def test_two_settings_of_one_configuration_are_refused() -> None:
    sweep = make_sweep(Setting("BP", NET, (SGD(0.01),)), Setting("Plain", NET, (SGD(0.01),)))
    with pytest.raises(ValueError, match="have the same configuration"):
        runs_of(sweep, sweep.settings, "reference")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runs": 0}, "runs must be a whole number"),
        ({"runs": True}, "runs must be a whole number"),
        ({"stack_size": 1.5}, "stack_size must be a whole number"),
        ({"dtype": "float16"}, "dtype must be"),
        ({"settings": ()}, "settings is empty"),
    ],
)
def test_impossible_values_of_a_sweep_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(make_sweep(), **change)


def test_a_setting_refuses_sequences_and_things_that_are_no_methods() -> None:
    with pytest.raises(ValueError, match="one value for each"):
        Setting("BP", NET, (SGD((0.01, 0.1)),))
    with pytest.raises(TypeError, match="tuple of methods"):
        Setting("BP", NET, (torch.optim.SGD,))  # pyright: ignore[reportArgumentType]


def test_an_unknown_measure_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"Unknown measure 'dead_unit'. Did you mean 'dead_units'\?"):
        open_problems(make_sweep(measures=("dead_unit",)), None)


def test_unknown_devices_and_kernels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Unknown device 'gpu'"):
        choose_device("gpu")
    with pytest.raises(ValueError, match=r"Did you mean 'reference'"):
        choose_kernel("referense", CPU)


# Identity


def test_the_id_of_a_run_depends_on_what_changes_its_numbers_and_on_nothing_else() -> None:
    def run_id(sweep: Sweep, number: int = 0) -> str:
        return runs_of(sweep, sweep.settings, "reference")[number].run_id

    sweep = make_sweep()
    same = [
        dataclasses.replace(sweep, runs=5),
        dataclasses.replace(sweep, stack_size=3),
        make_sweep(Setting("Another name", NET, (SGD(0.01),), {"step_size": 0.01})),
    ]
    different = [
        make_sweep(Setting("BP", NET, (SGD(0.02),))),
        make_sweep(Setting("BP", NET, (SGD(0.01), L2(0.0)))),
        make_sweep(Setting("BP", network(MLP, hidden=(6,)), (SGD(0.01),))),
        dataclasses.replace(sweep, problem=dataclasses.replace(PROBLEM, tasks=4)),
        dataclasses.replace(sweep, dtype="float64"),
        dataclasses.replace(sweep, measures=("dead_units",)),
    ]
    assert {run_id(each) for each in same} == {run_id(sweep)}
    ids = [run_id(each) for each in different] + [run_id(sweep), run_id(sweep, 1)]
    assert len(set(ids)) == len(ids)


def test_the_id_is_fixed_over_versions_of_the_code() -> None:
    """If this fails, old results are no longer found: raise RESULTS_VERSION on purpose, or mend the change."""
    assert digest(canonical((SGD(0.01), ContinualBackprop(1e-4)))) == "d10cb98d05b8a2a7"
    assert RESULTS_VERSION == 1


def test_a_configuration_refuses_what_it_cannot_describe() -> None:
    with pytest.raises(TypeError, match="Describe it by its parameters"):
        canonical(torch.zeros(3))


# Stacks


def test_runs_that_differ_in_seeds_and_numbers_share_a_stack() -> None:
    sweep = make_sweep(
        Setting("BP", NET, (SGD(0.01),), {"step_size": 0.01}),
        Setting("BP", NET, (SGD(0.1),), {"step_size": 0.1}),
        Setting("CBP", NET, (SGD(0.01), ContinualBackprop(1e-4))),
        Setting("CBP", NET, (SGD(0.01), ContinualBackprop(1e-3, utility="random")), {"utility": "random"}),
        Setting("BP", network(MLP, hidden=(7,)), (SGD(0.1),), {"width": 7}),
    )
    stacks = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    assert [len(one.runs) for one in stacks] == [4, 2, 2, 2]
    assert stacks[0].methods() == (SGD((0.01, 0.01, 0.1, 0.1)),)
    assert stacks[1].methods() == (SGD(0.01), ContinualBackprop(1e-4))


def test_a_stack_keeps_its_members_when_others_finish() -> None:
    sweep = make_sweep(runs=10, stack_size=4)
    runs = runs_of(sweep, sweep.settings, "reference")
    stacks = stacks_of(sweep, runs, ())
    assert [len(one.runs) for one in stacks] == [4, 4, 2]
    finished = [run.run_id for run in stacks[0].runs]
    assert [one.stack_id for one in stacks_of(sweep, runs, finished)] == [one.stack_id for one in stacks[1:]]


def test_a_stack_that_has_begun_stays_together_when_more_runs_are_asked_for() -> None:
    sweep = make_sweep(runs=3)
    (begun,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    more = dataclasses.replace(sweep, runs=5)
    stacks = stacks_of(
        more, runs_of(more, more.settings, "reference"), (), [[run.run_id for run in begun.runs], ["of another sweep"]]
    )
    assert stacks[0].stack_id == begun.stack_id
    assert [[run.seed for run in one.runs] for one in stacks] == [[0, 1, 2], [3, 4]]


# The loop


def test_the_loop_gives_the_errors_of_a_loop_written_by_hand() -> None:
    sweep = make_sweep(dtype="float64")
    rows = train(sweep).rows["error"]
    stream = PROBLEM.open()
    modules = []
    for seed in range(2):
        torch.manual_seed(seed)
        modules.append(MLP(22, [5], 1).double())
    by_hand = stack(modules, SGD(0.01))
    for task in range(PROBLEM.tasks):
        inputs, targets = stream.plan([0, 1], task).batches(0, 40, CPU)
        errors = [by_hand.step(x.double(), y.double()).losses for x, y in zip(inputs, targets, strict=True)]
        torch.testing.assert_close(rows[task], torch.stack(errors).mean(0))


def test_a_run_sees_the_same_stream_and_start_whatever_its_method() -> None:
    sweep = make_sweep(
        Setting("BP", NET, (SGD(0.0),)), Setting("CBP", NET, (SGD(0.0), ContinualBackprop(0.0))),
        Setting("Adam", NET, (Adam(0.0),)),
    )  # fmt: skip
    runs = runs_of(sweep, sweep.settings, "reference")
    stream = PROBLEM.open()
    rows = []
    for one in stacks_of(sweep, runs, ()):
        training = Training(one, stream, CPU)
        training.run(lambda: None)
        rows.append(torch.stack(list(training.rows["error"].values())))
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])


def test_a_run_that_diverges_is_recorded_and_its_neighbours_go_on() -> None:
    settings = [Setting("BP", NET, (SGD(size),), {"step_size": size}) for size in (0.01, 1e30)]
    together = train(make_sweep(*settings, runs=2))
    alone = train(make_sweep(settings[0], runs=2))
    error = torch.stack(list(together.rows["error"].values()))
    assert together.diverged_at[:2].tolist() == [-1, -1]
    assert all(0 < at < 40 for at in together.diverged_at[2:].tolist())
    assert error[:, 2:].isnan().all()
    torch.testing.assert_close(error[:, :2], torch.stack(list(alone.rows["error"].values())))


def test_a_stack_in_which_all_diverge_ends_early_with_nan_for_every_task() -> None:
    training = train(make_sweep(Setting("BP", NET, (SGD(1e30),)), measures=("dead_units",), measure_every=2))
    assert training.task == 1
    table = training.table()
    assert table["error.tasks"].tolist() == [0, 1, 2]
    assert table["error"].isnan().all()
    assert table["dead_units.tasks"].tolist() == [0, 2]
    assert table["dead_units"][0].isfinite().all()  # measured before it diverged
    assert table["dead_units"][1].isnan().all()


def test_continuing_from_any_block_gives_the_same_rows() -> None:
    sweep = make_sweep(
        Setting("CBP", NET, (Adam(0.01), ContinualBackprop(0.02, maturity_threshold=5))), measures=("effective_rank",)
    )
    (one,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    stream = PROBLEM.open()

    def begin() -> Training:
        training = Training(one, stream, CPU)
        training._block = 15
        return training

    states = []
    whole = begin()
    whole.run(lambda: states.append(whole.state_dict()))
    assert len(states) == 9  # three blocks a task, the last one shorter
    for state in states[:-1]:
        resumed = begin()
        resumed.load_state_dict(state)
        resumed.run(lambda: None)
        for metric, values in whole.table().items():
            assert torch.equal(resumed.table()[metric], values)


def test_heads_are_zero_at_the_start_of_each_imagenet_task() -> None:
    problem = ContinualImageNet(tasks=2, source="synthetic", train_images=20, test_images=10, batch_size=20, epochs=2)
    sweep = make_sweep(Setting("BP", network(ConvNet), (SGD(0.01, momentum=0.9),)), problem=problem, runs=1)
    (one,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    training = Training(one, problem.open(), CPU)
    plan = training._path.plan(0)
    training._begin_task(plan)
    training._train_block(plan.steps)
    head = training._stack.view.tensor("out.weight")
    assert head.abs().sum() > 0
    training._begin_task(plan)
    assert head.abs().sum() == 0
    assert training._stack.view.tensor("out.bias").abs().sum() == 0
    velocity = training._stack._states[0]["out.weight"]
    assert velocity.abs().sum() == 0
    assert training._stack.view.tensor("fc2.weight").abs().sum() > 0
    training.step = 0
    training.run(lambda: None)
    assert ((training.rows["accuracy"][1] >= 0) & (training.rows["accuracy"][1] <= 1)).all()


def test_replaced_units_are_counted_for_each_task() -> None:
    sweep = make_sweep(Setting("CBP", NET, (SGD(0.01), ContinualBackprop(0.1, maturity_threshold=0))))
    rows = train(sweep).rows["replaced"]
    assert [value.tolist() for value in rows.values()] != [[0.0, 0.0]] * 3
    assert sum(value[0].item() for value in rows.values()) == pytest.approx(0.1 * 5 * 120, abs=12)


def test_online_accuracy_is_the_share_right_before_learning() -> None:
    problem = PermutedMNIST(tasks=1, examples_per_task=60, source="synthetic")
    sweep = make_sweep(Setting("BP", network(MLP, hidden=(8,)), (SGD(0.0),)), problem=problem, runs=1)
    accuracy = train(sweep).rows["accuracy"][0]
    torch.manual_seed(0)
    inputs, targets = problem.open().plan([0], 0).batches(0, 60, CPU)
    right = MLP(784, [8], 10)(inputs[:, 0, 0]).argmax(-1) == targets[:, 0, 0]
    assert accuracy.item() == right.double().mean().item()


def test_what_could_not_be_loaded_again_is_not_saved(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(TypeError, match=r"checkpoint.states\[0\].memory is a ndarray"):
        checkpoints.save({"states": [{"memory": np.zeros(3)}]})
    assert not list(tmp_path.iterdir())


def test_two_processes_may_begin_a_folder_at_once(tmp_path: Path) -> None:
    about = {"experiment": "one", "scale": "smoke", "data": "", "configuration": {}, "versions": {}}
    for number in range(60):
        barrier, faults = threading.Barrier(3), []

        def begin(root: Path = tmp_path / str(number), barrier=barrier, faults=faults) -> None:
            barrier.wait()
            try:
                Results.create(root, about, b"text").write_plan({"runs": []})
            except Exception as fault:
                faults.append(fault)

        threads = [threading.Thread(target=begin) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults


# Measures


@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_gives_one_number_a_run(name: str) -> None:
    for module, shape in ((MLP(4, [3, 3], 2), (4,)), (ConvNet(), (3, 32, 32))):
        runs = stack([module, module], SGD(0.01))
        (values,) = measure([name], runs, torch.randn(2, 10, *shape)).values()
        assert values.shape == (2,)
        assert values.dtype == torch.float64
        assert values.isfinite().all()


def test_networks_with_tied_weights_and_buffers_that_are_not_saved_can_be_measured() -> None:
    class Odd(MLP):
        def __init__(self) -> None:
            super().__init__(4, [4, 4], 2)
            self.fc2.weight = self.fc1.weight
            self.register_buffer("scale", torch.ones(1), persistent=False)

    runs = stack([Odd()], SGD(0.01))
    assert measure(list(MEASURES), runs, torch.randn(1, 10, 4))["effective_rank"].isfinite().all()


def test_dead_units_count_over_all_hidden_layers() -> None:
    module = MLP(2, [4, 2], 1)
    with torch.no_grad():
        module.fc1.bias.copy_(torch.tensor([-100.0, -100.0, 100.0, 100.0]))
        module.fc2.bias.copy_(torch.tensor([-1e4, 1e4]))
    runs = stack([module], SGD(0.01))
    assert measure(["dead_units"], runs, torch.rand(1, 20, 2))["dead_units"].item() == 0.5


# The two-stage protocol


def test_the_best_setting_of_each_method_is_chosen_and_one_that_diverged_is_not() -> None:
    settings = [Setting("BP", NET, (SGD(size),), {"step_size": size}) for size in (0.1, 0.2, 0.3)]
    settings.append(Setting("CBP", NET, (SGD(0.1), ContinualBackprop(1e-4))))
    sweep = make_sweep(*settings, selection=Selection(more_runs=3))
    values = {settings[0].label: [3.0, 2.0], settings[1].label: [1.0, math.nan], settings[2].label: [2.0, 2.0]}
    values[settings[3].label] = [9.0, 9.0]
    frame = pd.DataFrame(
        [
            {"setting": label, "seed": seed, "metric": "error", "value": value, "task": 0}
            for label, each in values.items()
            for seed, value in enumerate(each)
        ]
        # a run beyond the first round must not count
        + [{"setting": settings[0].label, "seed": 2, "metric": "error", "value": -100.0, "task": 0}]
    )
    assert choose(sweep, frame) == [settings[2], settings[3]]


def test_the_name_of_a_stack_says_what_its_settings_share() -> None:
    sweep = make_sweep(
        *(Setting("BP", NET, (SGD(s),), {"activation": "relu", "step_size": s}) for s in (0.1, 0.2)), runs=1
    )
    (one,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    assert isinstance(one, StackOfRuns)
    assert one.name == "BP (activation=relu), 2 settings"


def test_signals_that_come_while_one_is_handled_do_not_lock_a_process_up() -> None:
    program = """
import os, signal, threading
from neoteny.suite.stopping import StopFlag
flag = StopFlag()
done = threading.Event()
def send():
    for _ in range(20_000):
        os.kill(os.getpid(), signal.SIGTERM)
    done.set()
with flag.listening():
    threading.Thread(target=send).start()
    while not done.is_set():
        flag.set()
        flag.wait(0.001)
print(bool(flag))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr

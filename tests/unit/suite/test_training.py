"""The run loop: streams, divergence, continuing, counting."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from neoteny.methods import SGD, Adam, ContinualBackprop
from neoteny.nets import MLP, ConvNet
from neoteny.problems import ContinualImageNet, PermutedMNIST
from neoteny.problems.problem import Stream
from neoteny.stacking.stack import Stack, stack
from neoteny.suite.environment import open_problems
from neoteny.suite.stacks import runs_of, stacks_of
from neoteny.suite.store.checkpoints import Checkpoints
from neoteny.suite.store.results import Results
from neoteny.suite.sweep import Setting, Sweep, network
from neoteny.suite.training import Training
from support.small_sweeps import CPU, NET, PROBLEM, make_sweep


def train(sweep: Sweep) -> Training:
    """All runs of a sweep as one stack."""
    (one,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    stream = open_problems(sweep, None)[one.problem]
    assert isinstance(stream, Stream)
    training = Training(one, stream, CPU)
    training.run(lambda: None)
    return training


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


def test_what_fails_while_it_is_measured_later_is_told_with_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []

    def begin(names: Sequence[str], measured: Stack, inputs: Tensor) -> Callable[[], dict[str, Tensor]]:
        begun.append(len(begun))

        def later(task: int = begun[-1]) -> dict[str, Tensor]:
            if task == 1:
                raise RuntimeError("no eigenvalues")
            return {name: torch.full((len(inputs),), float(task)) for name in names}

        return later

    monkeypatch.setattr("neoteny.suite.training.begin_measure", begin)
    with pytest.raises(RuntimeError, match="no eigenvalues") as failure:
        train(make_sweep(measures=("dead_units",)))
    assert failure.value.__notes__[0] == "measures at the start of task 1"
    assert begun == [0, 1]  # the next ones wait for them


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
    plan = training._backend.plan(0)
    training._begin_task(plan)
    training._train_block(plan.steps)
    head = training._stack.view.tensor("out.weight")
    assert head.abs().sum() > 0
    training._begin_task(plan)
    assert head.abs().sum() == 0
    assert training._stack.view.tensor("out.bias").abs().sum() == 0
    velocity = training._stack.chain.states[0]["out.weight"]
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


# The two-stage protocol


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

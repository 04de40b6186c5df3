"""What workers of a cluster are given, and what they refuse."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from neoteny.cli.parser import RunOptions
from neoteny.cli.prepare import prepare
from neoteny.cli.run import Launch, join_run
from neoteny.methods import SGD
from neoteny.nets import GPT, MLP
from neoteny.problems import PermutedShakespeare
from neoteny.suite.schedulers.memory import COPIES, OUTPUT_COPIES, PROCESS_BYTES, count_parameters, estimate_bytes
from neoteny.suite.schedulers.scheduler import Work, describe_stack, find_stack, load_scheduler
from neoteny.suite.stacks import runs_of, stacks_of
from neoteny.suite.stopping import StopFlag
from neoteny.suite.store.results import Results
from neoteny.suite.sweep import Setting, Sweep, network
from support.small_sweeps import PROBLEM, make_sweep
from support.suite import wait_until, write_experiment


@pytest.fixture
def work(tmp_path: Path) -> Work:
    """What a Ray driver hands out, for a small sweep."""
    experiment = write_experiment(tmp_path / "small.py", tasks=2, examples=20)
    options = RunOptions(str(experiment), out=tmp_path / "out", kernel="reference", on="ray", lease_seconds=5.0)
    return Launch.of(prepare(options))._work(1, StopFlag(), print)


def test_a_worker_elsewhere_trains_the_stack_that_was_described(work: Work) -> None:
    (stack, *_) = work.worker.remaining(work.worker.wanted())
    there = join_run(work.orders)
    found = find_stack(there, describe_stack(stack), stack.stack_id)
    assert [run.run_id for run in found.runs] == [run.run_id for run in stack.runs]
    assert there.attempt(found).state == "finished"
    assert work.worker.job.results.is_finished(stack.stack_id)
    assert there.attempt(found).state == "finished"


def test_the_file_of_an_experiment_comes_along(work: Work, tmp_path: Path) -> None:
    (stack, *_) = work.worker.remaining(work.worker.wanted())
    (tmp_path / "small.py").unlink()
    there = join_run(work.orders)
    assert find_stack(there, describe_stack(stack), stack.stack_id).stack_id == stack.stack_id


def test_a_machine_with_other_runs_is_refused(work: Work, tmp_path: Path) -> None:
    (stack, *_) = work.worker.remaining(work.worker.wanted())
    other = write_experiment(tmp_path / "small.py", tasks=3, examples=20).read_bytes()
    there = join_run(dataclasses.replace(work.orders, source=other))
    with pytest.raises(ValueError, match="gives other runs on this machine"):
        find_stack(there, describe_stack(stack), stack.stack_id)


def test_a_folder_that_only_has_the_same_name_is_refused(work: Work) -> None:
    with pytest.raises(ValueError, match="is not the folder in which the command was started"):
        join_run(dataclasses.replace(work.orders, folder_id="another"))


def test_a_machine_without_the_folder_makes_none(work: Work, tmp_path: Path) -> None:
    options = RunOptions.from_json(work.orders.options)
    elsewhere = dataclasses.replace(options, out=tmp_path / "elsewhere")
    with pytest.raises(Exception, match="is not a results folder"):
        join_run(dataclasses.replace(work.orders, options=elsewhere.to_json()))
    assert not (tmp_path / "elsewhere").exists()


def test_workers_of_two_commands_hold_different_stacks(work: Work) -> None:
    (stack, *_) = work.worker.remaining(work.worker.wanted())
    mine = Results.open(work.worker.job.results.root)
    mine.claims.share(5.0, "another command")
    there = join_run(work.orders)
    with mine.lock(stack.stack_id) as held:
        assert held
        assert there.attempt(stack).state == "held"
    wait_until(lambda: there.attempt(stack).state == "finished", seconds=20)  # it does not look all the time


def test_the_memory_of_a_stack_grows_with_its_runs() -> None:
    net = network(MLP, hidden=(7,))
    sweep = make_sweep(Setting("BP", net, (SGD(0.01),)), runs=6, stack_size=4, dtype="float64")
    four, two = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    parameters = sum(each.numel() for each in net.make(PROBLEM).parameters())
    assert count_parameters(net, PROBLEM) == parameters
    assert estimate_bytes(four) - PROCESS_BYTES == 4 * 8 * COPIES * parameters
    assert estimate_bytes(two) - PROCESS_BYTES == 2 * 8 * COPIES * parameters


def test_memory_counts_the_outputs_of_every_position_where_inputs_are_tokens() -> None:
    problem = PermutedShakespeare(sequences_per_task=4, batch_size=4, context=16, source="synthetic")
    sweep = Sweep(problem, (Setting("BP", network(GPT, hidden=8), (SGD(0.1),)),), runs=3)
    (three,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    each = COPIES * count_parameters(sweep.settings[0].network, problem) + OUTPUT_COPIES * 4 * 16 * problem.outputs
    assert estimate_bytes(three) - PROCESS_BYTES == 3 * 4 * each


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_scheduler_whose_package_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=rf"--on {name} needs {package}.*neoteny\[{name}\]"):
        load_scheduler(name)

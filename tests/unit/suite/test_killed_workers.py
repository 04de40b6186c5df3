"""Processes that the system kills when memory runs out: the others go on, and the stack is split or fails alone."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from neoteny.methods import SGD
from neoteny.nets import MLP
from neoteny.problems import SlowlyChangingRegression
from neoteny.suite import processes
from neoteny.suite.environment import open_problems
from neoteny.suite.session import Job, begin_progress
from neoteny.suite.stopping import StopFlag
from neoteny.suite.store.results import Results
from neoteny.suite.sweep import Setting, Sweep, network
from neoteny.suite.worker import MOST_KILLED, MOST_KILLED_ALONE, Worker
from support.suite import Zygote

KILLED = '''
"""A stack of more than two runs of one method is killed, as by a system whose memory has run out."""
import os
import signal
from dataclasses import dataclass

from neoteny.methods import SGD, Method
from neoteny.nets import MLP
from neoteny.problems import SlowlyChangingRegression
from neoteny.suite.sweep import Setting, Sweep, network

NET = network(MLP, hidden=(6,))


@dataclass(frozen=True)
class Large(Method):
    def step(self, view, state):
        if view.runs and view.runs[0] > 2:
            os.kill(os.getpid(), signal.SIGKILL)


def sweep(scale):
    settings = [Setting("Large", NET, (SGD(0.01), Large())), Setting("Small", NET, (SGD(0.01),))]
    return Sweep(SlowlyChangingRegression(tasks=2, examples_per_task=20), settings, runs=3, stack_size=3)


def figure(frame):
    return []


claims = ()
'''
SWEEP = Sweep(
    problem=SlowlyChangingRegression(tasks=2, examples_per_task=20),
    settings=(Setting("BP", network(MLP, hidden=(5,)), (SGD(0.01),)),),
    runs=2,
)


def make_worker(root: Path, command: str) -> Worker:
    """A worker that a command has started."""
    about = {"experiment": "killed", "scale": "smoke", "data": "", "configuration": {}, "versions": {}}
    results = Results.create(root, about)
    job = Job(results, open_problems(SWEEP, None), torch.device("cpu"), "reference", 0.0, command=command)
    return Worker(SWEEP, job)


def pretend(worker: Worker, state: str, **more: str | int) -> None:
    """Leave the progress files that other processes have left when they ended."""
    for stack in worker.listed():
        worker.job.results.write_progress(stack.stack_id, {**begin_progress(stack), "state": state, **more})


def test_the_others_go_on_and_the_stack_is_split(tmp_path: Path, zygote: Zygote) -> None:
    experiment, out, log = tmp_path / "killed.py", tmp_path / "out", tmp_path / "log.txt"
    experiment.write_text(KILLED)
    command = ("run", experiment, "--kernel", "reference", "--jobs", "2", "--out", out)
    assert zygote.run(*command, output=log) == 0, log.read_text()
    results = Results.open(out)
    assert len(results.finished_runs()) == 6
    assert sorted(len(part["runs"]) for part in results.parts()) == [1, 2, 3]
    said = log.read_text()
    assert "2 workers were killed, which happens when memory runs out; one process goes on" in said
    assert "Large: 3 runs do not fit into the memory of cpu; they are trained as 1 and 2." in said


def test_a_single_run_fails_alone(tmp_path: Path) -> None:
    worker = make_worker(tmp_path / "out", "this")
    pretend(worker, "running", command="this", killed=MOST_KILLED - 1)
    (outcome,) = [worker.attempt(stack) for stack in worker.listed()]
    assert outcome.state == "split"
    for half in outcome.halves:
        progress = {**begin_progress(half), "command": "this", "killed": MOST_KILLED_ALONE - 1}
        worker.job.results.write_progress(half.stack_id, progress)
    for _ in range(2):  # another process of the command takes the word of the first
        ends = [worker.attempt(half) for half in outcome.halves]
        assert [end.state for end in ends] == ["failed", "failed"]
        assert "BP, seed 0: 3 processes were killed while they trained it. Is there too little memory?" in ends[0].text
    assert [each["state"] for each in worker.job.results.progress().values()].count("failed") == 2


@pytest.mark.parametrize(
    ("state", "command", "killed"),
    [
        ("running", "this", MOST_KILLED - 2),
        ("running", "another", 9),
        ("stopped", "this", MOST_KILLED - 1),
        ("split", "another", 9),
    ],
)
def test_fewer_ends_or_those_of_another_command_do_not_count(
    tmp_path: Path, state: str, command: str, killed: int
) -> None:
    worker = make_worker(tmp_path / "out", "this")
    pretend(worker, state, command=command, killed=killed)
    assert worker.run() == []
    assert len(worker.job.results.finished_runs()) == 2


def run_rounds(monkeypatch: pytest.MonkeyPatch, *rounds: list[int], word: str = "") -> tuple[list[str], list[str]]:
    """What failed and what was said, where processes end so."""
    left, said, jobs = list(rounds), [], []

    def end(command: object, count: int, complaints: object, stop: StopFlag) -> list[int]:
        complaints.write(word.format(len(left)).encode())  # pyright: ignore[reportAttributeAccessIssue]
        jobs.append(count)
        return left.pop(0)

    monkeypatch.setattr(processes, "_run_round", end)
    failures, _ = processes.run_workers(["work"], 2, StopFlag(), said.append)
    assert not left
    assert jobs == [2] + [1] * (len(rounds) - 1)
    return failures, said


def test_one_process_goes_on_only_where_all_were_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_rounds(monkeypatch, [-signal.SIGKILL, 0]) == (
        ["1 worker was ended by signal 9 (out of memory?). Repeat the command; it continues from the last "
         "checkpoints."], []
    )  # fmt: skip
    failures, said = run_rounds(monkeypatch, [-signal.SIGKILL] * 2, [-signal.SIGKILL], [0])
    assert failures == []
    assert len(said) == 2
    failures, _ = run_rounds(monkeypatch, [-signal.SIGKILL] * 2, [1])
    assert failures == ["1 worker ended with status 1."]


def test_processes_that_are_always_killed_end_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [[-signal.SIGKILL] * 2] + [[-signal.SIGKILL]] * processes.MOST_IN_A_ROW
    failures, _ = run_rounds(monkeypatch, *rounds)
    assert "ended by signal 9" in failures[0]
    failures, _ = run_rounds(monkeypatch, *rounds, word="the same warning of each\n")
    assert "ended by signal 9" in failures[-1]
    words = [[-signal.SIGKILL] * 2] + [[-signal.SIGKILL]] * 20
    assert run_rounds(monkeypatch, *words, [0], word="stack {} is split\n")[0] == []

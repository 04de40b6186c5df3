"""`--on ray`: the table of a local run, whatever happens; real Ray, one small cluster for all tests."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from neoteny.cli.parser import main
from neoteny.suite.store.results import Results
from support.ray_clusters import Nodes, cluster
from support.ray_sweeps import Disturbed, write_sweep
from support.suite import Zygote, wait_until, write_experiment

pytest.importorskip("ray")
FAST = ("--kernel", "reference", "--lease-seconds", "20")
HUNGRY = '''
"""Stacks of more than two runs run out of memory.

So does every stack of the method that is too large.
"""
from dataclasses import dataclass

import torch

from neoteny.methods import SGD, Method
from neoteny.nets import MLP
from neoteny.problems import SlowlyChangingRegression
from neoteny.suite.sweep import Setting, Sweep, network

NET = network(MLP, hidden=(6,))


@dataclass(frozen=True)
class Hungry(Method):
    most: int = 2

    def step(self, view, state):
        if view.runs and view.runs[0] > self.most:
            raise torch.OutOfMemoryError("no memory left")


def sweep(scale):
    settings = [Setting(name, NET, (SGD(0.01), Hungry(most)), {"most": most}) for name, most in SETTINGS]
    return Sweep(SlowlyChangingRegression(tasks=2, examples_per_task=20), settings, runs=3, stack_size=3)


def figure(frame):
    return []


claims = ()
'''


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with cluster([2], client_port=port) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> tuple[Path, Path]:
    """A sweep of one longer stack and some short ones, with a second stage; and its results without Ray."""
    folder = tmp_path_factory.mktemp("whole")
    experiment = write_experiment(folder / "small.py", tasks=30, examples=25, selection="Selection(1)")
    log = folder / "log.txt"
    run = ("run", experiment, *FAST, "--jobs", "1", "--out", folder / "whole")
    assert zygote.run(*run, output=log) == 0, log.read_text()
    return experiment, folder / "whole"


def assert_same(folder: Path, other: Path) -> None:
    one, two = Results.open(folder).frame(), Results.open(other).frame()
    assert len(one) > 0
    assert one.equals(two)


@pytest.mark.slow  # Ray's client servers of two test processes on one machine take each other's ports
def test_interrupted_and_continued_by_two_drivers_it_gives_the_local_table(
    nodes: Nodes, whole: tuple[Path, Path], tmp_path: Path, zygote: Zygote
) -> None:
    """Ctrl-C stops it at a checkpoint. Two drivers at once share what is left; one comes through Ray's client."""
    experiment, expected = whole
    out, logs = tmp_path / "out", [tmp_path / f"{name}.txt" for name in ("first", "second", "third")]
    run = ("run", experiment, *FAST, "--out", out, "--checkpoint-seconds", "0")
    first = zygote.start(*run, "--on", "ray", output=logs[0], environment=nodes.environment)
    wait_until(lambda: any(out.glob("checkpoints/*/[0-9]*.pt")), seconds=120)
    os.kill(first, signal.SIGINT)
    assert zygote.wait(first) == 130, logs[0].read_text()
    assert "Stopped. Repeat the command" in logs[0].read_text()
    assert list(out.glob("checkpoints/*/[0-9]*.pt"))

    second = zygote.start(*run, "--on", "ray", output=logs[1], environment=nodes.environment)
    third = zygote.start(*run, "--on", nodes.client, output=logs[2])
    assert zygote.wait(second) == 0, logs[1].read_text()
    assert zygote.wait(third) == 0, logs[2].read_text()
    assert_same(out, expected)
    parts = Results.open(out).parts()
    assert sum(part["resumed"] for part in parts) >= 1
    assert not list(out.glob("leases/*/*"))
    assert not list(out.glob("checkpoints/*/*"))


@pytest.mark.slow
def test_killed_workers_nodes_and_drivers_leave_the_local_table(nodes: Nodes, tmp_path: Path, zygote: Zygote) -> None:
    """A sample of `ray_failures.py`."""
    experiment, log = write_sweep(tmp_path / "many.py", stacks=8, tasks=60), tmp_path / "log.txt"
    run = ("run", experiment, "--kernel", "reference", "--jobs", "1", "--out", tmp_path / "whole")
    assert zygote.run(*run, output=log) == 0, log.read_text()
    sweep = Disturbed(nodes, experiment, str(tmp_path / "out"), {}, log)
    assert sweep.run(8, workers=2, nodes=1, drivers=1, pause=(0.2, 1.0), seconds=300) == 0, log.read_text()
    assert sweep.happened["worker"] + sweep.happened["node"] + sweep.happened["driver"] >= 2
    assert not sweep.rewritten
    assert_same(tmp_path / "out", tmp_path / "whole")


def test_an_address_at_which_nobody_listens_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = write_experiment(tmp_path / "small.py", tasks=2, examples=20)
    run = ["run", str(experiment), *FAST, "--out", str(tmp_path / "out"), "--on"]
    assert main([*run, "ray://127.0.0.1:9"]) == 1
    assert "nothing answers at ray://127.0.0.1:9" in capsys.readouterr().err
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    assert main([*run, "ray"]) == 1
    assert "nothing answers at RAY_ADDRESS=127.0.0.1:9" in capsys.readouterr().err


def test_a_cluster_that_runs_on_this_machine_is_joined_without_its_address(
    nodes: Nodes, tmp_path: Path, zygote: Zygote
) -> None:
    experiment, log = write_experiment(tmp_path / "small.py", tasks=2, examples=20), tmp_path / "log.txt"
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(str(nodes.cluster.address))  # as `ray start` leaves it
    run = ("run", experiment, *FAST, "--out", tmp_path / "out", "--on", "ray")
    assert zygote.run(*run, output=log, environment={"RAY_TMPDIR": str(tmp_path)}) == 0, log.read_text()
    assert len(Results.open(tmp_path / "out").finished_runs()) == 12
    assert not list(tmp_path.glob("ray/session_*"))  # of a cluster of its own


@pytest.mark.slow
def test_a_stack_that_needs_a_gpu_waits_for_one_and_says_so(nodes: Nodes, tmp_path: Path, zygote: Zygote) -> None:
    experiment, log = write_experiment(tmp_path / "small.py", tasks=2, examples=20), tmp_path / "log.txt"
    run = ("run", experiment, *FAST, "--out", tmp_path / "out", "--on", "ray", "--gpus-per-stack", "0.5")
    process = zygote.start(*run, "--device", "cpu", output=log, environment=nodes.environment)
    wait_until(lambda: log.exists() and "a stack needs 1 CPU, 0.5 GPU, and no node" in log.read_text(), seconds=120)
    assert not list(tmp_path.glob("out/parts/*"))
    nodes.add(cpus=1, gpus=1)
    assert zygote.wait(process) == 0, log.read_text()
    assert len(Results.open(tmp_path / "out").finished_runs()) == 12


def test_memory_that_runs_out_splits_one_stack_or_fails_it_alone(nodes: Nodes, tmp_path: Path, zygote: Zygote) -> None:
    experiment, log = tmp_path / "hungry.py", tmp_path / "log.txt"
    experiment.write_text(HUNGRY.replace("SETTINGS", '(("Fits", 2), ("Too large", 0))').lstrip())
    run = ("run", experiment, *FAST, "--out", tmp_path / "out", "--on", "ray")
    assert zygote.run(*run, output=log, environment=nodes.environment) == 1
    text = log.read_text()
    assert "3 runs do not fit into the memory of cpu; they are trained as 1 and 2" in text
    assert text.count("neoteny: Too large (most=0), seed") == 3
    frame = Results.open(tmp_path / "out").frame()
    assert set(frame["method"]) == {"Fits"}
    assert frame["seed"].nunique() == 3


@pytest.mark.slow
def test_a_node_that_cannot_train_is_left_out_and_the_others_go_on(
    nodes: Nodes, tmp_path: Path, zygote: Zygote
) -> None:
    experiment, log = write_experiment(tmp_path / "small.py", tasks=2, examples=20), tmp_path / "log.txt"
    broken = 'import os\nif os.environ.get("BROKEN"):\n    raise RuntimeError("this node is broken")\n'
    experiment.write_text(experiment.read_text().replace("\nfrom ", f"\n{broken}from ", 1))
    nodes.add(cpus=8, env_vars={"BROKEN": "1"})  # it has the most room, and fails at once
    run = ("run", experiment, *FAST, "--out", tmp_path / "out", "--on", "ray")
    try:
        assert zygote.run(*run, output=log, environment=nodes.environment) == 0, log.read_text()
    finally:
        nodes.kill_node(len(nodes.nodes) - 1)
    text = log.read_text()
    assert text.count("A node cannot train stacks of this sweep and is left out.") == 1
    assert "this node is broken" in text
    assert len(Results.open(tmp_path / "out").finished_runs()) == 12


@pytest.mark.slow
def test_where_no_node_can_train_the_command_ends_with_the_reason(tmp_path: Path, zygote: Zygote) -> None:
    experiment, log = write_experiment(tmp_path / "small.py", tasks=2, examples=20), tmp_path / "log.txt"
    broken = 'import os\nif os.environ.get("BROKEN"):\n    raise RuntimeError("this node is broken")\n'
    experiment.write_text(experiment.read_text().replace("\nfrom ", f"\n{broken}from ", 1))
    with cluster([]) as empty:
        empty.add(cpus=1, env_vars={"BROKEN": "1"})
        run = ("run", experiment, *FAST, "--out", tmp_path / "out", "--on", "ray")
        assert zygote.run(*run, output=log, environment=empty.environment) == 1
    assert "this node is broken" in log.read_text()


@pytest.mark.slow
def test_a_machine_that_runs_out_of_memory_costs_the_hungry_stack_alone(tmp_path: Path, zygote: Zygote) -> None:
    """Ray's own watch over memory ends the worker: the stack is split, and its single runs fail."""
    experiment, log = tmp_path / "hungry.py", tmp_path / "log.txt"
    text = HUNGRY.replace("SETTINGS", '(("Fits", 9), ("Too large", 0))').replace(
        'raise torch.OutOfMemoryError("no memory left")', "eat()"
    )
    eat = "def eat():\n    kept = []\n    while True:\n        kept.append(bytearray(b'1') * 2**26)\n\n\n"
    experiment.write_text(text.replace("@dataclass", f"{eat}@dataclass", 1).lstrip())
    memory = psutil.virtual_memory()
    share = 1 - (memory.available - 4 * 2**30) / memory.total
    assert share < 0.9, "this test needs 6 GiB of free memory"
    with cluster([], memory_usage_threshold=share, memory_monitor_refresh_ms=100) as watched:
        watched.add(cpus=1, memory=2**31)  # a stack asks for 0.6 GiB, then for 1.2, then for all of it
        run = ("run", experiment, *FAST, "--out", tmp_path / "out", "--on", "ray")
        assert zygote.run(*run, output=log, environment=watched.environment) == 1
    text = log.read_text()
    assert "Too large (most=0): a machine ran out of memory; it is tried again with more." in text
    assert "3 runs do not fit into the memory of cpu; they are trained as 1 and 2" in text
    assert text.count("neoteny: Too large (most=0), seed") == 3
    assert set(Results.open(tmp_path / "out").frame()["method"]) == {"Fits"}


@pytest.mark.slow
def test_a_stack_that_ends_its_process_every_time_fails_alone(nodes: Nodes, tmp_path: Path, zygote: Zygote) -> None:
    experiment, log = tmp_path / "deadly.py", tmp_path / "log.txt"
    text = HUNGRY.replace("SETTINGS", '(("Fits", 9), ("Deadly", 0))').replace(
        'raise torch.OutOfMemoryError("no memory left")', "import os; os._exit(1)"
    )
    experiment.write_text(text.lstrip())
    run = ("run", experiment, *FAST, "--out", tmp_path / "out", "--on", "ray")
    assert zygote.run(*run, output=log, environment=nodes.environment) == 1
    assert "Deadly (most=0): its process ended 10 times without progress" in log.read_text()
    results = Results.open(tmp_path / "out")
    assert set(results.frame()["method"]) == {"Fits"}
    assert sorted(entry["state"] for entry in results.progress().values()) == ["failed", "finished"]

"""A sweep survives what kills it: real processes, real signals, real full disks."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from neoteny.suite.store.results import Results
from support.suite import Zygote, kill, wait_until, write_agents, write_experiment

SLOW = ("--kernel", "reference")
"""The library, so that there is time for something to happen."""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> tuple[Path, Path]:
    """A small experiment, and the results of a run of it that nothing has disturbed; do not change them."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    experiment = write_experiment(folder / "small.py", tasks=40, examples=25)
    log = folder / "log.txt"
    command = ("run", experiment, *SLOW, "--jobs", "1", "--out", folder / "whole")
    assert zygote.run(*command, output=log) == 0, log.read_text()
    return experiment, folder / "whole"


def newest(folder: Path) -> int:
    """The number of the newest checkpoint of any stack."""
    return max((int(path.name.split("-")[0]) for path in folder.glob("checkpoints/*/[0-9]*.pt")), default=0)


def assert_same(folder: Path, other: Path) -> None:
    """The tables are equal bit for bit."""
    one, two = Results.open(folder).frame(), Results.open(other).frame()
    assert len(one) > 0
    assert one.equals(two)


def fill(ballast: Path) -> None:
    """Write until the disk is full."""
    with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 512)


@pytest.mark.parametrize(
    ("kernel", "tasks", "kills"), [pytest.param("reference", 110, 12, marks=pytest.mark.slow), ("auto", 200, 3)]
)
def test_kills_leave_the_table_of_an_uninterrupted_run(
    tmp_path: Path, zygote: Zygote, kernel: str, tasks: int, kills: int
) -> None:
    experiment = write_experiment(tmp_path / "kills.py", tasks=tasks, examples=25, first=2)  # CBP with Adam alone
    log = tmp_path / "log.txt"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run = ("run", experiment, "--jobs", "1", "--kernel", kernel)
    assert zygote.run(*run, "--out", whole, output=log) == 0, log.read_text()

    draw = random.Random(0)
    command = (*run, "--out", killed, "--checkpoint-seconds", "0")
    reached = 0
    for _ in range(kills):
        process = zygote.start(*command, output=log)
        wait_until(lambda: newest(killed) > reached)  # noqa: B023 - called at once
        time.sleep(draw.uniform(0.0, 0.06))
        kill(process)
        assert zygote.wait(process) == -signal.SIGKILL, log.read_text()
        reached = newest(killed)
        assert not Results.open(killed).finished_runs()
    assert zygote.run(*command, output=log) == 0, log.read_text()

    assert_same(killed, whole)
    (part,) = Results.open(killed).parts()
    assert part["resumed"] == kills  # every leg but the first began from a checkpoint, none from the start
    assert not list(killed.glob("checkpoints/*"))
    assert not [path for path in killed.rglob("*") if path.name.endswith(".tmp")]


def test_kills_leave_an_agents_table_as_it_would_have_been(tmp_path: Path, zygote: Zygote) -> None:
    simulators = [name for name in ("pybullet", "mujoco") if importlib.util.find_spec(name)]
    if not simulators:
        pytest.skip("no simulator is installed (the extras pybullet and mujoco)")
    experiment = write_agents(tmp_path / "agents.py", simulators[0])
    log = tmp_path / "log.txt"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run = ("run", experiment, "--jobs", "1")
    assert zygote.run(*run, "--out", whole, output=log) == 0, log.read_text()
    command = (*run, "--out", killed, "--checkpoint-seconds", "0")
    for checkpoint in (3, 9):  # of 16: in the middle of a task, and of an episode
        process = zygote.start(*command, output=log)
        wait_until(lambda: newest(killed) >= checkpoint)  # noqa: B023 - called at once
        kill(process)
        assert zygote.wait(process) == -signal.SIGKILL, log.read_text()
        assert not Results.open(killed).finished_runs()
    assert zygote.run(*command, output=log) == 0, log.read_text()
    (part,) = Results.open(killed).parts()
    assert part["resumed"] == 2
    assert_same(killed, whole)


def test_control_c_saves_and_the_same_command_goes_on(tmp_path: Path, zygote: Zygote) -> None:
    experiment = write_experiment(tmp_path / "stop.py", tasks=120, examples=25)
    log = tmp_path / "log.txt"
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert zygote.run("run", experiment, *SLOW, "--jobs", "1", "--out", whole, output=log) == 0, log.read_text()
    command = ("run", experiment, *SLOW, "--jobs", "1", "--out", stopped)
    process = zygote.start(*command, output=log)
    wait_until(lambda: any(entry["updates"] for entry in Results(stopped).progress().values()))
    os.kill(process, signal.SIGINT)
    assert zygote.wait(process) == 130
    assert newest(stopped) == 1
    assert "Repeat the command to continue" in log.read_text()
    assert zygote.run(*command, output=log) == 0
    assert max(part["resumed"] for part in Results.open(stopped).parts()) == 1
    assert_same(stopped, whole)


def test_two_processes_share_a_folder(tmp_path: Path, zygote: Zygote, uninterrupted: tuple[Path, Path]) -> None:
    experiment, alone = uninterrupted
    log, shared = tmp_path / "log.txt", tmp_path / "shared"
    command = ("run", experiment, *SLOW, "--jobs", "1", "--out", shared)
    processes = [zygote.start(*command, output=log) for _ in range(2)]
    assert [zygote.wait(process) for process in processes] == [0, 0], log.read_text()
    assert_same(shared, alone)


def test_workers_stop_when_their_parent_is_killed(tmp_path: Path, zygote: Zygote) -> None:
    experiment = write_experiment(tmp_path / "workers.py", tasks=30, examples=25)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    log = tmp_path / "log.txt"
    assert zygote.run("run", experiment, *SLOW, "--jobs", "1", "--out", whole, output=log) == 0
    command = ("run", experiment, *SLOW, "--out", killed, "--jobs", "2")
    parent = zygote.start(*command, output=log)
    results = Results(killed)
    wait_until(lambda: sum(entry["updates"] > 0 for entry in results.progress().values()) == 2, 120)
    kill(parent)
    assert zygote.wait(parent) == -signal.SIGKILL, log.read_text()
    wait_until(lambda: not any(results.is_running(key) for key in results.progress()), 60)
    assert zygote.run(*command, output=log) == 0, log.read_text()
    assert_same(killed, whole)


def test_a_full_disk_loses_nothing(tmp_path: Path, zygote: Zygote, uninterrupted: tuple[Path, Path]) -> None:
    """A file system of 200 KB fills up; once there is space the same command ends as if nothing had been."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", small], capture_output=True).returncode:
        pytest.skip("mounting a small file system needs privileges; the test with a limit on files still runs")
    try:
        experiment, whole = uninterrupted
        log, full = tmp_path / "log.txt", small / "results"
        command = ("run", experiment, *SLOW, "--jobs", "1", "--out", full, "--checkpoint-seconds", "0")
        process = zygote.start(*command, output=log)
        wait_until(lambda: newest(full) > 0)
        fill(small / "ballast")
        assert zygote.wait(process) == 1
        assert "No space left" in log.read_text()
        for part in full.glob("parts/*.parquet"):
            assert part.with_suffix(".json").exists()
        (small / "ballast").unlink()
        assert zygote.run(*command, output=log) == 0, log.read_text()
        assert_same(full, whole)
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_limit_on_files_loses_nothing(tmp_path: Path, zygote: Zygote, uninterrupted: tuple[Path, Path]) -> None:
    """Where no file may grow beyond 6 KB, checkpoints and results fail to be written, and nothing half is left."""
    experiment, whole = uninterrupted
    log, limited = tmp_path / "log.txt", tmp_path / "limited"
    command = ("run", experiment, *SLOW, "--jobs", "1", "--out", limited, "--checkpoint-seconds", "0")
    short = tmp_path / "short.txt"
    assert zygote.run(*command, output=short, file_limit=6000) == 1
    assert "Finished runs are kept" in short.read_text()
    kept = Results.open(limited).finished_runs()
    assert len(kept) < 12
    assert set(Results.open(limited).frame()["run_id"]) == kept  # what is there is whole
    assert not [path for path in limited.rglob("*") if path.name.endswith(".tmp")]
    assert zygote.run(*command, output=log) == 0, log.read_text()
    assert_same(limited, whole)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path, zygote: Zygote) -> None:
    experiment = write_experiment(tmp_path / "damage.py", tasks=100, examples=25, first=2)
    log = tmp_path / "log.txt"
    whole, damaged = tmp_path / "whole", tmp_path / "damaged"
    assert zygote.run("run", experiment, *SLOW, "--jobs", "1", "--out", whole, output=log) == 0
    command = ("run", experiment, *SLOW, "--jobs", "1", "--out", damaged, "--checkpoint-seconds", "0")
    process = zygote.start(*command, output=log)
    wait_until(lambda: newest(damaged) >= 3)
    kill(process)
    zygote.wait(process)
    last = max(damaged.glob("checkpoints/*/[0-9]*.pt"))
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    assert zygote.run(*command, output=log) == 0, log.read_text()
    assert "is damaged" in log.read_text()
    (part,) = Results.open(damaged).parts()
    assert part["resumed"] == 1
    assert_same(damaged, whole)

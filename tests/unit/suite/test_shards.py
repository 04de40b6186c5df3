"""Shards: a sweep in pieces, without anybody who hands them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from neoteny.cli.parser import main
from neoteny.methods import SGD
from neoteny.suite.shards import Shard
from neoteny.suite.stacks import runs_of, stacks_of
from neoteny.suite.store.results import Results
from neoteny.suite.sweep import Setting
from support.small_sweeps import NET, make_sweep
from support.suite import Zygote, write_experiment

SWEEP = make_sweep(*(Setting(f"BP{n}", NET, (SGD(0.01 + n),), {"n": n}) for n in range(5)), runs=3, stack_size=2)
RUNS = runs_of(SWEEP, SWEEP.settings, "reference")


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_every_stack_is_in_one_shard_and_shares_differ_by_one_at_most(count: int) -> None:
    stacks = stacks_of(SWEEP, RUNS, ())
    shares = [Shard(index, count).keep(SWEEP, RUNS, stacks) for index in range(count)]
    assert sorted(stack.stack_id for share in shares for stack in share) == sorted(stack.stack_id for stack in stacks)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_stack_stays_in_its_shard_when_others_finish() -> None:
    stacks = stacks_of(SWEEP, RUNS, ())
    finished = {run.run_id for stack in stacks[::2] for run in stack.runs} | {stacks[1].runs[0].run_id}
    left = stacks_of(SWEEP, RUNS, finished)
    for index in range(3):
        before = {run.run_id for stack in Shard(index, 3).keep(SWEEP, RUNS, stacks) for run in stack.runs}
        now = {run.run_id for stack in Shard(index, 3).keep(SWEEP, RUNS, left) for run in stack.runs}
        assert now == before - finished


@pytest.mark.parametrize("text", ["", "1", "1/", "/2", "2/2", "-1/2", "0/0", "a/b", "1/2/3"])
def test_a_shard_that_is_none_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="expected INDEX/COUNT"):
        Shard.parse(text)
    if text:
        assert main(["run", "scr-cbp", f"--shard={text}", "--out", str(tmp_path / "out")]) == 1
        assert "--shard: expected INDEX/COUNT" in capsys.readouterr().err


def test_shards_one_after_the_other_make_the_table_of_one_command(tmp_path: Path, zygote: Zygote) -> None:
    experiment, log = write_experiment(tmp_path / "small.py", tasks=3, examples=20), tmp_path / "log.txt"
    command = ("run", experiment, "--jobs", "1", "--kernel", "reference")
    assert zygote.run(*command, "--out", tmp_path / "whole", output=log) == 0, log.read_text()
    whole = Results.open(tmp_path / "whole").frame()
    for index in range(2):
        shard = ("--out", tmp_path / "out", "--shard", f"{index}/2")
        assert zygote.run(*command, *shard, output=log) == 0, log.read_text()
    assert Results.open(tmp_path / "out").frame().equals(whole)


def test_a_shard_says_that_an_earlier_one_had_other_settings(tmp_path: Path, zygote: Zygote) -> None:
    experiment = write_experiment(tmp_path / "small.py", tasks=2, examples=20)
    command = ("run", experiment, "--jobs", "1", "--kernel", "reference", "--out", tmp_path / "out", "--shard")
    said = []
    for index, step_size in enumerate(("0.01", "0.01", "0.02")):
        experiment.write_text(experiment.read_text().replace("0.01", step_size))
        log = tmp_path / f"{index}.txt"
        assert zygote.run(*command, f"{index}/3", output=log) == 0, log.read_text()
        said.append("If the experiment was changed since the first shard began" in log.read_text())
    assert said == [False, False, True]


def test_shards_at_once_choose_settings_together(tmp_path: Path, zygote: Zygote) -> None:
    """The second stage of each waits for the first stage of the other."""
    experiment = write_experiment(tmp_path / "small.py", tasks=3, examples=20, selection="Selection(2)")
    log = tmp_path / "log.txt"
    command = ("run", experiment, "--jobs", "1", "--kernel", "reference")
    assert zygote.run(*command, "--out", tmp_path / "whole", output=log) == 0, log.read_text()
    shards = [
        zygote.start(*command, "--out", tmp_path / "out", "--shard", f"{index}/2", output=tmp_path / f"{index}.txt")
        for index in range(2)
    ]
    assert [zygote.wait(shard) for shard in shards] == [0, 0], [
        (tmp_path / f"{index}.txt").read_text() for index in range(2)
    ]
    assert Results.open(tmp_path / "out").frame().equals(Results.open(tmp_path / "whole").frame())

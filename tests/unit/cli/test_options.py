"""The options of `neoteny run`: one value that the parser fills, workers receive and `status` prints as a command."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from neoteny.cli import run
from neoteny.cli.parser import RunOptions, main

GIVEN = RunOptions(
    "my experiment.py",
    scale="smoke",
    methods="BP,S&P",
    runs=3,
    out=Path("a b/out"),
    device="cpu",
    kernel="reference",
    jobs=2,
    data=Path("data"),
    checkpoint_seconds=1.5,
    repair=True,
    stop_after=30.0,
    on="ray://head:10001",
    workers=7,
    cpus_per_stack=2,
    gpus_per_stack=0.25,
    shard="1/4",
    lease_seconds=30.0,
    slurm="partition=gpu,time=60",
    dry_run=True,
    track="tensorboard",
)
"""Every option has another value than its default."""


def parse(*arguments: str) -> RunOptions:
    """What the command line makes of some arguments."""
    with pytest.MonkeyPatch.context() as patch:
        found: list[RunOptions] = []
        patch.setattr(run, "prepare", lambda options: found.append(options) or pytest.fail("not to be run"))
        with pytest.raises(pytest.fail.Exception):
            main(["run", *arguments])
    return found[0]


def flags(options: RunOptions) -> list[str]:
    values = {name: getattr(options, name) for name in RunOptions.defaults()}
    words = {f"--{name.replace('_', '-')}": value for name, value in values.items()}
    return [word for flag, value in words.items() for word in ([flag] if value is True else [flag, str(value)])]


def test_the_example_sets_every_option() -> None:
    assert all(getattr(GIVEN, name) != default for name, default in RunOptions.defaults().items())


def test_every_option_has_a_flag_of_its_name() -> None:
    assert parse(GIVEN.experiment, *flags(GIVEN)) == GIVEN


def test_without_flags_the_defaults_hold() -> None:
    assert parse("scr-cbp") == RunOptions("scr-cbp")


@pytest.mark.parametrize("options", [GIVEN, RunOptions("scr-cbp")])
def test_a_worker_reads_what_was_written(options: RunOptions) -> None:
    assert RunOptions.from_json(options.to_json()) == options


def test_a_storage_stays_an_address() -> None:
    options = parse("scr-cbp", "--out", "s3://bucket/prefix")
    assert options.out == "s3://bucket/prefix"
    assert RunOptions.from_json(options.to_json()) == options
    assert "--out s3://bucket/prefix" in options.command("s3://bucket/prefix")


def test_the_command_that_continues_has_every_option_but_those_of_one_start() -> None:
    program, command, *arguments = shlex.split(GIVEN.command(Path("a b/out")))
    assert (program, command) == ("neoteny", "run")
    once = {"jobs": None, "repair": False, "workers": None, "shard": None, "dry_run": False, "stop_after": None}
    assert parse(*arguments) == dataclasses.replace(GIVEN, **once)
    assert RunOptions("scr-cbp").command(Path("out")) == "neoteny run scr-cbp --scale laptop --out out"

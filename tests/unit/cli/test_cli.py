"""The command line: help, lists, and what is refused."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neoteny import experiments
from neoteny.cli import parser as cli
from neoteny.suite.store.documents import write_document
from neoteny.suite.sweep import SCALES
from support.suite import write_experiment


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What the command says when it fails in a way that the user can fix."""
    assert cli.main([str(each) for each in arguments]) == 1
    said = capsys.readouterr().err
    assert said.startswith("neoteny: ")
    assert "Traceback" not in said
    return said


# Help and lists


def test_help_needs_nothing_heavy() -> None:
    code = (
        "import sys\nfrom neoteny import cli\n"
        "try: cli.main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'pandas', 'pyarrow', 'rich', 'matplotlib', 'plotly'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == "[]"
    for command in ("list", "run", "status", "report", "claims", "data"):
        assert command in said


def test_the_scales_of_the_command_line_are_those_of_sweeps() -> None:
    assert cli.SCALES == SCALES


def test_no_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage: neoteny" in capsys.readouterr().out


def test_list_names_every_experiment_problem_method_and_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    said = capsys.readouterr().out
    assert len(experiments.NAMES) == 14
    for name in (*experiments.NAMES, "PermutedMNIST", "ContinualBackprop", "PPO", "MLP", "effective_rank"):
        assert name in said


# What is refused


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    return Sweep(", "    Sweep(", "must return a Sweep"),
        ("claims = (Claim(", "claims = Claim(*(", "claims must be a tuple"),
        ("from neoteny.nets import MLP", "from neoteny.nets import MPL", "line 7: ImportError"),
        ('{"step_size": s}', '{"value": s}', "details must not have the name 'value'"),
    ],
)
def test_mistakes_in_an_experiment_are_named_with_its_file(
    old: str, new: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = write_experiment(tmp_path / "mistake.py")
    text = experiment.read_text().replace(old, new)
    experiment.write_text(text.replace("check),)", "check))") if "Claim(*(" in new else text)
    said = complaint(capsys, "run", experiment, "--out", tmp_path / "out")
    assert message in said
    assert str(experiment) in said
    assert not (tmp_path / "out").exists()


def test_a_wrong_experiment_name(capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, "run", "mnist-method")
    assert "Unknown experiment 'mnist-method'. Did you mean 'mnist-methods'?" in said


def test_a_wrong_method_parameter_names_the_line_and_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = write_experiment(tmp_path / "wrong.py")
    text = experiment.read_text().replace("maturity_threshold=20", "maturity_treshold=20")
    experiment.write_text(text)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "maturity_treshold" in each)
    said = complaint(capsys, "run", experiment, "--out", tmp_path / "out")
    assert f"{experiment}, line {line}: " in said
    assert "ContinualBackprop has no parameter 'maturity_treshold'. Did you mean 'maturity_threshold'?" in said
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nothing.py").write_text("")
    assert "has no `sweep`" in complaint(capsys, "run", tmp_path / "nothing.py")
    assert "There is no file" in complaint(capsys, "run", tmp_path / "absent.py")


def test_a_corrupt_dataset_is_named_with_the_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NEOTENY_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz",
                 "t10k-labels-idx1-ubyte.gz"):  # fmt: skip
        (folder / name).write_bytes(gzip.compress(b"not digits"))
    said = complaint(capsys, "run", "mnist-methods", "--data", tmp_path / "data", "--out", tmp_path / "out")
    assert "train-images-idx3-ubyte.gz" in said
    assert "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609" in said
    assert "neoteny data fetch mnist" in said
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = write_experiment(tmp_path / "small.py")
    said = complaint(capsys, "run", experiment, "--out", "/proc/neoteny")  # not even root can write there
    assert "Choose another folder with --out" in said


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = write_experiment(tmp_path / "small.py")
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("precious")
    assert "is not a results folder" in complaint(capsys, "run", experiment, "--out", other)
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]
    for command in ("status", "report", "claims"):
        assert "is not a results folder" in complaint(capsys, command, other)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("results_version", 0, "results version 0"),
        ("format", 99, "folder format 99"),
        ("experiment", "another", "holds experiment 'another'"),
        ("scale", "paper", "holds scale 'paper'"),
        ("data", "mnist of another day", "holds data 'mnist of another day'"),
    ],
)
def test_a_folder_of_another_version_or_experiment_is_refused_and_not_changed(
    key: str, value: object, message: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished / "out", out)
    about = json.loads((out / "experiment.json").read_text())
    write_document(out / "experiment.json", {**about, key: value})
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert message in complaint(capsys, "run", finished / "small.py", "--out", out, "--jobs", "1")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_damaged_part_is_named(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    shutil.copytree(finished / "out", out)
    part = next(out.glob("parts/*.parquet"))
    part.write_bytes(part.read_bytes()[:200])
    assert str(part) in complaint(capsys, "claims", out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--runs", "0"), "at least 1"),
        (("--runs", "many"), "at least 1"),
        (("--checkpoint-seconds", "-1"), "at least 0"),
        (("--scale", "huge"), "invalid choice"),
    ],
)
def test_impossible_options(arguments: tuple[str, str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["run", "scr-cbp", *arguments])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("rnu scr-cbp", "invalid choice: 'rnu'. Did you mean 'run'? Known are list, run, status"),
        ("run scr-cbp --scale latop", "invalid choice: 'latop'. Did you mean 'laptop'? Known are smoke, laptop"),
        ("run scr-cbp --kernal reference", "unrecognized arguments: --kernal reference. Did you mean '--kernel'?"),
        ("run scr-cbp --kernal=reference", "unrecognized arguments: --kernal=reference. Did you mean '--kernel'?"),
        ("status results --folow", "unrecognized arguments: --folow. Did you mean '--follow'?"),
        ("data fecth mnist", "invalid choice: 'fecth'. Did you mean 'fetch'? Known are list, fetch."),
        ("--versoin", "unrecognized arguments: --versoin. Did you mean '--version'?"),
    ],
)
def test_a_misspelt_word_of_the_command_line_is_answered_with_the_nearest(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert message in said
    assert not re.search(r"\bwork\b", said)  # an internal command


def test_a_device_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = write_experiment(tmp_path / "small.py")
    assert "Unknown device 'gpu'" in complaint(capsys, "run", experiment, "--device", "gpu", "--out", tmp_path / "o")

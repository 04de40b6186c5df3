"""A report of unchanged results is not made again; anything that could change it makes it again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from neoteny.cli import made
from neoteny.cli import parser as cli
from neoteny.cli.made import Made
from neoteny.cli.parser import RunOptions
from neoteny.cli.prepare import prepare
from neoteny.cli.run import Launch
from neoteny.suite.stacks import stacks_of
from neoteny.suite.store import index
from neoteny.suite.store.documents import write_document
from neoteny.suite.store.folder import ResultsFolder
from support.drawn_results import Drawn, write_drawn

Report = Callable[..., str]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished folder of scr-cbp at smoke scale with drawn numbers; do not change it."""
    root = tmp_path_factory.mktemp("drawn") / "out"
    launch = Launch.of(prepare(RunOptions("scr-cbp", scale="smoke", out=root, kernel="reference")))
    launch._write_plan()
    draws = torch.Generator().manual_seed(0)
    for stack in stacks_of(launch.sweep, launch.wanted, ()):
        write_drawn(launch.results, stack, Drawn(stack, draws))
    return root


@pytest.fixture
def folder(drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(index, "FEWEST_RUNS", 1)
    monkeypatch.setattr(index, "SETTLED_SECONDS", 0.0)
    return Path(shutil.copytree(drawn, tmp_path / "out"))


@pytest.fixture
def report(folder: Path, capsys: pytest.CaptureFixture[str]) -> Report:
    def run(*more: str) -> str:
        assert cli.main(["report", str(folder), *more]) == 0
        return capsys.readouterr().out

    return run


def was_made_before(said: str) -> bool:
    return "Made before" in said


def test_the_second_report_is_the_first(report: Report, folder: Path) -> None:
    first = report()
    assert not was_made_before(first)
    files = {path: path.stat().st_mtime_ns for path in (folder / "report.html", *folder.glob("figures/*"))}
    assert len(files) > 1
    second = report()
    assert was_made_before(second)
    assert second.startswith(first.rstrip("\n"))
    assert {path: path.stat().st_mtime_ns for path in files} == files


def test_a_change_of_what_it_was_made_from_makes_it_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [folder / "report.html", folder / "figure.png"]
    width = 120

    def recall() -> str | None:
        return Made(ResultsFolder.open(folder), width).recall()

    def widen() -> None:
        nonlocal width
        width = 70

    def change_plan() -> None:
        plan = json.loads((folder / "plan.json").read_text())
        write_document(folder / "plan.json", {**plan, "more": "Then more."})

    changes: list[Callable[[], object]] = [
        lambda: files[0].unlink(),
        lambda: files[0].write_text("edited"),
        lambda: os.utime(next(folder.glob("parts/*.parquet"))),
        change_plan,
        lambda: next(folder.glob("parts/*.parquet")).unlink(),
        widen,
        lambda: monkeypatch.setattr(made, "_versions", lambda: ["pandas 99"]),
        lambda: monkeypatch.setattr(made, "_sources", lambda: [("edited.py", 1, 2)]),
        lambda: (folder / "index" / "report.json").write_bytes(b"broken"),
        lambda: index.save_sealed(folder / "index" / "report.json", b"[]"),
    ]
    assert recall() is None
    for number, change in enumerate(changes):
        for path in files:
            path.write_text("made")
        Made(ResultsFolder.open(folder), width).keep("said", files, runs=100)
        assert recall() == "said"
        change()
        assert recall() is None, number


def test_small_folders_and_new_parts_are_not_remembered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FEWEST_RUNS", "SETTLED_SECONDS"):
        with monkeypatch.context() as patch:
            patch.setattr(index, name, 1e6)
            Made(ResultsFolder.open(folder), 120).keep("said", [], runs=100)
        assert Made(ResultsFolder.open(folder), 120).recall() is None


def test_a_report_of_a_part_is_always_made(report: Report) -> None:
    report()
    assert not was_made_before(report("--tasks", "2"))


def test_damage_is_found_though_a_report_is_there(
    report: Report, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report()
    path = next(folder.glob("parts/*.parquet"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert cli.main(["report", str(folder)]) == 1
    assert f"{path}: its checksum differs" in capsys.readouterr().err

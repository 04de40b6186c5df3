"""`neoteny run` in a damaged folder: it refuses and changes nothing; --repair trains what was damaged again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from neoteny.cli import parser as cli
from neoteny.suite.progress import status_text
from neoteny.suite.store.results import Results
from support.flipped_bits import EXPERIMENT, snapshot

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """`neoteny run` of a small experiment; returns the exit status and what was said."""
    (tmp_path / "small.py").write_text(EXPERIMENT.lstrip())

    def start(out: Path, *more: str) -> tuple[int, str]:
        capsys.readouterr()
        arguments = ("run", tmp_path / "small.py", "--out", out, "--jobs", "1", "--kernel", "reference", *more)
        status = cli.main([str(each) for each in arguments])
        return status, capsys.readouterr().err

    return start


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_repair_trains_only_the_damaged_part_again_and_keeps_every_file(tmp_path: Path, run: Command) -> None:
    out = tmp_path / "out"
    assert run(out, "--runs", "1")[0] == 0
    assert run(out)[0] == 0  # seed 1 of each method is a stack of its own
    before = Results.open(out).frame()
    tables = sorted(out.glob("parts/*.parquet"))
    assert len(tables) == 4
    others = {path: path.read_bytes() for path in tables[1:]}
    for attempt in (1, 2):
        flip(tables[0])
        damaged = tables[0].read_bytes()
        files = snapshot(out)
        status, said = run(out)
        assert status == 1
        assert f"{tables[0]}: its checksum differs" in said
        assert "--repair" in said
        assert snapshot(out) == files
        assert run(out, "--repair")[0] == 0
        assert Results.open(out).frame().equals(before)
        assert {path: path.read_bytes() for path in tables[1:]} == others
        assert len(list(out.glob("damaged/*"))) == 2 * attempt  # nothing there was overwritten
        assert damaged in [path.read_bytes() for path in out.glob("damaged/*.parquet")]


def test_a_damaged_experiment_json_is_written_again_for_the_same_experiment_only(tmp_path: Path, run: Command) -> None:
    out = tmp_path / "out"
    assert run(out)[0] == 0
    before, whole = Results.open(out).frame(), json.loads((out / "experiment.json").read_text())
    flip(out / "experiment.json")
    files = snapshot(out)
    status, said = run(out)
    assert status == 1
    assert f"{out / 'experiment.json'} is damaged" in said
    status, said = run(out, "--repair", "--scale", "paper")
    assert status == 1
    assert "holds scale 'laptop', but this run is of scale 'paper'" in said
    assert snapshot(out) == files
    assert run(out, "--repair")[0] == 0
    assert json.loads((out / "experiment.json").read_text()) == whole
    assert (out / "damaged" / "experiment.json").read_bytes() == files[out / "experiment.json"]
    assert Results.open(out).frame().equals(before)


def test_a_damaged_plan_stops_readers_and_any_run_writes_it_again(
    tmp_path: Path, run: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(out)[0] == 0
    before = (out / "plan.json").read_bytes()
    for damage in (flip, Path.unlink):
        damage(out / "plan.json")
        assert cli.main(["claims", str(out)]) == 1
        assert f"{out / 'plan.json'} is damaged" in capsys.readouterr().err
        assert cli.main(["status", str(out)]) == 0
        assert f"{out / 'plan.json'} is damaged" in capsys.readouterr().out
        assert run(out)[0] == 0
        assert (out / "plan.json").read_bytes() == before


def test_a_folder_of_an_earlier_version_is_continued_with_checksums_for_what_is_new(
    tmp_path: Path, run: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    assert run(whole)[0] == 0
    assert run(out, "--methods", "SGD")[0] == 0
    for path in out.rglob("*.json"):
        content = {key: value for key, value in json.loads(path.read_text()).items() if key != "checksum"}
        for name in ("stack", "table_sha256", "belongs_to", "experiment_sha256"):
            content.pop(name, None)
        path.write_text(json.dumps({**content, **({"format": 1} if path.name == "experiment.json" else {})}))
    assert run(out)[0] == 0
    assert json.loads((out / "experiment.json").read_text())["format"] == 1
    assert Results.open(out).frame().equals(Results.open(whole).frame())
    capsys.readouterr()
    assert cli.main(["status", str(out)]) == 0
    assert "of 2 finished stacks 1 has no checksum" in capsys.readouterr().out
    (new,) = [path for path in out.glob("parts/*.json") if "table_sha256" in path.read_text()]
    flip(new.with_suffix(".parquet"))
    assert cli.main(["claims", str(out)]) == 1
    assert f"{new.with_suffix('.parquet')}: its checksum differs" in capsys.readouterr().err
    assert run(out, "--repair")[0] == 0
    assert Results.open(out).frame().equals(Results.open(whole).frame())


def test_a_table_without_a_description_is_set_aside_when_its_runs_are_trained_again(
    tmp_path: Path, run: Command
) -> None:
    out = tmp_path / "out"
    assert run(out)[0] == 0
    before = Results.open(out).frame()
    table = sorted(out.glob("parts/*.parquet"))[0]
    content = table.read_bytes()
    table.with_suffix(".json").unlink()
    assert f"{table} is damaged: it has no description" in status_text(Results.open(out))
    assert run(out)[0] == 0
    assert (out / "damaged" / table.name).read_bytes() == content
    assert Results.open(out).frame().equals(before)


def test_a_link_in_place_of_a_temporary_file_or_a_lock_is_not_written_through(tmp_path: Path, run: Command) -> None:
    out, precious = tmp_path / "out", tmp_path / "precious.txt"
    precious.write_text("precious")
    assert run(out, "--methods", "SGD")[0] == 0
    for name in (".plan.json.tmp", ".experiment.json.tmp", "parts/.0.tmp"):
        (out / name).symlink_to(precious)
    assert run(out)[0] == 0
    assert precious.read_text() == "precious"
    (out / ".create.lock").unlink()
    (out / ".create.lock").symlink_to(precious)
    status, said = run(out)
    assert status == 1
    assert "is a symbolic link" in said
    assert precious.read_text() == "precious"
    shutil.rmtree(out / "parts")
    (out / ".create.lock").unlink()
    (out / "parts").symlink_to(tmp_path)
    assert "is a link to another folder" in run(out)[1]

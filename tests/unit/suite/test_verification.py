"""Runs can be made again: what is recorded of them, and what `neoteny verify` says of a folder."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import torch
from torch import nn

from neoteny.cli import parser as cli
from neoteny.cli import run as launch
from neoteny.suite import provenance
from neoteny.suite.provenance import digest_weights, read_commit
from neoteny.suite.store.documents import read_document, sha256, write_document
from neoteny.suite.store.results import Results
from neoteny.suite.store.shapes import PART
from neoteny.suite.store.tables import to_parquet
from support.flipped_bits import StopAt


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results of an experiment at smoke scale."""
    out = tmp_path / "out"
    arguments = ["run", "mnist-step-size", "--scale", "smoke", "--out", str(out), "--jobs", "1", "--device", "cpu"]
    assert cli.main(arguments) == 0
    return out


def verify(folder: Path, *options: str) -> int:
    return cli.main(["verify", str(folder), "--runs", "100", "--tasks", "3", "--device", "cpu", *options])


def change_part(folder: Path, change) -> None:
    """Change what is recorded beside a table."""
    (path,) = (folder / "parts").glob("*.json")
    content = read_document(path, PART, must_be_sealed=True)
    change(content)
    write_document(path, content)


def change_table(folder: Path, metric: str, by: float) -> None:
    """Change one number of a table, and its checksum."""
    (path,) = (folder / "parts").glob("*.parquet")
    table = parquet.read_table(path)
    values = table["value"].to_pylist()
    row = table["metric"].to_pylist().index(metric)
    values[row] += by
    content = to_parquet(table.set_column(table.column_names.index("value"), "value", [values]))
    path.write_bytes(content)
    change_part(folder, lambda part: part.update(table_sha256=sha256(content)))


def test_runs_that_can_be_made_again_are_said_to_be_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(folder) == 0
    printed = capsys.readouterr().out
    assert "bit for bit\n    initial weights: same\n" in printed
    assert printed.rstrip().endswith("6 runs in 1 stack: all the same, bit for bit.")
    (path,) = (folder / "parts").glob("*.json")
    part = json.loads(path.read_text())
    digests = [run["initial"] for run in part["runs"]]
    assert len(set(digests)) == 2  # two seeds, three settings that begin alike
    assert ("commit" in part) == ("clean" in part)


def test_one_bit_in_a_table_is_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_table(folder, "weight_magnitude", 1e-15)
    assert verify(folder, "--tasks", "0") == 1
    assert "weight_magnitude: 1 of 6 differ" in capsys.readouterr().out


def test_a_commit_that_was_told_is_said_to_be(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def tell(part: dict) -> None:
        part.update(commit="0123456789abcdef")
        part.pop("clean", None)

    change_part(folder, tell)
    assert verify(folder, "--tasks", "0") == 0
    assert "made by commit 0123456789ab, as it was told\n" in capsys.readouterr().out


def test_other_initial_weights_are_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_part(folder, lambda part: part["runs"][1].update(initial="0" * 16))
    assert verify(folder, "--tasks", "0") == 1
    assert "initial weights: differ" in capsys.readouterr().out


def test_another_machine_is_compared_to_a_tolerance_and_an_old_part_has_no_digest(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def age(part: dict) -> None:
        part.update(machine="another", versions={**part["versions"], "torch": "1.0"})
        part.pop("commit", None)
        for run in part["runs"]:
            del run["initial"]

    change_part(folder, age)
    change_table(folder, "weight_magnitude", 1e-6)
    assert verify(folder) == 0
    printed = capsys.readouterr().out
    assert "made by a commit that is not recorded" in printed
    assert printed.count("not where it was made: machine another, here ") == 1
    assert "within 0.02 of the largest value\n" in printed
    assert "initial weights: not recorded" in printed
    assert verify(folder, "--tolerance", "1e-9") == 1


def test_a_resumed_run_keeps_the_digest_of_its_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    arguments = ["run", "scr-cbp", "--scale", "smoke", "--methods", "CBP", "--out", str(out)]
    arguments += ["--jobs", "1", "--device", "cpu"]
    with monkeypatch.context() as patch:
        patch.setattr(launch, "StopFlag", lambda: StopAt(6))
        assert cli.main(arguments) == 130
    assert not list(out.glob("parts/*.parquet"))
    assert cli.main(arguments) == 0
    parts = Results.open(out).parts()
    assert max(part["resumed"] for part in parts) == 1  # from a checkpoint, not from the start
    capsys.readouterr()
    assert cli.main(["verify", str(out), "--runs", "100", "--tasks", "12", "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert "initial weights: same" in printed
    assert printed.rstrip().endswith("all the same, bit for bit.")


def test_a_sweep_stops_by_itself_after_some_minutes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["run", "scr-cbp", "--scale", "laptop", "--methods", "BP", "--runs", "2", "--out", str(out)]
    arguments += ["--jobs", "1", "--device", "cpu"]
    assert cli.main([*arguments, "--stop-after", "0"]) == 130
    assert "Repeat the command to continue" in capsys.readouterr().err
    assert not list(out.glob("parts/*.parquet"))


def test_a_digest_stands_for_every_bit() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    before = digest_weights(layer)
    assert digest_weights(layer) == before
    with torch.no_grad():
        layer.weight[0, 0] = torch.nextafter(layer.weight[0, 0], torch.tensor(9.0))
    assert digest_weights(layer) != before
    norm = nn.BatchNorm1d(2)
    before = digest_weights(norm)
    norm(torch.randn(4, 2))
    assert digest_weights(norm) != before


def test_a_commit_is_read_from_a_checkout_and_nothing_elsewhere(tmp_path: Path) -> None:
    assert read_commit(tmp_path) == {}
    (tmp_path / ".git").mkdir()
    assert read_commit(tmp_path) == {}  # it is no checkout
    (tmp_path / ".git").rmdir()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / "file").write_text("one")
    for arguments in (["init", "-q"], ["add", "file"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *arguments], check=True, capture_output=True)
    found = read_commit(tmp_path)
    assert len(found["commit"]) == 40
    assert found["clean"] is True
    (tmp_path / "file").write_text("two")
    assert read_commit(tmp_path) == {**found, "clean": False}


def test_a_copy_without_its_history_is_told_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = provenance.commit.__wrapped__
    monkeypatch.setattr("neoteny.__file__", str(tmp_path / "src" / "neoteny" / "__init__.py"))
    monkeypatch.delenv("NEOTENY_COMMIT", raising=False)
    assert told() == {}
    monkeypatch.setenv("NEOTENY_COMMIT", "0123abcd")
    assert told() == {"commit": "0123abcd"}

"""Damaged and foreign files in a results folder: named, with what was expected, and never taken for results."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neoteny.suite.progress import status_text
from neoteny.suite.store.documents import write_document
from neoteny.suite.store.errors import Damaged, StoreError
from neoteny.suite.store.folder import ResultsFolder
from neoteny.suite.store.results import Results
from neoteny.suite.store.shapes import ANALYSIS, EXPERIMENT, PART, PLAN, PROGRESS
from support.flipped_bits import Bench

JSON = ("experiment.json", "plan.json", "parts/*.json", "progress/*.json", "analysis.json")
FOREIGN = {
    "empty": b"",
    "list": b"[]",
    "object": b"{}",
    "null": b"null",
    "nested": b"[" * 100_000,
    "nested objects": b'{"a":' * 100_000,
    "nan": b'{"runs": NaN}',
    "infinite": b'{"runs": 1e999}',
    "huge number": b'{"format": ' + b"9" * 5000 + b"}",
    "not UTF-8": b'{"format": "\xff"}',
    "half": None,
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A folder with every kind of file; do not change it."""
    return Bench(tmp_path_factory.mktemp("store"))


@pytest.fixture
def folder(bench: Bench, tmp_path: Path) -> Path:
    """A copy of it, to damage."""
    return Path(shutil.copytree(bench.pristine, tmp_path / "results"))


def make_old(folder: Path) -> Path:
    """The folder as version 0.1.0 would have written it: format 1, no checksums."""
    for path in folder.rglob("*.json"):
        content = json.loads(path.read_text())
        for name in ("checksum", "stack", "table_sha256", "belongs_to", "experiment_sha256"):
            content.pop(name, None)
        path.write_text(json.dumps({**content, **({"format": 1} if path.name == "experiment.json" else {})}))
    for path in folder.glob("unfinished/*"):
        path.write_bytes(path.read_bytes().rpartition(b"\nsha256 ")[0])
    return folder


def find(folder: Path, pattern: str) -> Path:
    return sorted(folder.glob(pattern))[0]


def edit(path: Path, **fields: Any) -> None:
    """Change fields of a JSON file; its checksum, if it has one, stays as it was."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(StoreError) as raised:
        call()
    return str(raised.value)


# Foreign content


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("pattern", JSON)
def test_foreign_json_is_named_by_every_reader(pattern: str, old: bool, folder: Path, bench: Bench) -> None:
    if old:
        make_old(folder)
    path = find(folder, pattern)
    good = path.read_bytes()
    for name, content in FOREIGN.items():
        path.write_bytes(good[: len(good) // 2] if content is None else content)
        if pattern == "experiment.json":
            said = refusal(lambda: Results.open(folder))
            assert str(folder) in said, name
            continue
        said = status_text(ResultsFolder.open(folder))
        assert f"{path} is damaged: " in said or f"\n  {path}: " in said, name  # parts are listed together
        if pattern in ("plan.json", "parts/*.json"):
            assert str(path) in refusal(lambda: Results.open(folder).frame()), name
        else:
            assert Results.open(folder).frame().equals(bench.expected["frame"]), name


@pytest.mark.parametrize(
    ("pattern", "fields", "said"),
    [
        ("experiment.json", {"scale": 3}, "field scale must be a text, found 3"),
        ("experiment.json", {"experiment": None}, "field experiment must be a text, found None"),
        ("experiment.json", {"versions": []}, "field versions must be an object, found a list"),
        ("plan.json", {"runs": {}}, "field runs must be a list, found an object"),
        ("plan.json", {"runs": ["a", 7]}, "field runs[1] must be a text, found 7"),
        ("parts/*.json", {"runs": [{}]}, "field runs[0].run_id is missing; expected a text"),
        ("parts/*.json", {"seconds": "long"}, "field seconds must be a finite number, found 'long'"),
        ("parts/*.json", {"versions": {"torch": 2}}, "field versions.torch must be a text, found 2"),
        ("progress/*.json", {"task": True}, "field task must be a whole number, found True"),
        ("progress/*.json", {"latest": ["error"]}, "field latest must be a list of a text, a finite number or null"),
        ("progress/*.json", {"updates": 10**30}, "field updates must be a whole number, found 1000"),
        ("progress/*.json", {"runs": ["a"]}, "it is of another stack"),
    ],
)
def test_a_misfit_is_told_with_file_field_and_both_values(
    pattern: str, fields: dict[str, Any], said: str, folder: Path
) -> None:
    path = find(make_old(folder), pattern)
    edit(path, **fields)
    if pattern == "experiment.json":
        text = refusal(lambda: Results.open(folder))
    else:
        text = status_text(ResultsFolder.open(folder))
    assert said in text
    assert str(path) in text


def test_every_shape_accepts_what_is_written_and_nothing_less(folder: Path) -> None:
    for pattern, kind in zip(JSON, (EXPERIMENT, PLAN, PART, PROGRESS, ANALYSIS), strict=True):
        content = json.loads(find(folder, pattern).read_text())
        assert kind.misfit(content, sealed=True) == ""
        for name in {**kind.fields, **kind.sealed}:
            if not name.endswith("?"):
                less = {key: value for key, value in content.items() if key != name}
                assert f"field {name} is missing" in kind.misfit(less, sealed=True)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(folder: Path) -> None:
    path = find(folder, "progress/*.json")
    path.unlink()
    os.mkfifo(path)
    assert f"{path} is damaged: it cannot be read" in status_text(ResultsFolder.open(folder))


def test_a_link_to_nowhere_in_place_of_a_table_does_not_count(folder: Path) -> None:
    path = find(folder, "parts/*.parquet")
    path.unlink()
    path.symlink_to("nowhere")
    assert Results.open(folder).finished_runs() == set()
    assert Results.open(folder).frame().empty


# Checksums cannot be lost


@pytest.mark.parametrize("pattern", [name for name in JSON if name != "progress/*.json"])
def test_a_file_without_its_checksum_is_not_taken_for_an_old_one(pattern: str, folder: Path) -> None:
    path = find(folder, pattern)
    content = json.loads(path.read_text())
    del content["checksum"]
    path.write_text(json.dumps(content))
    try:
        said = status_text(ResultsFolder.open(folder))
    except Damaged as error:
        said = str(error)
    assert str(path) in said
    assert "its checksum is missing" in said


def test_another_format_number_does_not_switch_checksums_off(folder: Path) -> None:
    for number in (1, 3, 2.0, True, None, "2", [2]):
        edit(folder / "experiment.json", format=number)
        assert "checksum differs" in refusal(lambda: Results.open(folder))


# Parts that are whole, but not in their place


def test_swapped_renamed_and_doubled_parts_are_refused(folder: Path, bench: Bench) -> None:
    table = find(folder, "parts/*.parquet")
    described = table.with_suffix(".json")
    copies = [path.with_name(f"{'0' * 16}{path.suffix}") for path in (table, described)]
    for path, copy in zip((table, described), copies, strict=True):
        shutil.copyfile(path, copy)
    assert f"{copies[1]}: it is of stack {table.stem}" in refusal(lambda: Results.open(folder).frame())
    table.unlink()
    described.unlink()
    assert f"{copies[1]}: it is of stack {table.stem}" in refusal(lambda: Results.open(folder).frame())
    assert "0 runs finished" in status_text(ResultsFolder.open(folder))


def test_a_part_of_another_folder_is_refused(folder: Path) -> None:
    path = find(folder, "parts/*.json")
    content = json.loads(path.read_text())
    write_document(path, {**content, "belongs_to": {**content["belongs_to"], "data": "other"}})
    assert f"{path}: it belongs to a folder of data 'other'" in refusal(lambda: Results.open(folder).frame())


def test_an_unfinished_table_of_another_stack_is_refused(folder: Path) -> None:
    path = find(folder, "unfinished/*")
    path.rename(path.with_name(f"{'a' * 16}.parquet"))
    assert "is damaged: its checksum" in refusal(lambda: Results.open(folder).frame(so_far=True))
    assert not Results.open(folder).frame().empty


def test_a_reader_that_comes_between_two_writes_finds_no_damage(folder: Path) -> None:
    """A part's description is written before its table: without the table it does not count, and is not damaged."""
    table = find(folder, "parts/*.parquet")
    content = table.read_bytes()
    table.unlink()
    results = Results.open(folder)
    assert results.frame().empty
    assert results.check_parts() == ([], [])
    table.write_bytes(content)
    assert len(results.parts()) == 1


# Old folders


def test_an_old_folder_reads_as_before_and_says_that_it_has_no_checksums(folder: Path, bench: Bench) -> None:
    results = Results.open(make_old(folder))
    assert results.frame().equals(bench.expected["frame"])
    assert results.frame(so_far=True).equals(bench.expected["so far"])
    text = status_text(results)
    assert "of 1 finished stack 1 has no checksum" in text
    assert "damaged" not in text


def test_a_table_of_another_kind_in_an_old_folder_is_named(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    path = find(make_old(folder), "parts/*.parquet")
    whole = parquet.read_table(path)
    for table, said in (
        (whole.drop_columns(["seed"]), "it has no column seed"),
        (whole.set_column(whole.column_names.index("value"), "value", pa.array(["x"] * len(whole))), "column value is"),
    ):
        parquet.write_table(table, path)
        assert f"{path}: it" in refusal(lambda: Results.open(folder).frame())
        assert said in refusal(lambda: Results.open(folder).frame())
    path.write_bytes(b"PAR1 and no more PAR1")
    assert f"{path}: it cannot be read" in refusal(lambda: Results.open(folder).frame())

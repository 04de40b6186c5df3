"""Where samples go: tables that survive a kill, loggers of every kind; an error there does not end training."""

from __future__ import annotations

import csv
import logging
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import neoteny
from neoteny.diagnosis import table_file
from neoteny.diagnosis.result import LayerDiagnosis
from neoteny.diagnosis.sample import COLUMNS, LayerSample, Sample

NAMES = {
    f"plasticity/fc1/{name}"
    for name in ("dead_share", "effective_rank", "stable_rank", "weight_magnitude", "weight_growth")
}


def made(step: int) -> Sample:
    layers = [LayerDiagnosis(name, 8, 2, 0.25, None, 4.5 + step, 2.5, 0.1, 50) for name in ("fc1", 'a "b", c')]
    return Sample(step, tuple(LayerSample(layer, 0.05, replaced=step) for layer in layers))


def monitored(to: Any, steps: int = 5) -> neoteny.Monitor:
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("fc1", nn.Linear(4, 8))
    model.add_module("act", nn.ReLU())
    model.add_module("fc2", nn.Linear(8, 1))
    with neoteny.Monitor(model, 2, examples=16, to=to) as monitor:
        for _ in range(steps):
            model(torch.randn(16, 4)).sum().backward()
    return monitor


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of either kind of table; empty cells are None."""
    if path.suffix == ".csv":
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
        return [{name: kind(row[name]) if row[name] else None for name, kind in COLUMNS.items()} for row in rows]
    return [row for part in sorted(path.glob("*.parquet")) for row in table_file.ParquetFolder(path)._read(part)]


def opened(path: Path) -> table_file.CsvFile | table_file.ParquetFolder:
    return table_file.CsvFile(path) if path.suffix == ".csv" else table_file.ParquetFolder(path)


@pytest.fixture(params=["t.csv", "t.parquet"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    return tmp_path / "new" / request.param


def test_a_table_has_one_row_per_layer_and_sample(path: Path) -> None:
    monitor = monitored(path)
    rows = read(path)
    assert [row["step"] for row in rows] == [0, 2, 4]
    assert list(rows[0]) == list(COLUMNS)
    for row, sample in zip(rows, monitor.samples, strict=True):
        assert row == sample.rows()[0]
    assert monitored([path]).samples  # a second run in the same table
    assert [row["step"] for row in read(path)] == [0, 2, 4, 0, 2, 4]


def test_a_table_is_continued_in_parts_and_taken_back_to_a_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_file, "PART_ROWS", 4)
    for step in range(5):
        opened(path).append(made(step).rows())  # opened each time, as after a kill
    assert read(path) == [row for step in range(5) for row in made(step).rows()]
    table = opened(path)
    table.rewind(1)
    assert [row["step"] for row in read(path)] == [0, 0, 1, 1]
    table.append(made(2).rows())
    table.rewind(7)
    assert [row["step"] for row in read(path)] == [0, 0, 1, 1, 2, 2]
    table.rewind(-1)
    assert read(path) == []
    table.append(made(0).rows())
    assert read(path) == made(0).rows()


def test_half_a_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    table_file.CsvFile(path).append(made(1).rows())
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    table_file.CsvFile(path).append(made(2).rows())
    assert [(row["step"], row["layer"]) for row in read(path)] == [(1, "fc1"), (2, "fc1"), (2, 'a "b", c')]


def test_a_failed_write_leaves_the_table_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(path)
    table.append(made(1).rows())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(table_file.os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            table.append(made(2).rows())
    assert read(path) == made(1).rows()
    folder = path.parent if path.suffix == ".csv" else path
    assert not list(folder.glob(".*"))  # nothing of it is left
    table.append(made(3).rows())
    assert [row["step"] for row in read(path)] == [1, 1, 3, 3]


def test_another_table_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"is another table: expected the columns step, layer.*got a,b"):
        monitored(path)
    assert path.read_text() == "a,b\n1,2\n"
    with pytest.raises(ValueError, match="is a file"):
        monitored(path.rename(tmp_path / "mine.parquet"))


def test_a_resumed_monitor_takes_later_rows_off(path: Path) -> None:
    monitor = monitored(path, 3)
    state = monitor.state_dict()
    monitored(path, 5)
    opened(path).append(made(9).rows())
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    with neoteny.Monitor(model, 2, examples=16, to=path) as resumed:
        resumed.load_state_dict(state)
        for _ in range(2):
            model(torch.randn(16, 4)).sum().backward()
    assert [row["step"] for row in read(path)] == [0, 2, 0, 2, 4]


class Recorded:
    """Every kind of logger: what it was told, as (step, values)."""

    def __init__(self) -> None:
        self.told: list[tuple[int, dict[str, float]]] = []

    def summary_writer(self) -> Any:
        def add_scalar(name: str, value: float, step: int) -> None:
            if not self.told or self.told[-1][0] != step:
                self.told.append((step, {}))
            self.told[-1][1][name] = value

        return SimpleNamespace(add_scalar=add_scalar)

    def wandb(self) -> Any:
        return SimpleNamespace(log=lambda values: self.told.append((values.pop("plasticity/step"), values)))

    def mlflow(self) -> Any:
        return SimpleNamespace(log_metrics=lambda metrics, step: self.told.append((step, metrics)))

    def function(self) -> Any:
        return lambda values: self.told.append((values.pop("step"), values))


@pytest.mark.parametrize("kind", ["summary_writer", "wandb", "mlflow", "function"])
def test_loggers(kind: str) -> None:
    recorded = Recorded()
    monitor = monitored(getattr(recorded, kind)())
    assert [step for step, _ in recorded.told] == [0, 2, 4]
    for (_, values), sample in zip(recorded.told, monitor.samples, strict=True):
        assert values == sample.values()
        assert set(values) == NAMES | {"plasticity/losing_plasticity"}
        assert all(math.isfinite(value) for value in values.values())


@pytest.mark.filterwarnings("ignore")  # of tensorboard's own
def test_tensorboard_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import (  # pyright: ignore[reportMissingImports]
        EventAccumulator,
    )

    monitored(tmp_path / "runs")
    events = EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    assert [event.step for event in events.Scalars("plasticity/fc1/effective_rank")] == [0, 2, 4]


def test_a_folder_without_tensorboard_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match="pip install tensorboard; or name a table"):
        monitored(tmp_path / "runs")


def test_a_plain_logger_is_refused() -> None:
    with pytest.raises(TypeError, match="a function of a dict of numbers"):
        monitored(logging.getLogger("mine"))


def test_what_cannot_be_written_is_kept_for_the_next_time() -> None:
    told: list[int] = []

    def fails_twice(values: dict[str, float]) -> None:
        told.append(int(values["step"]))
        if len(told) <= 2:
            raise OSError("no network")

    with pytest.warns(RuntimeWarning, match="could not be written .OSError: no network") as caught:
        monitored(fails_twice)
    assert len(caught) == 1
    assert told == [0, 0, 0, 2, 4]

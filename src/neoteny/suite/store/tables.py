"""Results of runs as tables: one row for each run, metric and task.

Before this: `training` and `rl.agent`, which count tasks and metrics; after it: `results`, which keeps the tables in
files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from neoteny.suite.rl.episodes import CURVE
from neoteny.suite.store.errors import Damaged
from neoteny.suite.store.folder import UNFINISHED_REMEDY
from neoteny.suite.store.shapes import PART

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from neoteny.suite.rl.agent import AgentTraining
    from neoteny.suite.stacks import PlannedStack
    from neoteny.suite.training import Training

SETTINGS = b"settings"
"""The key of an unfinished table's metadata that holds the digest of each run's setting."""
_COLUMNS = {
    **dict.fromkeys(("run_id", "method", "setting", "hyperparameters", "metric"), "is_string"),
    "seed": "is_integer",
    "task": "is_integer",
    "value": "is_floating",
}
"""The columns of a stored table, each with the test of its type in `pyarrow.types`."""


def make_table(stack: PlannedStack, training: Training | AgentTraining) -> pa.Table:
    """The tidy table of one stack; for an unfinished stack, of the tasks it has finished."""
    import pyarrow as pa

    table = training.table()
    metrics = sorted(name for name in table if not name.endswith(".tasks"))
    tasks, values = [np.zeros(0, np.int32)], [np.zeros((0, len(stack.runs)))]
    for metric in metrics:
        numbers = table[f"{metric}.tasks"].numpy()
        end = training.task * points_of(metric, stack.sweep.points_per_task)
        counts = slice(None) if training.finished else numbers < end
        tasks.append(numbers[counts].astype(np.int32))
        values.append(table[metric].numpy()[counts])
    rows = [len(each) for each in tasks[1:]]
    settings = [run.setting for run in stack.runs]
    of_runs = {
        "run_id": [run.run_id for run in stack.runs],
        "method": [setting.method for setting in settings],
        "setting": [setting.label for setting in settings],
        "hyperparameters": [json.dumps(dict(setting.details)) for setting in settings],
    }
    columns = {name: _repeat_words(words, [sum(rows)] * len(words)) for name, words in of_runs.items()}
    columns["seed"] = pa.array(np.repeat(np.array([run.seed for run in stack.runs], np.int64), sum(rows)))
    columns["task"] = pa.array(np.tile(np.concatenate(tasks), len(stack.runs)))
    columns["metric"] = _repeat_words(metrics * len(stack.runs), rows * len(stack.runs))
    columns["value"] = pa.array(np.concatenate(values).T.reshape(-1))
    return pa.table(columns)


def to_parquet(table: pa.Table) -> bytes:
    """A table as the bytes of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def parse_part(path: Path, content: bytes) -> pa.Table:
    """The table of a part from the bytes of its file.

    Raises:
        Damaged: it is no such table.
    """
    return _parse(path, content, PART.remedy)


def parse_unfinished(path: Path, content: bytes) -> tuple[pa.Table, dict[str, str]]:
    """The table of an unfinished stack, and the digest of each run's setting.

    Raises:
        Damaged: it is no such table.
    """
    table = _parse(path, content, UNFINISHED_REMEDY)
    try:
        settings = json.loads((table.schema.metadata or {}).get(SETTINGS, "{}"))
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise Damaged(path, "it does not say which settings its runs have", UNFINISHED_REMEDY)
    return table, settings


def _parse(path: Path, content: bytes, remedy: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        table = parquet.ParquetFile(pa.BufferReader(content)).read()  # a third of the time of `read_table`
        table.validate(full=True)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise Damaged(path, f"it cannot be read ({error})", remedy) from error
    for name, is_right in _COLUMNS.items():
        if name not in table.column_names:
            raise Damaged(path, f"it has no column {name}", remedy)
        kind = table.schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not getattr(pa.types, is_right)(kind):
            raise Damaged(path, f"its column {name} is of type {kind}", remedy)
        if table.column(name).null_count:
            raise Damaged(path, f"its column {name} has missing values", remedy)
    return table


def _repeat_words(words: list[str], counts: list[int]) -> pa.DictionaryArray:
    """Each word repeated; as codes from the start, because a long table of strings takes a second to make."""
    import pyarrow as pa

    known = list(dict.fromkeys(words))
    codes = np.repeat(np.array([known.index(word) for word in words], np.int32), np.array(counts, np.int64))
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(known, pa.string()))


def take_first_tasks(frame: pd.DataFrame, tasks: int, points_per_task: int) -> pd.DataFrame:
    """The first tasks of every run that has finished them; other runs are left out."""
    points = frame["metric"].map({metric: points_of(metric, points_per_task) for metric in frame["metric"].unique()})
    task = frame["task"] // points.astype(int)
    reached = task.groupby(frame["run_id"], observed=True).transform("max") >= tasks - 1
    return frame[reached & (task < tasks)].reset_index(drop=True)


def points_of(metric: str, points_per_task: int) -> int:
    """How many rows of a metric a task has."""
    return points_per_task if metric.endswith(CURVE) else 1

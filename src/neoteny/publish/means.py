"""What is kept of a folder that is too large to keep whole: each run's means over bins of tasks, and what made it.

`means.parquet` has one row per run, metric and bin, with the columns of `Results.frame()` that claims read. Verdicts on
slowly-changing regression compare means over its first and last sixths and over all tasks, so that bins of ten of its
300 tasks give them again. Values have `DIGITS` significant digits: published verdicts are judged on what is kept.
`made.json` says what made the runs. Before this: `keep`; after it: `summary`, which judges the table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from neoteny.suite.store.documents import write_document
from neoteny.suite.store.files import read_json
from neoteny.suite.store.results import Results

MEANS, MADE = "means.parquet", "made.json"
DIGITS = 5
_NOT_KEPT = ("run_id", "hyperparameters")
_RECORDED = ("commit", "clean", "device", "kernel", "machine", "versions")
"""What every part says of where it was made."""


def average_bins(frame: pd.DataFrame, bin_tasks: int) -> pd.DataFrame:
    """A table of results with bins in place of tasks, each with the mean over its tasks; nan where a run diverged.

    Args:
        frame: results, with a row for every task of every run.
        bin_tasks: tasks per bin.

    Raises:
        ValueError: a run has not all tasks of a bin.
    """
    columns = [name for name in frame.columns if name not in (*_NOT_KEPT, "task", "value")]
    settings = frame[[name for name in columns if name not in ("seed", "metric")]].drop_duplicates("setting")
    by_bin = frame.assign(task=frame["task"] // bin_tasks).groupby(
        ["setting", "metric", "seed", "task"], sort=True, observed=True
    )["value"]
    if (short := by_bin.size().ne(bin_tasks)).any():
        raise ValueError(
            f"Bins of {bin_tasks} tasks need whole bins of every run; {short.idxmax()} has fewer tasks. Keep finished "
            "runs, of a number of tasks that the bins divide."
        )
    means = by_bin.agg(lambda values: values.mean(skipna=False)).map(_round).reset_index()
    return means.merge(settings, on="setting")[[*columns, "task", "value"]]


def write_means(folder: Path, table: pd.DataFrame) -> None:
    """Write a table of means into a folder, as small as it gets."""
    text = {name: "category" for name in table.columns if table[name].dtype == object or name in ("setting", "metric")}
    small = table.astype({**text, "seed": "int32", "task": "int16", "value": "float32"})
    small.to_parquet(folder / MEANS, index=False, compression="zstd", compression_level=19)


def read_means(folder: Path) -> pd.DataFrame:
    """Read what `write_means` wrote; values have their digits again."""
    table = pd.read_parquet(folder / MEANS)
    categories = [name for name in table.columns if isinstance(table[name].dtype, pd.CategoricalDtype)]
    plain: dict[str, Any] = {**dict.fromkeys(categories, object), "seed": "int64", "task": "int64"}
    return table.astype(plain).assign(value=table["value"].astype("float64").map(_round))


def write_made(folder: Path, results: Results) -> None:
    """Write what the parts of a results folder say of where they were made, each different answer once."""
    found: list[dict[str, Any]] = []
    seconds = 0.0
    for path in sorted((results.root / "parts").glob("[0-9a-f]*.json")):
        part = read_json(path)
        made = {name: part[name] for name in _RECORDED if name in part}
        found += [made] if made not in found else []
        seconds += float(part["seconds"])
    write_document(folder / MADE, {"made": found, "seconds": round(seconds)})


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else value

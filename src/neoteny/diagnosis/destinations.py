"""Where a monitor's samples go: TensorBoard, W&B, MLflow, Lightning's loggers, a table on the disk, or a function."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from neoteny.diagnosis.sample import Sample
from neoteny.diagnosis.table_file import CsvFile, ParquetFolder


class Destination(Protocol):
    """Takes samples, one after the other."""

    def write(self, sample: Sample) -> None:
        """Take one sample."""
        ...

    def rewind(self, step: int) -> None:
        """Forget samples after a step, if that can be done: a resumed run takes them again."""
        ...

    def close(self) -> None:
        """Close what was opened here."""
        ...


class Table:
    """A path ending in .csv or .parquet."""

    __slots__ = ("_file", "_rewind")

    def __init__(self, path: Path) -> None:
        self._file = CsvFile(path) if path.suffix == ".csv" else ParquetFolder(path)
        self._rewind: int | None = None

    def write(self, sample: Sample) -> None:
        """Append one row per layer."""
        if self._rewind is not None:
            self._file.rewind(self._rewind)
            self._rewind = None
        self._file.append(sample.rows())

    def rewind(self, step: int) -> None:
        """Take off later rows before the next sample is written."""
        self._rewind = step

    def close(self) -> None:
        """Nothing is open between samples."""


class Logger:
    """Anything that is told numbers by name."""

    __slots__ = ("_close", "_tell")

    def __init__(self, tell: Callable[[dict[str, float], int], Any], close: Callable[[], Any] = lambda: None) -> None:
        self._tell = tell
        self._close = close

    def write(self, sample: Sample) -> None:
        """Log the sample's numbers at its step."""
        self._tell(sample.values(), sample.step)

    def rewind(self, step: int) -> None:
        """What was logged stays: loggers have their own way to resume."""

    def close(self) -> None:
        """Close a writer that was made here."""
        self._close()


def destination(to: Any) -> Destination:
    """What the argument `to` of a monitor stands for.

    Raises:
        TypeError: nothing that samples can go to.
        ImportError: a library is missing.
        ValueError: the path is another table's.
    """
    if isinstance(to, (str, Path)):
        path = Path(to)
        return Table(path) if path.suffix in (".csv", ".parquet") else _tensorboard(path)
    if callable(getattr(to, "add_scalar", None)):  # a SummaryWriter
        return Logger(lambda values, step: _add_scalars(to, values, step))
    if callable(getattr(to, "log_metrics", None)):  # MLflow, Lightning's loggers
        return Logger(lambda values, step: to.log_metrics(values, step=step))
    if callable(getattr(to, "log", None)) and not isinstance(to, logging.Logger):
        # W&B drops what comes with a step that it has passed, and its steps are the user's: ours is one more number.
        return Logger(lambda values, step: to.log({**values, "plasticity/step": step}))
    if callable(to):
        return Logger(lambda values, step: to({"step": step, **values}))
    raise TypeError(
        "to must be a path (.csv, .parquet, or a folder for TensorBoard), a SummaryWriter, a W&B run, mlflow, a "
        f"Lightning logger, a function of a dict of numbers, or a list of these; got {type(to).__name__}."
    )


def _add_scalars(writer: Any, values: dict[str, float], step: int) -> None:
    for name, value in values.items():
        writer.add_scalar(name, value, step)


def _tensorboard(folder: Path) -> Logger:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            f"to={str(folder)!r} is a folder for TensorBoard, which is not installed: pip install tensorboard; or name "
            "a table, such as monitor.csv."
        ) from error
    opened: list[Any] = []

    def tell(values: dict[str, float], step: int) -> None:
        if not opened:
            opened.append(SummaryWriter(str(folder)))
        _add_scalars(opened[0], values, step)
        opened[0].flush()

    return Logger(tell, lambda: [writer.close() for writer in opened])

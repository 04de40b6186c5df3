"""Tables on the disk that grow row by row and survive a kill: a CSV file, or a folder of Parquet files.

`Monitor` writes its samples into them. A CSV file gets whole lines at its end; half a line that a lost power supply
left is cut off before the next. Parquet cannot be appended to: the last file of the folder is replaced as a whole until
it holds `PART_ROWS` rows, then the next begins. `pandas.read_parquet` reads the folder as one table.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from neoteny.diagnosis.sample import COLUMNS

PART_ROWS = 20_000
"""Rows of one Parquet file; the last one is written again at every sample."""

_HEADER = ",".join(COLUMNS).encode() + b"\n"
Row = dict[str, Any]


class CsvFile:
    """A CSV file with the columns of a sample.

    Args:
        path: the file; rows that are there stay.

    Raises:
        ValueError: the file has other columns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begun = False
        if path.exists() and path.stat().st_size:
            with open(path, "rb") as file:
                header = file.readline()
            if header != _HEADER:
                raise _foreign(path, header.decode(errors="replace").strip())

    def append(self, rows: Sequence[Row]) -> None:
        """Add rows; on an error (a full disk) the file is as it was."""
        self._begin()
        text = io.StringIO()
        csv.DictWriter(text, list(COLUMNS), lineterminator="\n").writerows(rows)
        with open(self.path, "r+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            data = text.getvalue().encode()
            try:
                if file.write(data) != len(data):
                    raise OSError("the disk took only a part of the rows")
                os.fsync(file.fileno())
            except BaseException:
                file.truncate(end)
                raise

    def rewind(self, step: int) -> None:
        """Take off the rows at the end that are of later steps: a resumed run makes them again."""
        self._begin()
        lines = self.path.read_bytes().splitlines(keepends=True)
        kept = len(lines)
        while kept > 1 and int(lines[kept - 1].partition(b",")[0]) > step:
            kept -= 1
        if kept < len(lines):
            _replace(self.path, lambda file: file.writelines(lines[:kept]))

    def _begin(self) -> None:
        """Make the file, or cut half a line off its end. Not sooner: of several processes one has rows."""
        if self._begun:
            return
        if self.path.exists() and self.path.stat().st_size:
            with open(self.path, "r+b") as file:
                file.truncate(file.read().rindex(b"\n") + 1)
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _replace(self.path, lambda file: file.write(_HEADER))
        self._begun = True


class ParquetFolder:
    """A folder of Parquet files with the columns of a sample.

    Args:
        path: the folder; rows that are there stay.

    Raises:
        ImportError: pyarrow is not installed.
        ValueError: the path is a file, or the folder holds a table with other columns.
    """

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise ImportError(f"{path}: writing Parquet needs pyarrow: pip install pyarrow; or name a .csv") from error
        self._arrow = pyarrow
        kinds = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
        self._schema = pyarrow.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
        self.path = path
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file; samples are written to a folder of Parquet files: name another path.")
        self._rows: list[Row] | None = None  # of the last file
        for part in self._parts():
            found = pyarrow.parquet.read_schema(part)
            if found.names != self._schema.names:
                raise _foreign(part, ",".join(found.names))

    def append(self, rows: Sequence[Row]) -> None:
        """Add rows; on an error (a full disk) the table is as it was."""
        self.path.mkdir(parents=True, exist_ok=True)
        parts = self._parts()
        number = max(len(parts) - 1, 0)
        if self._rows is None:
            self._rows = self._read(parts[-1]) if parts else []
        together = [*self._rows, *rows]
        if len(self._rows) >= PART_ROWS:
            number, together = number + 1, list(rows)
        self._write(self.path / f"part-{number:06d}.parquet", together)
        self._rows = together

    def rewind(self, step: int) -> None:
        """Take off the rows at the end that are of later steps: a resumed run makes them again."""
        for part in reversed(self._parts()):
            rows = self._read(part)
            kept = len(rows)
            while kept and rows[kept - 1]["step"] > step:
                kept -= 1
            self._rows = rows[:kept]
            if kept:
                if kept < len(rows):
                    self._write(part, self._rows)
                return
            part.unlink()

    def _parts(self) -> list[Path]:
        return sorted(self.path.glob("part-*.parquet"))

    def _read(self, part: Path) -> list[Row]:
        return self._arrow.parquet.ParquetFile(part).read().to_pylist()

    def _write(self, part: Path, rows: Sequence[Row]) -> None:
        table = self._arrow.Table.from_pylist(list(rows), schema=self._schema)
        _replace(part, lambda file: self._arrow.parquet.write_table(table, file))


def _foreign(path: Path, columns: str) -> ValueError:
    return ValueError(
        f"{path} is another table: expected the columns {', '.join(COLUMNS)}; got {columns[:200]}. Name another path."
    )


def _replace(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write a file under another name and rename it: a reader sees the old file or the new one, never a half."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

"""Rows: the results of many parts as arrays, from which the tidy table is made, and which the index keeps.

A column of texts that repeat for every row is kept once per run, as numbers elsewhere; 20,000 runs of 300 tasks are a
hundred megabytes so, and some gigabytes as a table of texts. Before this: `tables`, which reads one part; after it:
`results`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from neoteny.suite.store.index import FOLDER, FORMAT, Signatures, read_sealed, save_sealed

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

FILE = "rows.arrow"
TEXTS = ("run_id", "method", "setting", "hyperparameters")
_NUMBERS = ("run", "metric", "task", "value")
_KEY = b"rows"


class Owner(NamedTuple):
    """To what a row belongs: its part (the number among them), and what all rows of a run have in common."""

    part: int
    run_id: str
    method: str
    setting: str
    hyperparameters: str
    seed: int


@dataclass(frozen=True)
class Rows:
    """Results of some parts.

    Args:
        parts: their stacks.
        owners: of the rows.
        metrics: their names.
        run, metric: for each row the number of its owner and of its metric.
        task, value: of each row.
    """

    parts: tuple[str, ...]
    owners: tuple[Owner, ...]
    metrics: tuple[str, ...]
    run: np.ndarray
    metric: np.ndarray
    task: np.ndarray
    value: np.ndarray

    @classmethod
    def of(cls, part: str, table: pa.Table) -> Self:
        """The rows of one part's table."""
        codes, words = zip(*(_encode(table.column(name)) for name in (*TEXTS, "metric")), strict=True)
        seeds, seed = np.unique(table.column("seed").to_numpy(), return_inverse=True)
        together = seed.astype(np.int64)
        for code, known in zip(codes[:-1], words[:-1], strict=True):
            together = together * len(known) + code
        _, first, run = np.unique(together, return_index=True, return_inverse=True)
        owners = []
        for row in first:
            run_id, method, setting, details = (
                known[code[row]] for code, known in zip(codes[:-1], words[:-1], strict=True)
            )
            owners.append(Owner(0, run_id, method, setting, details, int(seeds[seed[row]])))
        task, value = (table.column(name).to_numpy() for name in ("task", "value"))
        return cls(
            (part,), tuple(owners), tuple(words[-1]), run.astype(np.int32), codes[-1].astype(np.int32), task, value
        )

    @classmethod
    def join(cls, pieces: Sequence[Self]) -> Self:
        """The rows of several, one after the other."""
        if len(pieces) == 1:
            return pieces[0]
        metrics = list(dict.fromkeys(name for piece in pieces for name in piece.metrics))
        parts, owners, run, metric = [], [], [], []
        for piece in pieces:
            run.append(piece.run + np.int32(len(owners)))
            owners += [owner._replace(part=owner.part + len(parts)) for owner in piece.owners]
            metric.append(np.array([metrics.index(name) for name in piece.metrics], np.int32)[piece.metric])
            parts += piece.parts
        task, value = (np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("task", "value"))
        return cls(
            tuple(parts), tuple(owners), tuple(metrics), np.concatenate(run), np.concatenate(metric), task, value
        )

    def keep(self, wanted: np.ndarray) -> Self:
        """The rows of some owners: a truth value for each. Parts without any are forgotten."""
        if wanted.all() and len({owner.part for owner in self.owners}) == len(self.parts):
            return self
        rows, place = wanted[self.run], np.cumsum(wanted, dtype=np.int32) - np.int32(1)
        owners = [owner for owner, is_wanted in zip(self.owners, wanted, strict=True) if is_wanted]
        parts = sorted({owner.part for owner in owners})
        numbers = {number: new for new, number in enumerate(parts)}
        others = (getattr(self, name)[rows] for name in _NUMBERS[1:])
        return type(self)(
            tuple(self.parts[number] for number in parts),
            tuple(owner._replace(part=numbers[owner.part]) for owner in owners),
            self.metrics,
            place[self.run[rows]],
            *others,
        )

    def of_parts(self, parts: Collection[str]) -> Self:
        """The rows of some parts."""
        wanted = set(parts)  # twenty thousand may be given as a list
        numbers = {number for number, part in enumerate(self.parts) if part in wanted}
        return self.keep(np.array([owner.part in numbers for owner in self.owners], bool))

    def without_runs(self, left_out: Collection[str]) -> Self:
        """The rows of each run once, of its first part; without some runs."""
        seen: dict[str, int] = dict.fromkeys(left_out, -1)
        order = sorted(range(len(self.owners)), key=lambda number: self.parts[self.owners[number].part])
        wanted = np.zeros(len(self.owners), bool)
        for number in order:  # two processes may have trained one run twice
            owner = self.owners[number]
            wanted[number] = seen.setdefault(owner.run_id, owner.part) == owner.part
        return self.keep(wanted)

    def sorted(self) -> Self:
        """By method, setting, seed, metric and task; rows that are equal in these keep the order of their parts."""
        ranks = _rank([owner[2:4] + owner[5:] for owner in self.owners])[self.run]
        metrics = _rank(self.metrics)[self.metric]
        parts = _rank(self.parts)[np.array([owner.part for owner in self.owners], np.int64)][self.run]
        low, high = (int(self.task.min()), int(self.task.max())) if len(self.task) else (0, 0)
        key = (ranks * len(self.metrics) + metrics) * (high - low + 1) + (self.task.astype(np.int64) - low)
        if len(key) < 2 or (key[1:] > key[:-1]).all():
            return self
        order = np.lexsort((parts, key))
        numbers = (getattr(self, name)[order] for name in _NUMBERS)
        return type(self)(self.parts, self.owners, self.metrics, *numbers)

    def frame(self, more: Mapping[str, str], categories: bool = False) -> pd.DataFrame:
        """The tidy table, with a column for each detail of the settings.

        Args:
            more: columns in which all rows have the same text.
            categories: whether columns of texts are categories.
        """
        import pandas as pd

        spread = _spread_categories if categories else _spread
        columns: dict[str, Any] = {}
        for name in TEXTS:
            columns[name] = spread(*_number([getattr(owner, name) for owner in self.owners], self.run))
        columns["seed"] = np.array([owner.seed for owner in self.owners], np.int64)[self.run]
        columns["task"] = self.task
        columns["metric"] = spread(*_number(list(self.metrics), self.metric))
        columns["value"] = self.value
        ordered = sorted(self.owners, key=lambda owner: (owner.method, owner.setting, owner.seed))
        texts = list(dict.fromkeys(owner.hyperparameters for owner in ordered))
        details = {text: json.loads(text) for text in texts}
        code = {text: number for number, text in enumerate(texts)}
        place = np.array([code[owner.hyperparameters] for owner in self.owners], np.int64)[self.run]
        for name in dict.fromkeys(key for text in texts for key in details[text]):
            few = pd.Series(texts).astype(str).map({text: detail.get(name) for text, detail in details.items()})
            are_texts = isinstance(few.dtype, pd.StringDtype)
            columns[name] = (spread if are_texts else _spread)(few, place)
        for name, text in more.items():
            columns[name] = spread(*_number([text], np.zeros(len(self.run), np.int64)))
        return pd.DataFrame(columns, copy=not categories)  # the package's own experiments change nothing in it


def _number(words: list[str], codes: np.ndarray) -> tuple[pd.Series, np.ndarray]:
    """Each of some words once, and for each code the number of its word."""
    import pandas as pd

    known = list(dict.fromkeys(words))
    place = {word: number for number, word in enumerate(known)}
    return pd.Series(known, dtype=object).astype(str), np.array([place[word] for word in words], np.int64)[codes]


def _spread(few: pd.Series, place: np.ndarray) -> Any:
    """A column that has one of few values in each row."""
    return few.take(place).array


def _spread_categories(few: pd.Series, place: np.ndarray) -> Any:
    """The same as categories, sorted, of the values that some row has."""
    import pandas as pd

    there = np.zeros(len(few), bool)
    there[place] = True
    codes, known = pd.factorize(few.where(there), sort=True)
    return pd.Categorical.from_codes(codes[place], pd.Index(known))


def _rank(values: Sequence[Any]) -> np.ndarray:
    """The place of each value among the sorted ones; equal values have the same."""
    place = {value: number for number, value in enumerate(sorted(set(values)))}
    return np.array([place[value] for value in values], np.int64)


def _encode(column: pa.ChunkedArray) -> tuple[np.ndarray, list[str]]:
    """A column of texts as numbers, and the texts."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    array = column.unify_dictionaries().combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    return array.indices.to_numpy().astype(np.int64), array.dictionary.to_pylist()


def save_rows(root: Path, owner: Mapping[str, Any], rows: Rows, files: Signatures) -> None:
    """Keep rows in the index of a results folder, with the signatures that their parts had when they were read."""
    import pyarrow as pa

    about = {
        "format": FORMAT,
        "owner": dict(owner),
        "files": {part: files[part] for part in rows.parts},
        "owners": rows.owners,
        "metrics": rows.metrics,
    }
    columns = {name: pa.array(getattr(rows, name)) for name in _NUMBERS}
    table = pa.table(columns).replace_schema_metadata({_KEY: json.dumps(about)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    save_sealed(root / FOLDER / FILE, sink.getvalue().to_pybytes())


def load_rows(root: Path, owner: Mapping[str, Any], files: Signatures) -> Rows | None:
    """The rows in the index of a results folder, of parts that still have the signatures that they had; None: none."""
    import pyarrow as pa

    content = read_sealed(root / FOLDER / FILE)
    if content is None:
        return None
    try:
        table = pa.ipc.open_file(pa.BufferReader(content)).read_all()
        about = json.loads((table.schema.metadata or {})[_KEY])
        if about["format"] != FORMAT or about["owner"] != dict(owner):
            return None
        known = {part: tuple(signatures) for part, signatures in about["files"].items()}
        owners = tuple(Owner(*fields) for fields in about["owners"])
        numbers = (table.column(name).combine_chunks().to_numpy() for name in _NUMBERS)
        rows = Rows(tuple(known), owners, tuple(about["metrics"]), *numbers)
        return rows.of_parts([part for part in known if known[part] == files.get(part)])
    except (pa.ArrowException, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None  # of another version

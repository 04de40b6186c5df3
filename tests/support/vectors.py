"""Published or hand-computed numbers, each with how to compute it; one test per row.

`PYTHONPATH=src:tests python -m support.vectors` prints the table.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from neoteny.text import render


@dataclass(frozen=True)
class Vector:
    """One expected number or list of numbers; `tolerance` is absolute, what the given digits mean."""

    method: str
    what: str
    expected: float | Sequence[float]
    compute: Callable[[], float | Sequence[float]]
    tolerance: float = 1e-6

    def check(self) -> None:
        np.testing.assert_allclose(
            np.asarray(self.compute(), dtype=float),
            np.asarray(self.expected, dtype=float),
            rtol=0,
            atol=self.tolerance,
            err_msg=f"{self.method}: {self.what}",
        )


def find_vectors() -> Iterator[Vector]:
    """The rows of every `test_vectors_*.py`."""
    for path in sorted(Path(__file__).parents[1].glob("unit/*/test_vectors_*.py")):
        found = importlib.util.spec_from_file_location(path.stem, path)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        torch.set_default_dtype(torch.float64 if hasattr(module, "pytestmark") else torch.float32)
        yield from module.VECTORS


def show(values: float | Sequence[float]) -> str:
    return " ".join(f"{float(value):.7g}" for value in np.asarray(values, dtype=float).ravel())


def main() -> None:
    """Print what was expected and what the library gives; the last line counts the rows that agree."""
    rows: list[list[str]] = []
    wrong = 0
    for vector in find_vectors():
        found = vector.compute()
        difference = np.max(np.abs(np.asarray(found, dtype=float) - np.asarray(vector.expected, dtype=float)))
        agrees = bool(difference <= vector.tolerance)
        wrong += not agrees
        rows.append([vector.method, vector.what, show(vector.expected), show(found), "yes" if agrees else "NO"])
    print(render(["method", "what", "expected", "found", "equal"], rows))
    print(f"{len(rows) - wrong} of {len(rows)} equal to the digits given")


if __name__ == "__main__":
    main()

"""Published or hand-computed numbers, each with how to compute it; one test per row.

`python -m support.vectors` prints the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Vector:
    """One expected number or list of numbers; `digits` is the absolute tolerance that the given digits mean."""

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

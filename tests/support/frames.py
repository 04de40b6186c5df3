"""Made-up frames of results, shaped as the engine's, on which figures, tables and claims are tested.

frame = make_frame(
    [
        Curve("BP", {"step_size": 0.01}, {"accuracy": lambda task: 0.95 - 0.001 * task, "dead_units": 0.2}),
        Curve("CBP", {"step_size": 0.01}, {"accuracy": 0.95, "dead_units": 0.0}, diverged={3: 20}),
    ],
    runs=10,
    tasks=40,
    noise=0.002,
)
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from neoteny.methods import SGD
from neoteny.nets import MLP
from neoteny.suite.sweep import Detail, Setting, network

Shape = Callable[[int], float] | ArrayLike
"""The noiseless curve of a metric: a function of the task number (from 0), one value for each task, or a constant."""


@dataclass(frozen=True)
class Curve:
    """One setting.

    Args:
        method: its name in figures.
        details: the columns that distinguish it.
        metrics: for each metric its noiseless curve (`Shape`).
        runs, tasks, noise: instead of the frame's.
        diverged: for a seed the task from which on its values are nan.
    """

    method: str
    details: Mapping[str, Detail] = field(default_factory=dict)
    metrics: Mapping[str, Shape] = field(default_factory=dict)
    runs: int | None = None
    tasks: int | None = None
    noise: float | Mapping[str, float] | None = None
    diverged: Mapping[int, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """As the engine labels a setting of this method with these details."""
        return Setting(self.method, network(MLP, hidden=()), (SGD(0.01),), self.details).label


def make_frame(
    curves: Sequence[Curve | tuple[str, Mapping[str, Detail], Mapping[str, Shape]]],
    runs: int = 10,
    tasks: int = 40,
    noise: float | Mapping[str, float] = 0.0,
    scale: str = "paper",
    seed: int = 0,
    measure_every: Mapping[str, int] | int = 1,
) -> pd.DataFrame:
    """Rows of every run, task and metric, with the columns of `neoteny.report.statistics`.

    A value is the curve plus `noise` times the sum of: a standard normal draw for the run's seed, common to all
    settings (so that comparing in pairs matters); one of 0.3 for the run itself, which changes from its first to its
    last task (so that a run's end differs from its beginning by chance, too); and one of 0.3 for each task.

    Args:
        curves: the settings, or tuples (method, details, metrics).
        runs: run k has seed k.
        tasks: task numbers 0, ..., tasks - 1.
        noise: one for all metrics, or one for each metric by name (0 for those not named).
        scale: the column `scale`.
        seed: of the noise.
        measure_every: keep every n-th task, for all metrics or by name (1 for those not named).
    """
    parts = []
    for given in curves:
        curve = given if isinstance(given, Curve) else Curve(*given)
        shape = (curve.runs or runs, curve.tasks or tasks)
        level = noise if curve.noise is None else curve.noise
        for metric, values in curve.metrics.items():
            size = level.get(metric, 0.0) if isinstance(level, Mapping) else level
            table = _evaluate(values, shape[1]) + size * _draw_noise(seed, curve.label, metric, shape)
            for diverged, task in curve.diverged.items():
                table[diverged, task:] = np.nan
            every = measure_every.get(metric, 1) if isinstance(measure_every, Mapping) else measure_every
            parts.append(_make_rows(curve, metric, table, every, scale))
    if not parts:
        columns = ["run_id", "method", "setting", "hyperparameters", "seed", "task", "metric", "value", "scale"]
        return pd.DataFrame({name: [] for name in columns})
    return pd.concat(parts, ignore_index=True)


def _evaluate(values: Shape, tasks: int) -> np.ndarray:
    if callable(values):
        return np.array([values(task) for task in range(tasks)], dtype=np.float64)
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (tasks,))


def _draw_noise(seed: int, label: str, metric: str, shape: tuple[int, int]) -> np.ndarray:
    runs, tasks = shape
    common = np.random.default_rng([seed, zlib.crc32(metric.encode())]).standard_normal((runs, 1))
    generator = np.random.default_rng([seed, zlib.crc32(f"{label}/{metric}".encode())])
    first, last = generator.standard_normal((2, runs, 1))
    share = np.linspace(0.0, 1.0, tasks)
    return common + 0.3 * ((1 - share) * first + share * last) + 0.3 * generator.standard_normal((runs, tasks))


def _make_rows(curve: Curve, metric: str, table: np.ndarray, every: int, scale: str) -> pd.DataFrame:
    runs, tasks = table.shape
    seeds, numbers = np.meshgrid(np.arange(runs), np.arange(0, tasks, every), indexing="ij")
    run_ids = np.array([f"{zlib.crc32(f'{curve.label}/{run}'.encode()):08x}" for run in range(runs)], dtype=object)
    return pd.DataFrame(
        {
            "run_id": run_ids[seeds.ravel()],
            "method": curve.method,
            "setting": curve.label,
            "hyperparameters": json.dumps(dict(curve.details)),
            "seed": seeds.ravel(),
            "task": numbers.ravel(),
            "metric": metric,
            "value": table[:, ::every].ravel(),
            "scale": scale,
            **curve.details,
        }
    )

"""Experiments, one file each: `sweep(scale)`, `figure(frame)` and `claims`.

A file of this folder is an experiment if it has a `sweep`; its name with dashes is the experiment's name. A user's own
file works in the same way: `neoteny run my_experiment.py`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from neoteny.engine.sweep import Sweep
    from neoteny.report.chart import Chart
    from neoteny.report.claim import Claim, Unchecked

NAMES = (
    "scr-activations",
    "scr-cbp",
    "scr-utilities",
    "mnist-step-size",
    "mnist-width",
    "mnist-change-rate",
    "mnist-methods",
    "mnist-sensitivity",
    "imagenet-bp",
    "imagenet-methods",
    "imagenet-sweep",
)


class ExperimentError(ValueError):
    """No such experiment, or a file that is none."""


@dataclass(frozen=True)
class Experiment:
    """What an experiment file holds."""

    name: str
    title: str
    description: str
    sweep: Callable[[str], Sweep]
    figure: Callable[[pd.DataFrame], Sequence[Chart]]
    claims: Sequence[Claim]
    unchecked: Sequence[Unchecked]
    path: Path | None = None
    """Where a user's own file is; None for those of the package."""


def load(name_or_path: str) -> Experiment:
    """The experiment of this name, or in this Python file."""
    if name_or_path in NAMES:
        module = importlib.import_module(f"neoteny.experiments.{name_or_path.replace('-', '_')}")
        return _read(module, name_or_path, None)
    path = Path(name_or_path)
    if path.suffix == ".py":
        if not path.is_file():
            raise ExperimentError(f"There is no file {path}.")
        return _read(_import_file(path), path.stem.replace("_", "-"), path)
    from neoteny.engine.sweep import nearest

    raise ExperimentError(
        f"Unknown experiment {name_or_path!r}.{nearest(name_or_path, list(NAMES))} Known are {', '.join(NAMES)}; or "
        "give the path of a Python file."
    )


def _import_file(path: Path) -> ModuleType:
    name = f"neoteny_experiment_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ExperimentError(f"{path} cannot be read as a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # frozen dataclasses and pickles look their module up
    spec.loader.exec_module(module)
    return module


def _read(module: ModuleType, name: str, path: Path | None) -> Experiment:
    for wanted in ("sweep", "figure", "claims"):
        if not hasattr(module, wanted):
            raise ExperimentError(
                f"{path or name} has no `{wanted}`. An experiment file has sweep(scale), figure(frame) and claims; see "
                "docs/adding-an-experiment.md."
            )
    title, _, rest = (module.__doc__ or name).strip().partition("\n")
    return Experiment(
        name,
        title.strip().rstrip("."),
        rest.strip(),
        module.sweep,
        module.figure,
        tuple(module.claims),
        tuple(getattr(module, "unchecked", ())),
        path,
    )

"""Experiments, one file each: `sweep(scale)`, `figure(frame)` and `claims`.

`NAMES` are those of the paper, `VARIANTS` our own. A user's file works in the same way: `neoteny run my_experiment.py`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from neoteny.experiments import old_names

if TYPE_CHECKING:
    import pandas as pd

    from neoteny.report.chart import Chart
    from neoteny.report.claim import Claim, Unchecked, Verdict
    from neoteny.suite.sweep import Sweep

NAMES = (
    *("scr-activations", "scr-cbp", "scr-utilities"),
    *("mnist-step-size", "mnist-width", "mnist-change-rate", "mnist-methods", "mnist-sensitivity"),
    *("imagenet-bp", "imagenet-methods", "imagenet-sweep"),
    *("ant-methods", "ant-utilities", "ant-sweep"),
)
"""The paper's experiments: the folder (scr: regression), then the module."""
VARIANTS = (
    *("hundred-units", "hundred-units-change", "two-thousand-units", "eight-hundred-tasks", "cbp-variants"),
    *("scr-variants", "imagenet-stand-in"),
)
"""Experiments of our own: the paper's with other sizes or settings."""


class ExperimentError(ValueError):
    """Unknown experiment, or a file that does not define one."""


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

    def make_sweep(self, scale: str) -> Sweep:
        """`sweep(scale)`, checked."""
        from neoteny.suite.sweep import Sweep

        made = self.sweep(scale)
        if not isinstance(made, Sweep):
            raise ExperimentError(f"{self.path or self.name}: sweep({scale!r}) must return a Sweep; got {made!r}.")
        return made

    def draw(self, frame: pd.DataFrame) -> list[Chart]:
        """`figure(frame)`, checked; one chart alone is as good as a list of one."""
        from neoteny.report.chart import Chart

        drawn = self.figure(frame)
        charts = [drawn] if isinstance(drawn, Chart) else drawn
        if not isinstance(charts, Sequence) or not all(isinstance(chart, Chart) for chart in charts):
            raise ExperimentError(f"{self.path or self.name}: figure(frame) must return charts; got {drawn!r}.")
        return list(charts)

    def evaluate(self, claim: Claim, frame: pd.DataFrame) -> Verdict:
        """The verdict on a claim; inconclusive where its check raises, so that the other claims are not lost."""
        from neoteny.report.claim import Outcome, Verdict

        try:
            verdict = claim.evaluate(frame)
        except Exception as error:
            return Verdict(Outcome.INCONCLUSIVE, f"the check raised {type(error).__name__}: {error}")
        if not isinstance(verdict, Verdict):
            return Verdict(Outcome.INCONCLUSIVE, f"the check must return a Verdict; got {verdict!r}")
        return verdict


def module_of(name: str) -> str:
    """The module of a named experiment."""
    folder, _, module = ("variants-" + name if name in VARIANTS else name).partition("-")
    return f"neoteny.experiments.{folder.replace('scr', 'regression')}.{module.replace('-', '_')}"


def load(name_or_path: str, name: str = "", folder: str = "") -> Experiment:
    """The experiment of this name, or in this Python file.

    Args:
        name_or_path: which.
        name: instead of the file's own.
        folder: where the file came from, if it is a copy; what it imports from there is found.
    """
    if name_or_path in (*NAMES, *VARIANTS):
        module = importlib.import_module(module_of(name_or_path))
        return _read(module, name_or_path, None)
    path = Path(name_or_path)
    if path.suffix == ".py":
        if not path.is_file():
            raise ExperimentError(f"There is no file {path}.")
        return _read(_import_file(path, folder), name or path.stem.replace("_", "-"), path)
    from neoteny.text import nearest

    raise ExperimentError(
        f"Unknown experiment {name_or_path!r}.{nearest(name_or_path, [*NAMES, *VARIANTS])} Known are "
        f"{', '.join((*NAMES, *VARIANTS))}; or give the path of a Python file."
    )


def _import_file(path: Path, folder: str) -> ModuleType:
    old_names.install()
    name = f"neoteny_experiment_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ExperimentError(f"{path} cannot be read as a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # frozen dataclasses and pickles look their module up
    places = [str(path.resolve().parent), *([folder] if folder else [])]
    sys.path[:0] = places
    try:
        spec.loader.exec_module(module)
    except (ValueError, TypeError):
        raise  # the command line explains these, with the line
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        place = f"{path}, line {lines[-1]}" if lines else str(path)
        raise ExperimentError(f"{place}: {type(error).__name__}: {error}") from error
    finally:
        for place in places:
            sys.path.remove(place)
    return module


def _read(module: ModuleType, name: str, path: Path | None) -> Experiment:
    for wanted in ("sweep", "figure", "claims"):
        if not hasattr(module, wanted):
            raise ExperimentError(
                f"{path or name} has no `{wanted}`. An experiment file has sweep(scale), figure(frame) and claims; see "
                "docs/adding-an-experiment.md."
            )
    if not isinstance(module.claims, Sequence):
        raise ExperimentError(f"{path or name}: claims must be a tuple of claims; got {type(module.claims).__name__}.")
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

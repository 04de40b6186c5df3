"""Experiments, one file each: `sweep(scale)`, `figure(frame)` and `claims`.

`NAMES` are those of the paper, `VARIANTS` our own, `FIELD` the comparison of all methods, `PUBLISHED` other papers'
numbers made again. A user's file works in the same way: `neoteny run my_experiment.py`.
"""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from neoteny.experiments.user_code import ExperimentError, UserCode

if TYPE_CHECKING:
    import pandas as pd

    from neoteny.report.analysis import Analysis
    from neoteny.report.chart import Chart
    from neoteny.report.claim import Claim, Unchecked, Verdict
    from neoteny.suite.sweep import Sweep

__all__ = [
    "EVERY",
    "FIELD",
    "GROUPS",
    "NAMES",
    "PUBLISHED",
    "VARIANTS",
    "Experiment",
    "ExperimentError",
    "UserCode",
    "load",
    "load_file",
    "module_of",
]

T = TypeVar("T")
NAMES = (
    *("scr-activations", "scr-cbp", "scr-utilities"),
    *("mnist-step-size", "mnist-width", "mnist-change-rate", "mnist-methods", "mnist-sensitivity"),
    *("imagenet-bp", "imagenet-methods", "imagenet-sweep"),
    *("ant-methods", "ant-utilities", "ant-sweep"),
)
"""The paper's experiments: the folder (scr: regression), then the module."""
VARIANTS = (
    *("hundred-units", "hundred-units-change", "three-hundred-units", "thousand-units", "two-thousand-units"),
    *("eight-hundred-tasks", "cbp-variants", "scr-variants", "imagenet-stand-in"),
)
"""Experiments of our own: the paper's with other sizes or settings."""
FIELD = (
    *("field-permuted-mnist", "field-regression", "field-input-permuted-mnist", "field-label-permuted-mnist"),
    *("field-l2-init-mnist", "field-random-label-mnist", "field-warm-start", "field-class-incremental"),
    "field-shakespeare",
)
"""Every method on one problem after another."""
PUBLISHED = (
    *("published-input-permuted-mnist", "published-l2-init-mnist", "published-random-label-mnist"),
    "published-control",
)
"""Numbers that others printed, made again at their own sizes."""
GROUPS = {"field": FIELD, "published": PUBLISHED}
"""Names that stand for several experiments: `neoteny run field` runs one after the other."""
EVERY = (*NAMES, *VARIANTS, *FIELD, *PUBLISHED)
"""All experiments of the package."""


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
    code: UserCode | None = None
    """A user's own file; None for experiments of the package."""

    @property
    def path(self) -> Path | None:
        """Where a user's own file is; None for those of the package."""
        return self.code.path if self.code else None

    def make_sweep(self, scale: str) -> Sweep:
        """`sweep(scale)`, checked."""
        from neoteny.suite.sweep import Sweep

        made = self._call(self.sweep, scale)
        if not isinstance(made, Sweep):
            raise ExperimentError(
                f"{self._place(self.sweep)}: sweep({scale!r}) must return a Sweep; got {_show(made)}."
            )
        return made

    def draw(self, frame: pd.DataFrame) -> list[Chart]:
        """`figure(frame)`, checked; one chart alone is as good as a list of one."""
        from neoteny.report.chart import Chart

        drawn: Any = self._call(self.figure, self._copy(frame))  # a user's may return anything
        charts = [drawn] if isinstance(drawn, Chart) else drawn
        if isinstance(drawn, Iterator):  # a figure that yields its charts has not run yet
            charts = self._call(list, drawn)
        if not isinstance(charts, Sequence) or not all(isinstance(chart, Chart) for chart in charts):
            raise ExperimentError(f"{self._place(self.figure)}: figure(frame) must return charts; got {_show(drawn)}.")
        return list(charts)

    def evaluate(self, claim: Claim, frame: pd.DataFrame) -> Verdict:
        """The verdict on a claim; inconclusive where its check raises, so that the other claims are not lost."""
        return self._evaluate(claim, frame)[0]

    def analyse(self, frame: pd.DataFrame, sweep: Sweep) -> Analysis:
        """All that the experiment says of these results; what fails in a user's file is said instead."""
        from neoteny.report.analysis import Analysis, Stated

        if self.code is None:  # a user's file gets the texts as they are
            frame = _with_categories(frame)
        charts, failures = [], []
        try:
            charts = self.draw(frame)
        except ExperimentError as error:
            _show_traceback(error)
            failures.append(f"The figure could not be drawn. {error}")
        judged = []
        for claim in self.claims:
            verdict, failure = self._evaluate(claim, frame)
            judged.append((Stated(claim.name, claim.statement, claim.source), verdict))
            failures += [f"Claim {claim.name!r} could not be checked. {failure}"] if failure else []
        return Analysis(
            title=self.title,
            description=self.description,
            metric=sweep.problem.performance,
            higher_is_better=sweep.problem.higher_is_better,
            charts=tuple(charts),
            claims=tuple(judged),
            unchecked=tuple(self.unchecked),
            chosen=tuple((item.what, item.value, item.reason) for item in sweep.chosen),
            failures=tuple(failures),
        )

    def _evaluate(self, claim: Claim, frame: pd.DataFrame) -> tuple[Verdict, str]:
        """The verdict, and what failed in a user's file."""
        from neoteny.report.claim import Coverage, Outcome, Verdict

        try:
            verdict = self._call(claim.evaluate, self._copy(frame))
        except ExperimentError as error:
            _show_traceback(error)
            return Verdict(Outcome.INCONCLUSIVE, f"the check failed: {error}"), str(error)
        except Exception as error:
            _show_traceback(error)
            text = f"the check raised {type(error).__name__}: {error}"
            return Verdict(Outcome.INCONCLUSIVE, text), "" if self.code is None else f"{self.path}: {text}"
        if (
            isinstance(verdict, Verdict)
            and isinstance(verdict.outcome, Outcome)
            and isinstance(verdict.coverage, Coverage)
            and isinstance(verdict.evidence, str)
        ):
            return verdict, ""
        wrong = (
            f"{self._place(claim.check)}: a check must return a Verdict of an Outcome and text; got {_show(verdict)}"
        )
        return Verdict(Outcome.INCONCLUSIVE, f"the check failed: {wrong}"), wrong

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments) if self.code is None else self.code.call(function, *arguments)

    def _copy(self, frame: pd.DataFrame) -> pd.DataFrame:
        """A user's function may change the table that it is given; the next one must not see that."""
        return frame if self.code is None else frame.copy()

    def _place(self, function: Callable[..., Any]) -> str:
        return self.name if self.code is None else self.code.place(function)


def _with_categories(frame: pd.DataFrame) -> pd.DataFrame:
    """The same table with its texts as categories: rows are found and copied several times faster."""
    import pandas as pd

    texts = [name for name in frame.columns if isinstance(frame[name].dtype, pd.StringDtype)]
    return frame.astype(dict.fromkeys(texts, "category"))


def module_of(name: str) -> str:
    """The module of a named experiment."""
    folder, _, module = ("variants-" + name if name in VARIANTS else name).partition("-")
    return f"neoteny.experiments.{folder.replace('scr', 'regression')}.{module.replace('-', '_')}"


def load(name_or_path: str) -> Experiment:
    """The experiment of this name, or in this Python file."""
    if name_or_path in EVERY:
        return _read(importlib.import_module(module_of(name_or_path)), name_or_path)
    if name_or_path.endswith(".py"):
        return load_file(UserCode.read(Path(name_or_path)))
    from neoteny.text import nearest

    raise ExperimentError(
        f"Unknown experiment {name_or_path!r}.{nearest(name_or_path, [*EVERY, *GROUPS])} Known are "
        f"{', '.join((*EVERY, *GROUPS))}; or give the path of a Python file."
    )


def load_file(code: UserCode, name: str = "") -> Experiment:
    """The experiment in a user's file, which is run; by this name instead of the file's own."""
    return _read(code.load(), name or code.path.stem.replace("_", "-"), code)


def _read(module: ModuleType, name: str, code: UserCode | None = None) -> Experiment:
    place = name if code is None else code.path
    for wanted in ("sweep", "figure", "claims"):
        if not hasattr(module, wanted):
            raise ExperimentError(
                f"{place} has no `{wanted}`. An experiment file has sweep(scale), figure(frame) and claims; see "
                "docs/adding-an-experiment.md."
            )
        if wanted != "claims" and not callable(getattr(module, wanted)):
            raise ExperimentError(f"{place}: {wanted} must be a function; got {_show(getattr(module, wanted))}.")
    from neoteny.report.claim import Claim, Unchecked

    text = module.__doc__ if isinstance(module.__doc__, str) else name
    title, _, rest = text.strip().partition("\n")
    return Experiment(
        name,
        title.strip().rstrip("."),
        rest.strip(),
        module.sweep,
        module.figure,
        _read_statements(place, "claims", module.claims, Claim),
        _read_statements(place, "unchecked", getattr(module, "unchecked", ()), Unchecked),
        code,
    )


def _read_statements(place: object, what: str, found: object, kind: type[T]) -> tuple[T, ...]:
    """The claims of a module, or what it leaves unchecked: a sequence of them, all texts, no name twice."""
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise ExperimentError(f"{place}: {what} must be a tuple of {kind.__name__}; got {_show(found)}.")
    names = []
    for number, one in enumerate(found, start=1):
        if not isinstance(one, kind):
            raise ExperimentError(f"{place}: number {number} of {what} must be a {kind.__name__}; got {_show(one)}.")
        for key in ("name", "statement", "source", "reason", "scale"):
            if not isinstance(getattr(one, key, ""), str):
                value = _show(getattr(one, key))
                raise ExperimentError(f"{place}: number {number} of {what}: {key} must be text; got {value}.")
        if not callable(getattr(one, "check", callable)):
            raise ExperimentError(f"{place}: number {number} of {what}: check must be a function of the frame.")
        names.append(getattr(one, "name", number))
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ExperimentError(f"{place}: two claims are called {twice[0]!r}; every claim needs a name of its own.")
    return tuple(found)


def _show_traceback(error: Exception) -> None:
    """Print the whole traceback where it is asked for; without it the error is said and the rest goes on."""
    if os.environ.get("NEOTENY_TRACEBACK"):
        traceback.print_exception(error)


def _show(value: object) -> str:
    """A value for a message: short and on one line, also where its own text is not."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = "a value that cannot be shown"
    return f"{type(value).__name__}: {text[:200]}"

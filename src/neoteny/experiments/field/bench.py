"""Bench: what one problem of the field gives every method, and the four settings that each method gets on it.

Every method has the same budget, plain optimizers included. Its first setting is the published one; three more are
searched. All four run with the tuning seeds. Then the published one and the best of the others run with the judging
seeds, which no choice has seen (`Selection`). From `recipes`, the table of methods, to the `Sweep` of a problem's file.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from neoteny.experiments import module_of
from neoteny.experiments.scales import assume, pick
from neoteny.methods.method import Method
from neoteny.nets import MLP
from neoteny.problems.problem import Problem
from neoteny.suite.sweep import Assumption, Selection, Setting, Sweep, network

BUDGET = 4
"""Settings of each method."""
FIRST_JUDGE = 12
"""The first judging seed; those before it were looked at while the step sizes of the search were still being chosen."""
PUBLISHED, SEARCHED = "published", "searched"
"""The role of a setting: the first of its method, or one of the others."""
SMOKE = ("SGD", "Adam", "From scratch", "L2", "CBP", "Layer norm", "FIRE")
"""What tests run: each way of being a method once."""


@dataclass(frozen=True)
class Bench:
    """One problem at one scale, as methods see it.

    Attributes:
        problem: the stream of tasks.
        hidden: units of each hidden layer of an MLP.
        base: "SGD" or "Adam": the optimizer of methods that are none.
        step_sizes: four for each of "SGD", "Adam" and "Muon". The first is that with which the plain optimizer does
            best, or the usual one where that was not tried; the second is the next larger, which remedies may allow.
            Methods with two values to search have these two, or the published one and the first.
        published: by method, what its authors, or others who ran it on this problem, use here: "step_size", the number
            that the search varies, and options that stay.
        options: of all networks.
        build: the class of all networks. Methods that are options of an MLP are left out with another class.
        seeds: tuning and judging seeds instead of the usual numbers.
        updates_per_silence: what SNR presumes of a unit before it knows better, in updates.
    """

    problem: Problem
    base: str
    step_sizes: Mapping[str, tuple[float, ...]]
    published: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    updates_per_silence: int = 100
    hidden: tuple[int, ...] = ()
    build: type[nn.Module] = MLP
    seeds: tuple[int, int] | None = None

    @property
    def steps(self) -> int:
        """Updates per task."""
        return self.problem.steps_per_task

    @property
    def boundary(self) -> dict[str, Any]:
        """When a method acts that acts between tasks: by a clock, on a problem that does not tell."""
        told = self.problem.tells_task
        return {"period": 0 if told else self.steps, "at_boundaries": told}


Build = Callable[..., tuple[Method, ...]]


@dataclass(frozen=True)
class Recipe:
    """How a method is set up on any bench.

    Attributes:
        build: from the bench, a step size, the value that is searched and the bench's own options to the methods.
        column: what the search varies beside the step size, as results name it; "" for the step size alone.
        values: two values of it, the published one first.
        source: where the first setting comes from, in a few words.
        optimizer: whose step sizes it takes; "" for those of the bench's base.
        options: of the network.
        costly: an update takes so long that it runs at the paper's scale only.
        needs_tasks: it acts on data of a new task, so it runs where the problem tells when a task begins.
    """

    build: Build
    column: str = ""
    values: tuple[float, ...] = ()
    source: str = "no setting published for such a problem; the method's default"
    optimizer: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    costly: bool = False
    needs_tasks: bool = False

    def __post_init__(self) -> None:
        if bool(self.column) != (len(self.values) == 2):
            raise ValueError(
                f"Recipe: a column needs two values, and values a column; got {self.column!r}, {self.values}."
            )


def make_settings(name: str, recipe: Recipe, bench: Bench) -> Iterator[Setting]:
    """The four settings of a method on a bench, the published one first.

    Two step sizes by two values; or four step sizes, where there is nothing else to search.
    """
    known = dict(bench.published.get(name, {}))
    step_sizes = _first(known.pop("step_size", None), bench.step_sizes[recipe.optimizer or bench.base])
    values: Sequence[float | None] = (None,)
    if recipe.column:
        values = _first(known.pop(recipe.column, None), recipe.values)[:2]
    options = {**bench.options, **recipe.options}
    if bench.build is MLP:
        paired = options.get("activation") == "fourier"  # features come in pairs
        options["hidden"] = tuple(width + width % 2 for width in bench.hidden) if paired else bench.hidden
    for number in range(BUDGET):
        step_size, value = step_sizes[number // len(values)], values[number % len(values)]
        methods = recipe.build(bench, step_size, value, **known)
        details: dict[str, float | str] = {"role": SEARCHED if number else PUBLISHED, "step_size": step_size}
        if value is not None:
            details[recipe.column] = value
        yield Setting(name, network(bench.build, **options), methods, details)


def _first(published: float | None, values: Sequence[float]) -> tuple[float, ...]:
    """The values with the published one at their head."""
    if published is None:
        return tuple(values)
    return (published, *(value for value in values if value != published))


def find_source(name: str, recipe: Recipe, bench: Bench) -> str:
    """Where the first setting of a method comes from."""
    return "published for this problem" if name in bench.published else recipe.source


def make_sweep(scale: str, bench: Bench, chosen: Sequence[Assumption] = ()) -> Sweep:
    """The sweep of every method on a bench."""
    from neoteny.experiments.field.recipes import RECIPES

    settings = [
        setting
        for name, recipe in RECIPES.items()
        if (scale != "smoke" or name in SMOKE)
        and (scale == "paper" or not recipe.costly)
        and (bench.problem.tells_task or not recipe.needs_tasks)
        and (bench.build is MLP or not recipe.options)
        for setting in make_settings(name, recipe, bench)
        if _follows(bench, setting)
    ]
    tuning, judging = bench.seeds or (tuning_runs(scale), judging_runs(scale))
    return Sweep(
        problem=bench.problem,
        settings=tuple(settings),
        runs=tuning,
        selection=Selection(judging, by=("method", "role"), first_seed=FIRST_JUDGE),
        chosen=(*PROTOCOL, *chosen),
    )


def _follows(bench: Bench, setting: Setting) -> bool:
    """Whether the optimizer of a setting follows the schedule of step sizes that some problems have."""
    return not bench.problem.schedules_step_size or vars(type(setting.methods[0])).get("follows_schedule", False)


def load_bench(name: str, scale: str) -> Bench:
    """The bench of a named experiment of the field."""
    return importlib.import_module(module_of(name)).make_bench(scale)


def tuning_runs(scale: str) -> int:
    """Seeds 0, 1, ... by which settings are chosen."""
    return pick(scale, smoke=2, laptop=6, paper=6)


def judging_runs(scale: str) -> int:
    """Seeds from `FIRST_JUDGE` on, by which methods are judged."""
    return pick(scale, smoke=2, laptop=10, paper=20)


PROTOCOL = assume("""
- budget of the search | four settings per method, plain optimizers included: two step sizes by two values of the
  method's main number, or four step sizes | the same for all, so that no method is better because it was searched more
- step sizes of the search | one of the two is that with which the plain optimizer does best, by the tuning seeds; the
  other is the published one, or the next larger | a method must not lose because its baseline alone had a good one
- published setting | what the authors, or others who ran the method on this problem, report; else what they report for
  the nearest problem; else the default | it is run as it is, also at scales that are smaller than theirs
- moment of methods that act between tasks | on a clock of one task's length, where the problem does not tell of tasks |
  a learner that is told has an advantage; here the clock gives it to these methods alone, and the table says so
- plasticity injection | once, after half of all updates | its authors inject once
- seeds | settings are chosen by the first seeds, methods are judged by the others | a setting that was best by luck
  must not keep that luck
""")

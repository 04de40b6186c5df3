"""What the experiments on slowly-changing regression share: the problem at each scale, the learners, their curves.

The problem and the learner are those of the paper's Appendix B and Table B.3: 21 bits of which 15 flip rarely, a target
network of 100 threshold units, a learner of five hidden units trained on one example at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pandas as pd

from neoteny.experiments.scales import assume, pick, scale_of
from neoteny.methods import SGD, Adam
from neoteny.methods.method import Method
from neoteny.nets import MLP
from neoteny.problems import SlowlyChangingRegression
from neoteny.report.chart import Chart
from neoteny.report.statistics import curve, select
from neoteny.report.trends import Line, best_of, count_runs, rise, subtract
from neoteny.suite.sweep import Assumption, Network, Setting, network

ACTIVATIONS = {
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "elu": "ELU",
    "leaky_relu": "leaky ReLU",
    "relu": "ReLU",
    "swish": "Swish",
}
"""The six activations, as settings name them and as figures print them."""
OPTIMIZERS = ("SGD", "Adam")
BIN_EXAMPLES = 40_000
_POINTS = 30

BASELINE, OUTPUT_GAIN, TARGET_BIAS, LEAKY_SLOPE = assume("""
- step size of the linear baseline | the same step sizes as the networks; the best of them is drawn and compared with |
  the paper draws a linear baseline and does not say how it was trained; the best one is the hardest to beat
- initial weights of the output layer | Kaiming uniform with gain 1, biases zero | the paper gives gains for
  activations only, and the output layer is linear
- bias of the target network's output | +1 or -1, drawn once like the weights | the paper's table gives the output
  layer a bias and no value for it
- negative slope of leaky ReLU | 0.01 | torch's own; the paper's formula for the gain leaves it open
""")


def make_problem(scale: str, laptop_tasks: int = 60, laptop_examples_per_task: int = 2000) -> SlowlyChangingRegression:
    """The problem at a scale: a task is the time between two flips, and the paper's 3M examples are 300 tasks."""
    return pick(
        scale,
        smoke=SlowlyChangingRegression(tasks=12, examples_per_task=20),
        laptop=SlowlyChangingRegression(tasks=laptop_tasks, examples_per_task=laptop_examples_per_task),
        paper=SlowlyChangingRegression(tasks=300, examples_per_task=10_000),
    )


def step_sizes(scale: str) -> tuple[float, ...]:
    """The paper's three; on a laptop larger ones, because the loss goes with the number and the size of updates."""
    return pick(scale, smoke=(0.01, 0.003, 0.001), laptop=(0.03, 0.01, 0.003), paper=(0.01, 0.003, 0.001))


def choose(
    problem: SlowlyChangingRegression, scale: str, activations: Iterable[str], varies_step_size: bool = False
) -> tuple[Assumption, ...]:
    """What the paper leaves open about problem and learners, and what the laptop scale changes in them."""
    silent = (OUTPUT_GAIN, TARGET_BIAS, *((LEAKY_SLOPE,) if "leaky_relu" in activations else ()))
    if scale != "laptop":
        return silent
    shorter = Assumption(
        "time between two flips at the laptop scale",
        f"{problem.examples_per_task:,} examples instead of 10,000, and {problem.tasks} flips instead of 300",
        "the loss shows after a number of flips; with shorter tasks there are enough of them in minutes",
    )
    larger = Assumption(
        "step sizes at the laptop scale",
        f"{', '.join(f'{size:g}' for size in step_sizes(scale))} instead of the paper's 0.01, 0.003 and 0.001",
        "the loss goes with the number and the size of updates, of which there are few",
    )
    return (*silent, shorter, *((larger,) if varies_step_size else ()))


def make_learner(activation: str) -> Network:
    """The network of five hidden units."""
    return network(MLP, hidden=(5,), activation=activation)


def make_optimizer(name: str, step_size: float) -> Method:
    """SGD or Adam by its name in tables."""
    return Adam(step_size) if name == "Adam" else SGD(step_size)


def make_baselines(optimizers: Iterable[str], step_sizes: Iterable[float]) -> list[Setting]:
    """Linear learners, one per optimizer and step size."""
    sizes, linear = tuple(step_sizes), network(MLP, hidden=())
    return [
        Setting("Linear", linear, (make_optimizer(name, size),), {"optimizer": name, "step_size": size})
        for name in optimizers
        for size in sizes
    ]


def baseline(frame: pd.DataFrame, optimizer: str, by_others: bool = False) -> pd.DataFrame:
    """The errors of the best linear baseline of an optimizer; `by_others` as of `best_of`."""
    return best_of(select(frame, "error", method="Linear", optimizer=optimizer), "error", False, by_others)


def drift(frame: pd.DataFrame, optimizer: str) -> pd.Series:
    """Each stream's rise of the linear baseline's error from early to late; nothing without a baseline.

    The target function is harder in some states of the slow bits than in others. The baseline has no hidden units that
    could be lost, so its rise stands for that.
    """
    return rise(baseline(frame, optimizer, by_others=True))


def excess_rise(rows: pd.DataFrame, drift: pd.Series) -> pd.Series:
    """Each run's rise of the error from early to late, less the drift of its stream; nothing where that is unknown."""
    return subtract(rise(rows), drift)


def select_errors(frame: pd.DataFrame, method: str, activation: str, optimizer: str) -> pd.DataFrame:
    """The errors of a method with an activation and an optimizer, at all its settings."""
    return select(frame, "error", method=method, activation=activation, optimizer=optimizer)


def draw_panels(
    frame: pd.DataFrame, problem: SlowlyChangingRegression, group: str, lines_of: Callable[[str, str], Iterable[Line]]
) -> list[Chart]:
    """One panel per optimizer and activation with results: its lines (`lines_of` gives them) and the linear baseline;
    `group` has a place for the optimizer."""
    charts = []
    for optimizer in OPTIMIZERS:
        linear: Line = ("linear baseline", baseline(frame, optimizer), {"method": "Linear", "dashed": True})
        for activation, label in ACTIVATIONS.items():
            lines = list(lines_of(activation, optimizer))
            charts += draw_errors(frame, problem, label, group.format(optimizer), [*lines, linear] if lines else [])
    return charts


def draw_errors(
    frame: pd.DataFrame, problem: SlowlyChangingRegression, title: str, group: str, lines: Iterable[Line]
) -> list[Chart]:
    """One panel of errors over examples, of the lines that have rows; no panel if none has."""
    shown = [line for line in lines if len(line[1])]
    if not shown:
        return []
    bin_tasks = bin_size(frame, problem)
    examples = problem.examples_per_task
    series = tuple(curve(rows, name, bin_tasks, x_scale=examples, **options) for name, rows, options in shown)
    caption = (
        f"Squared error before each update, in bins of {bin_tasks * examples:,} examples; mean over "
        f"{count_runs(pd.concat([rows for _, rows, _ in shown]))}, band: one standard error."
    )
    return [Chart(title, "examples", "squared error", series, caption, group)]


def bin_size(frame: pd.DataFrame, problem: SlowlyChangingRegression) -> int:
    """Tasks per bin: 40,000 examples at the paper's scale, elsewhere enough for about thirty points."""
    if scale_of(frame) == "paper":
        return max(1, BIN_EXAMPLES // problem.examples_per_task)
    tasks = int(frame["task"].max()) + 1 if len(frame) else problem.tasks
    return max(1, tasks // _POINTS)

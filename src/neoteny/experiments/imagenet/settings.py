"""What the experiments on Continual ImageNet share: the problem at each scale, networks, settings, curves and bins.

Problem and network are those of the paper's Section 2 and Table 1: pairs of classes of 32x32 images, three
convolutions and three linear layers, SGD with momentum 0.9, mini-batches of 100, 250 epochs per task, heads set to zero
at task changes.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from neoteny.experiments.scales import assume, pick, scale_of
from neoteny.methods import L2, SGD, ContinualBackprop, ShrinkAndPerturb
from neoteny.methods.method import Method
from neoteny.nets import MLP, ConvNet
from neoteny.problems import ContinualImageNet
from neoteny.report.chart import Chart
from neoteny.report.statistics import curve
from neoteny.report.trends import Line, count_runs
from neoteny.suite.sweep import Assumption, Detail, Network, Setting, network

MOMENTUM = 0.9
MATURITY_THRESHOLD = 100
BACKPROPAGATION_STEP_SIZES = (0.1, 0.03, 0.01, 0.003, 0.001, 0.0001)
"""In the search at the paper's scale."""
BIN_TASKS = 50
_POINTS = 30
_WINDOWS = 8

POOLING, INITIAL, PIXELS, HEADS, NOISE, IMAGES, STAND_IN, SMOKE, LAPTOP, LAPTOP_STEP_SIZES = assume("""
- stride of the max-pooling | 2 | Table 1 prints 1, with which the first linear layer would have 56,448 inputs; the
  published code pools with 2
- initial weights of the convolutional network | torch's own (uniform within 1 / sqrt(inputs) for weights and biases) |
  the paper gives the distribution for its other problems only
- scaling of the pixels | to [0, 1], less 0.5 | the paper gives none; a fixed constant is the same for every source of
  images
- heads at a task change | weights, biases and their momentum set to zero | the paper names the weights only; a bias or
  a momentum that stayed would carry the last task's labels over
- noise of shrink and perturb | the paper's numbers as standard deviations | the paper calls them variances, the
  published code passes them as standard deviations
- which images of a class | the first 600 of its training images as they are stored, then the next 100 for testing |
  the paper gives the numbers of images and not how they were picked
- images at the laptop scale | pairs of 200 classes of 550 images (imagenet200_32) | a stand-in for the paper's 1000
  classes of 700 images, which few have at hand
- training at the smoke scale | made-up images, one epoch, a network of a few filters and units with Kaiming uniform
  initial weights | to see in seconds that everything runs; its numbers mean nothing
- training at the laptop scale | 150 training images a class, mini-batches of 30, 10 epochs, an eighth of the filters
  and units of Table 1, Kaiming uniform initial weights | what two processor cores train in minutes; narrow networks
  lose plasticity sooner, and from torch's smaller initial weights they would not leave chance in so few updates
- step sizes at the laptop scale | up to 0.03, where Figure 1 has up to 0.01 | the loss goes with the number and size
  of updates, of which there are a thirtieth of the paper's in a task
""")


def make_problem(scale: str, paper_tasks: int, laptop_tasks: int = 100) -> ContinualImageNet:
    """The problem at a scale; the paper has 2000 tasks in Figure 1 and 5000 in Figure 7."""
    return pick(
        scale,
        smoke=ContinualImageNet(tasks=6, source="synthetic", train_images=20, test_images=10, batch_size=20, epochs=1),
        laptop=ContinualImageNet(
            tasks=laptop_tasks, source="imagenet200_32", train_images=150, test_images=100, batch_size=30, epochs=10
        ),
        paper=ContinualImageNet(tasks=paper_tasks, source="imagenet32"),
    )


def make_network(scale: str) -> Network:
    """The convolutional network of Table 1; with an eighth of its filters and units at the laptop scale.

    A narrow network with torch's small initial weights needs thousands of updates to leave chance, which only the
    paper's scale has; the others take Kaiming's.
    """
    return pick(
        scale,
        smoke=network(ConvNet, filters=(2, 4, 4), units=8, init="kaiming_uniform"),
        laptop=network(ConvNet, filters=(4, 8, 16), units=16, init="kaiming_uniform"),
        paper=network(ConvNet),
    )


def stack_size(scale: str) -> int:
    """Runs per stack; on a processor a convolutional network costs as much in a stack as alone, so stacks are small."""
    return pick(scale, smoke=30, laptop=5, paper=30)


def choose(scale: str) -> tuple[Assumption, ...]:
    """What the paper does not say, and what the smaller scales change."""
    if scale == "paper":
        return (POOLING, INITIAL, PIXELS, HEADS, IMAGES)
    return (POOLING, PIXELS, HEADS, *((SMOKE,) if scale == "smoke" else (STAND_IN, LAPTOP, LAPTOP_STEP_SIZES)))


def choose_for_backpropagation(step_sizes: Iterable[float]) -> Assumption:
    """The step sizes of backpropagation where it is compared with other methods."""
    return Assumption(
        "step sizes of backpropagation",
        f"{_list(step_sizes)}; the one with the best mean over all tasks counts",
        "Table A.2 has no row for backpropagation. Appendix A speaks of it together with L2, and Figure 1 has smaller "
        "ones",
    )


def choose_for_baseline(step_sizes: Iterable[float]) -> Assumption:
    """The training of the linear baseline."""
    return Assumption(
        "training of the linear baseline",
        f"SGD with momentum 0.9, the same mini-batches and epochs, step sizes {_list(step_sizes)}; the best of them is "
        "drawn and compared with",
        "the paper draws a linear baseline and does not say how it was trained; its only layer is the head, so it "
        "starts from zero in every task",
    )


def _list(step_sizes: Iterable[float]) -> str:
    return ", ".join(f"{size:g}" for size in step_sizes)


def make_setting(
    scale: str,
    method: str,
    step_size: float,
    l2: float | None = None,
    noise_std: float | None = None,
    replacement_rate: float | None = None,
) -> Setting:
    """A setting of "BP", "L2", "S&P", "CBP" or "Linear"; its hyperparameters become columns of the results."""
    methods: list[Method] = [SGD(step_size, MOMENTUM)]
    details: dict[str, Detail] = {"step_size": step_size}
    if replacement_rate is not None:
        methods.append(ContinualBackprop(replacement_rate, maturity_threshold=MATURITY_THRESHOLD))
        details["replacement_rate"] = replacement_rate
    elif l2 is not None and noise_std is not None:
        methods.append(ShrinkAndPerturb(l2, noise_std))
        details |= {"l2": l2, "noise_std": noise_std}
    elif l2 is not None:
        methods.append(L2(l2))
        details["l2"] = l2
    learner = network(MLP, hidden=(), init="default", flatten=True) if method == "Linear" else make_network(scale)
    return Setting(method, learner, tuple(methods), details)


def window_size(frame: pd.DataFrame) -> int:
    """Tasks that claims average over: a bin at the paper's scale, elsewhere an eighth of the tasks (less noise)."""
    return _share_of_tasks(frame, _WINDOWS)


def bin_size(frame: pd.DataFrame) -> int:
    """Tasks per bin: 50 at the paper's scale, elsewhere enough for about thirty points."""
    return _share_of_tasks(frame, _POINTS)


def _share_of_tasks(frame: pd.DataFrame, shares: int) -> int:
    if scale_of(frame) == "paper":
        return BIN_TASKS
    return max(1, (int(frame["task"].max()) + 1) // shares) if len(frame) else 1


def describe(rows: pd.DataFrame, *columns: str) -> str:
    """The hyperparameters of a setting's rows, as figures print them: "0.01 / 3e-06"."""
    present = [column for column in columns if column in rows.columns and rows[column].notna().any()]
    return " / ".join(f"{float(rows[column].iloc[0]):g}" for column in present)


def draw_accuracies(title: str, bin_tasks: int, lines: Iterable[Line], note: str = "", group: str = "") -> Chart | None:
    """One panel of test accuracies over tasks, of the lines that have rows; None if none has."""
    shown = [(name, rows, options) for name, rows, options in lines if len(rows)]
    if not shown:
        return None
    series = tuple(curve(rows, name, bin_tasks, **options) for name, rows, options in shown)
    binned = f", in bins of {bin_tasks} tasks" if bin_tasks > 1 else ""
    runs = count_runs(pd.concat([rows for _, rows, _ in shown]))
    caption = (
        f"Share of the test images that are right at the end of each task{binned}; mean over {runs}, band: one "
        "standard error."
    )
    return Chart(title, "task", "test accuracy", series, f"{caption} {note}".strip(), group)

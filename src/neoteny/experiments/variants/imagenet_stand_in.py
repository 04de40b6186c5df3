"""The paper's network on Continual ImageNet with 200 classes: backpropagation, its remedies and a linear baseline

The convolutional network of Table 1 from torch's initial weights, in mini-batches of 100, at the hyperparameters that
`imagenet-methods` has at the paper's scale. What is smaller than in the paper: pairs of 200 classes of 550 images
instead of 1000 of 700, and the tasks, epochs and runs below. The claims are those of `imagenet-bp` and
`imagenet-methods`. Minutes on a GPU, days on a processor; `docs/results.md` shows what came out.

    neoteny run imagenet-stand-in --scale paper
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from neoteny.experiments.imagenet import bp as imagenet_bp
from neoteny.experiments.imagenet import methods as imagenet_methods
from neoteny.experiments.imagenet import settings
from neoteny.experiments.imagenet.settings import make_problem, make_setting
from neoteny.experiments.scales import CBP_COUNT, CBP_DECAY, scale_of
from neoteny.experiments.variants.reuse import omit, reuse
from neoteny.problems import ContinualImageNet
from neoteny.report.chart import Chart
from neoteny.report.claim import Claim
from neoteny.report.trends import Line
from neoteny.suite.sweep import Assumption, Sweep

if TYPE_CHECKING:
    import pandas as pd

TASKS, EPOCHS, RUNS = 150, 100, 5
TRAIN_IMAGES, TEST_IMAGES = 450, 100
STEP_SIZES = (0.03, 0.01, 0.003, 0.001, 0.1)
BASELINE_STEP_SIZES = (0.01, 0.003, 0.001)
RUNS_PER_STACK = 4 * RUNS
"""So that the largest step size of backpropagation, which may diverge, is in a stack of its own and ends early."""
JUDGED = imagenet_bp.step_sizes("laptop")
POINTS = 16
"""Bins in a figure."""

SMALLER = Assumption(
    "what is smaller than in the paper",
    f"{TASKS} tasks, {EPOCHS} epochs, {RUNS} runs; pairs of 200 classes of {TRAIN_IMAGES} + {TEST_IMAGES} images "
    "(imagenet200_32)",
    "what one GPU trains in minutes, with images that are at hand; the paper has 2000 to 5000 tasks, 250 epochs, 30 "
    "runs, and pairs of 1000 classes of 600 + 100 images",
)
LARGER = Assumption(
    "step sizes of backpropagation that are judged",
    f"{', '.join(f'{size:g}' for size in JUDGED)}, where Figure 1 has 0.01, 0.001 and 0.0001",
    f"a task has {EPOCHS * 2 * TRAIN_IMAGES // 100:,} updates, where the paper's has 3,000, and the loss goes with the "
    "number and size of updates. From torch's small weights and a head of zeros the network learns slowly at first, at "
    "0.001 for some twenty tasks, which would be hundreds at 0.0001: it is left out",
)


def sweep(scale: str) -> Sweep:
    """Backpropagation and the linear baseline over step sizes, the other methods as Table A.2 has them in bold."""
    size = "smoke" if scale == "smoke" else "paper"
    problem = ContinualImageNet(
        tasks=TASKS, source="imagenet200_32", train_images=TRAIN_IMAGES, test_images=TEST_IMAGES, epochs=EPOCHS
    )
    return Sweep(
        problem=make_problem(scale, TASKS) if scale == "smoke" else problem,
        settings=(
            *(make_setting(size, "BP", step_size) for step_size in STEP_SIZES),
            *imagenet_methods.best_settings(size),
            *(make_setting(size, "Linear", step_size) for step_size in BASELINE_STEP_SIZES),
        ),
        runs=2 if scale == "smoke" else RUNS,
        stack_size=RUNS_PER_STACK,
        chosen=(
            SMALLER,
            LARGER,
            settings.POOLING,
            settings.INITIAL,
            settings.PIXELS,
            settings.HEADS,
            settings.choose_for_backpropagation(STEP_SIZES),
            settings.choose_for_baseline(BASELINE_STEP_SIZES),
            settings.NOISE,
            CBP_DECAY,
            CBP_COUNT,
        ),
    )


def as_laptop(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows under the laptop scale, whose step sizes and windows of tasks fit these runs; smoke runs stay such."""
    return frame if scale_of(frame) == "smoke" else frame.assign(scale="laptop")


def one_setting_each(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows `as_laptop` has, of backpropagation at one step size alone, so that no method chooses."""
    rows = as_laptop(frame)
    return rows[(rows["method"] != "BP") | (rows["step_size"] == EQUAL_STEP_SIZE)]


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Backpropagation over the first tasks and over all of them, then all methods at their best."""
    bin_tasks = max(1, (int(frame["task"].max()) + 1) // POINTS) if len(frame) else 1
    baseline: Line = ("linear baseline", imagenet_bp.select_linear(frame), {"method": "Linear", "dashed": True})
    drawn = tuple(sorted(STEP_SIZES, reverse=True))
    return [
        *imagenet_bp.draw_bp(frame, drawn, bin_tasks, "Backpropagation on Continual ImageNet, 200 classes"),
        *imagenet_methods.draw_best(frame, "Methods on Continual ImageNet, 200 classes", bin_tasks, baseline),
    ]


EQUAL_STEP_SIZE = 0.01
"""Of backpropagation where each method has one setting: that of CBP and of shrink and perturb in Table A.2."""
EQUAL = f"with one setting of each method: the paper's, and backpropagation at {EQUAL_STEP_SIZE:g}"
TAG = "best-of-five"
UNEQUAL = (
    f"with backpropagation at the best of {len(STEP_SIZES)} step sizes and the others at one setting each, that of the "
    "paper: the search is not equal"
)
HEADLINE = "from-89-to-77-percent"
_HERE = {
    "linear-network-at-77-percent": "on pairs of 200 classes",
    "step-size-0.1-diverges": "",
    "intermediate-step-size-follows": "",
}
"""What is different in these runs, where it is not the step sizes."""


def _say_where(claim: Claim) -> Claim:
    """The claim with what is different in these runs behind its statement."""
    here = _HERE.get(claim.name, f"at step sizes {', '.join(f'{size:g}' for size in JUDGED)}")
    return replace(claim, statement=f"{claim.statement} (Here {here}.)") if here else claim


claims = (
    *reuse("imagenet-bp", as_laptop, without=[HEADLINE], claims=[_say_where(claim) for claim in imagenet_bp.claims]),
    *reuse("imagenet-methods", one_setting_each, here=EQUAL),
    *reuse("imagenet-methods", as_laptop, tag=TAG, here=UNEQUAL),
)
unchecked = omit(
    "imagenet-bp", [HEADLINE], f"It is about the 2000th task of the paper's classes; these runs have {TASKS} at most."
)

"""The field on class-incremental images

Every method on the protocol of continual backpropagation's later paper (Nature): each task adds classes and trains a
ResNet on all images of the classes seen so far, with SGD. Each method runs at its published setting and at the best of
four, on seeds that chose nothing. Methods that are parts of an MLP are left out; so are, at the paper's scale, those
that are optimizers and do not follow the schedule of its step size.
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.field.bench import Bench, make_sweep
from neoteny.experiments.field.charts import draw
from neoteny.experiments.scales import assume, pick
from neoteny.nets import ResNet
from neoteny.problems import ClassIncremental
from neoteny.report.chart import Chart
from neoteny.suite.sweep import Sweep

PUBLISHED = {
    "SGD": {"step_size": 0.1},
    "L2": {"step_size": 0.1, "strength": 5e-4},
    "Shrink and perturb": {"step_size": 0.1, "noise_std": 1e-5, "strength": 5e-4},
    "CBP by contribution": {"step_size": 0.1, "replacement_rate": 1e-5},
    "Head reset": {"step_size": 0.1},
    "From scratch": {"step_size": 0.1},
}
"""As in the paper. Its momentum of 0.9 is left out here, and weight decay belongs to the methods that have it, so that
all methods sit on the same plain SGD."""


def make_bench(scale: str) -> Bench:
    """The problem and its networks at a scale."""
    return Bench(
        problem=pick(
            scale,
            smoke=ClassIncremental(*(2, "synthetic", 4, 2, 10, 5), epochs=1, batch_size=10, decay_at=()),
            laptop=ClassIncremental(*(4, "imagenet200_32", 20, 5, 100, 50), epochs=3, batch_size=50, decay_at=()),
            paper=ClassIncremental(),
        ),
        base="SGD",
        step_sizes={
            "SGD": (0.1, 0.03, 0.01, 0.3),
            "Adam": (1e-3, 3e-4, 3e-3, 1e-4),
            "Muon": (0.02, 0.002, 0.01, 0.001),
        },
        published=PUBLISHED,
        options={
            "widths": pick(scale, smoke=(4, 4), laptop=(8, 16, 32), paper=(64, 128, 256, 512)),
            "blocks": pick(scale, smoke=(1, 1), laptop=(1, 1, 1), paper=(2, 2, 2, 2)),
        },
        build=ResNet,
        seeds=pick(scale, smoke=(2, 2), laptop=(2, 3), paper=(2, 3)),
    )


def sweep(scale: str) -> Sweep:
    """Every method: four settings with the tuning seeds, two of them with the judging seeds."""
    return make_sweep(scale, make_bench(scale), SMALLER if scale == "laptop" else ())


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Baselines and the best methods over tasks."""
    return draw(frame, "accuracy", higher_is_better=True)


SMALLER = assume("""
- size at the laptop scale | 4 tasks of 5 classes of 100 images, 3 passes per task, a constant step size, a ResNet of
  three blocks, instead of 20 tasks of 5 classes of 450 images, 200 passes, a step size that falls, and ResNet-18 | what
  thirty methods can do on a CPU within an hour
""")
claims = ()

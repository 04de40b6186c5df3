"""The field on warm starts

Every method on images of which a network learns a half first, then all: a narrow ResNet and Adam. The accuracy on test
images is taken after each task. Each method runs at its published setting and at the best of four, on seeds that chose
nothing. Methods that are parts of an MLP are left out.
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.field.bench import Bench, make_sweep
from neoteny.experiments.field.charts import draw
from neoteny.experiments.scales import assume, pick
from neoteny.nets import ResNet
from neoteny.problems import WarmStart
from neoteny.report.chart import Chart
from neoteny.suite.sweep import Sweep

PUBLISHED = {
    "Adam": {"step_size": 1e-3},
    "Boundary shrink and perturb": {"step_size": 1e-3, "shrink": 0.4},
    "FIRE": {"step_size": 1e-3},
    "DASH": {"step_size": 1e-3, "floor": 0.3},
}
"""Adam's step size in the comparison of FIRE's authors, and the default of the code of the authors of warm starts."""

ADAM = (1e-3, 1e-4, 3e-3, 3e-4)
"""Step sizes of Adam, but for the laptop scale: there plain Adam does best with 0.003 on the tuning seeds."""


def make_bench(scale: str) -> Bench:
    """The problem and its networks at a scale."""
    return Bench(
        problem=pick(
            scale,
            smoke=WarmStart(*(2, "synthetic", 3, 20, 5), first_epochs=1, epochs=1, batch_size=10),
            laptop=WarmStart(classes=10, train_images=100, test_images=50, first_epochs=10, epochs=10, batch_size=50),
            paper=WarmStart(),
        ),
        base="Adam",
        step_sizes={
            "SGD": (0.1, 0.01, 0.03, 0.003),
            "Adam": pick(scale, smoke=ADAM, laptop=(3e-3, 1e-2, 1e-3, 3e-4), paper=ADAM),
            "Muon": (0.02, 0.002, 0.01, 0.001),
        },
        published=PUBLISHED,
        options={
            "widths": pick(scale, smoke=(4, 4), laptop=(8, 16, 32), paper=(16, 32, 64, 128)),
            "blocks": pick(scale, smoke=(1, 1), laptop=(1, 1, 1), paper=(2, 2, 2, 2)),
        },
        build=ResNet,
        seeds=pick(scale, smoke=(2, 2), laptop=(2, 10), paper=(2, 3)),
    )


def sweep(scale: str) -> Sweep:
    """Every method: four settings with the tuning seeds, two of them with the judging seeds."""
    return make_sweep(scale, make_bench(scale), SMALLER if scale == "laptop" else ())


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Baselines and the best methods over tasks."""
    return draw(frame, "accuracy", higher_is_better=True)


SMALLER = assume("""
- size at the laptop scale | 10 classes of 100 images, 10 passes per task, a ResNet of three blocks, instead of 100
  classes of 360 images, 100 passes and eight blocks | what thirty methods can do on a CPU within an hour
""")
claims = ()

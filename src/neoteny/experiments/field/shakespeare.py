"""The field on permuted Shakespeare

Every method on a small GPT that learns a text whose words are permuted in every task: the protocol of self-normalised
resets. Each method runs at its published setting and at the best of four, on seeds that chose nothing. Methods that are
parts of an MLP are left out. The `laptop` scale has a generated text of few different words.
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.field.bench import Bench, make_sweep
from neoteny.experiments.field.charts import draw
from neoteny.experiments.scales import assume, pick
from neoteny.nets import GPT
from neoteny.problems import PermutedShakespeare
from neoteny.report.chart import Chart
from neoteny.suite.sweep import Sweep

PUBLISHED = {"SNR": {"step_size": 1e-3, "rejection": 0.01}}
"""The rejection level of its authors' code; their step size is not known to us."""

STEP_SIZES = {
    "SGD": (0.1, 0.01, 0.03, 0.3),
    "Adam": (1e-3, 1e-4, 3e-3, 3e-4),
    "Muon": (0.02, 0.002, 0.01, 0.001),
}
AT_LAPTOP = {
    "SGD": (0.3, 1.0, 0.1, 0.03),
    "Adam": (3e-3, 1e-2, 1e-3, 3e-4),
    "Muon": (0.02, 0.002, 0.01, 0.001),
}


def make_bench(scale: str) -> Bench:
    """The problem and its networks at a scale."""
    return Bench(
        problem=pick(
            scale,
            smoke=PermutedShakespeare(2, sequences_per_task=2, epochs=2, batch_size=2, context=4, source="synthetic"),
            laptop=PermutedShakespeare(12, sequences_per_task=32, epochs=15, context=32, source="shakespeare_page"),
            paper=PermutedShakespeare(),
        ),
        base="Adam",
        step_sizes=AT_LAPTOP if scale == "laptop" else STEP_SIZES,
        published=PUBLISHED,
        options=pick(scale, smoke={"width": 4, "hidden": 8, "blocks": 1}, laptop={"hidden": 64}, paper={}),
        build=GPT,
        seeds=pick(scale, smoke=(2, 2), laptop=(2, 3), paper=(2, 3)),
    )


def sweep(scale: str) -> Sweep:
    """Every method: four settings with the tuning seeds, two of them with the judging seeds."""
    return make_sweep(scale, make_bench(scale), SMALLER if scale == "laptop" else ())


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Baselines and the best methods over tasks."""
    return draw(frame, "loss", higher_is_better=False)


SMALLER = assume("""
- size at the laptop scale | 12 tasks of 60 updates on Shakespeare's first 1,500 words, of 757 tokens, instead of 500
  of 3,200 on all words, of 18,983 tokens | with all tokens as outputs an update of eight runs takes most of a second
  on a CPU
""")
claims = ()

"""Published numbers of UPGD's input-permuted MNIST

A million single images with pixels from -1 to 1, a new permutation every 5,000, networks with 300 and 150 units and
torch's initial weights. The numbers are of a third party that ran UPGD's code with ten seeds. The `laptop` scale has
the published sizes and fewer seeds.
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.published.numbers import Published, draw, make_claims
from neoteny.experiments.scales import assume, pick
from neoteny.methods import UPGD, AdamW, ContinualBackprop
from neoteny.nets import MLP
from neoteny.problems import PermutedMNIST
from neoteny.report.chart import Chart
from neoteny.suite.sweep import Setting, Sweep, network

_THIRD_PARTY = "a third party's runs of UPGD's code, from notes"
NUMBERS = (
    Published("UPGD", 0.7777, 10, _THIRD_PARTY, tasks=60),
    Published("UPGD", 0.7791, 10, _THIRD_PARTY),
    Published("AdamW", 0.7553, 10, _THIRD_PARTY, tasks=60),
    Published("AdamW", 0.7190, 10, _THIRD_PARTY),
    Published("AdamW and CBP", 0.801, 10, _THIRD_PARTY),
)
CHOSEN = assume("""
- weight decay of AdamW | 0.01, torch's default | the notes name its step size and betas alone
- continual backpropagation beside AdamW | replacement rate 3e-4, maturity threshold 100, the utility of the paper's
  text | the notes name these two numbers alone
""")


def sweep(scale: str) -> Sweep:
    """UPGD, AdamW, and AdamW with continual backpropagation."""
    net = network(MLP, hidden=pick(scale, smoke=(8, 8), laptop=(300, 150), paper=(300, 150)), init="default")
    adam_w = AdamW(1e-4, betas=(0.0, 0.99), weight_decay=0.01)
    published = PermutedMNIST(200, 5_000, pixels="centred", continue_passes=True)
    return Sweep(
        problem=pick(
            scale,
            smoke=PermutedMNIST(3, 20, source="synthetic", pixels="centred", continue_passes=True),
            laptop=published,
            paper=published,
        ),
        settings=(
            Setting("UPGD", net, (UPGD(0.01, noise_std=0.1, decay_rate=0.9999, weight_decay=0.01),)),
            Setting("AdamW", net, (adam_w,)),
            Setting("AdamW and CBP", net, (adam_w, ContinualBackprop(3e-4, 100))),
        ),
        runs=pick(scale, smoke=2, laptop=3, paper=20),
        chosen=CHOSEN,
    )


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Accuracy over tasks."""
    return draw(frame, "accuracy")


claims = make_claims(NUMBERS, "accuracy")

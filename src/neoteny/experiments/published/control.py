"""Published numbers of control with shifting observations

CartPole with observations that are shifted by another vector every 200 iterations of 800 actions, ten shifts, PPO with
two networks of three layers of 256 units. The numbers are those of the paper on C-CHAIN. The `laptop` scale has the
published sizes and fewer seeds.
"""

from __future__ import annotations

import pandas as pd

from neoteny.experiments.published.numbers import Published, draw, make_claims
from neoteny.experiments.scales import assume, pick
from neoteny.methods import TRAC, Adam, L2Init, WeightClipping
from neoteny.nets import ActorCritic
from neoteny.problems import ShiftingControl
from neoteny.report.chart import Chart
from neoteny.suite.rl.ppo import PPO
from neoteny.suite.sweep import Setting, Sweep, network

_TABLE = "the C-CHAIN paper's table"
NUMBERS = (
    Published("PPO", 62.0, 6, _TABLE),
    Published("PPO and L2-init", 266.0, 6, _TABLE),
    Published("PPO and TRAC", 217.0, 6, _TABLE),
    Published("PPO and weight clipping", 154.0, 6, _TABLE),
)
CHOSEN = assume("""
- strength of L2-init, bound of weight clipping | 0.01 and 1, the defaults of both | our notes on the table do not name
  them
- initial weights | torch's default | the notes do not name them
- spread of the published returns | presumed to be ours | the notes have no standard errors
- what counts | the mean return of the episodes that end in a task, over all tasks | as for every agent here
""")


def sweep(scale: str) -> Sweep:
    """PPO alone and with three remedies."""
    small = scale == "smoke"
    net = network(
        ActorCritic,
        hidden=(8, 8) if small else (256, 256, 256),
        activation="leaky_relu(negative_slope=0.1)",
        init="default",
        discrete=True,
    )
    agent = PPO(
        iteration_steps=64 if small else 800,
        epochs=2 if small else 5,
        minibatch=32,
        entropy=0.01,
        reward_scale=1 / 20,
    )
    return Sweep(
        problem=ShiftingControl(tasks=2, period_steps=128, episode_steps=32) if small else ShiftingControl(),
        settings=(
            Setting("PPO", net, (Adam(1e-3),), agent=agent),
            Setting("PPO and L2-init", net, (Adam(1e-3), L2Init(1e-2)), agent=agent),
            Setting("PPO and TRAC", net, (Adam(1e-3), TRAC()), agent=agent),
            Setting("PPO and weight clipping", net, (Adam(1e-3), WeightClipping(1.0)), agent=agent),
        ),
        runs=pick(scale, smoke=2, laptop=3, paper=6),
        points_per_task=2 if small else 20,
        chosen=CHOSEN,
    )


def figure(frame: pd.DataFrame) -> list[Chart]:
    """Return over tasks."""
    return draw(frame, "return")


claims = make_claims(NUMBERS, "return")

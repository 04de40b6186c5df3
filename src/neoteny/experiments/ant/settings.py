"""What the experiments on Slippery Ant share: the problem at each scale, the agent, its settings, and what was chosen.

Problem and agent are those of the paper's Appendices C and E: an Ant on a ground whose friction changes after every
ten million steps, and PPO with two networks of 256-256 tanh units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from neoteny.experiments.scales import CBP_COUNT, CBP_DECAY, assume, pick
from neoteny.methods import L2, Adam, ContinualBackprop, ShrinkAndPerturb
from neoteny.methods.method import Method
from neoteny.nets import ActorCritic
from neoteny.problems import SlipperyAnt
from neoteny.suite.rl.ppo import PPO
from neoteny.suite.sweep import Assumption, Detail, Setting, Sweep, network

METHODS = ("PPO", "PPO+L2", "PPO+S&P", "Continual PPO")
STEP_SIZE = 1e-4
MEASURES = ("dead_units", "saturated_units", "effective_rank", "weight_magnitude")
DECAYS = (1e-3, 1e-4, 1e-5, 1e-6)
NOISES = (1e-4, 1e-5, 1e-6)
PAIRS = ((1e-3, 100), (1e-3, 500), (1e-4, 500), (1e-4, 5000), (1e-5, 10_000), (1e-5, 50_000))
"""Replacement rates with their maturity thresholds, in updates."""


@dataclass(frozen=True)
class Fixed:
    """What each method runs with where it has one setting."""

    l2: float
    noise_std: float
    pair: tuple[float, int]


FIXED = {
    "smoke": Fixed(1e-3, 1e-4, (1e-2, 5)),
    "laptop": Fixed(1e-3, 1e-4, (1e-4, 500)),
    "paper": Fixed(1e-3, 1e-5, (1e-4, 5000)),
}
FIXED_AT_PAPER, FIXED_AT_LAPTOP, POLICY, LOSS, INITIAL, SHRINKAGE, BODY, CHANGE, RETURN, SMOKE, LAPTOP = assume("""
- hyperparameters of the methods | weight decay 1e-3, noise of standard deviation 1e-5, replacement rate 1e-4 with
  maturity threshold 5000 | the paper took the best of each grid and prints the grids alone. Those published with a
  later version of the work are a weight decay of 1e-3 and a replacement rate of 1e-4 with a maturity threshold of
  10,000: here they are, or the nearest of the grid. The noise of 7.8 million updates would add up to half of the
  initial weights. ant-sweep searches the grids
- hyperparameters of the methods at the laptop scale | weight decay 1e-3, noise of standard deviation 1e-4, replacement
  rate 1e-4 with maturity threshold 500 | a task has 15,600 updates, the paper's 780,000: a maturity threshold of 5000
  or 50,000 would be a third of a task or longer than three, one of 500 is 6,400 steps. Weight decay is the strongest
  of the grid and noise ten times what the paper's scale has, to do as much within so few updates
- the policy's standard deviation | starts at 1 for every action; learned as its logarithm, by the same optimizer |
  Appendix E names a standard deviation variable and no more
- losses of PPO | advantages are brought to mean 0 and standard deviation 1 over an iteration's steps; the squared
  error of the value counts once beside the policy's loss; no entropy bonus, no clipping of gradients or of values |
  Appendix E lists none of them; the two networks share no weights, so to Adam alone the weight of the value's loss
  makes no difference
- initial weights | LeCun uniform (within the root of 3 over the inputs of a unit) in every layer, output layers
  included, and biases of zero | the text says LeCun initialisation without its distribution, and nothing of biases or
  output layers
- what L2 and shrink and perturb act on | all weights and biases of both networks, and the logarithm of the policy's
  standard deviation, which is so drawn towards a standard deviation of 1 | weight decay as an option of an optimizer
  acts on all it is given; the paper does not say
- the Ant | PyBullet's, as packaged: its observation, its reward, episodes of at most 1000 steps; what would have
  followed where an episode is cut counts by the value of its last observation | the paper names the problem and
  changes the friction alone
- changes of friction | on all parts of the Ant, at the step, in the middle of an episode; first 1.5, the standard; the
  sequence depends on a run's seed alone and is the same for all methods | the text gives the standard value, the range
  and the period; whether runs of different methods met the same frictions it does not say. The floor keeps its own
  0.8; above 12.5 the simulator cuts off the product of both
- what counts as performance | the mean return of the episodes that end in a task, those at its beginning included |
  Figure C.11 shows return over time; a mean over whole tasks has the time lost after a change in it
- training at the smoke scale | two tasks of 256 steps, episodes of 32, iterations of 128 with two epochs of
  mini-batches of 64, networks of 32-32 units, which continual backpropagation replaces often | to see in seconds that
  everything runs; its numbers mean nothing
- length of a task at the laptop scale | 200,000 steps, a fiftieth of the paper's | what a core does in minutes. An
  agent is still learning to walk when the friction changes, so returns may rise from task to task where the paper's
  fall
""")


def make_problem(scale: str, laptop_tasks: int = 10) -> SlipperyAnt:
    """The problem at a scale.

    A later version of the work has its Ant in MuJoCo, with milder and faster changes. In a file of your own:

    Example:
        >>> from neoteny.problems.ant.problem import LATER_VERSION
        >>> SlipperyAnt(**LATER_VERSION).friction_range
        (0.02, 2.0)
    """
    return pick(
        scale,
        smoke=SlipperyAnt(tasks=2, period_steps=256, episode_steps=32),
        laptop=SlipperyAnt(tasks=laptop_tasks, period_steps=200_000),
        paper=SlipperyAnt(),
    )


def points_per_task(scale: str) -> int:
    """Points of the curves within tasks: each of 64, 10,000 or 200,000 steps."""
    return pick(scale, smoke=4, laptop=20, paper=50)


def make_sweep(
    scale: str, settings: tuple[Setting, ...], runs: int, chosen: tuple[Assumption, ...], laptop_tasks: int = 10
) -> Sweep:
    """A sweep over settings, with everything that the experiments share."""
    return Sweep(
        problem=make_problem(scale, laptop_tasks),
        settings=settings,
        runs=runs,
        measures=MEASURES,
        probe_examples=pick(scale, smoke=200, laptop=2000, paper=2000),
        points_per_task=points_per_task(scale),
        chosen=(*chosen, *choose(scale)),
    )


def choose_fixed(scale: str) -> tuple[Assumption, ...]:
    """Why methods run with what they do, where they have one setting."""
    return pick(scale, smoke=(), laptop=(FIXED_AT_LAPTOP,), paper=(FIXED_AT_PAPER,))


def choose(scale: str) -> tuple[Assumption, ...]:
    """What the paper does not say, and what the smaller scales change."""
    small = {"smoke": (SMOKE,), "laptop": (LAPTOP,)}.get(scale, ())
    return (*small, POLICY, LOSS, INITIAL, SHRINKAGE, BODY, CHANGE, RETURN, CBP_DECAY, CBP_COUNT)


def make_setting(
    scale: str,
    l2: float | None = None,
    noise_std: float | None = None,
    pair: tuple[float, int] | None = None,
    utility: str = "",
) -> Setting:
    """PPO; with L2 if `l2` is given; with shrink and perturb if `noise_std` is, too; or Continual PPO if `pair` is, a
    replacement rate and a maturity threshold. A utility is named in the details where it is given."""
    methods: list[Method] = [Adam(STEP_SIZE)]
    details: dict[str, Detail] = {}
    name = "PPO"
    if pair is not None:
        name, (rate, maturity) = "Continual PPO", pair
        methods.append(ContinualBackprop(rate, maturity, utility=utility or "overall"))
        details = {"replacement_rate": rate, "maturity_threshold": maturity}
        details |= {"utility": utility} if utility else {}
    elif l2 is not None and noise_std is not None:
        name = "PPO+S&P"
        methods.append(ShrinkAndPerturb(l2, noise_std))
        details = {"l2": l2, "noise_std": noise_std}
    elif l2 is not None:
        name = "PPO+L2"
        methods.append(L2(l2))
        details = {"l2": l2}
    agent, options = PPO(), dict[str, Any]()
    if scale == "smoke":
        agent, options = PPO(iteration_steps=128, epochs=2, minibatch=64), {"hidden": (32, 32)}
    return Setting(name, network(ActorCritic, **options), tuple(methods), details, agent=agent)

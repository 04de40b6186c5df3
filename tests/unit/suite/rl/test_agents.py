"""The loop of an agent: what it records, how it stops and goes on, and what ends it."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import pytest
import torch

from neoteny.methods import Adam, ContinualBackprop
from neoteny.nets import MLP, ActorCritic
from neoteny.problems import SlipperyAnt, SlowlyChangingRegression
from neoteny.problems.problem import Problem, SimulationError, Worlds
from neoteny.suite.environment import choose_device, open_problems
from neoteny.suite.rl.agent import AgentTraining, Experience, OnPolicyLearner
from neoteny.suite.rl.ppo import PPO
from neoteny.suite.session import Job
from neoteny.suite.stacks import PlannedStack, runs_of
from neoteny.suite.store.results import Results
from neoteny.suite.sweep import Setting, Sweep, network
from neoteny.suite.worker import Worker


@dataclass(frozen=True)
class Slope(Problem):
    """A ball on a slope that is pushed left or right; it falls off at +-3, and every task has another steepness."""

    tasks: int = 3
    period_steps: int = 96
    episode_steps: int = 12
    breaks_at_step: int = -1

    performance: ClassVar[str] = "return"
    control: ClassVar[bool] = True

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (2,)

    @property
    def outputs(self) -> int:
        return 1

    @property
    def steps_per_task(self) -> int:
        return self.period_steps

    def open(self, data: Path | str | None = None) -> Slopes:
        return Slopes(self)


@dataclass
class Slopes(Worlds):
    problem: Slope

    def make(self, seed: int) -> SlopeWorld:
        return SlopeWorld(self.problem)


@dataclass
class SlopeWorld:
    problem: Slope
    steps: int = 0
    position: float = 0.0
    age: int = 0
    draws: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    history: list[tuple[float, bool, bool]] = field(default_factory=list)

    @property
    def friction(self) -> float:
        return float(1 + (self.steps - 1) // self.problem.period_steps)

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        if seed is not None:
            self.draws, self.steps = np.random.default_rng(seed), 0
        self.position, self.age = float(self.draws.uniform(-1, 1)), 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not np.isfinite(action).all():
            raise SimulationError(f"the action is not finite: {action}")
        if self.steps == self.problem.breaks_at_step:
            raise SimulationError("the slope has melted")
        self.steps += 1
        self.age += 1
        self.position += 0.3 * float(np.clip(action[0], -1, 1)) + 0.05 * self.friction
        terminated, truncated = abs(self.position) > 3, self.age >= self.problem.episode_steps
        reward = 1.0 - abs(self.position)
        self.history.append((reward, terminated, truncated and not terminated))
        return self._observe(), reward, terminated, truncated and not terminated, {}

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "position": self.position,
            "age": self.age,
            "draws": self.draws.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.position, self.age = state["steps"], state["position"], state["age"]
        self.draws = np.random.default_rng(0)
        self.draws.bit_generator.state = state["draws"]

    def close(self) -> None:
        """Nothing to free."""

    def _observe(self) -> np.ndarray:
        return np.array([self.position, self.age / 12], dtype=np.float32)


AGENT = PPO(iteration_steps=64, epochs=2, minibatch=16)
MEASURES = ("dead_units", "saturated_units", "effective_rank", "weight_magnitude")
BEHAVIOUR = ("return", "reward_per_step", "episode_length")
LEARNING = ("value_loss", "kl", "explained_variance", "policy_std")


def make_sweep(problem: Problem, agent: PPO = AGENT, runs: int = 2, points: int = 8, **options: Any) -> Sweep:
    methods = (Adam(1e-2), ContinualBackprop(0.05, maturity_threshold=3))
    setting = Setting("Continual PPO", network(ActorCritic, hidden=(8, 8), **options), methods, agent=agent)
    return Sweep(problem, (setting,), runs=runs, measures=MEASURES, points_per_task=points)


def make_training(problem: Slope, kernel: str = "cpu", agent: PPO = AGENT) -> tuple[AgentTraining, SlopeWorld]:
    sweep = make_sweep(problem, agent)
    runs = PlannedStack(sweep, (runs_of(sweep, sweep.settings, kernel)[1],))
    training = agent.train(runs, problem.open())
    world = training._world
    assert isinstance(world, SlopeWorld)
    return training, world


def nothing() -> None:
    """What a run does between iterations when nobody waits for it."""


# ------------------------------------------------------------------------------------------------------ what it records


def test_it_records_every_episode_where_it_ends() -> None:
    problem = Slope()
    training, world = make_training(problem)
    training.run(nothing)
    assert training.finished
    assert training.task == 3
    assert world.steps == len(world.history) == 288
    points = {name: [[] for _ in range(24)] for name in BEHAVIOUR}
    total = length = 0.0
    for step, (reward, terminated, truncated) in enumerate(world.history):
        total, length = total + reward, length + 1
        point = step // 12
        points["reward_per_step"][point].append(reward)
        if terminated or truncated:
            points["return"][point].append(total)
            points["episode_length"][point].append(length)
            total = length = 0.0
    table = training.table()
    for name, values in points.items():
        curve = [np.mean(each) for each in values]
        tasks = [np.mean(np.concatenate(values[task * 8 : task * 8 + 8])) for task in range(3)]
        np.testing.assert_allclose(table[f"{name}.curve"][:, 0], curve, rtol=1e-12)
        np.testing.assert_allclose(table[name][:, 0], tasks, rtol=1e-12)
        assert table[f"{name}.curve.tasks"].tolist() == list(range(24))
    assert table["friction"][:, 0].tolist() == [1.0, 2.0, 3.0]
    assert training.latest() == ("return", pytest.approx(float(table["return"][-1])))


def test_it_records_what_the_learner_says_and_what_is_measured_of_every_task() -> None:
    training, _ = make_training(Slope())
    training.run(nothing)
    table = training.table()
    for name in (*LEARNING, *MEASURES, "replaced"):
        assert table[name].shape == (3, 1)
        assert table[f"{name}.tasks"].tolist() == [0, 1, 2]
        assert bool(table[name].isfinite().all())
    counts = torch.stack(list(training._learner.stack.replaced.values()))
    assert int(table["replaced"].sum()) == int(counts.sum()) > 0


def test_steps_left_over_at_the_end_are_acted_but_not_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[int] = []
    training, _ = make_training(Slope())
    learn = training._learner.learn

    def count_and_learn(experience: Experience, iteration: int) -> dict[str, float]:
        learned.append(len(experience.rewards))
        return learn(experience, iteration)

    monkeypatch.setattr(training._learner, "learn", count_and_learn)
    training.run(nothing)
    assert learned == [64] * 4  # of 288 steps


# ----------------------------------------------------------------------------------------------- stopping and going on


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_a_run_that_is_stopped_goes_on_bit_by_bit(kernel: str, tmp_path: Path) -> None:
    whole, _ = make_training(Slope(), kernel)
    whole.run(nothing)
    half, _ = make_training(Slope(), kernel)
    half._iterate()
    half._iterate()
    torch.save(half.state_dict(), tmp_path / "state.pt")
    rest, _ = make_training(Slope(), kernel)
    rest.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert rest.updates == 128
    rest.run(nothing)
    for name, values in whole.table().items():
        assert torch.equal(rest.table()[name], values), name
    mine, theirs = rest._learner.stack.state_dict(), whole._learner.stack.state_dict()
    for name, tensor in theirs["tensors"].items():
        assert torch.equal(mine["tensors"][name], tensor), name


@pytest.mark.parametrize("simulator", ["pybullet", "mujoco"])
def test_an_agent_in_a_real_simulator_goes_on_bit_by_bit_from_every_iteration(simulator: str) -> None:
    pytest.importorskip(simulator, reason=f"{simulator} is not installed (the extra {simulator})")
    problem = SlipperyAnt(tasks=2, period_steps=192, episode_steps=100, simulator=simulator)
    sweep = make_sweep(problem, points=1)
    runs = PlannedStack(sweep, (runs_of(sweep, sweep.settings, "cpu")[0],))
    whole = AGENT.train(runs, problem.open())
    states: list[dict[str, Any]] = []
    whole.run(lambda: states.append(copy.deepcopy(whole.state_dict())))
    assert len(states) == 6
    for state in states[:-1]:
        rest = AGENT.train(runs, problem.open())
        rest.load_state_dict(copy.deepcopy(state))
        rest.run(nothing)
        for name, values in whole.table().items():
            assert torch.equal(rest.table()[name], values), (rest.updates, name)


def test_a_sweep_trains_each_seed_in_a_stack_of_its_own_and_runs_differ(tmp_path: Path) -> None:
    sweep = make_sweep(Slope(), runs=3)
    results = Results.create(tmp_path, {"experiment": "slope", "scale": "smoke", "data": "", "configuration": {}})
    worker = Worker(sweep, Job(results, open_problems(sweep, None), torch.device("cpu"), "cpu", 60.0))
    assert worker.run() == []
    assert len(results.parts()) == 3
    frame = results.frame()
    returns = frame[frame["metric"] == "return"].pivot_table(index="seed", columns="task", values="value")
    assert returns.shape == (3, 3)
    assert returns[0].nunique() == 3


# --------------------------------------------------------------------------------------------------------- what ends it


def test_a_simulator_that_breaks_ends_its_run_and_says_why(tmp_path: Path) -> None:
    sweep = make_sweep(Slope(breaks_at_step=150), runs=1)
    results = Results.create(tmp_path, {"experiment": "slope", "scale": "smoke", "data": "", "configuration": {}})
    said: list[str] = []
    job = Job(results, open_problems(sweep, None), torch.device("cpu"), "cpu", 60.0, notify=said.append)
    worker = Worker(sweep, job)
    assert worker.run() == []  # the sweep goes on
    assert said == ["Continual PPO, seed 0: ended at step 150: the slope has melted"]
    (part,) = results.parts()
    assert part["ended"] == "ended at step 150: the slope has melted"
    assert part["runs"][0]["diverged_at_update"] == 150
    frame = results.frame()
    for name in ("return", *LEARNING, *MEASURES, "replaced", "friction"):
        values = frame[frame["metric"] == name].set_index("task")["value"]
        assert list(values.index) == [0, 1, 2], name
        assert np.isfinite(values[0]), name
        assert values[[1, 2]].isna().all(), name
    curve = frame[frame["metric"] == "return.curve"].set_index("task")["value"]
    assert list(curve[curve.isna()].index) == list(
        range(10, 24)
    )  # the point in which steps 128 to 149 lie is not whole


def test_a_network_that_is_no_longer_finite_ends_its_run() -> None:
    training, _ = make_training(Slope())
    training._iterate()
    training._learner.stack.view.tensors["policy.out.bias"].detach().fill_(torch.nan)
    training.run(nothing)
    assert training.diverged_at.tolist() == [64]
    assert training.ended.startswith("ended at step 64: the action is not finite")


# ------------------------------------------------------------------------------------------------------ what is refused


def test_a_problem_of_control_needs_an_agent_and_no_other_problem_takes_one() -> None:
    setting = Setting("PPO", network(ActorCritic), (Adam(1e-3),))
    with pytest.raises(ValueError, match=r"Slope is a problem of control.*agent=PPO\(\)"):
        Sweep(Slope(), (setting,), runs=1)
    with pytest.raises(ValueError, match="SlowlyChangingRegression has nothing to act in; leave out `agent`"):
        Sweep(
            SlowlyChangingRegression(), (Setting("PPO", network(MLP, hidden=(5,)), (Adam(1e-3),), agent=PPO()),), runs=1
        )


def test_a_network_that_is_not_an_actor_critic_is_refused() -> None:
    settings = (Setting("PPO", network(MLP, hidden=(5,)), (Adam(1e-3),), agent=AGENT),)
    sweep = Sweep(Slope(), settings, runs=1, points_per_task=8)
    runs = PlannedStack(sweep, tuple(runs_of(sweep, sweep.settings, "cpu")))
    assert runs.backend == "reference"
    with pytest.raises(TypeError, match=r"PPO trains an ActorCritic; setting 'PPO' has a MLP.*auto=True"):
        AGENT.train(runs, Slope().open())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minibatch": 100}, "minibatch must divide iteration_steps"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1; got 0"),
        ({"clip": 1.0}, "clip must be a number above 0 and below 1; got 1.0"),
        ({"discount": 1.5}, r"discount must be a number in \[0, 1\]; got 1.5"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PPO(**options)


def test_an_iteration_longer_than_a_task_and_points_shorter_than_an_episode_are_refused() -> None:
    longer = "Setting 'Continual PPO': iteration_steps=112 of PPO is longer than a task of Slope, of 96 steps"
    with pytest.raises(ValueError, match=longer):
        make_sweep(Slope(), agent=PPO(iteration_steps=112, minibatch=16))
    sweep = make_sweep(Slope(), agent=PPO(iteration_steps=96, minibatch=16))
    stack, learner = PlannedStack(sweep, tuple(runs_of(sweep, sweep.settings, "cpu")[:1])), cast(OnPolicyLearner, None)
    with pytest.raises(ValueError, match="iteration of 128 steps is longer than a task of 96"):  # of a user's agent
        AgentTraining(stack, Slope().open(), learner, 128)
    shorter = r"points_per_task=9 cuts a task of Slope, of 96 steps, into points shorter than an episode.*\(12 steps\)"
    with pytest.raises(ValueError, match=shorter):
        make_sweep(Slope(), points=9)
    assert make_sweep(Slope(), points=8).points_per_task == 8


def test_agents_stay_on_the_cpu() -> None:
    sweep = make_sweep(Slope())
    assert choose_device("auto", sweep).type == "cpu"
    if torch.cuda.is_available():
        with pytest.raises(ValueError, match="agents act in simulators that run on the CPU"):
            choose_device("cuda", sweep)


def test_another_activation_is_left_to_autograd_and_said() -> None:
    sweep = make_sweep(Slope(), activation="swish")
    agent = sweep.settings[0].agent
    assert agent is not None
    assert agent.why_not_compiled(sweep.settings[0]) == "activation swish"
    assert runs_of(sweep, sweep.settings, "cpu")[0].configuration["kernel"] == "reference"


def test_a_task_is_whole_only_if_all_its_steps_were_recorded() -> None:
    """The steps of an iteration that breaks off are lost, also those before a task's end."""
    training, world = make_training(Slope(breaks_at_step=100))  # in task 1, in the iteration from 64 to 127
    training.run(nothing)
    assert world.steps == 100
    table = training.table()
    for name in ("return", *LEARNING, *MEASURES, "replaced"):
        assert table[name].shape == (3, 1)
        assert bool(table[name].isnan().all()), name
    assert table["return.curve"].isnan()[:, 0].tolist() == [False] * 5 + [True] * 19  # 64 steps: five points of 12
    assert training.latest() is None


def test_measures_of_every_second_task_are_of_every_second_task_also_of_a_run_that_ends_early() -> None:
    for breaks, ends in ((-1, [True, True]), (150, [True, False])):
        problem = Slope(breaks_at_step=breaks)
        sweep = dataclasses.replace(make_sweep(problem), measure_every=2)
        runs = PlannedStack(sweep, (runs_of(sweep, sweep.settings, "cpu")[0],))
        training = AGENT.train(runs, problem.open())
        training.run(nothing)
        table = training.table()
        assert table["weight_magnitude.tasks"].tolist() == [0, 2]
        assert table["weight_magnitude"].isfinite()[:, 0].tolist() == ends

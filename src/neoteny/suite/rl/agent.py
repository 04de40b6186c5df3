"""An agent in its world: act for some steps, learn from them, record, until every task is done.

    for each iteration: act -> learn -> record -> rebuild the world

What is learned, and how, is the learner's (`ppo`); the loop here is the same for any agent that learns on-policy. The
world is rebuilt from its saved state after every iteration, also when nothing was interrupted: a simulator restored
from a checkpoint differs in its last bits from one that ran on (its solver starts from other guesses), one that is
always restored does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from neoteny.draws import rng
from neoteny.problems.problem import SimulationError, World, Worlds
from neoteny.stacking.stack import Stack
from neoteny.suite.measures import measure
from neoteny.suite.provenance import digest_weights
from neoteny.suite.rl.episodes import Record
from neoteny.suite.stacks import PlannedStack
from neoteny.suite.store.checkpoints import check_plain
from neoteny.suite.training import check_states


@dataclass(frozen=True)
class Experience:
    """What an agent went through in T steps, in order; an episode may begin or end anywhere in it.

    Attributes:
        observations: (T, inputs), before each action.
        actions: (T, outputs), as the policy drew them, before the world clips them; choices are int64 (T,).
        rewards: (T,).
        terminated: (T,) bool, whether the world came to an end, so that nothing follows.
        ended: (T,) bool, whether the episode ended, by the world or by its limit of time.
        final_observations: (K, inputs), the last observations of the episodes that ended, in order.
        next_observation: (inputs,), what would be acted on next.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    ended: Tensor
    final_observations: Tensor
    next_observation: Tensor


class OnPolicyLearner(Protocol):
    """What learns; its networks are a stack of one."""

    stack: Stack
    metric_names: tuple[str, ...]
    """The names of the metrics that `learn` returns."""

    def act(self, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """The action for an observation, given noise (outputs,).

        It is a vector (outputs,), and the noise standard normal; or, where the problem is `discrete`, a whole number,
        and the noise of Gumbel's distribution.
        """
        ...

    def learn(self, experience: Experience, iteration: int) -> dict[str, float]:
        """Learn from one iteration; returns its metrics."""
        ...


class AgentTraining:
    """The training of one run.

    Args:
        planned: a stack of one run.
        worlds: the opened problem.
        learner: what learns.
        iteration_steps: steps between learning.

    Attributes:
        diverged_at: (1,), the step at which the run came to an end before its time, or -1.
        ended: why it did, in words.
        initial: the digest of the initial weights, in a list of one.
    """

    reason = ""
    """Always empty: an agent has one backend."""

    def __init__(self, planned: PlannedStack, worlds: Worlds, learner: OnPolicyLearner, iteration_steps: int) -> None:
        if len(planned.runs) != 1:
            raise ValueError(f"An agent acts alone; expected one run, got {len(planned.runs)}.")
        self.planned = planned
        self.problem = planned.problem
        self.diverged_at = torch.full((1,), -1, dtype=torch.int64)
        self.ended = ""
        if self.problem.steps_per_task < iteration_steps:
            raise ValueError(
                f"An iteration of {iteration_steps} steps is longer than a task of {self.problem.steps_per_task}; "
                "shorten the iteration, so that something is learned in every task."
            )
        self._learner = learner
        self.initial = [digest_weights(learner.stack.module(0))]
        self._iteration_steps = iteration_steps
        self._iteration = 0
        self._dtype = getattr(torch, planned.sweep.dtype)
        self._seed = planned.runs[0].seed
        self._record = Record(
            self.problem,
            planned.sweep.points_per_task,
            metrics=(*learner.metric_names, *(["replaced"] if learner.stack.replaced else [])),
            measures=planned.sweep.measures,
            measure_every=planned.sweep.measure_every,
        )
        self._probe = torch.zeros(0, *self.problem.input_shape, dtype=self._dtype)
        self._world = worlds.make(self._seed)
        self._observation, _ = self._world.reset(seed=self._seed)
        self._built_from = self._world.state_dict()

    @property
    def causes(self) -> dict[int, str]:
        """The hook of a user's method because of which the run diverged, as far as it is known."""
        return self._learner.stack.chain.broken

    def check_saveable(self) -> None:
        """Refuse a user's method or world whose state could not be loaded again; long before the first checkpoint."""
        check_states(self._learner.stack)
        check_plain(self._built_from, f"{type(self._world).__name__}: the state")

    @property
    def updates(self) -> int:
        """Steps so far."""
        return self._world.steps

    @property
    def task(self) -> int:
        """The task it is in, or the number of tasks at the end."""
        return min(self.updates // self.problem.steps_per_task, self.problem.tasks)

    @property
    def finished(self) -> bool:
        """Whether every task is done, or the run came to an end before."""
        return self.updates >= self.planned.updates or bool(self.diverged_at >= 0)

    def run(self, pause: Callable[[], None]) -> None:
        """Train to the end; `pause` is called between iterations and may save a checkpoint or raise."""
        try:
            while not self.finished:
                task = self.task
                try:
                    self._iterate()
                except Exception as error:
                    error.add_note(f"task {task}, step {self.updates}")
                    raise
                pause()
        finally:
            self._world.close()

    def latest(self) -> tuple[str, float] | None:
        """The mean return of the last finished task."""
        return self._record.latest()

    def table(self) -> dict[str, Tensor]:
        """metric -> (tasks, 1), with the task numbers under "<metric>.tasks"; nan from where a run came to an end."""
        return self._record.table()

    def state_dict(self) -> dict[str, Any]:
        """Everything a bit-identical continuation needs."""
        return {
            "iteration": self._iteration,
            "stack": self._learner.stack.state_dict(),
            "world": self._built_from,
            "observation": torch.from_numpy(self._observation.copy()),
            "probe": self._probe.clone(),
            "record": self._record.state_dict(),
            "diverged_at": self.diverged_at.clone(),
            "ended": self.ended,
            "initial": list(self.initial),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where `state_dict()` was taken."""
        self._learner.stack.load_state_dict(state["stack"])
        self._built_from = state["world"]
        self._world.load_state_dict(self._built_from)
        self._observation = state["observation"].numpy().copy()
        self._probe = state["probe"]
        self._record.load_state_dict(state["record"])
        self._iteration, self.ended = state["iteration"], state["ended"]
        self.diverged_at.copy_(state["diverged_at"])
        self.initial = list(state.get("initial", [""]))  # of the process that began the run

    def _iterate(self) -> None:
        first, steps = self.updates, min(self._iteration_steps, self.planned.updates - self.updates)
        try:
            experience, varied = self._act(steps)
        except SimulationError as error:
            self.diverged_at.fill_(self.updates)
            self.ended = f"ended at step {self.updates}: {error}"
            return
        self._record.add_steps(first, experience.rewards.numpy(), experience.ended.numpy(), varied)
        if steps == self._iteration_steps:  # the few steps left over at the end are not learned from
            self._probe = experience.observations[: self.planned.sweep.probe_examples]
            metrics = self._learner.learn(experience, self._iteration)
            if not isinstance(metrics, dict) or set(metrics) != set(self._learner.metric_names):
                raise ValueError(
                    f"{type(self._learner).__name__}.learn must return a dict with the metrics "
                    f"{', '.join(self._learner.metric_names)}; got {metrics!r}."
                )
            counts = self._learner.stack.replaced
            if counts:
                metrics["replaced"] = float(torch.stack(list(counts.values())).sum())
            self._record.add_iteration(first + steps - 1, metrics)
        self._measure(first)
        self._iteration += 1
        # Kept, because what a world says of itself after it was built may be a rounding of it.
        self._built_from = self._world.state_dict()
        self._world.load_state_dict(self._built_from)

    def _act(self, steps: int) -> tuple[Experience, np.ndarray]:
        """Act for some steps; also what `Problem.varied` names, at each."""
        world: World = self._world
        act, observation, name = self._learner.act, self._observation, self.problem.varied
        kind = np.float64 if self._dtype == torch.float64 else np.float32
        noise = self._noise(steps).astype(kind)
        observations = np.empty((steps, *self.problem.input_shape), dtype=kind)
        discrete = self.problem.discrete
        actions = np.empty(steps, np.int64) if discrete else np.empty((steps, self.problem.outputs), dtype=kind)
        rewards, varied = np.empty(steps), np.empty(steps)
        terminated, ended = np.zeros(steps, dtype=bool), np.zeros(steps, dtype=bool)
        final: list[np.ndarray] = []
        seen, shape = observations.shape[1:], actions.shape[1:]
        for step in range(steps):
            observations[step] = _checked("the world's observation", observation, seen)
            actions[step] = action = _checked("the agent's action", act(observations[step], noise[step]), shape)
            observation, rewards[step], over, cut, _ = world.step(action)
            _checked("the world's observation", observation, seen)
            varied[step] = getattr(world, name)
            if over or cut:
                terminated[step], ended[step] = over, True
                final.append(observation)
                observation, _ = world.reset()
        self._observation = observation
        if not np.isfinite(rewards).all():
            at = int(np.flatnonzero(~np.isfinite(rewards))[0])
            raise ValueError(
                f"{type(world).__name__}.step must give a finite reward; got {rewards[at]} at step "
                f"{world.steps - steps + at}."
            )
        last = np.stack(final) if final else np.empty((0, *self.problem.input_shape))
        experience = Experience(
            observations=torch.from_numpy(observations),
            actions=torch.from_numpy(actions),
            rewards=torch.from_numpy(rewards),
            terminated=torch.from_numpy(terminated),
            ended=torch.from_numpy(ended),
            final_observations=torch.from_numpy(last.astype(kind)),
            next_observation=torch.from_numpy(observation.astype(kind)),
        )
        return experience, varied

    def _noise(self, steps: int) -> np.ndarray:
        """What the actions of an iteration are drawn with, (steps, outputs)."""
        seed, rows, outputs = torch.tensor(self._seed), torch.arange(steps), self.problem.outputs
        if self.problem.discrete:
            return -np.log(-np.log(rng.uniform(seed, self._iteration, "agent.choice", rows, outputs).numpy()))
        return rng.normal(seed, self._iteration, "agent.action", rows, outputs).numpy()

    def _measure(self, first: int) -> None:
        """Measure the networks at the end of a task, on the observations of the last iteration."""
        sweep, task = self.planned.sweep, first // self.problem.steps_per_task
        if not sweep.measures or self.task == task or task % sweep.measure_every or not len(self._probe):
            return
        for name, value in measure(sweep.measures, self._learner.stack, self._probe.unsqueeze(0)).items():
            self._record.add_measure(task, name, float(value))


def _checked(what: str, value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A user's array, refused where NumPy would repeat it to fill the place it is written to."""
    if np.shape(value) != shape:
        raise ValueError(f"Expected {what} to be an array of shape {shape}; got shape {np.shape(value)}.")
    return value

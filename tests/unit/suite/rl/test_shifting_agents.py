"""Agents in shifting control: what they record, and runs that stop and go on."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from neoteny.methods import Adam, ContinualBackprop, Method
from neoteny.nets import ActorCritic
from neoteny.problems import ShiftingControl
from neoteny.problems.control import draw_shift
from neoteny.suite.rl.agent import AgentTraining
from neoteny.suite.rl.ppo import PPO
from neoteny.suite.stacks import PlannedStack, runs_of
from neoteny.suite.sweep import Setting, Sweep, network
from reference import shifting_control as naive

gymnasium = pytest.importorskip("gymnasium")
PROBLEM = ShiftingControl(tasks=3, period_steps=128, episode_steps=16)
AGENT = PPO(iteration_steps=64, epochs=2, minibatch=16, entropy=0.01, reward_scale=1 / 20)
CONTINUAL = (Adam(1e-2), ContinualBackprop(0.05, maturity_threshold=3))


def make_training(
    problem: ShiftingControl = PROBLEM, kernel: str = "cpu", methods: tuple[Method, ...] = CONTINUAL, **options: Any
) -> AgentTraining:
    described = network(ActorCritic, **{"hidden": (8, 8), "activation": "relu", "discrete": True, **options})
    setting = Setting("Continual PPO", described, methods, agent=AGENT)
    sweep = Sweep(problem, (setting,), runs=2, measures=("dead_units", "effective_rank"), points_per_task=4)
    return AGENT.train(PlannedStack(sweep, (runs_of(sweep, sweep.settings, kernel)[1],)), problem.open())


def nothing() -> None:
    """What a run does between iterations when nobody waits for it."""


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name].nan_to_num(-1), second[name].nan_to_num(-1)) for name in first
    )


@pytest.mark.parametrize(
    ("environment", "kernel"), [("CartPole-v1", "cpu"), ("Acrobot-v1", "cpu"), ("MountainCar-v0", "reference")]
)
def test_a_run_that_is_stopped_goes_on_bit_by_bit(environment: str, kernel: str) -> None:
    problem = ShiftingControl(tasks=2, environment=environment, period_steps=128, episode_steps=32)
    whole = make_training(problem, kernel)
    states: list[dict[str, Any]] = []
    whole.run(lambda: states.append(copy.deepcopy(whole.state_dict())))
    assert len(states) == 4
    for state in states[0:3:2]:  # in the middle of a task, and of the next
        resumed = make_training(problem, kernel)
        resumed.load_state_dict(copy.deepcopy(state))
        resumed.run(nothing)
        assert same(whole.table(), resumed.table())
        assert all(
            torch.equal(one, other)
            for one, other in zip(
                whole._learner.stack.view.tensors.values(), resumed._learner.stack.view.tensors.values(), strict=True
            )
        )


def test_a_table_has_the_shift_of_every_task_the_entropy_and_the_plain_returns() -> None:
    training = make_training()
    training.check_saveable()
    training.run(nothing)
    table = training.table()
    expected = [float(np.linalg.norm(draw_shift(1, task, 4, 2.0))) for task in range(3)]
    assert table["shift"].flatten().tolist() == expected
    assert "friction" not in table
    assert "policy_std" not in table
    assert bool(((table["policy_entropy"] > 0) & (table["policy_entropy"] <= np.log(2) + 1e-6)).all())
    # A reward is 1 per step, also where it is scaled in learning.
    assert torch.equal(table["return"], table["episode_length"])
    assert table["reward_per_step"].flatten().tolist() == [1.0, 1.0, 1.0]
    assert int(training._learner.stack.replaced["policy.fc1"]) > 0


def test_an_agent_acts_as_the_naive_loop_does() -> None:
    training = make_training(methods=(Adam(1e-2),))
    seen: list[Any] = []
    learner: Any = training._learner
    learn = learner.learn

    def keep(experience: Any, iteration: int) -> dict[str, float]:
        seen.append(experience)
        return learn(experience, iteration)

    learner.learn = keep
    training.run(nothing)
    actions = torch.cat([each.actions for each in seen])
    assert actions.dtype == torch.int64
    assert set(actions.tolist()) == {0, 1}
    env = gymnasium.make("CartPole-v1", disable_env_checker=True).unwrapped
    expected = naive.go(env, 1, lambda step, _: int(actions[step]), 384, 128, 16, 2.0)
    assert np.array_equal(
        torch.cat([each.observations for each in seen]).numpy(), np.stack([row[0] for row in expected])
    )
    assert torch.cat([each.terminated for each in seen]).tolist() == [row[3] for row in expected]
    assert torch.cat([each.ended for each in seen]).tolist() == [row[3] or row[4] for row in expected]


def test_a_network_of_the_wrong_kind_is_refused_with_the_line_to_write() -> None:
    with pytest.raises(ValueError, match=r"action in ShiftingControl is a choice.*network\(ActorCritic, discrete=True"):
        make_training(discrete=False)


def test_a_policy_that_diverges_ends_its_run_and_says_so() -> None:
    training = make_training()
    tensors = training._learner.stack.view.tensors
    with torch.no_grad():
        tensors["policy.out.bias"].fill_(torch.nan)
    training.run(nothing)
    assert training.diverged_at.tolist() == [0]
    assert "outputs are not finite" in training.ended
    assert bool(training.table()["return"].isnan().all())


def test_an_agent_learns_to_balance_the_pole() -> None:
    problem = ShiftingControl(tasks=1, period_steps=2400, episode_steps=100)
    training = make_training(problem, methods=(Adam(1e-2),), activation="tanh", hidden=(16,))
    training.run(nothing)
    curve = training.table()["return.curve"].flatten()
    assert float(curve[-1]) > 60  # a random agent keeps it up for about 22 steps

"""Problems: one conformance suite that discovers every problem."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from neoteny.problems import PROBLEMS, Problem, SlowlyChangingRegression
from neoteny.problems.data.synthetic import digits
from neoteny.problems.draws import draw, draw_whole, shuffle
from neoteny.problems.regression import slow_bits
from support.problem_streams import CPU, SEEDS, SMALL, STREAMS, each_problem, equal, opened

IMPOSSIBLE: dict[str, list[dict[str, Any]]] = {
    "SlowlyChangingRegression": [
        {"examples_per_task": 0},
        {"bits": 3, "slow_bits": 4},
        {"slow_bits": 0},
        {"bits": 60},
        {"target_units": -1},
        {"threshold": 1.5},
        {"threshold": "0.7"},
        {"bits": 21.0},
    ],
    "PermutedMNIST": [
        {"examples_per_task": 0},
        {"replacement": 1},
        {"source": ""},
        {"examples_per_task": True},
        {"pixels": "white"},
        {"continue_passes": 1},
        {"replacement": True, "continue_passes": True},
        {"images_per_run": -1},
    ],
    "LabelPermutedMNIST": [
        {"examples_per_task": 0},
        {"classes": 1},
        {"batch_size": 7},
        {"source": None},
        {"pixels": None},
    ],
    "LabelPermutedImages": [{"examples_per_task": 2.5}, {"classes": 0}, {"batch_size": 3}, {"pixels": "rgb"}],
    "RandomLabelMNIST": [
        {"images_per_task": 0},
        {"epochs": 0},
        {"batch_size": 7},
        {"classes": 1},
        {"new_images": "no"},
        {"source": ""},
        {"pixels": "grey"},
    ],
    "RandomLabelImages": [{"images_per_task": 1201}, {"epochs": -3}],
    "PermutedShakespeare": [
        {"sequences_per_task": 0},
        {"sequences_per_task": 9, "batch_size": 2},
        {"epochs": 0},
        {"context": 0},
        {"context": 8.0},
        {"source": "hamlet"},
        {"source": None},
    ],
    "ContinualImageNet": [
        {"train_images": 0},
        {"test_images": 0},
        {"batch_size": 7},
        {"batch_size": 0},
        {"epochs": 0},
        {"source": None},
    ],
    "WarmStart": [
        {"classes": 1},
        {"train_images": 0},
        {"test_images": 0},
        {"first_share": 1.5},
        {"first_share": 0.0},
        {"first_epochs": 0},
        {"epochs": 0},
        {"batch_size": 18_001},
        {"source": None},
    ],
    "SampleIncremental": [
        {"classes": 1},
        {"train_images": 0},
        {"test_images": 0},
        {"images_per_task": 4501},
        {"images_per_task": 127},
        {"epochs": 0},
        {"tasks": 11},
        {"batch_size": 4501},
        {"source": ""},
    ],
    "ClassIncremental": [
        {"classes": 99},
        {"classes_per_task": 6},
        {"train_images": 0},
        {"test_images": 0},
        {"tasks": 21},
        {"batch_size": 2251},
        {"epochs": 0},
        {"decay_at": (0.5, 1.0)},
        {"decay_at": [0.5]},
        {"decay_factor": 0.0},
        {"augmented": 1},
        {"test_augmented": None},
        {"source": None},
    ],
    "ShiftingControl": [
        {"environment": "CartPole-v0"},
        {"environment": None},
        {"period_steps": 399},
        {"shift_std": -1.0},
        {"shift_std": float("nan")},
        {"shift_std": True},
        {"episode_steps": 0},
    ],
    "SlipperyAnt": [
        {"simulator": "bullet"},
        {"period_steps": 0},
        {"period_steps": 999},
        {"friction_range": (0.0, 1.0)},
        {"friction_range": (-1.0, 1.0)},
        {"friction_range": (2.0, 1.0)},
        {"friction_range": (0.1, float("nan"))},
        {"first_friction": 0.0},
        {"change": "never"},
        {"episode_steps": 0},
    ],
}


# Conformance: a new problem is tested by existing.


def test_every_problem_is_listed_under_its_own_name() -> None:
    assert set(STREAMS) == set(SMALL)
    assert set(PROBLEMS) == set(IMPOSSIBLE)
    for name, kind in PROBLEMS.items():
        assert kind.__name__ == name
        assert issubclass(kind, Problem)
        assert (kind.__doc__ or "").splitlines()[0].endswith(".")
        assert kind(), "every field has a default"  # pyright: ignore[reportCallIssue]


@each_problem
def test_a_problem_is_frozen_hashable_and_pickles(problem: Problem) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.tasks = 3  # type: ignore[misc]
    again = pickle.loads(pickle.dumps(problem))
    assert again == problem
    assert hash(again) == hash(problem)
    assert equal(opened(again).plan(SEEDS, 2).batches(0, 3, CPU), opened(problem).plan(SEEDS, 2).batches(0, 3, CPU))


@each_problem
def test_shapes_and_types_are_those_of_the_contract(problem: Problem) -> None:
    plan = opened(problem).plan(SEEDS, 1)
    assert plan.steps == problem.steps_before(2) - problem.steps_before(1) <= problem.steps_per_task
    inputs, targets = plan.batches(2, 7, CPU)
    batch = inputs.shape[2]
    assert inputs.shape == (5, 3, batch, *problem.input_shape)
    number_type = torch.int64 if problem.tokens else torch.float32
    assert inputs.dtype == number_type
    assert inputs.is_contiguous()
    assert targets.is_contiguous()
    if problem.loss == "mse":
        assert targets.shape == (5, 3, batch, problem.outputs)
        assert targets.dtype == torch.float32
    else:
        assert targets.shape == (5, 3, batch, *(problem.input_shape if problem.tokens else ()))
        assert targets.dtype == torch.int64
        assert 0 <= int(targets.min()) <= int(targets.max()) < problem.outputs
    probe = plan.probe(11, CPU)
    assert probe.shape == (3, 11, *problem.input_shape)
    assert probe.dtype == number_type
    held_out = plan.test(CPU)
    if held_out is not None:
        inputs, targets = held_out
        assert inputs.shape == (*targets.shape, *problem.input_shape)
        assert targets.shape[0] == 3
        assert (inputs.dtype, targets.dtype) == (torch.float32, torch.int64)
        assert 0 <= int(targets.min()) <= int(targets.max()) < (plan.seen_classes or problem.outputs)


@each_problem
def test_an_empty_range_is_empty_and_one_outside_the_task_is_refused(problem: Problem) -> None:
    plan = opened(problem).plan(SEEDS, 0)
    assert len(plan.batches(4, 4, CPU)[0]) == 0
    for start, stop in ((-1, 2), (3, 2), (0, plan.steps + 1)):
        with pytest.raises(ValueError, match=f"<= {plan.steps}"):
            plan.batches(start, stop, CPU)


@each_problem
def test_the_same_seed_gives_the_same_stream_and_another_seed_another(problem: Problem) -> None:
    first, second = opened(problem).plan(SEEDS, 3), opened(problem).plan(SEEDS, 3)
    assert equal(first.batches(0, 20, CPU), second.batches(0, 20, CPU))
    assert torch.equal(first.probe(9, CPU), second.probe(9, CPU))
    _, targets = first.batches(0, first.steps, CPU)
    inputs, _ = first.batches(0, 20, CPU)
    assert not torch.equal(inputs[:, 0], inputs[:, 1]) or not torch.equal(targets[:, 0], targets[:, 1])


@each_problem
def test_batches_do_not_depend_on_how_the_range_is_cut(problem: Problem) -> None:
    plan = opened(problem).plan(SEEDS, 1)
    whole = plan.batches(0, plan.steps, CPU)
    cuts = [0, 1, 2, 5, 8, plan.steps - 3, plan.steps]
    parts = [plan.batches(start, stop, CPU) for start, stop in itertools.pairwise(cuts)]
    assert equal(whole, (torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])))


@each_problem
def test_a_run_does_not_depend_on_the_runs_beside_it_or_their_order(problem: Problem) -> None:
    stream = opened(problem)
    together = stream.plan(SEEDS, 2)
    inputs, targets = together.batches(0, 20, CPU)
    reordered = stream.plan(SEEDS[::-1], 2)
    assert equal(reordered.batches(0, 20, CPU), (inputs.flip(1), targets.flip(1)))
    for run, seed in enumerate(SEEDS):
        alone = stream.plan([seed], 2)
        assert equal(alone.batches(0, 20, CPU), (inputs[:, run : run + 1], targets[:, run : run + 1]))
        assert torch.equal(alone.probe(9, CPU)[0], together.probe(9, CPU)[run])
        held_out, expected = alone.test(CPU), together.test(CPU)
        if held_out is not None and expected is not None:
            assert equal(held_out, (expected[0][run : run + 1], expected[1][run : run + 1]))


@each_problem
def test_a_plan_does_not_need_those_before_it_and_tasks_differ(problem: Problem) -> None:
    visited = opened(problem)
    plans = [visited.plan(SEEDS, task) for task in range(5)]
    straight = opened(problem).plan(SEEDS, 4)
    assert equal(straight.batches(0, 20, CPU), plans[4].batches(0, 20, CPU))
    inputs = [plan.batches(0, 20, CPU)[0] for plan in plans]
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(inputs))


@each_problem
def test_more_tasks_do_not_change_the_first_ones(problem: Problem) -> None:
    longer = dataclasses.replace(problem, tasks=problem.tasks + 7)
    assert equal(opened(problem).plan(SEEDS, 4).batches(0, 9, CPU), opened(longer).plan(SEEDS, 4).batches(0, 9, CPU))


@each_problem
def test_probe_and_test_do_not_disturb_the_stream_and_probe_is_not_its_beginning(problem: Problem) -> None:
    plan, disturbed = opened(problem).plan(SEEDS, 1), opened(problem).plan(SEEDS, 1)
    disturbed.probe(7, CPU)
    disturbed.test(CPU)
    torch.rand(3)
    np.random.rand(3)
    assert equal(plan.batches(0, 20, CPU), disturbed.batches(0, 20, CPU))
    assert torch.equal(plan.probe(7, CPU), disturbed.probe(12, CPU)[:, :7])
    stream = plan.batches(0, 20, CPU)[0].transpose(0, 1).flatten(1, 2)[:, :20]
    one_input = isinstance(problem, SlowlyChangingRegression) and problem.slow_bits == problem.bits
    assert torch.equal(stream, plan.probe(20, CPU)) == one_input


@pytest.mark.parametrize(("name", "options"), [(name, o) for name in sorted(IMPOSSIBLE) for o in IMPOSSIBLE[name]])
def test_impossible_values_are_refused_by_name_and_value(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=name) as refused:
        PROBLEMS[name](**options)
    field, value = list(options.items())[-1]
    assert field in str(refused.value)
    assert str(value) in str(refused.value)


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_no_problem_has_fewer_than_one_task(name: str) -> None:
    with pytest.raises(ValueError, match="tasks must be a whole number of at least 1; got 0"):
        PROBLEMS[name](tasks=0)


def test_streams_are_the_same_on_every_machine() -> None:
    """The draws of the first version, written down: results of different machines and years can be compared."""
    assert draw_whole([0, 1], 2, "golden", 5, 9, 1000).tolist() == [[222, 665, 684, 20], [527, 897, 480, 886]]
    assert shuffle([1], 0, "golden", 8)[0, 0].tolist() == [1, 3, 2, 6, 4, 0, 7, 5]
    assert slow_bits(SlowlyChangingRegression(), [5], 30).int().tolist()[0] == [
        1,
        1,
        0,
        1,
        1,
        1,
        1,
        0,
        1,
        0,
        1,
        0,
        1,
        0,
        0,
    ]
    images, _ = digits()
    assert int(images.astype(np.int64).sum()) == 29_053_301


def test_problems_import_without_pandas_pillow_or_pyarrow() -> None:
    program = (
        "import sys\n"
        "for name in ('pandas', 'PIL', 'pyarrow'): sys.modules[name] = None\n"
        "import neoteny.problems as problems\n"
        "problems.SlowlyChangingRegression().open().plan([0], 0)\n"
        "problems.ContinualImageNet(tasks=1, source='synthetic', train_images=50, test_images=10).open().plan([0], 0)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-W", "ignore:`torch.jit", "-c", program], check=True, timeout=120)


# Draws.


def test_a_shuffle_is_the_stable_order_of_its_draws() -> None:
    numbers = draw([3, 4], 5, "order", 200, 600).unflatten(-1, (2, 200))
    assert torch.equal(shuffle([3, 4], 5, "order", 200, first=1, rounds=2), torch.argsort(numbers, stable=True).int())


def test_whole_numbers_cover_their_range_evenly() -> None:
    counts = torch.bincount(draw_whole([0], 0, "even", 0, 60_000, 6)[0], minlength=6)
    assert len(counts) == 6
    assert float((counts - 10_000).abs().max()) < 450  # 5 standard deviations

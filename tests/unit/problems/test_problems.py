"""Problems: one conformance suite that discovers every problem, and what is particular to each."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from neoteny.problems import PROBLEMS, ContinualImageNet, PermutedMNIST, Problem, SlowlyChangingRegression
from neoteny.problems.data.synthetic import digits
from neoteny.problems.draws import draw, draw_whole, shuffle
from neoteny.problems.regression import RegressionPlan, agreement, slow_bits
from reference import problems as reference

CPU = torch.device("cpu")
SEEDS = [7, 3, 2**40 + 1]

SMALL: dict[str, list[dict[str, Any]]] = {
    "SlowlyChangingRegression": [
        {"tasks": 20, "examples_per_task": 50},
        {"tasks": 20, "examples_per_task": 50, "bits": 20, "slow_bits": 4, "target_units": 7},  # too many to lay out
        {"tasks": 20, "examples_per_task": 50, "bits": 5, "slow_bits": 5, "target_units": 3},
    ],
    "PermutedMNIST": [
        {"tasks": 20, "examples_per_task": 60, "source": "synthetic"},
        {"tasks": 20, "examples_per_task": 60, "source": "synthetic", "replacement": True},
    ],
    "ContinualImageNet": [
        {"tasks": 20, "train_images": 6, "test_images": 3, "batch_size": 4, "epochs": 8, "source": "synthetic"},
    ],
}
"""Small instances of every problem, on generated data."""

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
    "PermutedMNIST": [{"examples_per_task": 0}, {"replacement": 1}, {"source": ""}, {"examples_per_task": True}],
    "ContinualImageNet": [
        {"train_images": 0},
        {"test_images": 0},
        {"batch_size": 7},
        {"batch_size": 0},
        {"epochs": 0},
        {"source": None},
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

STREAMS = {name: kind for name, kind in PROBLEMS.items() if not kind.control}
INSTANCES = [(name, options) for name in sorted(STREAMS) for options in SMALL[name]]
each_problem = pytest.mark.parametrize(
    "problem", [PROBLEMS[name](**options) for name, options in INSTANCES], ids=lambda problem: repr(problem)[:60]
)


def equal(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# Conformance: a new problem is tested by existing.


def test_every_problem_is_listed_under_its_own_name() -> None:
    assert set(STREAMS) == set(SMALL)
    assert set(PROBLEMS) == set(IMPOSSIBLE)
    for name, kind in PROBLEMS.items():
        assert kind.__name__ == name
        assert issubclass(kind, Problem)
        assert (kind.__doc__ or "").splitlines()[0].endswith(".")
        assert kind(), "every field has a default"


@each_problem
def test_a_problem_is_frozen_hashable_and_pickles(problem: Problem) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.tasks = 3  # type: ignore[misc]
    again = pickle.loads(pickle.dumps(problem))
    assert again == problem
    assert hash(again) == hash(problem)
    assert equal(again.open().plan(SEEDS, 2).batches(0, 3, CPU), problem.open().plan(SEEDS, 2).batches(0, 3, CPU))


@each_problem
def test_shapes_and_types_are_those_of_the_contract(problem: Problem) -> None:
    plan = problem.open().plan(SEEDS, 1)
    assert plan.steps == problem.steps_per_task
    inputs, targets = plan.batches(2, 7, CPU)
    batch = inputs.shape[2]
    assert inputs.shape == (5, 3, batch, *problem.input_shape)
    assert inputs.dtype == torch.float32
    assert inputs.is_contiguous()
    assert targets.is_contiguous()
    if problem.loss == "mse":
        assert targets.shape == (5, 3, batch, problem.outputs)
        assert targets.dtype == torch.float32
    else:
        assert targets.shape == (5, 3, batch)
        assert targets.dtype == torch.int64
        assert 0 <= int(targets.min()) <= int(targets.max()) < problem.outputs
    probe = plan.probe(11, CPU)
    assert probe.shape == (3, 11, *problem.input_shape)
    assert probe.dtype == torch.float32
    held_out = plan.test(CPU)
    if held_out is not None:
        inputs, targets = held_out
        assert inputs.shape == (*targets.shape, *problem.input_shape)
        assert targets.shape[0] == 3
        assert (inputs.dtype, targets.dtype) == (torch.float32, torch.int64)


@each_problem
def test_an_empty_range_is_empty_and_one_outside_the_task_is_refused(problem: Problem) -> None:
    plan = problem.open().plan(SEEDS, 0)
    assert len(plan.batches(4, 4, CPU)[0]) == 0
    for start, stop in ((-1, 2), (3, 2), (0, plan.steps + 1)):
        with pytest.raises(ValueError, match=f"<= {plan.steps}"):
            plan.batches(start, stop, CPU)


@each_problem
def test_the_same_seed_gives_the_same_stream_and_another_seed_another(problem: Problem) -> None:
    first, second = problem.open().plan(SEEDS, 3), problem.open().plan(SEEDS, 3)
    assert equal(first.batches(0, 20, CPU), second.batches(0, 20, CPU))
    assert torch.equal(first.probe(9, CPU), second.probe(9, CPU))
    _, targets = first.batches(0, first.steps, CPU)
    inputs, _ = first.batches(0, 20, CPU)
    assert not torch.equal(inputs[:, 0], inputs[:, 1]) or not torch.equal(targets[:, 0], targets[:, 1])


@each_problem
def test_batches_do_not_depend_on_how_the_range_is_cut(problem: Problem) -> None:
    plan = problem.open().plan(SEEDS, 1)
    whole = plan.batches(0, plan.steps, CPU)
    cuts = [0, 1, 2, 5, 8, plan.steps - 3, plan.steps]
    parts = [plan.batches(start, stop, CPU) for start, stop in itertools.pairwise(cuts)]
    assert equal(whole, (torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])))


@each_problem
def test_a_run_does_not_depend_on_the_runs_beside_it_or_their_order(problem: Problem) -> None:
    stream = problem.open()
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
    visited = problem.open()
    plans = [visited.plan(SEEDS, task) for task in range(5)]
    straight = problem.open().plan(SEEDS, 4)
    assert equal(straight.batches(0, 20, CPU), plans[4].batches(0, 20, CPU))
    inputs = [plan.batches(0, 20, CPU)[0] for plan in plans]
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(inputs))


@each_problem
def test_more_tasks_do_not_change_the_first_ones(problem: Problem) -> None:
    longer = dataclasses.replace(problem, tasks=problem.tasks + 7)
    assert equal(problem.open().plan(SEEDS, 4).batches(0, 9, CPU), longer.open().plan(SEEDS, 4).batches(0, 9, CPU))


@each_problem
def test_probe_and_test_do_not_disturb_the_stream_and_probe_is_not_its_beginning(problem: Problem) -> None:
    plan, disturbed = problem.open().plan(SEEDS, 1), problem.open().plan(SEEDS, 1)
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


# Slowly-changing regression.


def regression(task: int = 3, **options: Any) -> RegressionPlan:
    return SlowlyChangingRegression(**options).open().plan(SEEDS, task)


@pytest.mark.parametrize("options", [{}, {"bits": 18, "slow_bits": 5}, {"bits": 9, "slow_bits": 6}], ids=str)
def test_targets_are_those_of_the_papers_network(options: dict[str, int]) -> None:
    """bits=9 makes (m + 1) * beta the whole number 7, which a sum can equal: the unit must be strictly above."""
    plan = regression(target_units=12, examples_per_task=30, **options)
    inputs, targets = plan.batches(0, 30, CPU)
    for run in range(3):
        hidden, output = plan.hidden[run].numpy(), plan.output[run].numpy()
        for step in range(30):
            answer = reference.target(inputs[step, run, 0].numpy(), hidden, output[:-1], output[-1], 0.7)
            assert float(targets[step, run]) == answer


def test_a_unit_at_its_threshold_does_not_fire() -> None:
    problem = SlowlyChangingRegression(bits=9, slow_bits=6, target_units=1, examples_per_task=200)
    plan = problem.open().plan(range(20), 0)
    inputs, targets = plan.batches(0, 200, CPU)
    hidden = plan.hidden[:, 0]  # (n, 10)
    sums = (inputs[:, :, 0] * hidden).sum(-1)
    distance = sums - (7 - (hidden < 0).sum(-1))
    fired = (targets[:, :, 0, 0] - plan.output[:, 1]) / plan.output[:, 0]
    assert bool((distance == 0).any())
    assert bool((distance == 1).any())
    assert torch.equal(fired == 1, distance > 0)


@pytest.mark.parametrize(("bits", "threshold", "most"), [(21, 0.7, 15), (9, 0.7, 7), (9, 0.29, 2), (99, 0.29, 29)])
def test_thresholds_are_decimal_numbers(bits: int, threshold: float, most: int) -> None:
    assert agreement(SlowlyChangingRegression(bits=bits, slow_bits=bits, threshold=threshold)) == most


def test_all_weights_are_one_or_minus_one_about_evenly_and_kept_for_the_whole_run() -> None:
    first, later = regression(0), regression(250)
    assert torch.equal(first.hidden, later.hidden)
    assert torch.equal(first.output, later.output)
    assert first.hidden.shape == (3, 100, 22)
    assert set(first.hidden.unique().tolist()) == set(first.output.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(first.hidden.mean())) < 0.06


def test_exactly_one_slow_bit_flips_at_each_task_change() -> None:
    problem = SlowlyChangingRegression()
    states = torch.stack([slow_bits(problem, range(50), task) for task in range(40)])  # (tasks, n, 15)
    assert set(states.unique().tolist()) == {0.0, 1.0}
    changes = (states[1:] != states[:-1]).int()
    assert bool((changes.sum(-1) == 1).all())
    places = changes.sum((0, 1))
    assert int(places.min()) > 80, "every slow bit is as likely as any other (130 expected)"
    assert 0.3 < float(states[0].mean()) < 0.7


def test_slow_bits_follow_their_flips_one_after_another() -> None:
    problem = SlowlyChangingRegression()
    initial = slow_bits(problem, [4], 0)[0].int().tolist()
    flips = draw_whole([4], 0, "regression.flip", 1, 31, 15)[0].tolist()
    expected = reference.slow_bits(initial, flips)
    assert [slow_bits(problem, [4], task)[0].int().tolist() for task in range(31)] == expected


def test_slow_bits_are_constant_within_a_task_random_bits_are_fair_and_the_last_input_is_one() -> None:
    plan = regression(5)
    inputs, _ = plan.batches(0, 10_000, CPU)
    inputs = inputs[:, :, 0]
    assert bool((inputs[..., :15] == plan.slow).all())
    assert bool((inputs[..., 21] == 1).all())
    random = inputs[..., 15:21]
    assert set(random.unique().tolist()) == {0.0, 1.0}
    assert float((random.mean(0) - 0.5).abs().max()) < 0.025  # 5 standard deviations
    pairs = torch.einsum("kni,knj->nij", 2 * random - 1, 2 * random - 1) / 10_000
    assert float((pairs - torch.eye(6)).abs().max()) < 0.05, "random bits are independent of each other"
    following = ((2 * random[1:] - 1) * (2 * random[:-1] - 1)).mean(0)
    assert float(following.abs().max()) < 0.05, "and of the example before"


def test_looking_up_all_inputs_of_a_task_gives_what_computing_each_gives() -> None:
    looked_up, computed = regression(), regression()
    computed.inputs = computed.targets = None
    assert looked_up.inputs is not None
    assert equal(looked_up.batches(0, 500, CPU), computed.batches(0, 500, CPU))


# Permuted MNIST.


def original(plan: Any, inputs: Tensor, run: int) -> np.ndarray:
    """Inputs of a run (count, 784) with their pixels put back, as bytes."""
    back = torch.empty_like(inputs)
    back[:, plan.permutation[run].long()] = inputs
    return (back * 255).round().to(torch.uint8).numpy()


def test_every_image_comes_once_a_task_with_its_label_and_its_pixels_permuted() -> None:
    plan = PermutedMNIST(tasks=3, examples_per_task=2000, source="synthetic").open().plan([0, 1], 2)
    images, labels = digits()
    inputs, targets = plan.batches(0, 2000, CPU)
    for run in range(2):
        order = plan.order[run].numpy()
        assert sorted(order.tolist()) == list(range(2000))
        assert np.array_equal(targets[:, run, 0].numpy(), labels[order])
        assert np.array_equal(original(plan, inputs[:, run, 0], run), images[order])
        assert sorted(plan.permutation[run].tolist()) == list(range(784))


def test_each_task_permutes_the_original_pixels_anew_and_reorders_the_images() -> None:
    stream = PermutedMNIST(tasks=9, examples_per_task=2000, source="synthetic").open()
    plans = [stream.plan([0], task) for task in range(3)]
    for first, second in ((0, 1), (1, 2)):
        same = (plans[first].permutation == plans[second].permutation).float().mean()
        assert float(same) < 0.02
        assert float((plans[first].order == plans[second].order).float().mean()) < 0.01


def test_pixels_are_in_zero_to_one_and_white_is_exactly_one() -> None:
    from neoteny.problems.data.pixels import PIXEL

    levels = torch.arange(256).float() * PIXEL
    assert float(levels[0]) == 0.0
    assert float(levels[255]) == 1.0
    torch.testing.assert_close(levels, torch.arange(256) / 255, rtol=1.2e-7, atol=0)


def test_fewer_examples_are_a_fresh_part_of_the_images_each_task() -> None:
    stream = PermutedMNIST(tasks=9, examples_per_task=500, source="synthetic").open()
    parts = [set(stream.plan([0], task).order[0].tolist()) for task in range(2)]
    assert [len(part) for part in parts] == [500, 500]
    assert len(parts[0] & parts[1]) < 250


def test_with_replacement_images_repeat_and_tasks_may_be_longer_than_the_data() -> None:
    plan = PermutedMNIST(tasks=3, examples_per_task=3000, replacement=True, source="synthetic").open().plan([0], 0)
    seen = len(set(plan.order[0].tolist()))
    assert 1400 < seen < 1700  # 2000 * (1 - exp(-1.5)) = 1554
    assert plan.batches(2990, 3000, CPU)[0].shape == (10, 1, 1, 784)


def test_more_examples_than_images_without_replacement_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"at most 2,000.*replacement=True; got 2,001"):
        PermutedMNIST(examples_per_task=2001, source="synthetic").open()


def test_runs_and_plans_share_one_copy_of_the_images() -> None:
    problem = PermutedMNIST(tasks=3, examples_per_task=100, source="synthetic")
    first, second = problem.open().plan([0], 0), problem.open().plan(range(30), 1)
    assert first.data.images.data_ptr() == second.data.images.data_ptr()
    assert first.data.images.dtype == torch.uint8


def test_generated_digits_are_sparse_and_a_linear_classifier_learns_them() -> None:
    images, labels = digits()
    assert 0.12 < (images > 0).mean() < 0.25
    inputs = np.c_[images / 255, np.ones(len(images))]
    answers = np.eye(10)[labels]
    weights = np.linalg.solve(inputs[:1500].T @ inputs[:1500] + 10 * np.eye(785), inputs[:1500].T @ answers[:1500])
    assert ((inputs[1500:] @ weights).argmax(1) == labels[1500:]).mean() > 0.9


# Continual ImageNet.


def pairs_problem(**options: Any) -> ContinualImageNet:
    given = {"tasks": 20, "train_images": 6, "test_images": 3, "batch_size": 4, "epochs": 5, "source": "synthetic"}
    return ContinualImageNet(**{**given, **options})


def as_bytes(inputs: Tensor) -> np.ndarray:
    return ((inputs + 0.5) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


def test_no_pair_of_classes_comes_twice_and_all_pairs_come() -> None:
    stream = pairs_problem(tasks=780).open()
    pairs = {tuple(pair) for pair in stream.pairs(0).tolist()}
    assert len(pairs) == 780 == 40 * 39 // 2
    assert all(first < second for first, second in pairs)
    assert not np.array_equal(stream.pairs(0), stream.pairs(1))
    assert np.array_equal(stream.plan([0, 1], 77).classes, [stream.pairs(0)[77], stream.pairs(1)[77]])


def test_every_epoch_shows_every_training_image_once_with_its_label() -> None:
    stream = pairs_problem().open()
    plan = stream.plan([0, 1], 2)
    inputs, targets = plan.batches(0, plan.steps, CPU)
    for run in range(2):
        classes = [stream.source.load(stream.source.names[number])[:6] for number in plan.classes[run]]
        expected = sorted((image.tobytes(), label) for label in (0, 1) for image in classes[label])
        orders = []
        for epoch in range(5):
            part = slice(3 * epoch, 3 * epoch + 3)
            shown = [image.tobytes() for image in as_bytes(inputs[part, run].flatten(0, 1))]
            assert sorted(zip(shown, targets[part, run].flatten().tolist(), strict=True)) == expected
            orders.append(shown)
        assert all(orders[0] != later for later in orders[1:])


def test_the_test_set_is_the_next_images_of_both_classes() -> None:
    stream = pairs_problem().open()
    plan = stream.plan([0], 2)
    inputs, targets = plan.test(CPU)
    expected = [stream.source.load(stream.source.names[number])[6:9] for number in plan.classes[0]]
    assert np.array_equal(as_bytes(inputs[0]), np.concatenate(expected))
    assert targets.tolist() == [[0, 0, 0, 1, 1, 1]]


def test_a_probe_shows_all_training_images_before_it_repeats_one() -> None:
    probe = as_bytes(pairs_problem().open().plan([0], 2).probe(24, CPU)[0])
    assert len({image.tobytes() for image in probe[:12]}) == 12
    assert np.array_equal(probe[:12], probe[12:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": 781}, r"40 classes, of which 780 different pairs can be made; got tasks=781"),
        ({"train_images": 58}, r"has 60 images; got train_images=58 and test_images=3, which need 61"),
    ],
)
def test_more_than_the_source_has_is_refused_when_it_is_opened(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pairs_problem(**options).open()
    with pytest.raises(ValueError, match="tasks 0 to 19; got 20"):
        pairs_problem().open().plan([0], 20)


def test_only_continual_imagenet_tells_the_task() -> None:
    assert [name for name in sorted(PROBLEMS) if PROBLEMS[name].tells_task] == ["ContinualImageNet"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_problem
def test_a_gpu_gives_the_same_numbers(problem: Problem) -> None:
    plan = problem.open().plan(SEEDS, 1)
    cuda = torch.device("cuda", 0)
    inputs, targets = plan.batches(0, 20, cuda)
    assert inputs.device == targets.device == cuda
    assert equal((inputs.cpu(), targets.cpu()), plan.batches(0, 20, CPU))
    assert torch.equal(plan.probe(9, cuda).cpu(), plan.probe(9, CPU))


# The real data.

SHARED = Path(os.environ.get("NEOTENY_DATA") or Path(__file__).parents[4] / "shared" / "data")


@pytest.mark.data
@pytest.mark.skipif(not (SHARED / "mnist").is_dir(), reason="needs MNIST")
def test_mnist_is_the_published_one() -> None:
    stream = PermutedMNIST().open(SHARED)
    counts = torch.bincount(stream.data.labels.long()).tolist()
    assert counts == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert stream.data.images.shape == (60_000, 784)
    assert 0.18 < float((stream.data.images > 0).float().mean()) < 0.20
    plan = stream.plan([0], 0)
    assert sorted(plan.order[0].tolist()) == list(range(60_000))


@pytest.mark.data
@pytest.mark.skipif(not (SHARED / "imagenet200_32").is_dir(), reason="needs the sheets of imagenet200_32")
def test_the_sheets_give_200_classes_of_450_and_100() -> None:
    with pytest.raises(ValueError, match="has 550 images"):
        ContinualImageNet().open(SHARED)
    stream = ContinualImageNet(train_images=450).open(SHARED)
    assert len(stream.source.names) == 200
    plan = stream.plan([0], 1999)
    inputs, targets = plan.batches(0, 9, CPU)
    assert inputs.shape == (9, 1, 100, 3, 32, 32)
    assert targets.sum() == 450
    held_out = plan.test(CPU)[0]
    assert held_out.shape == (1, 200, 3, 32, 32)
    assert 0.1 < float(held_out.std()) < 0.4
    last = stream.source.load(stream.source.names[plan.classes[0, 1]])[549]
    assert np.array_equal(as_bytes(held_out[0, -1:])[0], last)

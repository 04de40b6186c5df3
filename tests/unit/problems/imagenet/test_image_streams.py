"""Warm start, sample- and class-incremental learning: batch by batch what plain loops give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from neoteny.problems import ClassIncremental, SampleIncremental, WarmStart
from neoteny.problems.imagenet.augmentation import place_pixels
from neoteny.problems.imagenet.classes import open_source
from neoteny.problems.imagenet.pool import PoolPlan
from reference import image_streams as reference
from support.problem_streams import CPU
from support.shared_data import SHARED

SEEDS = [3, 2**40 + 1]


def warm_start(**options: Any) -> WarmStart:
    given = {"source": "synthetic", "classes": 4, "train_images": 7, "test_images": 3, "batch_size": 4}
    return WarmStart(**{**given, "first_epochs": 2, "epochs": 3, **options})


def sample_incremental(**options: Any) -> SampleIncremental:
    given = {"source": "synthetic", "classes": 4, "train_images": 7, "test_images": 3, "batch_size": 4}
    return SampleIncremental(**{**given, "tasks": 3, "images_per_task": 9, "epochs": 2, **options})


def class_incremental(**options: Any) -> ClassIncremental:
    given = {"source": "synthetic", "classes": 8, "classes_per_task": 2, "train_images": 5, "test_images": 3}
    return ClassIncremental(**{**given, "tasks": 4, "batch_size": 4, "epochs": 5, **options})


def images_of(classes: int, train: int, test: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and test images of every fifth or tenth of the 40 generated classes."""
    source = open_source("synthetic")
    each = [source.load(source.names[number * 40 // classes]) for number in range(classes)]
    return np.concatenate([one[:train] for one in each]), np.concatenate([one[train : train + test] for one in each])


def assert_shown(inputs: Tensor, expected: np.ndarray) -> None:
    """Pixels are those of the loops, up to the rounding of float32."""
    assert np.abs(inputs.double().numpy() - expected).max() < 1e-6


@pytest.mark.parametrize(
    ("problem", "name", "first"),
    [(warm_start(), "warm_start", [14, 28]), (sample_incremental(), "sample_incremental", [9, 18, 27])],
)
def test_accumulating_batches_are_those_of_the_loops(problem: Any, name: str, first: list[int]) -> None:
    train, test = images_of(4, 7, 3)
    stream, steps = problem.open(), 0
    for task, images in enumerate(first):
        plan = stream.plan(SEEDS, task)
        passes = 2 if task == 0 or name == "sample_incremental" else 3
        assert plan.steps == passes * (images // 4)
        assert problem.steps_before(task) == steps
        steps += plan.steps
        inputs, labels = plan.batches(0, plan.steps, CPU)
        for run, seed in enumerate(SEEDS):
            pool = reference.accumulated(seed, f"{name}.images", 28, images)
            shown = reference.batches(seed, task, f"{name}.order", pool, 4, passes)
            assert labels[:, run].tolist() == [[number // 7 for number in batch] for batch in shown]
            assert_shown(inputs[:, run], np.array([[reference.centred(train[k]) for k in batch] for batch in shown]))
        held_out, targets = plan.test(CPU)
        assert targets.tolist() == [[label for label in range(4) for _ in range(3)]] * 2
        assert_shown(held_out[1], np.array([reference.centred(image) for image in test]))
    assert problem.steps_before(len(first)) == steps
    assert problem.steps_per_task == {"warm_start": 21, "sample_incremental": 12}[name]


@pytest.mark.parametrize("augmented", [False, True])
def test_class_incremental_batches_are_those_of_the_loops(augmented: bool) -> None:
    train, test = images_of(8, 5, 3)
    problem = class_incremental(augmented=augmented, test_augmented=augmented)
    stream = problem.open()

    def image(seed: int, task: int, picture: np.ndarray, purpose: str, place: int) -> np.ndarray:
        drawn = reference.numbers(seed, task, f"class_incremental.{purpose}", 4 * place, 4 * place + 4)
        return reference.augmented(picture, drawn) if augmented else reference.centred(picture)

    for task, seen in ((0, 2), (2, 6)):
        plan = stream.plan(SEEDS, task)
        assert plan.seen_classes == seen
        assert plan.steps == 5 * (seen * 5 // 4)
        inputs, labels = plan.batches(3, 6, CPU)
        held_out, targets = plan.test(CPU)
        for run, seed in enumerate(SEEDS):
            place_of = {number: place for place, number in enumerate(reference.class_order(seed, 8))}
            pool = reference.seen_images(seed, 8, seen, 5)
            shown = reference.batches(seed, task, "class_incremental.order", pool, 4, 5)[3:6]
            assert labels[:, run].tolist() == [[place_of[number // 5] for number in batch] for batch in shown]
            numbered = [(12 + place, number) for place, number in enumerate(k for batch in shown for k in batch)]
            pictures = [image(seed, task, train[number], "augmentation", place) for place, number in numbered]
            assert_shown(inputs[:, run].flatten(0, 1), np.array(pictures))
            tested = reference.seen_images(seed, 8, seen, 3)
            assert targets[run].tolist() == [place_of[number // 3] for number in tested]
            pictures = [image(seed, task, test[number], "test_augmentation", k) for k, number in enumerate(tested)]
            assert_shown(held_out[run], np.array(pictures))


def test_the_step_size_falls_after_shares_of_the_passes_and_is_back_in_the_next_task() -> None:
    problem = class_incremental(epochs=10, decay_factor=0.5)
    assert problem.schedules_step_size
    assert not class_incremental(decay_at=()).schedules_step_size
    for task in (0, 1):
        plan = problem.open().plan([0], task)
        factors = [plan.step_size_factor(step) for step in range(plan.steps)]
        each = plan.steps_of_a_pass
        expected = [reference.step_size_factor(step, each, 10, (0.3, 0.6, 0.8), 0.5) for step in range(plan.steps)]
        assert factors == expected
        assert [factors.count(value) // each for value in (1.0, 0.5, 0.25, 0.125)] == [3, 3, 2, 2]


def test_all_classes_come_and_their_order_differs_between_runs() -> None:
    plan = class_incremental().open().plan([0, 1, 2], 3)
    orders = [tuple(labels) for labels in plan.labels.tolist()]
    assert all(sorted(labels) == list(range(8)) for labels in orders)
    assert len(set(orders)) == 3


def test_a_pass_shows_no_image_twice_and_the_next_leaves_out_others() -> None:
    plan = warm_start(train_images=9, batch_size=5, epochs=8).open().plan([0], 1)
    assert isinstance(plan, PoolPlan)
    assert plan.steps_of_a_pass == 7
    passes = plan.order(0, plan.steps)[0].unflatten(0, (8, 7)).flatten(1).tolist()
    assert all(len(set(shown)) == 35 for shown in passes)
    assert len({(set(range(36)) - set(shown)).pop() for shown in passes}) > 1


def test_a_probe_is_of_the_images_of_the_task_and_not_augmented() -> None:
    train, _ = images_of(8, 5, 3)
    plan = class_incremental().open().plan([5], 1)
    probe = ((plan.probe(40, CPU)[0] + 0.5) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    expected = {train[number].tobytes() for number in reference.seen_images(5, 8, 4, 5)}
    assert {image.tobytes() for image in probe[:20]} == expected
    assert np.array_equal(probe[:20], probe[20:])


def test_rotations_turn_counter_clockwise_and_leave_the_corners_empty() -> None:
    half, none = torch.tensor(0.5), torch.tensor(0.0)
    turned = place_pixels(half, half, half, torch.tensor(0.999)).view(32, 32)
    assert int(turned[0, 0]) == int(turned[31, 31]) == -1
    assert int((turned < 0).sum()) < 150
    assert turned[16, 31] % 32 >= 30  # from the right edge,
    assert turned[16, 31] // 32 > 18  # and lower down
    mirrored = place_pixels(none, half, half, none).view(32, 32)
    assert torch.equal(mirrored, torch.arange(1024).view(32, 32).flip(1).int())
    window = place_pixels(half, none, torch.tensor(0.999), none).view(32, 32)
    assert window[0, 0] == 4 * 32 + 4  # four rows above the image are its rows 4, 3, 2, 1
    assert window[31, 31] == 27 * 32 + 27


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (warm_start(classes=41), "WarmStart: 'synthetic' has 40 classes; got classes=41"),
        (warm_start(train_images=58), "WarmStart: class c000 of 'synthetic' has 60 images; .* which need 61"),
        (class_incremental(test_images=56), "ClassIncremental: class c000 .* which need 61"),
        (sample_incremental(source="absent"), "source must be .* got 'absent', which is not a folder"),
    ],
)
def test_more_than_the_source_has_is_refused_when_it_is_opened(problem: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        problem.open()


@pytest.mark.parametrize("problem", [warm_start(), sample_incremental(), class_incremental()])
def test_a_task_that_is_not_there_is_refused(problem: Any) -> None:
    with pytest.raises(ValueError, match=f"{type(problem).__name__} has tasks 0 to .*; got {problem.tasks}"):
        problem.open().plan([0], problem.tasks)


@pytest.mark.data
@pytest.mark.skipif(not (SHARED / "imagenet200_32").is_dir(), reason="needs the sheets of imagenet200_32")
def test_the_published_sizes_fit_the_200_classes() -> None:
    for smaller in (WarmStart(), SampleIncremental()):
        smaller.open(SHARED)  # which refuses what does not fit; reading the images of one problem takes seconds enough
    plan = ClassIncremental().open(SHARED).plan([0], 19)
    assert plan.pool.shape == (1, 45_000)
    inputs, labels = plan.batches(0, 2, CPU)
    assert inputs.shape[:3] == labels.shape == (2, 1, 90)
    assert 0.1 < float(inputs.std()) < 0.4

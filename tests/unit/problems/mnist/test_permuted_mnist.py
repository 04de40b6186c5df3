"""Online permuted MNIST: every image once per task, pixels permuted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from neoteny.problems import PermutedMNIST
from neoteny.problems.data.synthetic import digits
from support.problem_streams import CPU
from support.shared_data import SHARED

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
    with pytest.raises(ValueError, match=r"at most 2,000.*replacement=True or continue_passes=True; got 2,001"):
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


def test_a_batch_holds_the_images_that_would_come_one_by_one() -> None:
    one, many = (PermutedMNIST(tasks=3, examples_per_task=48, source="synthetic", batch_size=batch) for batch in (1, 4))
    assert (one.steps_per_task, many.steps_per_task) == (48, 12)
    singles, batches = (problem.open().plan([0, 1], 2) for problem in (one, many))
    assert (singles.steps, batches.steps) == (48, 12)
    inputs, targets = singles.batches(8, 20, CPU)
    together, classes = batches.batches(2, 5, CPU)
    assert together.shape == (3, 2, 4, 784)
    for update in range(3):
        for place in range(4):
            assert torch.equal(together[update, :, place], inputs[4 * update + place, :, 0])
            assert torch.equal(classes[update, :, place], targets[4 * update + place, :, 0])


@pytest.mark.parametrize(("batch", "words"), [(0, "at least 1; got 0"), (7, "multiple of batch_size; got 48 and 7")])
def test_an_impossible_batch_is_refused(batch: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PermutedMNIST(examples_per_task=48, batch_size=batch)

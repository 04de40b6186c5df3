"""The streams of online problems against plain loops that follow their protocols: every batch of several tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from neoteny.problems import (
    LabelPermutedImages,
    LabelPermutedMNIST,
    PermutedMNIST,
    Problem,
    RandomLabelImages,
    RandomLabelMNIST,
)
from neoteny.problems.data.pixels import pixel_values
from neoteny.problems.data.synthetic import digits
from reference import online_streams as reference
from support.class_folders import some_images
from support.problem_streams import CPU, opened

SEEDS = (0, 5, 2**40 + 3)
IMAGES, LABELS = (each[:90] for each in digits())


@pytest.fixture
def few_digits(tmp_path: Path) -> str:
    """A folder with ninety of the generated digits, so that passes end inside tasks."""
    for name, values in (("train-images-idx3-ubyte", IMAGES.reshape(-1, 28, 28)), ("train-labels-idx1-ubyte", LABELS)):
        shape = b"".join(size.to_bytes(4, "big") for size in values.shape)
        (tmp_path / name).write_bytes(bytes([0, 0, 8, values.ndim]) + shape + values.tobytes())
    return str(tmp_path)


@pytest.fixture
def few_colours(tmp_path: Path) -> tuple[str, np.ndarray, list[int]]:
    """A folder with four classes of five images; and these with the channels first, and their labels."""
    classes = [some_images(5, number) for number in range(4)]
    for number, images in enumerate(classes):
        np.save(tmp_path / f"class{number}.npy", images)
    return str(tmp_path), np.concatenate(classes).transpose(0, 3, 1, 2).reshape(20, -1), np.repeat(range(4), 5).tolist()


def check(problem: Problem, expected: dict[int, list[list[reference.Example]]], pixels: str) -> None:
    """Every batch of every task, for all seeds in one plan."""
    levels = np.array([reference.scaled(level, pixels) for level in range(256)])
    stream, tasks = opened(problem), len(expected[SEEDS[0]])
    for task in reversed(range(tasks)):  # a task does not need those before it
        plan = stream.plan(SEEDS, task)
        inputs, targets = plan.batches(0, plan.steps, CPU)
        for run, seed in enumerate(SEEDS):
            wanted = expected[seed][task]
            shape = (plan.steps, inputs.shape[2])
            assert len(wanted) == shape[0] * shape[1]
            pictures = levels[np.array([picture for picture, _ in wanted])].reshape(*shape, *problem.input_shape)
            assert np.array_equal(inputs[:, run].numpy(), pictures), (task, seed)
            assert targets[:, run].tolist() == np.array([label for _, label in wanted]).reshape(shape).tolist()


@pytest.mark.parametrize(("examples", "batch"), [(20, 4), (100, 1)])
def test_input_permuted_digits_are_one_series_of_passes(few_digits: str, examples: int, batch: int) -> None:
    problem = PermutedMNIST(6, examples, False, few_digits, batch, pixels="centred", continue_passes=True)
    expected = {seed: reference.permuted_in_passes(seed, IMAGES, LABELS.tolist(), 6, examples) for seed in SEEDS}
    check(problem, expected, "centred")


def test_permuted_digits_of_one_sample_are_the_same_images_in_every_task(few_digits: str) -> None:
    problem = PermutedMNIST(3, 32, False, few_digits, batch_size=16, images_per_run=40)
    expected = {seed: reference.permuted_of_a_sample(seed, IMAGES, LABELS.tolist(), 3, 40, 32) for seed in SEEDS}
    check(problem, expected, "unit")
    continued = PermutedMNIST(3, 32, False, few_digits, continue_passes=True, images_per_run=40).open()
    samples = [continued.plan([5], task).sample for task in (0, 2)]
    kept = {tuple(sample[0].tolist()) for sample in samples if sample is not None}
    seen = torch.cat([continued.plan([5], task).order[0] for task in range(3)])  # 96 examples: two passes and a part
    assert len(kept) == 1
    assert set(seen.tolist()) == set(next(iter(kept)))
    counts = torch.bincount(seen.long())
    assert set(counts[counts > 0].tolist()) == {2, 3}
    probed = continued.plan([5], 0).probe(500, CPU)[0]
    assert len(probed.unique(dim=0)) <= 40


def test_label_permuted_digits_rename_what_was_renamed_before(few_digits: str) -> None:
    problem = LabelPermutedMNIST(6, 40, few_digits, batch_size=2)
    expected = {seed: reference.label_permuted(seed, IMAGES, LABELS.tolist(), 10, 6, 40) for seed in SEEDS}
    check(problem, expected, "centred")


def test_label_permuted_colours(few_colours: tuple[str, np.ndarray, list[int]]) -> None:
    folder, images, labels = few_colours
    problem = LabelPermutedImages(5, 12, folder, classes=4, pixels="unit")
    check(problem, {seed: reference.label_permuted(seed, images, labels, 4, 5, 12) for seed in SEEDS}, "unit")
    first_two = LabelPermutedImages(5, 12, folder, classes=2)
    expected = {seed: reference.label_permuted(seed, images[:10], labels[:10], 2, 5, 12) for seed in SEEDS}
    check(first_two, expected, "centred")


@pytest.mark.parametrize("new_images", [False, True])
def test_random_labels_of_digits(few_digits: str, new_images: bool) -> None:
    problem = RandomLabelMNIST(3, 24, 4, 8, few_digits, new_images=new_images)
    expected = {seed: reference.random_label(seed, IMAGES, 10, 3, 24, 4, new_images) for seed in SEEDS}
    check(problem, expected, "unit")
    assert problem.open().plan([0], 0).steps_of_a_pass == 3


def test_random_labels_of_colours(few_colours: tuple[str, np.ndarray, list[int]]) -> None:
    folder, images, _ = few_colours
    problem = RandomLabelImages(3, 12, 2, 4, folder, classes=7, pixels="centred")
    check(problem, {seed: reference.random_label(seed, images, 7, 3, 12, 2) for seed in SEEDS}, "centred")


def test_the_default_values_are_those_of_the_papers() -> None:
    upgd = PermutedMNIST(200, 5_000, pixels="centred", continue_passes=True)
    assert upgd.tasks * upgd.steps_per_task == 1_000_000
    clipping = PermutedMNIST(300, 50_000, pixels="centred", continue_passes=True)
    assert clipping.tasks * clipping.steps_per_task == 15_000_000
    l2_init = PermutedMNIST(500, 10_000, batch_size=16, images_per_run=10_000)
    assert (l2_init.tasks, l2_init.steps_per_task) == (500, 625)
    for kind in (LabelPermutedMNIST, LabelPermutedImages):
        assert kind().tasks * kind().steps_per_task == 1_000_000
    for kind in (RandomLabelMNIST, RandomLabelImages):
        assert (kind().tasks, kind().steps_per_task, kind().images_per_task, kind().outputs) == (50, 30_000, 1_200, 10)


def test_centred_pixels_go_from_minus_one_to_one() -> None:
    values = pixel_values("centred")
    assert (values[0], values[255]) == (-1.0, 1.0)
    np.testing.assert_allclose(values, (np.arange(256) / 255 - 0.5) / 0.5, rtol=0, atol=2e-7)
    np.testing.assert_allclose(pixel_values("unit"), np.arange(256) / 255, rtol=0, atol=1e-7)


def test_a_million_examples_need_no_stream_of_a_million() -> None:
    """The last of many tasks is drawn by itself; only the labels go back to the first task."""
    problem = LabelPermutedMNIST(source="synthetic")
    first, second = problem.open(), problem.open()
    for task in (3, 150, 199):
        first.plan([4], task)
    assert torch.equal(first.plan([4], 199).labels, second.plan([4], 199).labels)
    assert torch.equal(first.plan([4], 7).labels, second.plan([4], 7).labels)


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (PermutedMNIST(source="synthetic", images_per_run=2001), "images_per_run must be at most 2,000.*got 2,001"),
        (PermutedMNIST(1, 50, source="synthetic", images_per_run=40), "at most 40.* that a run uses.*got 50"),
        (LabelPermutedMNIST(source="synthetic", classes=47), "has 10 classes; got classes=47. Set classes=10"),
        (LabelPermutedMNIST(source="minst"), "'emnist_balanced', 'synthetic' or the path of a folder.*got 'minst'"),
        (LabelPermutedImages(source="synthetic"), "'synthetic' has 40 classes; got classes=200"),
        (
            RandomLabelMNIST(source="synthetic", images_per_task=2016),
            "at most 2,000, the images.*got 2,016",
        ),
        (RandomLabelImages(source="cifar"), "'cifar10', 'cifar100', 'synthetic' or the path.*got 'cifar'"),
    ],
    ids=str,
)
def test_what_does_not_fit_the_data_is_refused_when_it_is_opened(problem: Problem, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        problem.open()

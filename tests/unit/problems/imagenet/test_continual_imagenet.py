"""Continual ImageNet: pairs of classes, epochs, the test set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from neoteny.problems import PROBLEMS, ContinualImageNet, Problem
from support.problem_streams import CPU, SEEDS, each_problem, equal, opened
from support.shared_data import SHARED


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


def test_only_continual_imagenet_sets_the_output_layer_to_zero() -> None:
    telling = [name for name in sorted(PROBLEMS) if PROBLEMS[name].tells_task]
    assert telling == ["ClassIncremental", "ContinualImageNet", "SampleIncremental", "WarmStart"]
    assert [name for name in telling if PROBLEMS[name].zeroes_output] == ["ContinualImageNet"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@each_problem
def test_a_gpu_gives_the_same_numbers(problem: Problem) -> None:
    plan = opened(problem).plan(SEEDS, 1)
    cuda = torch.device("cuda", 0)
    inputs, targets = plan.batches(0, 20, cuda)
    assert inputs.device == targets.device == cuda
    assert equal((inputs.cpu(), targets.cpu()), plan.batches(0, 20, CPU))
    assert torch.equal(plan.probe(9, cuda).cpu(), plan.probe(9, CPU))


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

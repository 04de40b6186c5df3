"""Seeds and comparisons for the tests of problems."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from neoteny.problems import PROBLEMS
from neoteny.problems.problem import Problem, Stream

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
        {"continue_passes": True, "tasks": 20, "examples_per_task": 60, "source": "synthetic", "pixels": "centred"},
        {"images_per_run": 70, "tasks": 20, "examples_per_task": 60, "source": "synthetic", "batch_size": 2},
    ],
    "LabelPermutedMNIST": [{"tasks": 20, "examples_per_task": 60, "source": "synthetic"}],
    "LabelPermutedImages": [
        {"tasks": 20, "examples_per_task": 60, "source": "synthetic", "classes": 12, "batch_size": 2},
    ],
    "RandomLabelMNIST": [{"tasks": 20, "images_per_task": 60, "epochs": 3, "batch_size": 4, "source": "synthetic"}],
    "RandomLabelImages": [
        {"tasks": 20, "images_per_task": 60, "epochs": 3, "batch_size": 4, "source": "synthetic", "new_images": True},
    ],
    "PermutedShakespeare": [
        {"tasks": 20, "sequences_per_task": 12, "epochs": 5, "batch_size": 2, "context": 7, "source": "synthetic"},
    ],
    "ContinualImageNet": [
        {"tasks": 20, "train_images": 6, "test_images": 3, "batch_size": 4, "epochs": 8, "source": "synthetic"},
    ],
    "WarmStart": [
        {
            "tasks": 20,
            "classes": 4,
            "train_images": 12,
            "test_images": 3,
            "batch_size": 5,
            "first_epochs": 6,
            "epochs": 3,
            "source": "synthetic",
        },
    ],
    "SampleIncremental": [
        {
            "tasks": 20,
            "classes": 4,
            "train_images": 27,
            "test_images": 3,
            "batch_size": 3,
            "images_per_task": 4,
            "epochs": 20,
            "source": "synthetic",
        },
    ],
    "ClassIncremental": [
        {
            "tasks": 5,
            "classes": 12,
            "classes_per_task": 1,
            "train_images": 5,
            "test_images": 3,
            "batch_size": 4,
            "epochs": 20,
            "source": "synthetic",
            "test_augmented": True,
        },
    ],
}
STREAMS = {name: kind for name, kind in PROBLEMS.items() if not kind.control}
INSTANCES = [(name, options) for name in sorted(STREAMS) for options in SMALL[name]]
each_problem = pytest.mark.parametrize(
    "problem", [PROBLEMS[name](**options) for name, options in INSTANCES], ids=lambda problem: repr(problem)[:60]
)


def opened(problem: Problem) -> Stream:
    """The stream of a problem of supervised learning."""
    stream = problem.open()
    assert isinstance(stream, Stream)
    return stream


def equal(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

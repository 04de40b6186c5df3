"""Streams of tasks to learn from, one package or file per problem; `data/` finds, downloads and checks their data.

A problem is a frozen description (`Problem`). Opened, it gives plans of tasks, or worlds to act in; `problem.py` has
the contract.
"""

from neoteny.problems.ant.problem import SlipperyAnt
from neoteny.problems.control import ShiftingControl
from neoteny.problems.imagenet.class_incremental import ClassIncremental
from neoteny.problems.imagenet.continual import ContinualImageNet
from neoteny.problems.imagenet.sample_incremental import SampleIncremental
from neoteny.problems.imagenet.warm_start import WarmStart
from neoteny.problems.mnist.permuted import PermutedMNIST
from neoteny.problems.problem import Plan, Problem, Stream, World, Worlds
from neoteny.problems.regression import SlowlyChangingRegression
from neoteny.problems.relabelled.label_permuted import LabelPermutedImages, LabelPermutedMNIST
from neoteny.problems.relabelled.random_label import RandomLabelImages, RandomLabelMNIST
from neoteny.problems.shakespeare.permuted import PermutedShakespeare

PROBLEMS: dict[str, type[Problem]] = {
    kind.__name__: kind
    for kind in (
        ClassIncremental,
        ContinualImageNet,
        LabelPermutedImages,
        LabelPermutedMNIST,
        PermutedMNIST,
        PermutedShakespeare,
        RandomLabelImages,
        RandomLabelMNIST,
        SampleIncremental,
        ShiftingControl,
        SlipperyAnt,
        SlowlyChangingRegression,
        WarmStart,
    )
}
"""Every problem, by name."""

__all__ = [
    "PROBLEMS",
    "ClassIncremental",
    "ContinualImageNet",
    "LabelPermutedImages",
    "LabelPermutedMNIST",
    "PermutedMNIST",
    "PermutedShakespeare",
    "Plan",
    "Problem",
    "RandomLabelImages",
    "RandomLabelMNIST",
    "SampleIncremental",
    "ShiftingControl",
    "SlipperyAnt",
    "SlowlyChangingRegression",
    "Stream",
    "WarmStart",
    "World",
    "Worlds",
]

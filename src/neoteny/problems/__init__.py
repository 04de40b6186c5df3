"""Streams of tasks to learn from, one package or file per problem; `data/` finds, downloads and checks their data.

A problem is a frozen description (`Problem`). Opened, it gives plans of tasks, or worlds to act in; `problem.py` has
the contract.
"""

from neoteny.problems.ant.problem import SlipperyAnt
from neoteny.problems.imagenet.continual import ContinualImageNet
from neoteny.problems.mnist.permuted import PermutedMNIST
from neoteny.problems.problem import Plan, Problem, Stream, World, Worlds
from neoteny.problems.regression import SlowlyChangingRegression
from neoteny.problems.relabelled.label_permuted import LabelPermutedImages, LabelPermutedMNIST
from neoteny.problems.relabelled.random_label import RandomLabelImages, RandomLabelMNIST

PROBLEMS: dict[str, type[Problem]] = {
    kind.__name__: kind
    for kind in (
        ContinualImageNet,
        LabelPermutedImages,
        LabelPermutedMNIST,
        PermutedMNIST,
        RandomLabelImages,
        RandomLabelMNIST,
        SlipperyAnt,
        SlowlyChangingRegression,
    )
}
"""Every problem, by name."""

__all__ = [
    "PROBLEMS",
    "ContinualImageNet",
    "LabelPermutedImages",
    "LabelPermutedMNIST",
    "PermutedMNIST",
    "Plan",
    "Problem",
    "RandomLabelImages",
    "RandomLabelMNIST",
    "SlipperyAnt",
    "SlowlyChangingRegression",
    "Stream",
    "World",
    "Worlds",
]

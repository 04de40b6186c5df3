"""Streams of tasks to learn from, one file each; `datasets` finds, downloads and checks what they need.

A problem is a frozen description (`Problem`); opened, it gives plans of tasks, or worlds to act in
(`problem.py` has the contract).
"""

from neoteny.problems.ant import SlipperyAnt
from neoteny.problems.continual_imagenet import ContinualImageNet
from neoteny.problems.permuted_mnist import PermutedMNIST
from neoteny.problems.problem import Plan, Problem, Stream, World, Worlds
from neoteny.problems.slowly_changing_regression import SlowlyChangingRegression

PROBLEMS: dict[str, type[Problem]] = {
    kind.__name__: kind for kind in (ContinualImageNet, PermutedMNIST, SlipperyAnt, SlowlyChangingRegression)
}
"""Every problem, by name."""

__all__ = [
    "PROBLEMS",
    "ContinualImageNet",
    "PermutedMNIST",
    "Plan",
    "Problem",
    "SlipperyAnt",
    "SlowlyChangingRegression",
    "Stream",
    "World",
    "Worlds",
]

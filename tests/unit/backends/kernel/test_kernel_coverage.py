"""What kernels cover: methods and networks say what they are, planning and training agree, and a reason is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import neoteny
from neoteny.backends.graphs.backend import why_not_recorded
from neoteny.backends.kernel.backend import KernelBackend
from neoteny.backends.kernel.coverage import why_not_covered
from neoteny.backends.kernel.options import (
    ACTIVATIONS,
    LOSSES,
    OPTIMIZERS,
    Options,
    numbers_of,
    options_of,
)
from neoteny.methods import L2, SGD, Adam, ContinualBackprop, Method, ShrinkAndPerturb
from neoteny.methods.declaration import KernelTerms, RecordedStep
from neoteny.nets import MLP, ConvNet, activations
from neoteny.problems import ContinualImageNet, PermutedMNIST, SlowlyChangingRegression
from neoteny.problems.problem import Problem
from neoteny.suite.configuration import choose_backend
from neoteny.suite.sweep import Setting, network
from neoteny.units.utilities import UTILITIES
from support.kernel_cases import PROBLEMS, build, covering_cases, kernel_of, paths_of

DIGITS = PermutedMNIST(tasks=2, examples_per_task=60, source="synthetic")
HIDDEN = {"hidden": (5,)}


class OtherOptimizer(SGD):
    """A subclass that may do anything: it inherits SGD's declaration, which must not count."""


class OtherMLP(MLP):
    """A network of a user's own."""


@dataclass(frozen=True)
class Clip(Method):
    """A method that declares nothing."""


@dataclass(frozen=True)
class Decay(Method):
    """A method of a user's own that declares what it does."""

    strength: float = 1e-3

    def kernel_terms(self) -> KernelTerms:
        return KernelTerms(l2=self.strength)

    def recorded_step(self) -> RecordedStep:
        return RecordedStep()


@pytest.mark.parametrize(
    ("problem", "net", "methods", "words"),
    [
        (ContinualImageNet(), MLP, (SGD(0.1),), "ContinualImageNet"),
        (SlowlyChangingRegression(bits=26), MLP, (SGD(0.1),), "random bits"),
        (PermutedMNIST(), ConvNet, (SGD(0.1),), "ConvNet is not an MLP"),
        (PermutedMNIST(), OtherMLP, (SGD(0.1),), "OtherMLP is not an MLP"),
        (PermutedMNIST(), MLP, (OtherOptimizer(0.1),), "OtherOptimizer is not covered"),
        (PermutedMNIST(), MLP, (SGD(0.1), Clip()), "Clip is not covered"),
        (PermutedMNIST(), MLP, (L2(0.1), SGD(0.1)), "one optimizer must come first"),
        (PermutedMNIST(), MLP, (SGD(0.1), Adam(0.1)), "one optimizer must come first"),
        (PermutedMNIST(), MLP, (SGD(0.1), ContinualBackprop(), ContinualBackprop()), "units are replaced twice"),
        (PermutedMNIST(), MLP, (SGD(0.1), ShrinkAndPerturb(0, 1), ShrinkAndPerturb(0, 1)), "noise is added twice"),
        (PermutedMNIST(), MLP, (SGD(0.1), ContinualBackprop(utility="gxd")), "utility 'gxd'"),
    ],
)
def test_what_is_not_covered_is_named(
    problem: Problem, net: type[nn.Module], methods: tuple[Method, ...], words: str
) -> None:
    assert words in why_not_covered(problem, net, HIDDEN, methods)
    assert why_not_covered(PermutedMNIST(), MLP, HIDDEN, (SGD(0.1),)) == ""


def test_a_method_that_declares_what_it_does_is_covered() -> None:
    assert why_not_covered(DIGITS, MLP, HIDDEN, (SGD(0.1), Decay())) == ""
    assert why_not_recorded((SGD(0.1), Decay())) == ""
    assert numbers_of((SGD(0.1), Decay(), L2(1e-3)), 1).shrink.tolist() == [2e-3]


def test_a_method_that_declares_nothing_is_not_recorded() -> None:
    assert why_not_recorded((SGD(0.1), Clip())) == "Clip is not covered"
    assert why_not_recorded((OtherOptimizer(0.1),)) == "OtherOptimizer is not covered"
    assert "utility 'gxd'" in why_not_recorded((SGD(0.1), ContinualBackprop(utility="gxd")))


@pytest.mark.parametrize("method", [Clip(), OtherOptimizer(0.1)])
def test_the_suite_trains_what_is_not_covered_by_the_library_and_says_why(method: Method) -> None:
    methods = (method,) if method.is_optimizer else (SGD(0.1), method)
    chosen = choose_backend("cpu", DIGITS, Setting("one", network(MLP, hidden=(5,)), methods))
    assert chosen == ("reference", f"{type(method).__name__} is not covered")


# ------------------------------------------------------------------------------------------------------------ networks


def test_an_activation_that_no_kernel_knows_falls_back_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(activations._ACTIVATIONS, "gelu", (nn.GELU, lambda _: 1.4))
    setting = Setting("one", network(MLP, hidden=(5,), activation="gelu"), (SGD(0.1),))
    why = "the activation GELU(approximate='none') is not covered"
    assert choose_backend("cpu", DIGITS, setting) == ("reference", why)
    modules = [MLP(784, (5,), 10, "gelu")]
    stack = neoteny.stack(modules, SGD(0.1), loss="cross_entropy", example=torch.zeros(1, 784), seeds=[3])
    with pytest.raises(ValueError, match="GELU"):
        KernelBackend(stack, DIGITS.open(), [3], "cross_entropy", kernel_of("cpu"))


def changed(**layers: nn.Module) -> MLP:
    module = MLP(784, (5, 6), 10, dropout=0.2, normalization="online")
    for name, layer in layers.items():
        setattr(module, name, layer)
    return module


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (changed(act2=nn.Tanh()), "the activations of the MLP differ"),
        (changed(act1=nn.LeakyReLU(0.3), act2=nn.LeakyReLU(0.3)), "negative_slope=0.3"),
        (changed(drop1=nn.Dropout(0.2), drop2=nn.Dropout(0.2)), "dropout layers"),
        (changed(norm1=nn.LayerNorm(5)), "norms of the MLP"),
        (changed(fc2=nn.Linear(5, 6, bias=False)), "Linear with a bias"),
        (changed(extra=nn.Identity()), "not its own"),
    ],
)
def test_a_network_that_was_changed_after_it_was_built_is_not_covered(module: MLP, words: str) -> None:
    assert words in str(options_of(module, (SGD(0.1),), "cross_entropy"))


def test_a_network_that_cannot_be_built_is_left_to_the_library_to_refuse() -> None:
    assert "activation must be one of" in why_not_covered(DIGITS, MLP, {**HIDDEN, "activation": "rellu"}, (SGD(0.1),))


NETWORKS: list[Mapping[str, Any]] = [
    {"hidden": ()},
    {"hidden": (5,), "init": "default", "flatten": True},
    {"hidden": (5, 7), "activation": "swish", "dropout": 0.1},
    {"hidden": (5, 7), "normalization": "online", "forward_decay": 0.9, "backward_decay": 0.8},
]


@pytest.mark.parametrize("options", NETWORKS)
def test_planning_and_training_read_the_same_network(options: Mapping[str, Any]) -> None:
    before = torch.random.get_rng_state()
    assert why_not_covered(DIGITS, MLP, options, (SGD(0.1),)) == ""
    assert torch.equal(torch.random.get_rng_state(), before)  # a plan draws nothing
    found = options_of(MLP(784, outputs=10, **options), (SGD(0.1),), "cross_entropy")
    assert isinstance(found, Options)
    assert found.widths == (784, *options["hidden"], 10)
    assert ACTIVATIONS[found.activation] == options.get("activation", "relu")
    assert found.dropout == options.get("dropout", 0.0)
    assert found.norm == ("normalization" in options)
    assert (found.forward_decay, found.backward_decay) == ((0.9, 0.8) if found.norm else (0.999, 0.99))


# ------------------------------------------------------------------------------------------------------------- options


def test_every_case_of_the_covering_set_is_covered_with_its_options() -> None:
    cpu = pytest.importorskip("neoteny.backends.kernel.cpu.kernel")
    for case in covering_cases():
        stack, problem = build(case), PROBLEMS[case.problem]
        found = options_of(stack.module(0), stack.methods, problem.loss)
        assert isinstance(found, Options)
        assert found.widths == (*problem.input_shape, *case.hidden, problem.outputs)
        assert ACTIVATIONS[found.activation] == case.activation
        assert LOSSES[found.loss] == problem.loss
        assert OPTIMIZERS[found.optimizer] == case.optimizer
        assert found.utility == (UTILITIES[case.utility] if case.utility else 0)
        assert found.replaces == (case.utility is not None)
        assert (found.norm, found.dropout) == (case.norm is not None, case.dropout)
        assert found.shrink == (case.shrink != "none")
        assert found.noise == ("perturb" in case.shrink)
        assert found.noise_first == (case.shrink != "perturb last")
        assert cpu._is_narrow(found) == ("side by side" in paths_of(case, "cpu"))


def test_strengths_add_up_and_each_run_has_its_own_numbers() -> None:
    methods = (
        Adam((0.1, 0.2)),
        L2((1e-3, 0.0)),
        ShrinkAndPerturb(1e-2, (0.5, 0.6)),
        L2(1.0),
        ContinualBackprop(0.3, 7),
    )
    numbers = numbers_of(methods, 2)
    assert numbers.step_size.tolist() == [0.1, 0.2]
    assert numbers.shrink.tolist() == pytest.approx([1.011, 1.01], rel=1e-15)
    assert numbers.noise_std.tolist() == [0.5, 0.6]
    assert numbers.replacement_rate.tolist() == [0.3, 0.3]
    assert numbers.maturity_threshold.tolist() == [7, 7]

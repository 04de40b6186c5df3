"""The run loop on a GPU: what the CPU gives, and the same again after a resume."""

from __future__ import annotations

import pytest
import torch

from neoteny.methods import L2, SGD, Adam, ContinualBackprop, ShrinkAndPerturb
from neoteny.nets import MLP, ConvNet
from neoteny.problems import ContinualImageNet, PermutedMNIST, SlowlyChangingRegression
from neoteny.suite.environment import set_deterministic
from neoteny.suite.stacks import runs_of, stacks_of
from neoteny.suite.sweep import Setting, Sweep, network
from neoteny.suite.training import Training

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

REGRESSION = SlowlyChangingRegression(tasks=3, examples_per_task=60)
DIGITS = PermutedMNIST(tasks=2, examples_per_task=60, source="synthetic")
IMAGES = ContinualImageNet(tasks=2, source="synthetic", train_images=20, test_images=10, batch_size=10, epochs=2)
CASES = {
    "regression": (REGRESSION, network(MLP, hidden=(6,)), (Adam(0.01), ContinualBackprop(0.02, maturity_threshold=5))),
    "digits": (DIGITS, network(MLP, hidden=(8, 8)), (SGD(0.01), ShrinkAndPerturb(1e-4, 1e-4))),
    "dropout": (DIGITS, network(MLP, hidden=(8, 8), dropout=0.2), (SGD(0.01), L2(1e-4))),
    "norm": (DIGITS, network(MLP, hidden=(8, 8), normalization="online"), (SGD(0.01),)),
    "images": (IMAGES, network(ConvNet), (SGD(0.01, momentum=0.9), ContinualBackprop(0.01, maturity_threshold=3))),
}


@pytest.fixture(autouse=True)
def settled() -> None:
    set_deterministic()


def begin(case: str, device: str) -> Training:
    problem, net, methods = CASES[case]
    measures = ("dead_units", "effective_rank", "weight_magnitude")
    sweep = Sweep(
        problem, (Setting("one", net, methods),), runs=3, measures=measures, probe_examples=20, dtype="float64"
    )
    (one,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    return Training(one, problem.open(), torch.device(device))


@pytest.mark.parametrize("case", CASES)
def test_the_gpu_gives_what_the_cpu_gives(case: str) -> None:
    tables = []
    for device in ("cpu", "cuda"):
        training = begin(case, device)
        training.run(lambda: None)
        tables.append(training.table())
    for metric, values in tables[0].items():
        torch.testing.assert_close(tables[1][metric], values, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_on_the_gpu_is_bit_identical(case: str) -> None:
    states = []
    whole = begin(case, "cuda")
    whole.run(lambda: states.append(whole.state_dict()))
    resumed = begin(case, "cuda")
    resumed.load_state_dict(states[0])
    resumed.run(lambda: None)
    for metric, values in whole.table().items():
        assert torch.equal(resumed.table()[metric], values)

"""Every measure gives one number per run."""

from __future__ import annotations

import pytest
import torch

from neoteny import metrics
from neoteny.methods import SGD, HareAndTortoise
from neoteny.nets import MLP, ConvNet
from neoteny.stacking.stack import stack
from neoteny.suite.measures import MEASURES, measure


@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_gives_one_number_a_run(name: str) -> None:
    for module, shape in ((MLP(4, [3, 3], 2), (4,)), (ConvNet(), (3, 32, 32))):
        runs = stack([module, module], SGD(0.01))
        (values,) = measure([name], runs, torch.randn(2, 10, *shape)).values()
        assert values.shape == (2,)
        assert values.dtype == torch.float64
        assert values.isfinite().all()


def test_networks_with_tied_weights_and_buffers_that_are_not_saved_can_be_measured() -> None:
    class Odd(MLP):
        def __init__(self) -> None:
            super().__init__(4, [4, 4], 2)
            self.get_submodule("fc2").register_parameter("weight", self.get_parameter("fc1.weight"))
            self.register_buffer("scale", torch.ones(1), persistent=False)

    runs = stack([Odd()], SGD(0.01))
    assert measure(list(MEASURES), runs, torch.randn(1, 10, 4))["effective_rank"].isfinite().all()


def test_dead_units_count_over_all_hidden_layers() -> None:
    module = MLP(2, [4, 2], 1)
    with torch.no_grad():
        module.get_parameter("fc1.bias").copy_(torch.tensor([-100.0, -100.0, 100.0, 100.0]))
        module.get_parameter("fc2.bias").copy_(torch.tensor([-1e4, 1e4]))
    runs = stack([module], SGD(0.01))
    assert measure(["dead_units"], runs, torch.rand(1, 20, 2))["dead_units"].item() == 0.5


def test_the_weights_to_evaluate_with_are_measured() -> None:
    torch.manual_seed(0)
    module = MLP(4, [6], 1)
    runs = stack([module], SGD(0.5), HareAndTortoise(0.999))
    for _ in range(5):
        runs.step(torch.randn(1, 8, 4), torch.randn(1, 8, 1))
    (kept,) = measure(["weight_magnitude"], runs, torch.randn(1, 10, 4)).values()
    weights = [runs.evaluation_tensors[f"{name}.weight"][0] for name in ("fc1", "out")]
    trained = [runs.view.tensor(f"{name}.weight")[0] for name in ("fc1", "out")]
    assert kept.item() == pytest.approx(metrics.weight_magnitude(weights).item())
    assert kept.item() != pytest.approx(metrics.weight_magnitude(trained).item())

"""Numbers computed by hand for resets of units and of single weights, found through the methods themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import (
    SGD,
    CalibratedPartialResets,
    ContinualBackprop,
    Method,
    ReDo,
    ReGraMa,
    SelectiveWeightReinit,
    SelfNormalizedResets,
)
from neoteny.methods.redo import dormant_scores, scheduled_number
from neoteny.methods.self_normalized_resets import new_thresholds
from support.vectors import Vector

ACTIVATIONS = [[0.0, 0.0, 0.03, 0.0], [1.0, 0.0, 3.0, 0.0], [2.0, 2.0, 0.0, 4.0]]  # of 3 units over 4 inputs
GRADIENTS = [[0.2, -0.2], [0.0, 0.01], [0.4, 0.0]]  # of the 2 incoming weights of 3 units
WEIGHTS, THEIR_GRADIENTS = [1.0, -2.0, 0.5, 0.0], [0.1, 0.2, -0.4, 3.0]


class Run:
    """A method attached to inputs -> units -> 1 in double precision, whose optimizer moves nothing."""

    def __init__(self, method: Method, inputs: int, units: int) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, 1)).double()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        example = torch.zeros(2, inputs, dtype=torch.float64)
        self.plastic = neoteny.attach(self.model, self.optimizer, method, example=example, seed=1)

    @property
    def state(self) -> dict:
        return self.plastic._chain.states[0]

    def update(self, x: Tensor, gradient: Tensor | None = None) -> None:
        """One update, with a gradient of the incoming weights of our own."""
        self.optimizer.zero_grad()
        self.model(x).sum().backward()
        if gradient is not None:
            self.model.get_parameter("0.weight").grad = gradient
        self.optimizer.step()


def redo_replaces(threshold: float) -> list[float]:
    """Which of the three units are replaced, as ones and zeros."""
    run = Run(ReDo(period=1, threshold=threshold), 4, 3)
    weight = run.model.get_parameter("0.weight")
    with torch.no_grad():
        weight.copy_(torch.tensor(ACTIVATIONS))
        run.model.get_parameter("0.bias").zero_()
    run.update(torch.eye(4, dtype=torch.float64))
    run.plastic.step()
    return (weight.detach() != torch.tensor(ACTIVATIONS, dtype=torch.float64)).any(-1).double().tolist()


def silences(batches: Sequence[int]) -> list[bool]:
    """Updates that are silent or not: each number of silent ones, then one that fires."""
    return [silent for number in batches for silent in (*[True] * number, False)]


def snr_threshold(first: int, updates: Sequence[bool], rejection: float = 0.1) -> float:
    """The threshold of a unit after a history in batches of ten examples."""
    run = Run(SelfNormalizedResets(rejection, first, 100, period=len(updates)), 1, 1)
    with torch.no_grad():
        run.model.get_parameter("0.weight").fill_(1.0)
        run.model.get_parameter("0.bias").zero_()
    for silent in updates:
        x = torch.full((10, 1), -1.0, dtype=torch.float64)
        x[3] = -1.0 if silent else 1.0
        run.update(x)
        run.plastic.step()
    assert run.plastic.replaced == {"0": 0}
    return float(run.state["groups"]["0"]["threshold"])


def doubled_threshold() -> float:
    """30 where a tenth of the ages may be above the threshold, and 30 is the age that reaches the share."""
    histogram = torch.zeros(1, 100, dtype=torch.int32)
    histogram[0, :3] = torch.tensor([5, 3, 2])
    return float(new_thresholds(torch.tensor([30]), histogram, 0.9, 10))


def regrama_scores() -> list[float]:
    run = Run(ReGraMa(period=1, threshold=0.0), 2, 3)
    run.update(torch.ones(4, 2, dtype=torch.float64), torch.tensor(GRADIENTS, dtype=torch.float64))
    return run.state["groups"]["0"]["score"].tolist()


def cpr_share(utility: float) -> Callable[[], float]:
    """By how much outgoing weights shrink."""

    def compute() -> float:
        run = Run(CalibratedPartialResets(period=1), 2, 1)
        outgoing = run.model.get_parameter("2.weight").detach()
        before = float(outgoing)
        run.update(torch.ones(4, 2, dtype=torch.float64))
        run.state["utility"]["0"].fill_(utility)
        run.plastic.step()
        return 1.0 - float(outgoing) / before

    return compute


def swr_run(method: SelectiveWeightReinit) -> Run:
    run = Run(method, 4, 1)
    with torch.no_grad():
        run.model.get_parameter("0.weight").copy_(torch.tensor([WEIGHTS]))
    run.update(torch.ones(4, 4, dtype=torch.float64), torch.tensor([THEIR_GRADIENTS], dtype=torch.float64))
    return run


def swr_utilities() -> list[float]:
    utility = swr_run(SelectiveWeightReinit(1, 0.5)).state["parameters"]["0.weight"].flatten()
    return [*utility.tolist(), float(utility.mean())]


def swr_threshold_picks() -> list[float]:
    run = swr_run(SelectiveWeightReinit(1, 0.5, rule="threshold"))
    run.plastic.step()
    now = run.model.get_parameter("0.weight").detach()
    return (now != torch.tensor([WEIGHTS], dtype=torch.float64)).flatten().nonzero().flatten().double().tolist()


def swr_probabilities() -> list[float]:
    """How often 1 and 2 of four weights are redrawn, over 2,000 runs."""
    nets = [nn.Sequential(nn.Linear(4, 1)) for _ in range(2000)]
    runs = neoteny.stack(nets, SGD(0.0), SelectiveWeightReinit(1, 0.3))
    runs.step(torch.ones(2000, 1, 4), torch.zeros(2000, 1, 1))
    redrawn = runs.chain.states[1]["redrawn"]
    return [float((redrawn == number).double().mean()) for number in (1, 2)]


def adam_move(old: bool) -> float:
    """The first move of a redrawn weight, or the next of its neighbour, in step sizes, after 300 equal gradients."""
    layer = nn.Sequential(nn.Linear(2, 1, bias=False)).double()
    optimizer = neoteny.optim.Adam(layer.parameters(), lr=1e-3)
    plastic = neoteny.attach(layer, optimizer, SelectiveWeightReinit(300, 0.5, "magnitude"), init="default", seed=1)
    weight = layer.get_parameter("0.weight")

    def update() -> Tensor:
        """The weights after an update by the optimizer alone."""
        weight.grad = None
        layer(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        optimizer.step()
        return weight.detach().flatten().clone()

    trained = update()
    for _ in range(299):
        plastic.step()
        trained = update()
    plastic.step()
    start = weight.detach().flatten().clone()
    new = start != trained
    assert new.sum() == 1
    return float((start - update())[~new if old else new] / 1e-3)


def nature_utility() -> float:
    """After two updates of a unit with h = 2 whose outgoing weights are 0.5 and -1.5, corrected: |h| * mean|w_out|."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = ContinualBackprop.nature(replacement_rate=0.0)
    plastic = neoteny.attach(model, optimizer, method, example=torch.zeros(1, 1, dtype=torch.float64))
    with torch.no_grad():
        for name, value in (("0.weight", [[2.0]]), ("0.bias", [0.0]), ("2.weight", [[0.5], [-1.5]])):
            model.get_parameter(name).copy_(torch.tensor(value))
    for _ in range(2):
        model(torch.ones(1, 1, dtype=torch.float64)).sum().backward()
        optimizer.step()
        plastic.step()
    return float(plastic._chain.states[0]["0"]["utility"])


VECTORS: list[Vector] = [
    Vector(
        "ReDo",
        "scores of three units over four inputs",
        [0.007481, 0.997506, 1.995012],
        lambda: dormant_scores(torch.tensor(ACTIVATIONS, dtype=torch.float64).abs().mean(-1)).tolist(),
    ),
    Vector("ReDo", "threshold 0.1 replaces unit 0 only", [1, 0, 0], lambda: redo_replaces(0.1), 0.0),
    Vector("ReDo", "threshold 1 replaces units 0 and 1", [1, 1, 0], lambda: redo_replaces(1.0), 0.0),
    Vector(
        "ReDo",
        "a schedule of 100 updates takes 30, 21, 1 and 1 of 100 units at updates 0, 50, 100 and 200",
        [30, 21, 1, 1],
        lambda: [scheduled_number(100, update, 100, 0.3) for update in (0, 50, 100, 200)],
        0.0,
    ),
    Vector("SNR", "threshold 50 becomes 30", 30, lambda: snr_threshold(50, silences([1] * 5 + [2] * 3 + [3] * 2)), 0.0),
    Vector("SNR", "threshold 30 becomes 60", 60, doubled_threshold, 0.0),
    Vector("SNR", "a unit that always fires keeps its threshold", 50, lambda: snr_threshold(50, [False] * 8), 0.0),
    Vector("ReGraMa", "scores from incoming gradients", [1.481481, 0.037037, 1.481481], regrama_scores),
    Vector("CPR", "share at average score 0.9", 0.015, cpr_share(0.9)),
    Vector("CPR", "share at average score 1", 0.015, cpr_share(1.0)),
    Vector("CPR", "share at average score 1.05", 0.009301, cpr_share(1.05)),
    Vector("CPR", "share at average score 1.1", 0.005039, cpr_share(1.1)),
    Vector("CPR", "share at average score 1.5", 1.0e-5, cpr_share(1.5), 1e-7),
    Vector("SWR", "utilities |g w| and their mean", [0.1, 0.4, 0.2, 0.0, 0.175], swr_utilities),
    Vector("SWR", "threshold 0.5 picks index 3", [3], swr_threshold_picks, 0.0),
    Vector("SWR", "proportional 0.3 of four weights takes 1 or 2 of them", [0.8, 0.2], swr_probabilities, 0.03),
    Vector("Adam", "first move of a redrawn weight, in step sizes", 1.0, lambda: adam_move(old=False), 1e-4),
    Vector("Adam", "move of a weight beside it, in step sizes", 1.0, lambda: adam_move(old=True), 1e-4),
    Vector("CBP (Nature)", "contribution after two updates", 2.0 * (1.0 - 0.99**2), nature_utility),
]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector.method}: {vector.what}")
def test_number_is_as_computed_by_hand(vector: Vector) -> None:
    vector.check()

"""Units with two columns each (CReLU, Fourier features) and units behind a layer norm: traced, reset, measured."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import SGD, ContinualBackprop, ReDo
from neoteny.nets import MLP, ConvNet, CReLU, DeepFourier
from neoteny.suite.measures import measure

pytestmark = pytest.mark.usefixtures("double_precision")

PAIRS = [CReLU, DeepFourier]


class Small(nn.Module):
    """conv, pair, conv, pair, flatten, linear: channels of 4 and then 1 positions."""

    def __init__(self, pair: type[nn.Module]) -> None:
        super().__init__()
        self.conv1, self.pair1 = nn.Conv2d(1, 3, 2), pair()
        self.conv2, self.pair2 = nn.Conv2d(6, 4, 2), pair()
        self.out = nn.Linear(2 * 4 * 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.pair2(self.conv2(self.pair1(self.conv1(x)))).flatten(1))


def columns(model: nn.Module, example: Tensor) -> dict[str, list[list[int]]]:
    """Of every group, the columns of its consumer by unit."""
    found = {}
    for group in neoteny.trace(model, example):
        features = group.consumers[0].features
        assert features is not None
        found[group.name] = features.tolist()
    return found


@pytest.mark.parametrize("pair", PAIRS)
def test_both_halves_are_one_unit(pair: type[nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(4, 3), pair(), nn.Linear(6, 2))
    assert columns(model, torch.randn(3, 4)) == {"0": [[0, 3], [1, 4], [2, 5]]}
    sequence = nn.Sequential(nn.Linear(4, 3), pair(dim=-1), nn.Linear(6, 2))
    assert columns(sequence, torch.randn(3, 5, 4)) == {"0": [[0, 3], [1, 4], [2, 5]]}


@pytest.mark.parametrize("pair", PAIRS)
def test_both_halves_are_one_unit_of_a_convolution_and_behind_a_flatten(pair: type[nn.Module]) -> None:
    found = columns(Small(pair), torch.randn(3, 1, 4, 4))
    assert found["conv1"] == [[0, 3], [1, 4], [2, 5]]
    # channel-first: the four positions of a channel lie side by side, the other half 16 columns further
    assert found["conv2"] == [[4 * c + k for k in range(4)] + [16 + 4 * c + k for k in range(4)] for c in range(4)]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("convolution", [False, True], ids=["linear", "convolution"])
def test_a_reset_cuts_both_halves_and_compensates_the_mean_of_both(pair: type[nn.Module], convolution: bool) -> None:
    torch.manual_seed(0)
    model: nn.Module = Small(pair) if convolution else nn.Sequential(nn.Linear(4, 8), pair(), nn.Linear(16, 2))
    x = torch.randn(64, 1, 4, 4) if convolution else torch.randn(64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = ContinualBackprop(replacement_rate=0.4, maturity_threshold=0, decay_rate=0.0)
    plastic = neoteny.attach(model, optimizer, method, example=x[:2])
    before = model(x).detach()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    model(x).square().mean().backward()
    optimizer.step()
    plastic.step()
    after = model(x).detach()
    assert all(count > 0 for count in plastic.replaced.values())
    for group in neoteny.trace(model, x[:2]):
        features = group.consumers[0].features
        assert features is not None
        name = f"{group.consumers[0].module}.weight"
        weight = model.state_dict()[name]
        if name == "conv2.weight":  # its own new units have new rows, in the cut columns as well
            weight = weight[(weight == start[name]).flatten(2).all(2).any(1)]
        cut = weight.transpose(0, 1).flatten(1).abs().sum(1)[features] == 0  # (units, features)
        assert torch.equal(cut.all(1), cut.any(1))  # all columns of a unit or none
        assert int(cut.all(1).sum()) == plastic.replaced[group.name]
    if not convolution:  # with decay 0 the running mean is the batch's: the mean of every output stays
        torch.testing.assert_close(after.mean(0), before.mean(0), rtol=0, atol=1e-12)
        assert not torch.allclose(after, before, atol=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"activation": "crelu"},
        {"activation": "fourier"},
        {"activation": "aid(p=0.8)"},
        {"activation": "randomized_smooth_leaky"},
        {"normalization": "layer"},
        {"normalization": "layer", "activation": "crelu", "dropout": 0.2},
    ],
    ids=str,
)
def test_a_stack_with_replacement_equals_its_runs_alone(options: dict[str, object]) -> None:
    def build(run: int) -> MLP:
        torch.manual_seed(run)
        return MLP(5, [8, 6], 2, **options)  # pyright: ignore[reportArgumentType]

    methods = (SGD(0.01, momentum=0.9), ContinualBackprop(0.02, maturity_threshold=3, decay_rate=0.9), ReDo(7, 0.3))
    example = torch.zeros(2, 5)
    stack = neoteny.stack([build(run) for run in range(3)], *methods, example=example, seeds=[4, 5, 6])
    alone = [neoteny.stack([build(run)], *methods, example=example, seeds=[4 + run]) for run in range(3)]
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        x = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
        y = x[..., :2]
        losses = stack.step(x, y).losses
        single = torch.cat([one.step(x[run : run + 1], y[run : run + 1]).losses for run, one in enumerate(alone)])
        torch.testing.assert_close(losses, single, rtol=1e-9, atol=1e-12)
    for run, one in enumerate(alone):
        for name, tensor in stack.view.tensors.items():
            torch.testing.assert_close(tensor[run], one.view.tensors[name][0], rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("options", [{"activation": "crelu"}, {"activation": "fourier"}, {"normalization": "layer"}])
def test_continual_backprop_acts_on_the_convolutional_network(options: dict[str, str]) -> None:
    model = ConvNet(filters=(4, 6, 8), units=10, **options)  # pyright: ignore[reportArgumentType]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(4, 3, 32, 32)
    plastic = neoteny.attach(model, optimizer, ContinualBackprop(0.3, maturity_threshold=0), example=x)
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        plastic.step()
    assert set(plastic.replaced) == {"conv1", "conv2", "conv3", "fc1", "fc2"}
    assert all(count > 0 for count in plastic.replaced.values())
    assert torch.isfinite(model(x)).all()


def test_no_measure_calls_fourier_units_dead_or_saturated() -> None:
    torch.manual_seed(0)
    model = MLP(4, [20, 10], 2, "fourier")
    with torch.no_grad():
        model.get_submodule("fc1").weight.zero_()  # pyright: ignore[reportCallIssue]
    x = torch.randn(50, 4)  # the first layer is constant: sine 0 and cosine 1 on every input
    found = neoteny.diagnose(model, x)
    assert [layer.dead for layer in found.layers] == [0, 0]
    assert [layer.saturated_share for layer in found.layers] == [None, None]
    stack = neoteny.stack([model], SGD(0.1))
    numbers = measure(["dead_units", "saturated_units"], stack, x.unsqueeze(0))
    assert {name: float(value) for name, value in numbers.items()} == {"dead_units": 0.0, "saturated_units": 0.0}


def test_a_crelu_unit_is_dead_only_if_both_halves_are() -> None:
    first = nn.Linear(4, 3)
    model = nn.Sequential(first, CReLU(), nn.Linear(6, 2))
    with torch.no_grad():
        first.bias.copy_(torch.tensor([-100.0, 0.0, 0.0]))  # always negative: the second half speaks
        first.weight[1] = 0.0  # always zero
    (layer,) = neoteny.diagnose(model, torch.randn(50, 4)).layers
    assert layer.dead == 1

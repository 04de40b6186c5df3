"""The recorded update against the library's own: the same replacements, weights, sums and first broken updates.

On the CPU nothing is recorded and the pieces of the update are called as they are, which tests all but the recording.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from neoteny.backends.graphs import relu_pool as pooling
from neoteny.backends.graphs.backend import GraphBackend, why_not_recorded
from neoteny.backends.graphs.conv_streams import SideBySide
from neoteny.backends.library import LibraryBackend
from neoteny.draws import noise, rng
from neoteny.methods import L2, SGD, Adam, ContinualBackprop, ShrinkAndPerturb
from neoteny.methods.method import Method
from neoteny.nets import MLP
from neoteny.suite.environment import set_deterministic
from support.cuda_waits import waiting_is_an_error
from support.graph_cases import DIGITS, MOMENTUM, OFTEN, assert_same_state, make, train

NEEDS_CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICES = ("cpu", pytest.param("cuda", marks=NEEDS_CUDA))
BETWEEN = "units are replaced between two replays: conv1.weight is torch.float64"
METHODS: dict[str, tuple[Method, ...]] = {
    "backpropagation": (SGD(0.01, momentum=0.9),),
    "l2": (MOMENTUM, L2((1e-3, 1e-2, 0.0))),
    "shrink and perturb": (MOMENTUM, ShrinkAndPerturb(1e-3, (1e-3, 1e-4, 0.0))),
    "continual backpropagation": (MOMENTUM, OFTEN),
    "random units": (SGD(0.01), ContinualBackprop(0.05, 3, utility="random", compensate=False)),
    "noise before": (MOMENTUM, ShrinkAndPerturb(1e-3, 1e-3), OFTEN),
    "noise after": (MOMENTUM, OFTEN, ShrinkAndPerturb(1e-3, 1e-3), L2(1e-3)),
}


@pytest.fixture(autouse=True)
def settled() -> None:
    set_deterministic()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", METHODS)
def test_recorded_updates_are_the_librarys(name: str, device: str) -> None:
    ends = []
    for kind in (LibraryBackend, GraphBackend):
        made, path = make(kind, device, METHODS[name])
        given = train(path, made)
        ends.append((made.state_dict(), given))
        replaced = path.replaced()
        assert (replaced is None) == (name in ("backpropagation", "l2", "shrink and perturb"))
        assert replaced is None or int(replaced[0]) > 20
        if kind is GraphBackend:
            assert path.reason == ("no CUDA device" if device == "cpu" else "" if replaced is None else BETWEEN)
    assert_same_state(ends[0][0], ends[1][0], exact=False)
    for theirs, ours in zip(ends[0][1], ends[1][1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_networks_without_convolutions_take_the_librarys_forward_pass(dropout: float, device: str) -> None:
    ends = []
    for kind in (LibraryBackend, GraphBackend):
        made, path = make(kind, device, METHODS["noise after"], lambda: MLP(784, [8, 6], 10, dropout=dropout), DIGITS)
        given = train(path, made)
        ends.append([made.state_dict(), *given])
    assert_same_state(ends[0][0], ends[1][0], exact=True)
    for theirs, ours in zip(ends[0][1:], ends[1][1:], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_resumed_run_is_bit_identical(dtype: torch.dtype, device: str) -> None:
    whole, path = make(GraphBackend, device, METHODS["noise after"], dtype=dtype)
    path.plan(0)
    path.advance(0, 20)
    path.write_back()
    saved = whole.state_dict()
    expected = path.advance(20, 40)
    resumed, other = make(GraphBackend, device, METHODS["noise after"], dtype=dtype)
    resumed.load_state_dict(saved)
    other.read()
    other.plan(0)
    for theirs, ours in zip(expected, other.advance(20, 40), strict=True):
        assert torch.equal(theirs, ours)
    assert_same_state(whole.state_dict(), resumed.state_dict(), exact=True)


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_that_diverges_is_noted_and_leaves_its_neighbours_alone(device: str) -> None:
    ends = []
    for sizes in ((0.01, 1e200, 0.02), (0.01, 0.01, 0.02)):
        made, path = make(GraphBackend, device, (SGD(sizes, momentum=0.9), OFTEN))
        path.plan(0)
        total, broken = path.advance(2, 12)
        ends.append((made, total, broken))
    assert ends[1][2].tolist() == [-1, -1, -1]
    assert ends[0][2][[0, 2]].tolist() == [-1, -1]
    assert 2 < int(ends[0][2][1]) < 12
    for run in (0, 2):
        assert torch.equal(ends[0][1][run], ends[1][1][run])
        for name, tensor in ends[0][0].view.tensors.items():
            assert torch.equal(tensor[run], ends[1][0].view.tensors[name][run])


def test_what_cannot_be_recorded_is_said() -> None:
    assert why_not_recorded(METHODS["noise after"]) == ""
    assert why_not_recorded((Adam(0.1),)) == "Adam counts its updates on the host"
    assert why_not_recorded((SGD(0.1), OFTEN, OFTEN)) == "two methods act between replays"
    with pytest.raises(ValueError, match="Adam counts its updates on the host"):
        make(GraphBackend, "cpu", (Adam(0.1),))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_updates_do_not_wait_for_the_device(dtype: torch.dtype) -> None:
    _, path = make(GraphBackend, "cuda", METHODS["noise after"], dtype=dtype)
    plan = path.plan(0)
    path.advance(0, 20)
    before = path.replaced()
    inputs, targets = plan.batches(20, 40, torch.device("cuda"))
    assert (path._replacements is None) == (dtype == torch.float64)
    with waiting_is_an_error(), path._counting(20):
        if path._replacements is not None:
            path._replacements.prepare(20)
        for batch, target in zip(inputs, targets, strict=True):
            path._step(batch, target)
    assert int((path.replaced() - before).sum()) > 10


class _Waits(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2.0 if float(x.detach().sum().cpu()) > 0.0 else x


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=NEEDS_CUDA)])
def test_an_update_that_waits_for_the_device_is_not_recorded_but_done(device: str) -> None:
    made, path = make(GraphBackend, device, (SGD(0.01),))
    path._forward = lambda tensors, inputs: (_Waits()(made.forward(tensors, inputs)[0]), {})
    path.plan(0)
    path.advance(0, 5)
    assert path.reason.startswith("recording failed: ")


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(3600, 2)),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(30, 2)),
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(4096, 2)),
        nn.Sequential(nn.Flatten(), nn.Linear(3072, 2)),
    ],
)
def test_other_networks_are_left_to_the_librarys_forward_pass(module: nn.Module) -> None:
    assert SideBySide.of(module, (), torch.device("cpu")) is None


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 1), nn.AvgPool2d(2)])
def test_side_by_side_gives_each_module_s_own_outputs_and_gradients(pool: nn.Module, device: str) -> None:
    torch.manual_seed(0)
    modules = [
        nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReLU(), pool, nn.Conv2d(4, 6, 2, groups=2, bias=False),
            nn.Tanh(), nn.Flatten(), nn.LazyLinear(5), nn.ReLU(), nn.Linear(5, 2),
        )
        for _ in range(3)
    ]  # fmt: skip
    inputs = torch.randn(3, 4, 3, 19, 19)
    for module in modules:
        module(inputs[0])
        module.double().to(device)
    inputs = inputs.double().to(device)
    forward = SideBySide.of(modules[0], ("3", "6", "8"), torch.device(device))
    assert forward is not None
    tensors = {
        name: torch.stack([dict(module.named_parameters())[name].detach() for module in modules]).requires_grad_()
        for name, _ in modules[0].named_parameters()
    }
    outputs, recorded = forward(tensors, inputs)
    gradients = torch.autograd.grad(outputs.square().sum(), list(tensors.values()))
    for run, module in enumerate(modules):
        expected = module(inputs[run])
        torch.testing.assert_close(outputs[run], expected)
        torch.testing.assert_close(recorded["3"][run], module[:3](inputs[run]))
        torch.testing.assert_close(recorded["8"][run], module[:8](inputs[run]))
        theirs = torch.autograd.grad(expected.square().sum(), list(module.parameters()))
        for ours, gradient in zip(gradients, theirs, strict=True):
            torch.testing.assert_close(ours[run], gradient)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("side", [8, 9])
def test_pooling_in_one_kernel_is_the_layers(side: int, layout: torch.memory_format) -> None:
    assert pooling.available(torch.device("cuda", 0))
    torch.manual_seed(0)
    inputs = torch.randint(-3, 4, (3, 5, side, side), device="cuda").float().contiguous(memory_format=layout)
    inputs[0, 0, 0, 1] = torch.nan
    bias = torch.randint(-2, 3, (5,), device="cuda").float().requires_grad_()
    whole = inputs.clone().requires_grad_()
    expected = nn.functional.max_pool2d(torch.relu(whole + bias[:, None, None]), 2)
    gradient = torch.randn_like(expected)
    theirs, _ = torch.autograd.grad(expected, (whole, bias), gradient)
    pooled, choice = pooling.relu_pool(inputs, bias.detach())
    assert torch.equal(pooled.nan_to_num(77.0), expected.nan_to_num(77.0))
    assert torch.equal(pooling.spread(gradient, choice, inputs.shape), theirs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("step", [7, 2**33 + 5])
def test_noise_is_the_generators_bit_for_bit(step: int, device: str) -> None:
    seeds = torch.tensor([3, 2**62 + 12345, 2**40], device=device)
    scale = torch.tensor([0.5, 2.0, 1e-3], dtype=torch.float64, device=device)
    rows = torch.arange(6, device=device).expand(3, 6)
    drawn = rng.normal(seeds.unsqueeze(-1), step, "noise", rows, 7) * scale[:, None, None]
    for dtype in (torch.float32, torch.float64):
        for count in (step, torch.tensor(step, device=device)):
            target = torch.ones(3, 6, 7, dtype=dtype, device=device)
            noise.add_normal(target, seeds, count, "noise", scale)
            assert torch.equal(target, torch.ones_like(target) + drawn.to(dtype))

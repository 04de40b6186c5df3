"""The library on a CUDA device: the same replacements and weights as on the CPU, without waiting for the device."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import SGD, Adam, ContinualBackprop
from support.cuda_waits import waiting_is_an_error

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
FAST = ContinualBackprop(replacement_rate=0.02, maturity_threshold=10, decay_rate=0.9)


def conv_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 5, 3, stride=2, padding=1, bias=True),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(20, 9),
        nn.Tanh(),
        nn.Linear(9, 3),
    )


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3))


NETS = {"mlp": (mlp, (6,)), "conv": (conv_net, (2, 8, 8))}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.02, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 1e-3),
    "fused adamw": lambda p: torch.optim.AdamW(p, 1e-3, fused=True),
    "neoteny adam": lambda p: neoteny.optim.Adam(p, 1e-3),
}


def run(device: str, net: str, optimizer_name: str, steps: int = 400) -> tuple[dict[str, Tensor], Any]:
    build, shape = NETS[net]
    torch.manual_seed(0)
    model = build().double().to(device)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    example = torch.zeros(2, *shape, dtype=torch.float64, device=device)
    plastic = neoteny.attach(model, optimizer, FAST, example=example, seed=5)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(4, *shape, generator=generator, dtype=torch.float64).to(device)
        y = torch.randn(4, 3, generator=generator, dtype=torch.float64).to(device)
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        plastic.step()
    return {name: value.cpu() for name, value in model.state_dict().items()}, plastic


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("net", NETS)
def test_cuda_agrees_with_the_cpu(net: str, optimizer: str) -> None:
    torch.backends.cudnn.deterministic = True
    ours, on_cuda = run("cuda", net, optimizer)
    theirs, on_cpu = run("cpu", net, optimizer)
    assert on_cuda.replaced == on_cpu.replaced
    assert min(on_cuda.replaced.values()) > 20
    for group, statistics in on_cpu.state_dict()["states"][0].items():
        assert torch.equal(statistics["born"], on_cuda.state_dict()["states"][0][group]["born"].cpu()), group
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("optimizer", [SGD(0.02, 0.9), Adam(1e-3)])
@pytest.mark.parametrize("net", NETS)
def test_a_stack_on_cuda_agrees_with_the_cpu(net: str, optimizer: Any) -> None:
    build, shape = NETS[net]
    torch.manual_seed(0)
    nets = [build().double() for _ in range(3)]
    method = ContinualBackprop((0.02, 0.01, 0.0), maturity_threshold=(10, 20, 5))
    stacks = {}
    for device in ("cpu", "cuda"):
        example = torch.zeros(2, *shape, dtype=torch.float64, device=device)
        copies = [copy.deepcopy(module).to(device) for module in nets]
        stacks[device] = neoteny.stack(copies, optimizer, neoteny.L2(1e-4), method, example=example)
    generator, losses = torch.Generator().manual_seed(1), {}
    for _ in range(300):
        x = torch.randn(3, 4, *shape, generator=generator, dtype=torch.float64)
        y = torch.randn(3, 4, 3, generator=generator, dtype=torch.float64)
        losses = {device: runs.step(x.to(device), y.to(device)).losses.cpu() for device, runs in stacks.items()}
    torch.testing.assert_close(losses["cuda"], losses["cpu"], rtol=1e-8, atol=1e-9)
    for name, counts in stacks["cpu"].replaced.items():
        assert torch.equal(counts, stacks["cuda"].replaced[name])


def test_a_tick_does_not_wait_for_the_device() -> None:
    for build, shape in NETS.values():
        torch.manual_seed(0)
        model = build().cuda()
        optimizer = neoteny.optim.Adam(model.parameters(), 1e-3)
        plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(2, *shape, device="cuda"), seed=1)
        for step in range(80):
            optimizer.zero_grad()
            model(torch.randn(4, *shape, device="cuda")).square().mean().backward()
            optimizer.step()
            with waiting_is_an_error() if step > 40 else nullcontext():
                plastic.step()
        assert min(plastic.replaced.values()) >= 3


@pytest.mark.parametrize("fused", [False, True])
def test_half_precision_with_a_gradient_scaler(fused: bool) -> None:
    torch.manual_seed(0)
    model = mlp().cuda()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    plastic = neoteny.attach(model, optimizer, neoteny.L2(1e-3), FAST, example=torch.zeros(1, 6, device="cuda"), seed=1)
    for step in range(60):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.randn(4, 6, device="cuda")).square().mean()
        scaler.scale(loss * (float("inf") if step in (0, 9, 30) else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        plastic.step()
    assert plastic.state_dict()["states"][1]["0"]["schedule"]["step"] == 57
    assert min(plastic.replaced.values()) > 5
    assert all(bool(torch.isfinite(value).all()) for value in model.parameters())


def test_a_fused_optimizers_l2_term_is_scaled_with_its_gradients() -> None:
    ends = []
    for scaled in (False, True):
        torch.manual_seed(0)
        model = mlp().cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.05, fused=True)
        scaler = torch.amp.GradScaler("cuda", init_scale=256.0, enabled=scaled)
        plastic = neoteny.attach(model, optimizer, neoteny.L2(0.1))
        generator = torch.Generator().manual_seed(1)
        for _ in range(20):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 6, generator=generator).cuda()).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            plastic.step()
        ends.append(torch.cat([value.flatten() for value in model.parameters()]).detach())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=1e-6)


# torch's compiler warns of its own choices (TensorFloat32, online softmax); only our own warnings are errors here.
@pytest.mark.filterwarnings("ignore", "error:::neoteny")
def test_a_compiled_model_on_cuda() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    inner = mlp().cuda()
    model = cast(nn.Module, torch.compile(inner))
    optimizer = torch.optim.SGD(inner.parameters(), 0.05)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6, device="cuda"), seed=1)
    for _ in range(60):
        optimizer.zero_grad()
        model(torch.randn(4, 6, device="cuda")).square().mean().backward()
        optimizer.step()
        plastic.step()
    assert min(plastic.replaced.values()) > 5


def test_bfloat16_parameters_and_diagnosis() -> None:
    torch.manual_seed(0)
    model = mlp().to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    x = torch.randn(64, 6, device="cuda", dtype=torch.bfloat16)
    plastic = neoteny.attach(model, optimizer, FAST, example=x[:2], seed=1)
    for _ in range(60):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        plastic.step()
    assert min(plastic.replaced.values()) > 5
    diagnosis = neoteny.diagnose(model, x)
    assert [layer.name for layer in diagnosis.layers] == ["0", "2"]


def test_a_model_moved_after_attach_takes_its_statistics_along() -> None:
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    for device in ("cpu", "cuda", "cpu"):
        model.to(device)
        for _ in range(30):
            optimizer.zero_grad()
            model(torch.randn(4, 6, device=device)).square().mean().backward()
            optimizer.step()
            plastic.step()
    assert plastic.state_dict()["states"][0]["0"]["schedule"]["step"] == 90
    assert min(plastic.replaced.values()) > 5

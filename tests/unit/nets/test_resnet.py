"""ResNet: its shapes and laws, its numbers against plain loops, and n of them in a stack as n alone."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neoteny
from neoteny.methods import L2, SGD, Adam, ContinualBackprop, HardReset
from neoteny.nets import ResNet
from neoteny.nets.resnet import NARROW
from reference import resnet as reference

pytestmark = pytest.mark.usefixtures("double_precision")

SEEDS = (5, 9, 2**40)


def small(bias: bool = True, init: str = "kaiming_normal") -> ResNet:
    return ResNet(outputs=3, widths=(4, 6), blocks=(2, 1), bias=bias, init=init)


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def batch(runs: int, step: int, examples: int = 5) -> tuple[Tensor, Tensor]:
    data = torch.Generator().manual_seed(step)
    return torch.randn(runs, examples, 3, 8, 8, generator=data), torch.randint(3, (runs, examples), generator=data)


def test_it_has_as_many_weights_as_the_published_networks() -> None:
    assert count(ResNet(outputs=10, bias=False, init="default")) == 11_173_962  # the usual ResNet-18 for CIFAR-10
    assert count(ResNet(outputs=10, init="default")) == 11_173_962 + 4_800
    narrow = ResNet(outputs=10, widths=NARROW, bias=False, init="default")
    assert count(narrow) == 701_466
    assert [tuple(layer.stride) for layer in narrow.modules() if isinstance(layer, nn.Conv2d)].count((2, 2)) == 6
    assert len([layer for layer in narrow.modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]) == 18 + 3


def test_its_sides_halve_at_every_stage_but_the_first() -> None:
    net = ResNet(outputs=2, widths=(2, 3, 4), blocks=(1, 1, 1)).eval()
    value = net.act(net.norm(net.conv(torch.randn(2, 3, 32, 32))))
    shapes = []
    for stage in net.stages:
        value = stage(value)
        shapes.append(tuple(value.shape))
    assert shapes == [(2, 2, 32, 32), (2, 3, 16, 16), (2, 4, 8, 8)]


@pytest.mark.parametrize("bias", [True, False])
def test_outputs_and_running_statistics_are_those_of_plain_loops(bias: bool) -> None:
    net = small(bias)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # no bias, scale or shift at its start
    tensors = {name: value.detach().numpy().copy() for name, value in net.state_dict().items()}
    for step, training in enumerate((True, True, False)):
        x = batch(1, step, 3)[0][0]
        net.train(training)
        expected = reference.forward(tensors, x.numpy(), (4, 6), (2, 1), training)
        np.testing.assert_allclose(net(x).detach().numpy(), expected, rtol=0, atol=1e-12)
        for name, value in net.state_dict().items():
            if "running" in name:
                np.testing.assert_allclose(value.numpy(), tensors[name], rtol=0, atol=1e-13)


def test_kaiming_normal_weights_and_zero_biases() -> None:
    net = ResNet(outputs=400, widths=(32, 48), blocks=(1, 1))
    for name, layer in net.named_modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            gain = 1.0 if name == "out" else 2.0
            expected = (gain / layer.weight[0].numel()) ** 0.5
            spread = expected / (2 * layer.weight.numel()) ** 0.5
            assert abs(layer.weight.std().item() - expected) < 5 * spread, name
            assert layer.bias is not None
            assert not layer.bias.any()
    assert set(net.initial_distributions) == {
        name for name, layer in net.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))
    }
    plain = ResNet(outputs=2, widths=(4,), blocks=(1,), init="default")
    assert plain.conv.weight.abs().max() <= 27**-0.5
    assert plain.conv.bias is not None
    assert plain.conv.bias.any()
    assert not plain.initial_distributions


def test_a_stack_of_them_is_as_each_alone_with_its_running_statistics() -> None:
    """Losses, weights, momentum's effect, running statistics and evaluation, after every update."""
    nets = [small() for _ in SEEDS]
    runs = neoteny.stack(nets, SGD(0.05, momentum=0.9), L2(5e-4), loss="cross_entropy", seeds=SEEDS)
    alone = [copy.deepcopy(net) for net in nets]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4) for net in alone]
    for step in range(6):
        x, y = batch(3, step)
        losses = runs.step(x, y).losses
        for run, (net, optimizer) in enumerate(zip(alone, optimizers, strict=True)):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x[run]), y[run])
            loss.backward()
            optimizer.step()
            assert abs(loss.item() - losses[run].item()) < 1e-11, (step, run)
            for name, value in runs.module(run).state_dict().items():
                torch.testing.assert_close(value, net.state_dict()[name], rtol=0, atol=1e-10, msg=f"{step} {name}")
        outputs = runs.predict(x)
        for run, net in enumerate(alone):
            torch.testing.assert_close(outputs[run], net.eval()(x[run]), rtol=0, atol=1e-10)
            net.train()
    assert int(runs.module(2).state_dict()["norm.num_batches_tracked"]) == 6  # evaluation counts nothing


def test_a_stopped_stack_goes_on_with_the_same_bits() -> None:
    def made() -> neoteny.Stack:
        torch.manual_seed(1)
        methods = Adam(0.01), ContinualBackprop(0.05, maturity_threshold=2)
        example = torch.randn(2, 3, 8, 8)
        return neoteny.stack([small() for _ in range(2)], *methods, loss="cross_entropy", example=example)

    whole, first = made(), made()
    for step in range(8):
        whole.step(*batch(2, step))
        if step < 4:
            first.step(*batch(2, step))
    second = made()
    for step in range(3):
        second.step(*batch(2, 100 + step))  # statistics of its own, which must all be overwritten
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for step in range(4, 8):
        second.step(*batch(2, step))
    assert sum(int(counts.sum()) for counts in whole.replaced.values()) > 4
    for name, value in whole.view.tensors.items():
        assert torch.equal(value, second.view.tensors[name]), name
    x = batch(2, 50)[0]
    assert torch.equal(whole.predict(x), second.predict(x))


def test_units_are_the_channels_between_the_convolutions_of_a_block() -> None:
    net = ResNet(outputs=3, widths=(4, 6), blocks=(2, 2))
    wiring = neoteny.trace(net, torch.randn(2, 3, 8, 8))
    inside = [f"stages.{stage}.{block}" for stage in (0, 1) for block in (0, 1)]
    assert [group.producers[0].module for group in wiring] == [f"{name}.conv1" for name in inside]
    assert [group.consumers[0].module for group in wiring] == [f"{name}.conv2" for name in inside]
    stream = ["conv", "stages.1.0.shortcut.0", *(f"{name}.conv2" for name in inside)]
    assert all("residual stream" in wiring.left_out[name] for name in stream)


def test_continual_backprop_replaces_the_same_units_in_a_stack_as_alone() -> None:
    nets, example = [small(bias=False) for _ in SEEDS], torch.randn(2, 3, 8, 8)
    method = ContinualBackprop(0.05, maturity_threshold=3, compensate=False)
    runs = neoteny.stack(nets, SGD(0.05), method, loss="cross_entropy", example=example, seeds=SEEDS)
    alone = [copy.deepcopy(net) for net in nets]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05) for net in alone]
    attached: list[Any] = [
        neoteny.attach(net, optimizer, method, example=example, seed=seed)
        for net, optimizer, seed in zip(alone, optimizers, SEEDS, strict=True)
    ]
    for step in range(12):
        x, y = batch(3, step)
        runs.step(x, y)
        for run, (net, optimizer, plastic) in enumerate(zip(alone, optimizers, attached, strict=True)):
            optimizer.zero_grad()
            F.cross_entropy(net(x[run]), y[run]).backward()
            optimizer.step()
            plastic.step()
            assert {name: int(counts[run]) for name, counts in runs.replaced.items()} == plastic.replaced, step
            for name, value in runs.module(run).state_dict().items():
                torch.testing.assert_close(value, net.state_dict()[name], rtol=0, atol=1e-9, msg=f"{step} {name}")
    assert sum(int(counts.sum()) for counts in runs.replaced.values()) >= 9


def test_a_hard_reset_makes_new_networks_of_the_declared_laws() -> None:
    nets = [ResNet(outputs=3, widths=(16, 24), blocks=(1, 1)) for _ in range(2)]
    runs = neoteny.stack(
        nets, SGD(0.05, momentum=0.9), HardReset.from_scratch(), loss="cross_entropy", example=torch.randn(2, 3, 8, 8)
    )
    for step in range(3):
        runs.step(*batch(2, step))
    before = {name: value.clone() for name, value in runs.view.tensors.items()}
    runs.task_boundary()
    for name, value in runs.view.tensors.items():
        if value.dim() > 2:  # (n, out, in, ...)
            law = runs.view.initial(name)
            spread = law.std / (2 * value[0].numel()) ** 0.5
            assert all(abs(value[run].std().item() - law.std) < 6 * spread for run in range(2)), name
            assert abs(F.cosine_similarity(value.flatten(), before[name].flatten(), dim=0).item()) < 0.5, name
            assert not torch.equal(value[0], value[1])
        else:
            start = 1.0 if name.endswith("running_var") or ("norm" in name and name.endswith(".weight")) else 0.0
            start = 1.0 if name.endswith("shortcut.1.weight") else start
            assert bool((value == start).all()), name
    assert all(not value.any() for value in runs.chain.states[0].values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outputs": 0}, "outputs and channels .* got 0, 3"),
        ({"outputs": True}, "outputs and channels .* got True, 3"),
        ({"channels": 0}, "got 100, 0"),
        ({"widths": ()}, r"widths must be .* got \(\)"),
        ({"widths": 64}, "widths must be .* got 64"),
        ({"widths": (4, 0), "blocks": (1, 1)}, r"widths must be .* got \(4, 0\)"),
        ({"blocks": (1, 1.0)}, r"blocks must be .* got \(1, 1.0\)"),
        ({"widths": (4, 8)}, r"one number per stage; got \(4, 8\), \(2, 2, 2, 2\)"),
        ({"bias": None}, "bias must be True or False; got None"),
        ({"init": "zeros"}, "'zeros'"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ResNet(**options)

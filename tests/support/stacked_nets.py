"""Training a network alone and inside a stack."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state


def train_alone(net: nn.Module, inputs: Tensor, step_size: float) -> Tensor:
    """Plain SGD on sum(output^2 - output); the losses (steps,)."""
    losses = []
    for x in inputs:
        output = net(x)
        loss = (output.square() - output).mean()
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter.sub_(step_size * gradient)
        losses.append(loss.detach())
    return torch.stack(losses)


def train_stacked(nets: list[nn.Module], inputs: Tensor, step_size: float) -> tuple[Tensor, dict[str, Tensor]]:
    """The same for R networks under vmap with autograd outside; losses (steps, R) and the final stacked state."""
    parameters, buffers = stack_module_state(nets)
    skeleton = copy.deepcopy(nets[0]).to("meta")
    forward = torch.vmap(lambda p, b, x: functional_call(skeleton, (p, b), (x,)))
    losses = []
    for x in inputs:  # (R, B, F)
        output = forward(parameters, buffers, x)
        loss = (output.square() - output).mean((-2, -1))
        gradients = torch.autograd.grad(loss.sum(), list(parameters.values()))
        with torch.no_grad():
            for parameter, gradient in zip(parameters.values(), gradients, strict=True):
                parameter.sub_(step_size * gradient)
        losses.append(loss.detach())
    return torch.stack(losses), {**parameters, **buffers}


def assert_stack_equals_alone(make: Callable[[], nn.Module], steps: int = 50, batch: int = 4) -> None:
    """Three networks in a stack against the same three alone: losses, parameters, buffers."""
    nets = [make() for _ in range(3)]
    inputs = torch.randn(steps, 3, batch, 5)
    losses, state = train_stacked([copy.deepcopy(net) for net in nets], inputs, 0.05)
    for run, net in enumerate(nets):
        expected = train_alone(net, inputs[:, run], 0.05)
        torch.testing.assert_close(losses[:, run], expected, rtol=1e-12, atol=1e-12)
        for name, tensor in net.state_dict().items():
            torch.testing.assert_close(state[name][run], tensor, rtol=1e-12, atol=1e-12)

"""A policy and a value network with their gradients written out: what PPO spends its time on, without autograd.

    forward(observations) -> outputs, value, log std  ->  the loss's gradients by them  ->  apply

Matrix products go to BLAS, into tensors that are made once; the update itself is the stack's own (`Stack.apply`), so
every method serves here as it does anywhere. Compared with autograd step by step in the tests.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neoteny.jit import compiler
from neoteny.nets import ActorCritic
from neoteny.nets.activations import make_activation
from neoteny.stacking.stack import Stack

ACTIVATIONS = ("tanh", "relu", "leaky_relu")


def why_not_covered(network: type[nn.Module], options: Mapping[str, Any]) -> str:
    """Why this cannot train a network, in words; "" if it can."""
    if network is not ActorCritic:
        return f"{network.__name__} is not an ActorCritic"
    activation = str(options.get("activation", "tanh"))
    if activation.partition("(")[0] not in ACTIVATIONS:
        return f"activation {activation}"
    # A leaky ReLU is differentiated by the sign of its value, which a slope below zero turns round.
    return "" if getattr(make_activation(activation), "negative_slope", 0.0) >= 0 else f"activation {activation}"


class CompiledActorCritic:
    """The networks of a stack of one.

    Args:
        stack: made of an `ActorCritic`.
        size: steps in a mini-batch.
    """

    def __init__(self, stack: Stack, size: int) -> None:
        self._stack = stack
        self._gradients = {name: torch.zeros_like(value) for name, value in stack.view.parameters.items()}
        self._policy = _Network("policy", stack, self._gradients, size)
        self._value = _Network("value", stack, self._gradients, size)
        stds = stack.view.tensors.get("log_std")
        self._log_std = None if stds is None else stds.detach()[0]
        self._activations = {
            name: network.inputs[layer].unsqueeze(0)
            for name in stack.reads
            for network in (self._policy, self._value)
            for layer in range(len(network.names))
            if network.names[layer] == name
        }

    def respond(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The policy's outputs for one observation, valid until the next one, and the standard deviations, if any."""
        std = None if self._log_std is None else np.exp(self._log_std.numpy())
        return self._policy.respond(observation), std

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Means or logits (B, outputs), values (B,) and the logarithm of the standard deviations (outputs,), if any."""
        size = len(self._policy.inputs[0])
        if len(observations) != size:
            raise ValueError(
                f"Expected a mini-batch of {size} steps, as PPO(minibatch=...) says; got {len(observations)}."
            )
        return self._policy.forward(observations), self._value.forward(observations)[:, 0], self._log_std

    def apply(self, by_outputs: Tensor, by_log_std: Tensor | None, by_value: Tensor) -> None:
        """Update both networks, given the gradients of the loss by what `forward` gave."""
        self._policy.backward(by_outputs)
        self._value.backward(by_value.unsqueeze(-1))
        if by_log_std is not None:
            self._gradients["log_std"].copy_(by_log_std)
        self._stack.apply(self._gradients, self._activations, self._policy.inputs[0].unsqueeze(0))


class _Network:
    """One fully connected network; memory for everything that a pass needs.

    Attributes:
        names: of its linear layers, in order.
        inputs: what each of them was given in the last `forward`.
    """

    def __init__(self, prefix: str, stack: Stack, gradients: Mapping[str, Tensor], size: int) -> None:
        tensors = stack.view.tensors
        network = stack.module(0).get_submodule(prefix)
        layers = [(f"{prefix}.{name}", layer) for name, layer in network.named_children()]
        self.names = [name for name, layer in layers if isinstance(layer, nn.Linear)]
        leaky = [layer.negative_slope for _, layer in layers if isinstance(layer, nn.LeakyReLU)]
        self._relu = bool(leaky) or any(isinstance(layer, nn.ReLU) for _, layer in layers)
        self._slope = leaky[0] if leaky else 0.0  # left of zero
        self._weights = [tensors[f"{name}.weight"].detach()[0] for name in self.names]
        self._biases = [tensors[f"{name}.bias"].detach()[0] for name in self.names]
        self._by_weight = [gradients[f"{name}.weight"].detach()[0] for name in self.names]
        self._by_bias = [gradients[f"{name}.bias"].detach()[0] for name in self.names]
        like = self._weights[0]
        widths = [like.shape[1], *(len(bias) for bias in self._biases)]
        self.inputs = [like.new_zeros(size, width) for width in widths[:-1]]
        self._output = like.new_zeros(size, widths[-1])
        self._by_input = [like.new_zeros(size, width) for width in widths[:-1]]
        self._responses = [like.new_zeros(width).numpy() for width in widths[1:]]
        self._arrays = [
            (weight.numpy(), bias.numpy()) for weight, bias in zip(self._weights, self._biases, strict=True)
        ]
        self._respond = compiled_layer()
        self._activate: Callable[..., Any] = torch.relu_ if self._relu else torch.tanh_
        if self._slope:
            self._activate = functools.partial(nn.functional.leaky_relu_, negative_slope=self._slope)

    def respond(self, observation: np.ndarray) -> np.ndarray:
        """The output for one observation (inputs,); valid until the next one."""
        value, last = observation, len(self.names) - 1
        for layer, ((weight, bias), response) in enumerate(zip(self._arrays, self._responses, strict=True)):
            self._respond(weight, bias, value, response)
            value = response
            if layer < last:
                if self._slope:
                    np.multiply(value, self._slope, out=value, where=value < 0)
                else:
                    np.maximum(value, 0.0, out=value) if self._relu else np.tanh(value, out=value)
        return value

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs for a mini-batch (B, inputs)."""
        self.inputs[0].copy_(inputs)
        last = len(self.names) - 1
        for layer, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            out = self.inputs[layer + 1] if layer < last else self._output
            torch.addmm(bias, self.inputs[layer], weight.T, out=out)
            if layer < last:
                self._activate(out)
        return self._output

    def backward(self, by_output: Tensor) -> None:
        """Fill the gradients, given that of the loss by the outputs of the last `forward`."""
        flowing = by_output
        for layer in reversed(range(len(self.names))):
            torch.mm(flowing.T, self.inputs[layer], out=self._by_weight[layer])
            torch.sum(flowing, 0, out=self._by_bias[layer])
            if layer:
                torch.mm(flowing, self._weights[layer], out=self._by_input[layer])
                flowing = self._differentiate(self._by_input[layer], self.inputs[layer])

    def _differentiate(self, by_activation: Tensor, activation: Tensor) -> Tensor:
        """Through the activation function, in place: its derivative follows from its value."""
        if self._slope:  # the sign of the value is that of what it was computed from
            return by_activation.mul_(torch.where(activation > 0, 1.0, self._slope))
        if self._relu:
            return by_activation.mul_(activation > 0)
        return torch.ops.aten.tanh_backward.grad_input(by_activation, activation, grad_input=by_activation)


@functools.cache
def compiled_layer() -> Callable[..., None]:
    """A linear layer for one observation: (weight, bias, value, response to fill).

    A library's matrix product costs several times as much for a vector this short, and may start threads for it.
    """
    compile_ = compiler()
    if compile_ is None:
        raise ImportError("The compiled path of agents needs numba: pip install numba.")

    @compile_
    def layer(weight, bias, value, response):  # pragma: no cover - compiled
        for i in range(len(bias)):
            row = weight[i]
            total = bias[i]
            for j in range(len(value)):
                total += row[j] * value[j]
            response[i] = total

    return layer

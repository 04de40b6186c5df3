"""Forward passes of n networks at once: a chain of linear layers as batched products, or any module under vmap.

Before this: the networks' modules; after it: `stack`, which learns from what they give.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from neoteny.nets.online_norm import OnlineNorm
from neoteny.nets.own_draws import OwnDraws
from neoteny.nets.paired import Paired
from neoteny.nets.smooth_leaky import SmoothLeaky
from neoteny.stacking.explain import why_not_stacked

Forward = Callable[[dict[str, Tensor], Tensor], tuple[Tensor, dict[str, Tensor]]]
"""Runs all networks at once: (tensors, inputs) -> outputs and the recorded inputs of some modules."""
ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.SiLU, nn.GELU, nn.Identity, SmoothLeaky)
OVER_STACKS = (*ELEMENTWISE, OwnDraws, OnlineNorm, Paired)
"""Layers whose forward takes (n, B, ...) as well, given stacked tensors of their own; a pair's axis is counted on."""


class ChainForward:
    """A chain of linear layers as batched matrix products, with layers between them that take stacks as they are."""

    def __init__(self, template: nn.Module, reads: Mapping[str, Any]) -> None:
        leaves = [(name, layer) for name, layer in template.named_modules() if not list(layer.children())]
        self._layers = [(name, _behind_runs(layer)) for name, layer in leaves]
        self._own = {name: [key for key, _ in named_tensors(layer)] for name, layer in self._layers}
        self._reads = reads

    def __call__(self, tensors: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        recorded: dict[str, Tensor] = {}
        value = inputs  # (n, B, features)
        for name, layer in self._layers:
            if isinstance(layer, nn.LayerNorm):
                value = _layer_norms(layer, value, tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias"))
                continue
            if not isinstance(layer, nn.Linear):
                own = {key: tensors[f"{name}.{key}"] for key in self._own[name]}
                value = functional_call(layer, own, (value,)) if own else layer(value)
                continue
            if name in self._reads:
                recorded[name] = value
            weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
            lead = value.shape[1:-1]
            flat = value if len(lead) == 1 else value.reshape(len(value), -1, value.shape[-1])
            value = cast(Tensor, StackedLinear.apply(flat, weight, bias))
            value = value if len(lead) == 1 else value.unflatten(1, lead)
        return value, recorded

    def sources(self, recorded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """By what to differentiate for the gradients with respect to recorded inputs."""
        return {name: value for name, value in recorded.items() if value.requires_grad}

    def remove(self) -> None:
        """There is nothing to take off."""


class StackedLinear(torch.autograd.Function):
    """n linear layers at once: x (n, B, in), weight (n, out, in), bias (n, out).

    What autograd would give, but with weight gradients in the layout of the weights: the update with a transposed
    gradient costs more than all the rest of a step.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        transposed = weight.transpose(-1, -2)
        return torch.bmm(x, transposed) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, transposed)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (x, weight) = gradients, ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            torch.bmm(gradient, weight) if for_x else None,
            torch.bmm(gradient.transpose(-1, -2), x) if for_weight else None,
            gradient.sum(1) if for_bias else None,
        )


class VmapForward:
    """Any module under vmap; hooks hand the recorded inputs out of the mapped function.

    Args:
        template: a module of the networks' structure.
        reads: names of modules whose inputs to record.
        with_gradient: names of those whose inputs' gradients are wanted, too. Inside vmap an input cannot be
            differentiated by from outside, so a zero is added to it that can. Modules that are given the same tensor
            share one zero, so that the gradient is that of all of them together.
        in_evaluation: whether inputs are recorded in evaluation mode, not in training mode.
    """

    def __init__(
        self,
        template: nn.Module,
        reads: Mapping[str, Any],
        with_gradient: Iterable[str] = (),
        *,
        in_evaluation: bool = False,
    ) -> None:
        self._in_evaluation = in_evaluation
        self._template = template
        self._recorded: dict[str, Tensor] = {}
        self._with_gradient = list(with_gradient)
        self._zeros: dict[str, Tensor] = {}
        self._zero: dict[str, Tensor] = {}
        self._moved: list[tuple[Tensor, Tensor, str]] = []
        self._shared: dict[str, str] = {}
        modules = dict(template.named_modules())
        self._handles = [
            modules[name].register_forward_pre_hook(_Hook(self._keep(name)), with_kwargs=True) for name in reads
        ]
        self._mapped = torch.vmap(self._one, randomness="error")

    def __call__(self, tensors: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        versions = [value._version for value in tensors.values()]
        try:
            found = self._run(tensors, inputs)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if inputs.is_cuda and torch.cuda.is_current_stream_capturing():
                raise  # of the recording of a CUDA graph, which may fail without a fault of the network
            self._recorded, self._zero = {}, {}
            raise why_not_stacked(self._template, tensors, inputs, error) from None
        for (name, value), version in zip(tensors.items(), versions, strict=True):
            if value._version != version and value.requires_grad:
                raise ValueError(
                    f"{type(self._template).__name__}.forward changed {name} in place, also where it only predicts. Do "
                    "this in the `step` of a method, after the update; see docs/adding-a-method.md."
                )
        return found

    def _run(self, tensors: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        self._zeros = {}
        if self._with_gradient and torch.is_grad_enabled():
            buffers = {name: value.detach().clone() for name, value in tensors.items()}
            with torch.no_grad():  # for the shapes of the inputs
                _, recorded = self._mapped(buffers, {}, inputs)
            wanted = [name for name in self._with_gradient if name in recorded]
            self._zeros = {name: torch.zeros_like(recorded[name]).requires_grad_() for name in wanted}
        return self._mapped(tensors, self._zeros, inputs)

    def sources(self, recorded: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """By what to differentiate for the gradients with respect to recorded inputs."""
        return {name: self._zeros[self._shared.get(name, name)] for name in self._zeros}

    def remove(self) -> None:
        """Take the hooks off the template."""
        for handle in self._handles:
            handle.remove()

    def _one(
        self, tensors: dict[str, Tensor], zeros: dict[str, Tensor], inputs: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        self._recorded, self._zero = {}, zeros
        self._moved, self._shared = [], {}
        outputs = functional_call(self._template, tensors, (inputs,))
        recorded, self._recorded, self._zero, self._moved = self._recorded, {}, {}, []
        return outputs, recorded

    def _keep(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if module.training is self._in_evaluation:
                return None
            value = args[0] if args else next(iter(kwargs.values()))
            before = self._recorded.get(name)
            if before is not None:
                if before.shape[1:] != value.shape[1:] or name in self._zero:
                    raise ValueError(
                        f"{name} is called several times in a forward pass, with inputs that cannot be put together: "
                        f"leave out the units that it reads (leave_out=...), or train with neoteny.attach"
                    )
                value = torch.cat([before, value])  # all calls count, each by its number of examples
            self._recorded[name] = value
            if name not in self._zero:
                return None
            known = next((each for each in self._moved if each[0] is value), None)
            if known is None:
                moved = value + self._zero[name]
                self._moved.append((value, moved, name))
            else:
                _, moved, self._shared[name] = known
            if args:
                return (moved, *args[1:]), kwargs
            return args, {**kwargs, next(iter(kwargs)): moved}

        return hook


class _Hook:
    """A hook that a copied template does not carry on: it would write into the passes of the original."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hook:
        return _Hook(_nothing)


def _nothing(*_: Any) -> None:
    return


def runs_in_order(module: nn.Module) -> bool:
    """Whether a module's forward pass is nothing but its children, one after the other."""
    return type(module).forward is nn.Sequential.forward or getattr(module, "runs_children_in_order", False)


def is_chain(module: nn.Module) -> bool:
    """Whether the module is nothing but linear layers, layer norms and `OVER_STACKS`, one after the other."""
    children = [child for _, child in module.named_modules(remove_duplicate=False)]
    if not runs_in_order(module) or len({id(child) for child in children}) < len(children):  # one module in two places
        return False
    return all(
        is_chain(child) or type(child) is nn.Linear or _is_row_norm(child) or isinstance(child, OVER_STACKS)
        for child in module.children()
    )


def _is_row_norm(module: nn.Module) -> bool:
    """Whether a module is a layer norm over the last axis alone."""
    return type(module) is nn.LayerNorm and len(module.normalized_shape) == 1


def _layer_norms(layer: nn.LayerNorm, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """n layer norms at once: x (n, B, ..., F), weight and bias (n, F)."""
    value = F.layer_norm(x, layer.normalized_shape, eps=layer.eps)
    shape = (len(x), *[1] * (x.dim() - 2), -1)
    value = value if weight is None else value * weight.view(shape)
    return value if bias is None else value + bias.view(shape)


def _behind_runs(layer: nn.Module) -> nn.Module:
    """The layer for values that have the axis of runs in front."""
    if not isinstance(layer, Paired) or layer.dim < 0:
        return layer
    shifted = copy.copy(layer)
    shifted.dim += 1
    return shifted


def named_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers of a module, by name."""
    return [*module.named_parameters(), *module.named_buffers()]

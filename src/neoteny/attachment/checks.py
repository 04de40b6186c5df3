"""What `attach` checks before it touches anything: the arguments, and which groups the optimizers can reset."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from neoteny.layers.groups import UnitGroup
from neoteny.layers.parametrized import computed_from
from neoteny.methods.method import Method
from neoteny.optim.state import OptimizerState, unwrap_optimizer
from neoteny.units.bind import redrawn_layers, without
from neoteny.units.view import LiveGroup
from neoteny.wiring.modules import wrapped
from neoteny.wiring.wiring import Wiring

_PARALLEL = {
    "FullyShardedDataParallel": " yet: each process holds a part of every weight, so that no process can rewrite a "
    "unit. Use DistributedDataParallel, or one device.",
    "DataParallel": ": it makes new copies of the model at every pass. Use DistributedDataParallel, with one process "
    "per device.",
    "DistributedDataParallel": " inside of a model, where only a part of the weights is equal on all ranks. Wrap the "
    "whole model in one DistributedDataParallel.",
}
"""Why wrappers are refused."""


def check_arguments(model: nn.Module, methods: tuple[Method, ...], seed: int | None) -> None:
    """Refuse what cannot be attached."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"attach expects an nn.Module first; got {type(model).__name__}.")
    _refuse_parallel(model)
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "attach inside of torch.inference_mode(): what is made there cannot be changed in training. Call attach "
            "outside of it."
        )
    if bare := [name for name, each in model.named_parameters() if each.is_meta]:
        raise ValueError(
            f"expected weights that hold numbers; {bare[0]} is on the device 'meta'. Give the model its weights "
            "(model.to_empty, then initialise or load them), then make the optimizer and attach."
        )
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63):
        raise ValueError(f"seed must be a 64-bit integer or None; got {seed!r}.")
    if not methods:
        raise ValueError("attach needs at least one method, e.g. neoteny.ContinualBackprop(replacement_rate=1e-4).")
    for method in methods:
        if isinstance(method, Optimizer):
            raise TypeError(
                "attach expects the model, the optimizer, then the methods: attach(model, optimizer, method, "
                f"example=...); got {type(method).__name__}, an optimizer and not a method, after the optimizer."
            )
        if isinstance(method, Method) and method.is_optimizer:
            raise TypeError(
                f"{type(method).__name__} is an optimizer, not a method to attach: pass it as the second argument, "
                "as neoteny.optim.from_method("
                f"{type(method).__name__}(...), model.parameters()), or pass any other torch.optim.Optimizer."
            )
        if not isinstance(method, Method):
            given = method.__name__ if isinstance(method, type) else type(method).__name__
            hint = f" Did you mean {given}(...)?" if isinstance(method, type) else ""
            if isinstance(method, (list, tuple)):
                hint = " Pass methods one by one: attach(model, optimizer, *methods, example=...)."
            raise TypeError(f"attach expects methods such as neoteny.ContinualBackprop(...); got {given}.{hint}")
        if method.runs() is not None:
            raise ValueError(
                f"{type(method).__name__}: a sequence of hyperparameters is for neoteny.stack; attach takes one value."
            )


def check_loss(loss: Any) -> Tensor:
    """The training loss without its graph.

    Raises:
        TypeError: it is not a tensor.
        ValueError: it is not one number.
    """
    if not isinstance(loss, Tensor):
        raise TypeError(f"plastic.observe expects the training loss, a tensor; got {type(loss).__name__} {loss!r}.")
    if loss.numel() != 1:
        raise ValueError(
            f"plastic.observe expects the training loss, one number; got shape {tuple(loss.shape)}. Pass its mean."
        )
    return loss.detach().reshape(())


def check_accumulation(accumulate: str, methods: tuple[Method, ...]) -> None:
    """Refuse a choice that is not known, and sums for methods that need the inputs themselves."""
    if accumulate not in ("inputs", "sums"):
        raise ValueError(f"accumulate must be 'inputs' or 'sums'; got {accumulate!r}.")
    for method in methods if accumulate == "sums" else ():
        kind = type(method)
        reads = kind.reads is not Method.reads or kind.reads_gradients is not Method.reads_gradients
        if reads and "accumulate" not in vars(kind):  # not inherited: a subclass may read something else
            raise ValueError(
                f"accumulate='sums' is not for {kind.__name__}, which reads the inputs of layers themselves: leave "
                "accumulate out."
            )


def check_owner(inner: nn.Module, state: OptimizerState, earlier: Collection[Any]) -> None:
    """Refuse optimizers that are attached already, or any that is another model's."""
    if any(set(each.optimizers) & set(state.optimizers) for each in earlier):
        raise ValueError(
            "The model is already attached with this optimizer, and both attachments would act at every update. Pass "
            "all methods in one attach(...), or take the earlier off first: plastic.detach() or neoteny.detach(model)."
        )
    if not any(state.owns(parameter) for parameter in inner.parameters()):
        raise ValueError(
            f"The optimizer owns none of the model's parameters: build it as {type(state.optimizers[0]).__name__}"
            "(model.parameters(), ...) from the very model that is attached."
        )
    for number, each in enumerate(state.optimizers, 1):
        if not trains(each, inner):
            raise ValueError(
                f"Optimizer {number} of the {len(state.optimizers)} given, {type(each).__name__}, owns none of the "
                "model's parameters, and an update is one step of each of them. Give only those that train this model; "
                "attach another model (the other network of a GAN, say) with its own optimizer."
            )


def trains(optimizer: Optimizer, model: nn.Module) -> bool:
    """Whether an optimizer owns a parameter of the model: a part may have one of several optimizers to itself."""
    mine = {id(parameter) for parameter in model.parameters()}
    return any(id(parameter) in mine for group in optimizer.param_groups for parameter in group["params"])


def check_optimizers(optimizer: Optimizer | Sequence[Optimizer]) -> tuple[Optimizer, ...]:
    """The optimizers themselves, without a framework's wrapper around them."""
    given: tuple[Any, ...] = tuple(optimizer) if isinstance(optimizer, (list, tuple)) else (optimizer,)
    for each in given:
        if not isinstance(each, Optimizer):
            raise TypeError(
                f"attach expects a torch.optim.Optimizer (or a list of several) second; got {type(each).__name__}."
            )
    if not given:
        raise TypeError("attach expects at least one torch.optim.Optimizer second; got an empty list.")
    found = tuple(unwrap_optimizer(each) for each in given)
    if any(type(each).__name__ == "ZeroRedundancyOptimizer" for each in found):
        raise TypeError(
            "ZeroRedundancyOptimizer keeps the state of each parameter on one rank only, so that other ranks cannot "
            "reset it, which is not supported yet. Use the optimizer that it wraps on every rank."
        )
    owned = [id(parameter) for each in found for group in each.param_groups for parameter in group["params"]]
    if len(set(owned)) != len(owned):
        raise ValueError("Two of the optimizers own the same parameter: each parameter must belong to one of them.")
    return found


def _refuse_parallel(model: nn.Module) -> None:
    """Refuse models whose weights are on several devices, or in parts on several processes."""
    for name, module in wrapped(model)[-1].named_modules():
        kinds = {kind.__name__ for kind in type(module).__mro__}
        for kind, why in _PARALLEL.items():
            if kind in kinds:
                where = f"{name!r} in the model" if name else "The model"
                raise TypeError(f"{where} is a {kind}, which is not supported{why}")
    sharded = [name for name, each in model.named_parameters() if hasattr(each, "device_mesh")]
    if sharded:
        raise TypeError(
            f"{sharded[0]} is a DTensor (fully_shard or tensor parallel), which is not supported yet: each process "
            "holds a part of the weight, so that no process can rewrite a unit. Use DistributedDataParallel, or one "
            "device."
        )


def prepare_state(state: OptimizerState, groups: Sequence[LiveGroup], model: nn.Module) -> None:
    """Find the initial optimizer state of every weight that a reset may write, so that a bad optimizer fails early."""
    for group in groups:
        for port in (*group.producers, *group.consumers):
            module = model.get_submodule(port.module)
            for key in computed_from(module) or (port.weight.rpartition(".")[2],):
                state.prepare(module.get_parameter(key))
        for port in group.producers:
            if port.bias is not None:
                state.prepare(model.get_parameter(port.bias))


def owned_groups(wiring: Wiring, model: nn.Module, state: OptimizerState) -> Wiring:
    """The wiring without groups some of whose parameters the optimizer does not own."""

    def why(group: UnitGroup) -> str:
        strangers = [
            name
            for port in (*group.producers, *group.consumers, *group.norms)
            for name, parameter in model.get_submodule(port.module).named_parameters(port.module)
            if not state.owns(parameter)
        ]
        return f"the optimizer does not own {', '.join(dict.fromkeys(strangers))}" if strangers else ""

    return without(wiring, why)


def owned_layers(model: nn.Module, state: OptimizerState) -> list[str]:
    """The linear layers and convolutions whose weights the optimizer trains."""
    return [name for name in redrawn_layers(model) if state.owns(model.get_parameter(f"{name}.weight"))]

"""stack(): n independent networks trained in lock-step by the same method code (a View with R = (n,)).

Parameters are stacked along a first axis. The forward pass is one `vmap` over the module (or, for a plain chain of
linear layers and activations, batched matrix products directly, which saves vmap's overhead); since run k's loss
depends on run k's parameters alone, one backward pass of the summed losses gives every run its own gradients. Runs may
differ in their seeds and in any numeric hyperparameter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import stack_module_state

from neoteny.draws.initial import Declared, check_spread, declared_distributions
from neoteny.layers.groups import UnitGroup
from neoteny.layers.ports import Region
from neoteny.methods.method import Method, State, copy_nested
from neoteny.methods.saved_state import SAVE_VERSION, check_saved, describe_methods, snapshot
from neoteny.stacking.forward import ChainForward, Forward, VmapForward, is_chain, named_tensors
from neoteny.units.view import LiveGroup, View
from neoteny.wiring.trace import Norm, trace
from neoteny.wiring.wiring import Wiring

Loss = Callable[[Tensor, Tensor], Tensor]


class Step(NamedTuple):
    """What one step gave: losses (n,) and outputs (n, B, ...) from before the update."""

    losses: Tensor
    outputs: Any


class StackView(View):
    """The stacked tensors of n networks."""

    def __init__(self, modules: Sequence[nn.Module], groups: Sequence[LiveGroup], seeds: Sequence[int]) -> None:
        super().__init__()
        parameters, buffers = stack_module_state(list(modules))
        self.runs = (len(modules),)
        self.groups = groups
        self.activations = {}
        self.gradients: dict[str, Tensor | None] = {}
        self.optimizers: list[tuple[Method, State]] = []
        self.tensors: dict[str, Tensor] = {**parameters, **buffers}
        self.buffers = buffers
        self._parameters = {name: value for name, value in parameters.items() if value.requires_grad}
        device = next(iter(parameters.values())).device
        self.seeds = torch.tensor(list(seeds), dtype=torch.int64, device=device)

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Every trainable parameter, (n, ...)."""
        return self._parameters

    def tensor(self, name: str) -> Tensor:
        """A stacked parameter or buffer."""
        return self.tensors[name]

    def gradient(self, name: str) -> Tensor | None:
        """The gradient of this step."""
        return self.gradients[name]

    def clear_state(self, region: Region) -> None:
        """Reset the state of every optimizer among the methods."""
        for method, state in self.optimizers:
            method.clear_state(state, region)


def stack(
    modules: Sequence[nn.Module],
    *methods: Method,
    loss: str | Loss = "mse",
    example: Any = None,
    seeds: Sequence[int] | None = None,
    groups: Sequence[UnitGroup] | None = None,
    leave_out: Sequence[str] = (),
    norm: Norm = "refuse",
    init: Declared | None = None,
    trained: bool = False,
) -> Stack:
    """Train n networks in lock-step.

    Args:
        modules: n modules of one architecture, each with its own initial weights; they are copied.
        methods: an optimizer first (`neoteny.methods.SGD` or `Adam`), then the others in the order in which they act.
            A hyperparameter is one number for all runs or a sequence of n.
        loss: "mse", "cross_entropy", or a function of one run's (outputs, targets) that `torch.vmap` can map.
        example: a batch that one module accepts; needed by methods that act on units.
        seeds: n run seeds; 0 to n - 1 by default.
        groups, leave_out, norm, init, trained: as for `attach`.

    Example:
        >>> from neoteny.methods import SGD, ContinualBackprop
        >>> nets = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)) for _ in range(3)]
        >>> runs = stack(nets, SGD(0.01), ContinualBackprop((1e-3, 1e-4, 0.0)), example=torch.zeros(1, 4))
        >>> runs.step(torch.zeros(3, 1, 4), torch.zeros(3, 1, 1)).losses.shape
        torch.Size([3])
    """
    modules = list(modules)
    seeds = list(range(len(modules))) if seeds is None else list(seeds)
    _check_arguments(modules, methods, seeds)
    template = modules[0]
    wiring: Wiring | None = None
    live: list[LiveGroup] = []
    if any(method.needs_units for method in methods):
        if example is None:
            raise ValueError("stack needs example=..., a batch that one module accepts, to find its hidden units.")
        wiring = trace(template, example, groups=groups, leave_out=leave_out, norm=norm)
        declared = declared_distributions(template, init)
        live = [LiveGroup(group, dict(template.named_modules()), declared) for group in wiring.groups]
        for group in live if not trained else ():
            for port, distribution in zip(group.producers, group.initial, strict=True):
                for run, module in enumerate(modules):
                    check_spread(f"run {run}, {port.module}", module.get_submodule(port.module), distribution)
    return Stack(template, StackView(modules, live, seeds), methods, wiring, loss)


class Stack:
    """n networks in lock-step; made by `stack`."""

    def __init__(
        self, template: nn.Module, view: StackView, methods: tuple[Method, ...], wiring: Wiring | None, loss: str | Loss
    ) -> None:
        self.methods = methods
        self.wiring = wiring
        self.view = view
        self._template = copy.deepcopy(template)
        self._loss = _losses(loss)
        self._states: list[State] = [method.init(view) for method in methods]
        view.optimizers = [pair for pair in zip(methods, self._states, strict=True) if pair[0].is_optimizer]
        reads = dict.fromkeys(self.reads)
        self._forward: Forward = (
            ChainForward(self._template, reads) if is_chain(template) else VmapForward(self._template, reads)
        )

    @property
    def replaced(self) -> dict[str, Tensor]:
        """Per group, how many units of each run were replaced so far, (n,)."""
        counts: dict[str, Tensor] = {}
        for state in self._states:
            for group in self.view.groups:
                if group.name in state and "replaced" in state[group.name]:
                    mine = torch.from_numpy(state[group.name]["replaced"].copy())
                    counts[group.name] = counts[group.name] + mine if group.name in counts else mine
        return counts

    def step(self, inputs: Tensor, targets: Tensor) -> Step:
        """One update of every run.

        Args:
            inputs: (n, B, ...), targets: (n, B, ...).
        """
        return self.learn(inputs, lambda outputs: self._loss(outputs, targets))

    def learn(self, inputs: Tensor, loss: Callable[[Any], Tensor]) -> Step:
        """One update of every run for a loss of its own.

        Args:
            inputs: (n, B, ...).
            loss: from the outputs of all runs (n, B, ...) to their losses (n,); run k's may depend on run k's tensors.
        """
        self._check_inputs(inputs)
        self._template.train()
        outputs, recorded = self._forward(self.view.tensors, inputs)
        losses = loss(outputs)
        found = torch.autograd.grad(losses.sum(), list(self.view.parameters.values()), allow_unused=True)
        self.apply(
            dict(zip(self.view.parameters, found, strict=True)),
            {name: value.detach() for name, value in recorded.items()},
        )
        return Step(losses.detach(), outputs.detach() if isinstance(outputs, Tensor) else outputs)

    @torch.no_grad()
    def apply(self, gradients: Mapping[str, Tensor | None], activations: Mapping[str, Tensor]) -> None:
        """One update of every run from gradients that were found elsewhere.

        Args:
            gradients: for each parameter, (n, ...); changed in place by methods that add a loss term.
            activations: for each module that a method reads (`reads`), what it was given, (n, B, ...).
        """
        view = self.view
        view.gradients = dict(gradients)
        view.activations = {name: [value] for name, value in activations.items()}
        for method, state in zip(self.methods, self._states, strict=True):
            method.add_gradient(view, state)
        for method, state in zip(self.methods, self._states, strict=True):
            method.step(view, state)
        view.activations = {}

    @property
    def reads(self) -> list[str]:
        """Modules whose inputs the methods ask for."""
        return list(dict.fromkeys(name for method in self.methods for name in method.reads(self.view)))

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor:
        """Outputs (n, B, ...) in eval mode; nothing is recorded."""
        self._check_inputs(inputs)
        self._template.eval()
        return self._forward(self.view.tensors, inputs)[0]

    def task_boundary(self) -> None:
        """Tell the methods that ask for it that a new task begins."""
        for method, state in zip(self.methods, self._states, strict=True):
            method.task_boundary(self.view, state)

    @torch.no_grad()
    def zero_layer(self, name: str) -> None:
        """Set one layer's weights and biases to zero in every run, and the optimizer's state of them to its start."""
        view = self.view
        for key in (f"{name}.weight", f"{name}.bias"):
            tensor = view.tensors.get(key)
            if tensor is None:
                continue
            runs = torch.arange(tensor.shape[0], device=tensor.device).unsqueeze(1)
            rows = torch.arange(tensor.shape[1], device=tensor.device).unsqueeze(0)
            tensor.zero_()
            view.clear_state(Region(key, (runs, rows)))

    def module(self, run: int) -> nn.Module:
        """A copy of one run's network."""
        module = copy.deepcopy(self._template)
        with torch.no_grad():
            for name, tensor in named_tensors(module):
                tensor.copy_(self.view.tensors[name][run])
        return module

    def state_dict(self) -> dict[str, Any]:
        """Everything that a bit-identical continuation needs, the networks' tensors included."""
        return {
            "version": SAVE_VERSION,
            "seeds": snapshot(self.view.seeds),
            "groups": {group.name: group.units for group in self.view.groups},
            "methods": describe_methods(self.methods),
            "tensors": snapshot(self.view.tensors),
            "states": [
                snapshot(method.export(state)) for method, state in zip(self.methods, self._states, strict=True)
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict()`.

        Raises:
            ValueError: the state is of another stack; nothing is changed then.
        """
        mine = self.state_dict()
        check_saved(state, mine, also=("seeds", "tensors"))
        self.view.seeds.copy_(state["seeds"])
        copy_nested(dict(state["tensors"]), self.view.tensors)
        for method, own, saved in zip(self.methods, self._states, state["states"], strict=True):
            method.restore(self.view, own, saved)

    def _check_inputs(self, inputs: Tensor) -> None:
        if inputs.dim() < 2 or inputs.shape[0] != self.view.runs[0]:
            raise ValueError(
                f"Expected inputs of shape ({self.view.runs[0]}, batch, ...), one batch a run; "
                f"got {tuple(inputs.shape)}."
            )


def _losses(loss: str | Loss) -> Loss:
    """A function of all runs' outputs (n, B, ...) and targets that gives the losses (n,)."""
    if loss == "mse":
        return _squared_error
    if loss == "cross_entropy":
        return _cross_entropy
    if callable(loss):
        return torch.vmap(loss)
    raise ValueError(f"loss must be 'mse', 'cross_entropy' or a function of (outputs, targets); got {loss!r}.")


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.shape != targets.shape:
        raise ValueError(
            f"Expected targets of the outputs' shape {tuple(outputs.shape)}; got {tuple(targets.shape)}, which would "
            "broadcast."
        )
    return (outputs - targets).square().flatten(1).mean(-1)


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    each = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(0, 1), reduction="none")
    return each.unflatten(0, targets.shape[:2]).flatten(1).mean(-1)


def _architecture(module: nn.Module) -> list[tuple[str, type, str]]:
    """What must agree between modules whose forward is run once for all: classes, settings and shapes."""
    parts = [(name, type(child), child.extra_repr()) for name, child in module.named_modules(remove_duplicate=False)]
    tensors = [(name, type(value), str(tuple(value.shape))) for name, value in module.state_dict().items()]
    return parts + tensors


def _check_arguments(modules: list[nn.Module], methods: tuple[Method, ...], seeds: list[int]) -> None:
    if not modules or not all(isinstance(module, nn.Module) for module in modules):
        raise TypeError("stack expects a sequence of at least one nn.Module first.")
    first = _architecture(modules[0])
    for run, module in enumerate(modules):
        if _architecture(module) != first:
            raise ValueError(f"stack expects modules of one architecture; module {run} differs from module 0.")
    if len(seeds) != len(modules):
        raise ValueError(f"stack expects one seed a module: {len(modules)} modules, but {len(seeds)} seeds.")
    for method in methods:
        if not isinstance(method, Method):
            raise TypeError(
                f"stack expects methods such as neoteny.methods.SGD(0.01); got {type(method).__name__}. A torch "
                "optimizer cannot drive a stack."
            )
        if method.runs() not in (None, len(modules)):
            raise ValueError(
                f"{type(method).__name__}: sequences of hyperparameters must have one value a run ({len(modules)}); "
                f"got {method.runs()}."
            )
    if sum(method.is_optimizer for method in methods) != 1 or not methods[0].is_optimizer:
        raise ValueError("stack expects exactly one optimizer, as the first method: neoteny.methods.SGD or Adam.")
    for name, child in modules[0].named_modules():
        if isinstance(child, (nn.modules.dropout._DropoutNd, nn.RReLU)):
            raise ValueError(
                f"{name} ({type(child).__name__}) draws from torch's global generator, so a run would depend on its "
                "neighbours in the stack; use neoteny.nets.Dropout, which draws by (seed, step)."
            )

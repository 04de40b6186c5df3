"""stack(): n independent networks trained in lock-step by the same method code (a View with R = (n,)).

Parameters are stacked along a first axis. The forward pass is one `vmap` over the module (or, for a plain chain of
linear layers and activations, batched matrix products directly, which saves vmap's overhead); since run k's loss
depends on run k's parameters alone, one backward pass of the summed losses gives every run its own gradients. Runs may
differ in their seeds and in any numeric hyperparameter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoteny.draws.initial import Declared
from neoteny.foreign_code import called
from neoteny.layers.groups import UnitGroup
from neoteny.layers.regions import Region
from neoteny.methods.chain import Chain
from neoteny.methods.method import BoundaryData, Method
from neoteny.methods.saved_state import SAVE_VERSION, check_saved, check_shapes
from neoteny.methods.state import copy_nested, snapshot
from neoteny.stacking.forward import ChainForward, VmapForward, is_chain, named_tensors
from neoteny.stacking.stack_view import StackView
from neoteny.units.bind import bind_groups, check_initial, check_redrawn, find_groups, plain_groups
from neoteny.units.calls import Call, autocast_of
from neoteny.units.view import LiveGroup
from neoteny.wiring.trace import LeaveOut, Norm
from neoteny.wiring.wiring import Wiring

Loss = Callable[[Tensor, Tensor], Tensor]


class Step(NamedTuple):
    """What one step gave: losses (n,) and outputs (n, B, ...) from before the update."""

    losses: Tensor
    outputs: Any


def stack(
    modules: Sequence[nn.Module],
    *methods: Method,
    loss: str | Loss = "mse",
    example: Any = None,
    seeds: Sequence[int] | None = None,
    groups: Sequence[UnitGroup] | None = None,
    leave_out: LeaveOut = (),
    norm: Norm = "accept",
    init: Declared | None = None,
    trained: bool = False,
) -> Stack:
    """Train n networks in lock-step.

    A run's numbers are those of its network trained alone, up to the order of sums: their last bits may depend on how
    many runs the stack has and on the run's place in it.

    Args:
        modules: n modules of one architecture, each with its own initial weights; they are copied.
        methods: an optimizer first (`neoteny.methods.SGD` or `Adam`), then the others in the order in which they act.
            A hyperparameter is one number for all runs or a sequence of n.
        loss: "mse", "cross_entropy" (outputs (B, classes, ...)), "token_cross_entropy" (outputs (B, positions,
            classes)), or a function of one run's (outputs, targets) that `torch.vmap` can map.
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
        wiring = plain_groups(find_groups("stack", template, example, groups, leave_out, norm), template)
        live = bind_groups(template, wiring, init)
        for run, module in enumerate(modules if not trained else ()):
            check_initial(wiring, module, init, f"run {run}, ")
    if any(method.redraws_weights for method in methods) and not trained:
        for run, module in enumerate(modules):
            check_redrawn(module, init, f"run {run}, ")
    view = StackView(modules, copy.deepcopy(template), live, seeds, init)
    view.example = example
    made = Stack(view, methods, wiring, loss)
    view.example = None  # shown to the methods; not kept alive
    return made


class Stack:
    """n networks in lock-step; made by `stack`."""

    def __init__(self, view: StackView, methods: tuple[Method, ...], wiring: Wiring | None, loss: str | Loss) -> None:
        self.methods = methods
        self.wiring = wiring
        self.view = view
        self.loss = _losses(loss)
        view.optimizer = methods[0]
        self.chain = Chain(methods, view)
        self.chain.check_reads(dict(view.template.named_modules()))
        self._mask: Tensor | None = None
        self.updates = 0
        """Updates since it was made or loaded, for messages."""
        view.on_rewrite = self._rewritten
        self.forward = self._make_forward()

    @property
    def template(self) -> nn.Module:
        """A module of the networks' structure; its tensors do not matter."""
        return self.view.template

    @property
    def replaced(self) -> dict[str, Tensor]:
        """Per group, how many units of each run were replaced so far, (n,)."""
        return self.chain.counts()

    def step(self, inputs: Tensor, targets: Tensor) -> Step:
        """One update of every run.

        Args:
            inputs: (n, B, ...), targets: (n, B, ...).
        """
        return self.learn(inputs, lambda outputs: self.loss(self.counted(outputs), targets))

    def count_outputs(self, first: int, outputs: int) -> None:
        """Let only the first of the outputs count in `step` and in `counted`: the classes seen so far; 0 for all.

        What it sets is no part of `state_dict()`: it follows from the task.
        """
        if self._mask is None:
            if not first:
                return
            parameter = next(iter(self.view.parameters.values()))
            self._mask = torch.zeros(outputs, dtype=parameter.dtype, device=parameter.device)
        self._mask.zero_()  # in place: a CUDA graph has recorded where it lies
        self._mask[first or outputs :] = -torch.inf

    def counted(self, outputs: Any) -> Any:
        """Outputs (n, B, outputs), with minus infinity for those that do not count (`count_outputs`)."""
        return outputs if self._mask is None else outputs + self._mask

    def learn(self, inputs: Tensor, loss: Callable[[Any], Tensor]) -> Step:
        """One update of every run for a loss of its own.

        Args:
            inputs: (n, B, ...).
            loss: from the outputs of all runs (n, B, ...) to their losses (n,); run k's may depend on run k's tensors.
        """
        self._check_inputs(inputs)
        view = self.view
        self.template.train()
        outputs, recorded = self._run(view.tensors, inputs)
        losses = loss(outputs)
        self._check_losses(losses)
        parameters = view.parameters
        read = {name: recorded[name] for name in self._read_gradients if name in recorded}
        sources = self.forward.sources(read) if read else {}
        found = torch.autograd.grad(losses.sum(), [*parameters.values(), *sources.values()], allow_unused=True)
        inner = dict(zip(sources, found[len(parameters) :], strict=True))
        view.input_gradients = {name: [gradient] for name, gradient in inner.items() if gradient is not None}
        view.loss = losses.detach()
        self.apply(
            dict(zip(parameters, found[: len(parameters)], strict=True)),
            {name: value.detach() for name, value in recorded.items()},
            inputs,
        )
        return Step(losses.detach(), outputs.detach() if isinstance(outputs, Tensor) else outputs)

    @torch.no_grad()
    def apply(
        self, gradients: Mapping[str, Tensor | None], activations: Mapping[str, Tensor], inputs: Tensor | None = None
    ) -> None:
        """One update of every run from gradients that were found elsewhere.

        Args:
            gradients: for each parameter, (n, ...); changed in place by methods that add a loss term.
            activations: for each module that a method reads (`reads`), what it was given, (n, B, ...).
            inputs: of the networks (n, B, ...), for methods that run them again.
        """
        view = self.view
        view.gradients = dict(gradients)
        view.activations = {name: [value] for name, value in activations.items()}
        view.calls = [] if inputs is None else [Call((inputs.detach(),), {}, autocast_of([inputs]))]
        self.chain.before_update()
        self.chain.after_update()
        view.activations, view.input_gradients, view.calls, view.loss = {}, {}, [], None
        self.updates += 1

    @property
    def reads(self) -> list[str]:
        """Modules whose inputs the methods ask for."""
        return self.chain.reads()

    @property
    def evaluation_tensors(self) -> dict[str, Tensor]:
        """The tensors to evaluate the networks with: what was trained, or what a method keeps instead."""
        return {**self.view.tensors, **self.chain.evaluation()}

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor:
        """Outputs (n, B, ...) in eval mode, with the weights to evaluate with; nothing is recorded."""
        self._check_inputs(inputs)
        self.template.eval()
        return self._run(self.evaluation_tensors, inputs)[0]

    def task_boundary(self, data: Iterable[tuple[Tensor, Tensor]] | None = None) -> None:
        """Tell the methods that ask for it that a new task begins.

        Args:
            data: batches (inputs, targets) of the new task, each (n, B, ...), for methods that look at it.
        """
        self.chain.task_boundary(None if data is None else BoundaryData(data, self._gradients))

    @torch.no_grad()
    def zero_layer(self, name: str) -> None:
        """Set one layer's weights and biases to zero in every run, and the optimizer's state of them to its start."""
        view = self.view
        inside = [key for key in view.tensors if key.startswith(f"{name}.")]  # several where a method has rewritten it
        for key in (key for key in inside if key.rpartition(".")[2] in ("weight", "bias")):
            tensor = view.tensors[key]
            tensor.zero_()
            view.was_reset(Region.whole(key, tensor, 1))

    def module(self, run: int) -> nn.Module:
        """A copy of one run's network."""
        module = copy.deepcopy(self.template)
        with torch.no_grad():
            for name, tensor in named_tensors(module):
                tensor.copy_(self.view.tensors[name][run])
        return module

    def state_dict(self) -> dict[str, Any]:
        """Everything that a bit-identical continuation needs, the networks' tensors included."""
        saved = {"version": SAVE_VERSION, "seeds": snapshot(self.view.seeds), "tensors": snapshot(self.view.tensors)}
        return saved | self.chain.saved()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict()`.

        Raises:
            ValueError: the state is of another stack; nothing is changed then.
        """
        check_saved(state, self.state_dict(), self.methods)
        self.chain.rebuild(state)
        check_shapes(state, self.state_dict(), also=("seeds", "tensors"))
        self.view.seeds.copy_(state["seeds"])
        copy_nested(dict(state["tensors"]), self.view.tensors)
        self.chain.restore(state)

    def _make_forward(self) -> ChainForward | VmapForward:
        self._read_gradients = self.chain.reads_gradients()
        reads = dict.fromkeys([*self.chain.reads(), *self._read_gradients])
        if is_chain(self.template):
            return ChainForward(self.template, reads)
        return VmapForward(self.template, reads, self._read_gradients)

    def _rewritten(self) -> None:
        """The networks have another structure now."""
        self.forward.remove()
        self.forward = self._make_forward()

    def _gradients(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """The gradient of the training loss of one batch, by parameter name."""
        self._check_inputs(inputs)
        parameters = self.view.parameters
        self.template.train()
        with torch.enable_grad():
            losses = self.loss(self.counted(self._run(self.view.tensors, inputs)[0]), targets)
            found = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
        return {name: each for name, each in zip(parameters, found, strict=True) if each is not None}

    def _run(self, tensors: dict[str, Tensor], inputs: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """The forward pass of all networks; errors name their class."""
        try:
            return self.forward(tensors, inputs)
        except Exception as error:
            error.add_note(f"in {type(self.template).__name__}.forward")
            raise

    def _check_losses(self, losses: Tensor) -> None:
        runs, name = self.view.runs, type(self.template).__name__
        if not isinstance(losses, Tensor) or losses.shape != runs:
            came = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
            raise ValueError(f"Expected losses of shape {runs}, one number per run; got {came}.")
        if not losses.requires_grad:
            with called(f"in {name}.forward"):
                raise ValueError(
                    f"The loss of {name} has no gradient: between the parameters and the outputs there is something "
                    "that is not differentiated, such as detach(), torch.no_grad(), argmax or round."
                )

    def _check_inputs(self, inputs: Tensor) -> None:
        if inputs.dim() < 2 or inputs.shape[0] != self.view.runs[0]:
            raise ValueError(
                f"Expected inputs of shape ({self.view.runs[0]}, batch, ...), one batch per run; "
                f"got {tuple(inputs.shape)}."
            )


def _losses(loss: str | Loss) -> Loss:
    """A function of all runs' outputs (n, B, ...) and targets that gives the losses (n,)."""
    if loss == "mse":
        return _squared_error
    if loss == "cross_entropy":
        return _cross_entropy
    if loss == "token_cross_entropy":
        return _token_cross_entropy
    if callable(loss):
        return torch.vmap(loss)
    raise ValueError(
        f"loss must be 'mse', 'cross_entropy', 'token_cross_entropy' or a function of (outputs, targets); got {loss!r}."
    )


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


def _token_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.shape[:-1] != targets.shape:
        raise ValueError(
            f"Expected one target per position, of shape {tuple(outputs.shape[:-1])}; got {tuple(targets.shape)}."
        )
    each = F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
    return each.view(len(targets), -1).mean(-1)


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
        raise ValueError(f"stack expects one seed per module: {len(modules)} modules, but {len(seeds)} seeds.")
    for method in methods:
        if not isinstance(method, Method):
            raise TypeError(
                f"stack expects methods such as neoteny.methods.SGD(0.01); got {type(method).__name__}. A torch "
                "optimizer cannot drive a stack."
            )
        if method.runs() not in (None, len(modules)):
            raise ValueError(
                f"{type(method).__name__}: sequences of hyperparameters must have one value per run ({len(modules)}); "
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

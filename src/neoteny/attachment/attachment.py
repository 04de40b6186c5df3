"""attach(): methods on a user's own module and optimizer (a View with R = ()).

The user's loop stays as it was. Loss terms join the gradients in the optimizer's pre-step hook; `plastic.step()` (or,
with `auto=True`, the optimizer's post-step hook) lets every method act after the update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from neoteny.attachment.hooks import Recorder, StepWatch, refuse_called
from neoteny.attachment.module_view import ModuleView
from neoteny.attachment.summary import summarize
from neoteny.draws.initial import Declared
from neoteny.layers.groups import UnitGroup
from neoteny.methods.chain import Chain
from neoteny.methods.method import BoundaryData, Method
from neoteny.methods.saved_state import SAVE_VERSION, check_saved, check_shapes
from neoteny.optim.state import OptimizerState
from neoteny.units.bind import bind_groups, check_initial, find_groups
from neoteny.units.view import LiveGroup
from neoteny.wiring.modules import unwrap
from neoteny.wiring.trace import Norm
from neoteny.wiring.wiring import Wiring

Loss = Callable[[Any, Any], Tensor]

# Weak on both sides: hooks keep an attachment alive, and a copied or saved model carries nothing of it.
_ATTACHED: WeakKeyDictionary[nn.Module, WeakSet[Attachment]] = WeakKeyDictionary()


def attach(
    model: nn.Module,
    optimizer: Optimizer,
    *methods: Method,
    example: Any = None,
    seed: int | None = None,
    auto: bool = False,
    groups: Sequence[UnitGroup] | None = None,
    leave_out: Sequence[str] = (),
    norm: Norm = "refuse",
    init: Declared | None = None,
    trained: bool = False,
) -> Attachment:
    """Add methods to a module and its optimizer.

    Args:
        model: any feed-forward `nn.Module`; attach before the first call if it is compiled.
        optimizer: the torch optimizer that owns its parameters.
        methods: `ContinualBackprop(...)`, `L2(...)`, ...; they act in this order.
        example: a batch the model accepts: a tensor, a tuple of arguments or a dict of keyword arguments. Needed by
            methods that act on units.
        seed: of every draw; without it one is drawn from torch's generator, so `torch.manual_seed` reproduces.
        auto: tick from the optimizer's post-step hook; `plastic.step()` is then not to be called.
        groups: the unit groups, declared instead of traced.
        leave_out: producers that shall not become groups.
        norm: "accept" includes units behind a LayerNorm, which couples them.
        init: the initial distribution of new units, for all layers or by producer name. By default the model's
            `initial_distributions` if it has them, else each layer's own `reset_parameters`.
        trained: the network is already trained, so its weights need not look like the initial distribution.

    Returns:
        The attachment; print it to see groups, utilities and counts.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> from neoteny.methods import ContinualBackprop
        >>> plastic = attach(model, optimizer, ContinualBackprop(1e-3), example=torch.zeros(1, 4))
        >>> plastic.replaced
        {'0': 0}
    """
    _check_arguments(model, optimizer, methods, seed)
    inner = unwrap(model)
    refuse_called(model)
    if attachments(inner, optimizer):
        raise ValueError(
            "The model is already attached with this optimizer, and both attachments would act at every update. Pass "
            "all methods in one attach(...), or take the earlier off first: plastic.detach() or neoteny.detach(model)."
        )
    state_of = OptimizerState(optimizer)
    if not any(state_of.owns(parameter) for parameter in inner.parameters()):
        raise ValueError(
            f"The optimizer owns none of the model's parameters: build it as {type(optimizer).__name__}"
            "(model.parameters(), ...) from the very model that is attached."
        )
    wiring: Wiring | None = None
    live: list[LiveGroup] = []
    if any(method.needs_units for method in methods):
        wiring = find_groups("attach", inner, example, groups, leave_out, norm)
        wiring = _owned_groups(wiring, inner, state_of)
        live = bind_groups(inner, wiring, init)
        if not trained:
            check_initial(live, inner)
        _prepare(state_of, live, inner)
    if seed is None:
        seed = int(torch.randint(0, 2**63 - 1, ()))
    view = ModuleView(inner, state_of, live, seed, init)
    return Attachment(inner, optimizer, methods, view, wiring, auto=auto, trained=trained)


class Attachment:
    """Methods at work on one module; made by `attach`.

    Attributes:
        methods: in the order in which they act.
        wiring: the traced unit groups (None if no method needs units).
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        methods: tuple[Method, ...],
        view: ModuleView,
        wiring: Wiring | None,
        *,
        auto: bool,
        trained: bool,
    ) -> None:
        self.methods = methods
        self.optimizer = optimizer
        self.wiring = wiring
        self.auto = auto
        self.trained = trained
        self.view = view
        self._chain = Chain(methods, view)
        self._recorder = Recorder(model, self._chain.reads(), self._chain.reads_gradients())
        view.activations = self._recorder.inputs
        view.input_gradients = self._recorder.gradients
        after = self._tick if auto else self._recorder.forget_excess
        self._watch = StepWatch(optimizer, self._before_update, after, auto=auto)
        self._model = model
        _ATTACHED.setdefault(model, WeakSet()).add(self)
        self._attached = True

    @property
    def seed(self) -> int:
        """The seed of every draw."""
        return int(self.view.seeds)

    @property
    def replaced(self) -> dict[str, int]:
        """How many units of each group were replaced so far."""
        return {name: int(count) for name, count in self._chain.counts().items()}

    def observe(self, loss: Tensor) -> None:
        """Tell the methods that ask for it the training loss, before `optimizer.step()`."""
        self.view.loss = loss.detach()

    def step(self) -> None:
        """Let every method act, after `optimizer.step()`.

        An update that a gradient scaler skipped does not count.

        Raises:
            RuntimeError: detached, or `auto=True` already ticks.
            ValueError: no update was made since the last call.
        """
        if not self._attached:
            raise RuntimeError("plastic.step() after plastic.detach(): attach again to go on.")
        if self.auto:
            raise RuntimeError("attach(..., auto=True) ticks by itself: remove the call of plastic.step().")
        if self._watch.updated():
            self._tick()
        else:
            self._recorder.clear()

    def task_boundary(self, data: Iterable[tuple[Any, Any]] | None = None, loss: Loss | None = None) -> None:
        """Tell the methods that ask for it that a new task begins.

        Args:
            data: batches (inputs, targets) of the new task, for methods that look at it.
            loss: a function of (outputs, targets), needed with `data`.
        """
        if data is None:
            self._chain.task_boundary(None)
            return
        if loss is None:
            raise ValueError("task_boundary(data=...) also needs loss=..., a function of (outputs, targets).")
        criterion = loss

        def gradients(inputs: Any, targets: Any) -> dict[str, Tensor]:
            parameters = self.view.parameters
            with torch.enable_grad(), self._recorder.paused():
                value = criterion(self._model(inputs), targets)
                found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
            return {name: each for name, each in zip(parameters, found, strict=True) if each is not None}

        self._chain.task_boundary(BoundaryData(data, gradients))

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """The model with the weights to evaluate with (averages, say); what was trained is put back at the end.

        Without a method that keeps such weights nothing changes. The model's mode is the caller's business.

        Example:
            with plastic.evaluating() as model:
                accuracy = test(model)
        """
        evaluated = self._chain.evaluation()
        tensors = {name: self.view.tensor(name) for name in evaluated}
        with torch.no_grad():
            kept = {name: tensor.detach().clone() for name, tensor in tensors.items()}
            for name, value in evaluated.items():
                tensors[name].copy_(value)
        try:
            yield self._model
        finally:
            with torch.no_grad():
                for name, value in kept.items():
                    tensors[name].copy_(value)

    def detach(self) -> None:
        """Remove every hook; the model and its optimizer go on as they are."""
        if not self._attached:
            return
        self._recorder.remove()
        self._watch.remove()
        _ATTACHED[self._model].discard(self)
        self._attached = False

    def state_dict(self) -> dict[str, Any]:
        """Everything that a bit-identical continuation needs besides the model's and the optimizer's own."""
        return {"version": SAVE_VERSION, "seed": self.seed, **self._chain.saved()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict()`.

        Raises:
            ValueError: the state is of another model or of other methods; nothing is changed then.
        """
        check_saved(state, self.state_dict())
        self._chain.rebuild(state)
        check_shapes(state, self.state_dict())
        self.view.seeds.fill_(state["seed"])
        self._chain.restore(state)
        self._recorder.clear()

    def __str__(self) -> str:
        return summarize(self._chain, self.wiring, self.seed, self.trained)

    def _has_no_gradients(self) -> bool:
        return all(parameter.grad is None for parameter in self._model.parameters())

    def _follow_device(self) -> None:
        """Move statistics and seed to where the model is now."""
        device = self.view.device()
        if self.view.seeds.device != device:
            self.view.seeds = self.view.seeds.to(device)
            self._chain.move(device)

    def _before_update(self) -> None:  # bound to this object, so that the hooks keep it alive
        self._chain.before_update()

    def _tick(self, updates: int = 0) -> None:
        if not self._recorder.has_inputs() and self._has_no_gradients():
            return  # the optimizer updated another model's parameters
        self._recorder.check()
        self._follow_device()
        self._chain.after_update()
        self._recorder.clear()
        self.view.loss = None


def attachments(model: nn.Module, optimizer: Optimizer | None = None) -> list[Attachment]:
    """The attachments that are at work on a model (with one optimizer, or with any)."""
    return [each for each in _ATTACHED.get(model, ()) if optimizer is None or each.optimizer is optimizer]


def detach(model: nn.Module) -> None:
    """Detach everything that is attached to a model, for callers that no longer have the attachment."""
    for each in attachments(unwrap(model)):
        each.detach()


def _check_arguments(model: nn.Module, optimizer: Optimizer, methods: tuple[Method, ...], seed: int | None) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"attach expects an nn.Module first; got {type(model).__name__}.")
    parallel = [nn.parallel.DistributedDataParallel, nn.DataParallel]
    if isinstance(model, tuple(parallel)):
        raise TypeError(
            f"{type(model).__name__} is not supported yet: every rank would replace units on its own and the ranks "
            "would diverge. Train on one device, or attach to the inner module of a single process."
        )
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"attach expects a torch.optim.Optimizer second; got {type(optimizer).__name__}.")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63):
        raise ValueError(f"seed must be a 64-bit integer or None; got {seed!r}.")
    if not methods:
        raise ValueError("attach needs at least one method, e.g. neoteny.ContinualBackprop(replacement_rate=1e-4).")
    for method in methods:
        if isinstance(method, Optimizer) or (isinstance(method, Method) and method.is_optimizer):
            raise TypeError(
                f"{type(method).__name__} is an optimizer, not a method to attach: pass it as the second argument, "
                "as neoteny.optim.from_method("
                f"{type(method).__name__}(...), model.parameters()), or pass any other torch.optim.Optimizer."
            )
        if not isinstance(method, Method):
            given = method.__name__ if isinstance(method, type) else type(method).__name__
            hint = f" Did you mean {given}(...)?" if isinstance(method, type) else ""
            raise TypeError(f"attach expects methods such as neoteny.ContinualBackprop(...); got {given}.{hint}")
        if method.runs() is not None:
            raise ValueError(
                f"{type(method).__name__}: a sequence of hyperparameters is for neoteny.stack; attach takes one value."
            )


def _prepare(state: OptimizerState, groups: Sequence[LiveGroup], model: nn.Module) -> None:
    """Find the initial optimizer state of every weight that a reset may write, so that a bad optimizer fails early."""
    for group in groups:
        for port in group.producers:
            state.prepare(model.get_parameter(port.weight))
            if port.bias is not None:
                state.prepare(model.get_parameter(port.bias))
        for port in group.consumers:
            state.prepare(model.get_parameter(port.weight))


def _owned_groups(wiring: Wiring, model: nn.Module, state: OptimizerState) -> Wiring:
    """The wiring without groups some of whose parameters the optimizer does not own."""
    kept: list[UnitGroup] = []
    left_out = dict(wiring.left_out)
    for group in wiring.groups:
        strangers = [
            name
            for port in (*group.producers, *group.consumers, *group.norms)
            for name, parameter in model.get_submodule(port.module).named_parameters(port.module, recurse=False)
            if not state.owns(parameter)
        ]
        if strangers:
            left_out[group.name] = f"the optimizer does not own {', '.join(dict.fromkeys(strangers))}"
        else:
            kept.append(group)
    if not kept:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise ValueError(f"No hidden units are left to act on. {reasons}")
    return replace(wiring, groups=tuple(kept), left_out=left_out)

"""attach(): methods on a user's own module and optimizer (a View with R = ()).

The user's loop stays as it was. Loss terms join the gradients in the optimizer's pre-step hook; `plastic.step()` (or,
with `auto=True`, the optimizer's post-step hook) lets every method act after the update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from neoteny.attachment.hooks import Recorder, StepWatch, refuse_called
from neoteny.attachment.summary import summarize
from neoteny.draws.initial import Declared, check_spread, declared_distributions
from neoteny.layers.groups import UnitGroup
from neoteny.layers.ports import Region
from neoteny.methods.method import Method, State, move_nested
from neoteny.methods.saved_state import SAVE_VERSION, check_saved, describe_methods, snapshot
from neoteny.optim.state import OptimizerState
from neoteny.units.view import LiveGroup, View
from neoteny.wiring.modules import unwrap
from neoteny.wiring.trace import Norm, trace
from neoteny.wiring.wiring import Wiring

# Weak on both sides: hooks keep an attachment alive, and a copied or saved model carries nothing of it.
_ATTACHED: WeakKeyDictionary[nn.Module, WeakSet[Attachment]] = WeakKeyDictionary()


class ModuleView(View):
    """The live tensors of one module and the state of its optimizer."""

    def __init__(self, model: nn.Module, state: OptimizerState, groups: Sequence[LiveGroup], seed: int) -> None:
        super().__init__()
        self.runs = ()
        self.groups = groups
        self.activations = {}
        self.optimizer_state = state
        self._model = model
        self._optimizer = optimizer = state.optimizer
        self._group_parameters: dict[str, list[str]] = {}
        self._modules = dict(model.named_modules())
        self._owners = {name: self._owner(name) for group in groups for name in group.tensors()}
        self._first = optimizer.param_groups[0]["params"][0]
        self.seeds = torch.tensor(seed, dtype=torch.int64, device=self._first.device)

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Every parameter that is trainable now and that the optimizer owns now: users freeze, unfreeze and add."""
        owned = {id(parameter) for group in self._optimizer.param_groups for parameter in group["params"]}
        named = self._model.named_parameters()
        return {name: value for name, value in named if value.requires_grad and id(value) in owned}

    def tensor(self, name: str) -> Tensor:
        """A parameter or buffer of a group, looked up anew: a user may have replaced or moved it."""
        module, key = self._owners[name]
        value = module._parameters.get(key)
        value = module._buffers.get(key) if value is None else value
        if value is None:
            raise ValueError(
                f"{name} is no longer a parameter of its module: it was re-parametrised or removed after attach. Call "
                "plastic.detach() and attach again."
            )
        return value

    def trainable(self, group: LiveGroup) -> bool:
        """Whether no parameter of the group was frozen since attach."""
        return all(self.tensor(name).requires_grad for name in self._parameters_of(group))

    def _parameters_of(self, group: LiveGroup) -> list[str]:
        if group.name not in self._group_parameters:
            names = [name for name in group.tensors() if self._owners[name][1] in self._owners[name][0]._parameters]
            self._group_parameters[group.name] = names
        return self._group_parameters[group.name]

    def gradient(self, name: str) -> Tensor | None:
        """The gradient in the parameter's `.grad`."""
        return self._model.get_parameter(name).grad

    def device(self) -> torch.device:
        """Where the model is now."""
        return self._first.device

    def gradient_scale(self) -> float | Tensor:
        """The loss scale, while a fused optimizer still has to divide by it."""
        scale = getattr(self._optimizer, "grad_scale", None)
        return 1.0 if scale is None else scale

    def clear_state(self, region: Region) -> None:
        """Reset the torch optimizer's state for these elements."""
        self.optimizer_state.clear(self.tensor(region.name), region)

    def _owner(self, name: str) -> tuple[nn.Module, str]:
        module, _, key = name.rpartition(".")
        return self._modules[module], key


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
        if example is None:
            raise ValueError("attach needs example=..., a batch the model accepts, to find its hidden units.")
        wiring = trace(inner, example, groups=groups, leave_out=leave_out, norm=norm)
        wiring = _owned_groups(wiring, inner, state_of)
        modules = dict(inner.named_modules())
        declared = declared_distributions(inner, init)
        live = [LiveGroup(group, modules, declared) for group in wiring.groups]
        for group in live:
            for port, distribution in zip(group.producers, group.initial, strict=True):
                if not trained:
                    check_spread(port.module, modules[port.module], distribution)
                state_of.prepare(inner.get_parameter(port.weight))
                if port.bias is not None:
                    state_of.prepare(inner.get_parameter(port.bias))
            for port in group.consumers:
                state_of.prepare(inner.get_parameter(port.weight))
    if seed is None:
        seed = int(torch.randint(0, 2**63 - 1, ()))
    view = ModuleView(inner, state_of, live, seed)
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
        self._states: list[State] = [method.init(view) for method in methods]
        self._recorder = Recorder(model, [name for method in methods for name in method.reads(view)])
        view.activations = self._recorder.inputs
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
        counts: dict[str, int] = {}
        for state in self._states:
            for group in self.view.groups:
                if group.name in state and "replaced" in state[group.name]:
                    counts[group.name] = counts.get(group.name, 0) + int(state[group.name]["replaced"].sum())
        return counts

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

    def task_boundary(self) -> None:
        """Tell the methods that ask for it that a new task begins."""
        for method, state in zip(self.methods, self._states, strict=True):
            method.task_boundary(self.view, state)

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
        return {
            "version": SAVE_VERSION,
            "seed": self.seed,
            "groups": {group.name: group.units for group in self.view.groups},
            "methods": describe_methods(self.methods),
            "states": [
                snapshot(method.export(state)) for method, state in zip(self.methods, self._states, strict=True)
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict()`.

        Raises:
            ValueError: the state is of another model or of other methods; nothing is changed then.
        """
        check_saved(state, self.state_dict())
        self.view.seeds.fill_(state["seed"])
        for method, mine, saved in zip(self.methods, self._states, state["states"], strict=True):
            method.restore(self.view, mine, saved)
        self._recorder.clear()

    def __str__(self) -> str:
        return summarize(self.methods, self._states, self.view, self.wiring, self.seed, self.trained)

    def _has_no_gradients(self) -> bool:
        return all(parameter.grad is None for parameter in self._model.parameters())

    def _follow_device(self) -> None:
        """Move statistics and seed to where the model is now."""
        device = self.view.device()
        if self.view.seeds.device != device:
            self.view.seeds = self.view.seeds.to(device)
            for state in self._states:
                move_nested(state, device)

    def _before_update(self) -> None:
        with torch.no_grad():
            for method, state in zip(self.methods, self._states, strict=True):
                method.add_gradient(self.view, state)

    def _tick(self, updates: int = 0) -> None:
        if not self._recorder.has_inputs() and self._has_no_gradients():
            return  # the optimizer updated another model's parameters
        self._recorder.check()
        self._follow_device()
        with torch.no_grad():
            for method, state in zip(self.methods, self._states, strict=True):
                method.step(self.view, state)
        self._recorder.clear()


def attachments(model: nn.Module, optimizer: Optimizer | None = None) -> list[Attachment]:
    """The attachments that are at work on a model (with one optimizer, or with any)."""
    return [each for each in _ATTACHED.get(model, ()) if optimizer is None or each.optimizer is optimizer]


def detach(model: nn.Module) -> None:
    """Detach whatever is attached to a model, where the attachment itself is no longer at hand."""
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
                f"{type(method).__name__} is an optimizer, not a method to attach: pass a torch.optim.Optimizer as "
                "the second argument (neoteny.optim.Adam is one); optimizers as methods belong in neoteny.stack."
            )
        if not isinstance(method, Method):
            given = method.__name__ if isinstance(method, type) else type(method).__name__
            hint = f" Did you mean {given}(...)?" if isinstance(method, type) else ""
            raise TypeError(f"attach expects methods such as neoteny.ContinualBackprop(...); got {given}.{hint}")
        if method.runs() is not None:
            raise ValueError(
                f"{type(method).__name__}: a sequence of hyperparameters is for neoteny.stack; attach takes one value."
            )


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

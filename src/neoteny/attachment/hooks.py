"""Hooks on a user's module and optimizer: what was read since the last tick, and whether an update was made."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from neoteny.attachment.attention import AttentionHook, is_inside_attention
from neoteny.attachment.compiling import run_eagerly
from neoteny.attachment.reading import CallHook, InputHook, NetworkHook, PassHook, ReadingHook
from neoteny.attachment.sequences import SequenceHook, sources_by_module
from neoteny.text import compact
from neoteny.units.calls import Call

PATIENCE = 100
"""Updates without a tick before a user is warned that one seems to be forgotten."""


class Recorder:
    """Keeps the inputs of some modules from training passes until the next tick.

    A pass in eval mode or without gradients leaves no trace. Tensors are kept by reference: autograd keeps them for
    the backward pass anyway; with gradient accumulation they stay until the tick.

    Args:
        model: the module that holds the others.
        names: which modules' inputs to keep.
        with_gradient: for which modules to keep the gradient of the loss with respect to their input, too.
        uncalled: modules that no example reached; a tick after one of them has run is refused.
        calls: whether to keep how the model itself was called.
        fold: called when a training pass begins, to add up what was kept of those before it; it calls `folded`.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Iterable[str],
        with_gradient: Iterable[str] = (),
        uncalled: Iterable[str] = (),
        calls: bool = False,
        fold: Callable[[], None] | None = None,
    ) -> None:
        self._model = model
        self._was_folded = False
        self.calls: list[Call] = []
        self.inputs: dict[str, list[Tensor]] = {name: [] for name in dict.fromkeys(names)}
        self.gradients: dict[str, list[Tensor]] = {name: [] for name in dict.fromkeys(with_gradient)}
        modules = dict(model.named_modules())
        inside = {name for name in self.inputs if is_inside_attention(name, modules)}
        named = dict.fromkeys([*self.inputs, *self.gradients])
        watched = [name for name in named if name in modules and name not in inside]
        readers = {name: InputHook(model, self.inputs.get(name), self.gradients.get(name)) for name in watched}
        after: list[tuple[str, SequenceHook | AttentionHook]] = []  # of these modules, what they return is read
        for name, sources in sources_by_module(set(self.inputs) - set(modules)).items():
            kept = {source.rpartition(".")[2]: self.inputs[source] for source in sources}
            after.append((name, SequenceHook(model, kept)))
        after += [(name.rpartition(".")[0], AttentionHook(model, self.inputs[name])) for name in inside]
        network: list[NetworkHook] = [NetworkHook(model, self.calls)] if calls else []
        begins = [PassHook(model, fold)] if fold is not None else []
        self._unknown = {name: CallHook(model) for name in uncalled if name in modules}
        self._hooks: list[ReadingHook] = [*readers.values(), *(hook for _, hook in after), *network, *begins]
        # All hooks are made before the first is put on, so that a failure leaves none behind.
        self._handles: list[Any] = [
            *(modules[name].register_forward_pre_hook(hook, with_kwargs=True) for name, hook in readers.items()),
            *(modules[name].register_forward_hook(hook, with_kwargs=True) for name, hook in after),
            *(modules[name].register_forward_pre_hook(hook) for name, hook in self._unknown.items()),
            *(model.register_forward_pre_hook(hook, with_kwargs=True) for hook in network),
            *(model.register_forward_pre_hook(hook, prepend=True) for hook in begins),
        ]

    def clear(self) -> None:
        """Forget what was kept."""
        self._was_folded = False
        for kept in (*self.inputs.values(), *self.gradients.values(), self.calls):
            kept.clear()
        for hook in self._hooks:
            hook.recorded_in_forward = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Passes in here leave no trace."""
        hooks = [*self._hooks, *self._unknown.values()]
        for hook in hooks:
            hook.paused = True
        try:
            yield
        finally:
            for hook in hooks:
                hook.paused = False

    def has_inputs(self) -> bool:
        """Whether anything was recorded, or nothing had to be."""
        return not self.inputs or self._was_folded or any(self.inputs.values())

    def folded(self) -> None:
        """What was kept has been added up elsewhere: forget it, but remember that there was something."""
        self._was_folded = self.has_inputs()
        for kept in (*self.inputs.values(), *self.gradients.values()):
            kept.clear()

    def forget_excess(self, updates: int, waiting: Sequence[str]) -> bool:
        """Keep memory bounded, and warn once, when updates go by without a tick; whether anything was forgotten.

        Args:
            updates: since the last tick.
            waiting: the methods that act in a tick.
        """
        if updates == PATIENCE and waiting:
            kept = " From now on only the latest activations are kept." if self.inputs else ""
            warnings.warn(
                f"{PATIENCE} updates without plastic.step(), where {' and '.join(waiting)} would have acted. Call it "
                f"after optimizer.step(), or plastic.detach().{kept}",
                RuntimeWarning,
                stacklevel=2,
            )
        if updates >= PATIENCE:
            for kept in (*self.inputs.values(), *self.gradients.values(), self.calls):
                del kept[:-1]
        return updates >= PATIENCE

    def ran(self) -> list[str]:
        """The modules that no example reached and that have run in training."""
        return [name for name, hook in self._unknown.items() if hook.called]

    def note_run(self, names: Iterable[str]) -> None:
        """Take over what an earlier recorder has seen run."""
        for name in set(names) & self._unknown.keys():
            self._unknown[name].called = True

    def check(self, *, alone: bool = True) -> None:
        """Refuse a tick for which nothing was recorded, or after a layer has run whose place is not known.

        Args:
            alone: whether no other rank may have recorded something where this one was given an empty batch, or none.

        Raises:
            ValueError: says the likely reasons.
        """
        if ran := self.ran():
            raise ValueError(
                f"Training has called {compact(ran)}, which no example had reached, so it is not known which units "
                "feed it: a reset would leave its weights as they are. Nothing is reset at this update. Trace the "
                "model with a call that reaches it, plastic.refresh(example=[call, another]), and pass the same list "
                "to neoteny.attach from the start: units replaced so far have kept their weights there. If another "
                "adapter was chosen, attach again."
            )
        if not self.has_inputs() and (alone or not self._model.training):
            raise ValueError(
                "The optimizer made an update, but no activations were recorded since the last one. Either the "
                "training pass ran in eval mode (call model.train()), or the model was compiled and already called "
                "before attach (call neoteny.attach(...) before the first call, or torch.compiler.reset() first), or "
                "it no longer runs the layers that were traced, because another adapter was chosen, say (attach again)."
            )

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
        self.clear()


class _SawBackward:
    """Hook of a parameter that remembers a backward pass.

    It refers to nothing: the garbage collector does not see the hooks that a parameter keeps, so one that leads to the
    model would keep the model, with all its weights, until the process ends.
    """

    seen = False

    def __call__(self, parameter: Tensor) -> None:
        self.seen = True


class StepWatch:
    """Watches optimizers and the backward pass, to know whether an update was made since the last tick.

    An update is one step of each optimizer. Where there are several, the first step of a round comes before the
    update, and the last one ends it.

    Args:
        optimizers: each gets a pre-step and a post-step hook; the last parameter tells of backward passes.
        before: called before each update, when the gradients are there.
        after: called after each update that was really made, with the number of updates since the last tick.
        auto: whether `after` is the tick itself.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], before: Callable[[], None], after: Callable[[int], None], *, auto: bool
    ) -> None:
        self._before = before
        self._after = after
        self._waiting = self._count = len(optimizers)
        self._stepped = False
        self._backward = _SawBackward()
        self._unticked = 0
        self._auto = auto
        self._optimizers = optimizers
        self._ears: list[Any] = []
        self.listen()  # first: a failure in it leaves no other hook behind
        self._handles: list[Any] = [
            *(optimizer.register_step_pre_hook(self._before_step) for optimizer in optimizers),
            *(optimizer.register_step_post_hook(self._after_step) for optimizer in optimizers),
        ]

    def listen(self) -> None:
        """Look up the optimizers' parameters: a method may have put others in their place."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        self._parameters = [each for group in groups for each in group["params"] if each.requires_grad]
        for handle in self._ears:
            handle.remove()
        self._ears = [each.register_post_accumulate_grad_hook(self._backward) for each in self._parameters[-1:]]

    def updated(self) -> bool:
        """Whether an update was made since the last call; False if a gradient scaler skipped it.

        Raises:
            ValueError: there was none to make, or the calls are in the wrong order.
        """
        if self._stepped:
            self._stepped = self._backward.seen = False
            self._unticked, self._waiting = 0, self._count
            return True
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        if not self._backward.seen:
            raise ValueError(
                "plastic.step() before any backward pass: expected loss.backward(), optimizer.step(), then "
                "plastic.step(), once each."
            )
        names = " and ".join(type(optimizer).__name__ for optimizer in self._optimizers)
        # A scaler that skips leaves gradients that are not finite; a user may have zeroed them since.
        if any(bool(gradient.any()) for gradient in gradients) and all(
            bool(torch.isfinite(gradient).all()) for gradient in gradients
        ):
            raise ValueError(
                "plastic.step() without an update: the gradients are finite but optimizer.step() has not run since "
                f"the last plastic.step(), where the optimizer is the {names} that was given to attach. Call it after "
                "optimizer.step(); if another optimizer trains the model now, attach again with that one."
            )
        self._backward.seen = False
        return False

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in (*self._handles, *self._ears):
            handle.remove()

    @run_eagerly
    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if self._waiting < self._count:  # another optimizer has begun this update
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._before()
            return None

        def with_terms() -> Any:  # the closure makes the gradients, so loss terms join after it
            loss = closure()
            self._before()
            return loss

        if len(args) > 1:
            return (args[0], with_terms, *args[2:]), kwargs
        return args, {**kwargs, "closure": with_terms}

    @run_eagerly
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        found_inf = getattr(optimizer, "found_inf", None)  # a fused optimizer skips by itself
        if found_inf is not None and bool(found_inf):
            return
        self._waiting -= 1
        if self._auto:
            if self._waiting <= 0:
                self._waiting = self._count
                self._after(0)
                self._backward.seen = False
            return
        self._stepped = True
        if self._waiting <= 0:
            self._waiting = self._count
            self._unticked += 1
            self._after(self._unticked)

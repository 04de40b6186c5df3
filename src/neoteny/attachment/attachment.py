"""attach(): methods on a user's own module and optimizer (a View with R = ()).

The user's loop stays as it was. Loss terms join the gradients in the optimizer's pre-step hook; `plastic.step()` (or,
with `auto=True`, the optimizer's post-step hook) lets every method act after the update.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from neoteny.attachment.checks import (
    check_accumulation,
    check_arguments,
    check_loss,
    check_optimizers,
    check_owner,
    owned_groups,
    owned_layers,
    prepare_state,
)
from neoteny.attachment.compiling import check_capturable, refuse_called, refuse_capture, run_eagerly, warn_of_graphs
from neoteny.attachment.copied import Copied
from neoteny.attachment.hooks import Recorder, StepWatch
from neoteny.attachment.module_view import ModuleView
from neoteny.attachment.refresh import follow, with_added
from neoteny.attachment.registry import ATTACHED, overlapping
from neoteny.attachment.replicas import Replica, check_ranks
from neoteny.attachment.summary import summarize
from neoteny.attachment.unread import Unread
from neoteny.draws.initial import Declared
from neoteny.layers.groups import UnitGroup
from neoteny.methods.chain import Chain
from neoteny.methods.method import BoundaryData, Method
from neoteny.methods.saved_state import SAVE_VERSION, check_saved, check_shapes
from neoteny.optim.state import OptimizerState
from neoteny.units import laws as unit_laws
from neoteny.units.bind import bind_groups, find_again, find_groups, producers_of
from neoteny.units.laws import Laws, choose_laws
from neoteny.units.view import LiveGroup, read_modules
from neoteny.wiring.modules import unwrap
from neoteny.wiring.sandbox import call
from neoteny.wiring.trace import LeaveOut, Norm
from neoteny.wiring.wiring import Wiring

Loss = Callable[[Any, Any], Tensor]


def attach(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *methods: Method,
    example: Any = None,
    seed: int | None = None,
    auto: bool = False,
    groups: Sequence[UnitGroup] | None = None,
    leave_out: LeaveOut = (),
    norm: Norm = "accept",
    heads: bool = False,
    init: Declared | None = None,
    trained: bool = False,
    wiring: Wiring | None = None,
    accumulate: Literal["inputs", "sums"] = "inputs",
    ranks: Literal["all", "first"] = "all",
    process_group: Any = None,
    capturable: bool = False,
) -> Attachment:
    """Add methods to a module and its optimizer.

    Args:
        model: any `nn.Module`, or its DistributedDataParallel; attach before the first call if it is compiled.
        optimizer: the torch optimizer that owns its parameters, or a list of several that share them (Muon for matrices
            and AdamW for the rest): an update is then one step of each. Wrappers of accelerate and Lightning are
            looked through. An earlier attachment of these parameters to another optimizer is detached.
        methods: `ContinualBackprop(...)`, `L2(...)`, ...; they act in this order.
        example: a batch the model accepts: a tensor, a tuple of arguments or a dict of keyword arguments; a list holds
            several such calls, which together reach every layer that training uses. Needed by methods that act on
            units.
        seed: of every draw; without it one is drawn from torch's generator, so `torch.manual_seed` reproduces.
        auto: tick from the optimizer's post-step hook; `plastic.step()` is then not to be called.
        groups: declared unit groups, in addition to the traced ones; they win where both have the same rows or columns.
        leave_out: producers that shall not become groups; "others" for all that are in no declared group.
        norm: "strict" leaves out units behind a norm that couples them (LayerNorm, GroupNorm); see `trace`.
        heads: attention heads are units, too.
        init: the initial distribution of new units, for all layers or by producer name. By default the model's
            `initial_distributions` if it has them, else what each layer's weights look drawn from; `print(plastic)`
            says which. "strict" refuses weights that were not drawn by `reset_parameters`.
        trained: the network is already trained, so its weights need not look like the initial distribution. New units
            are drawn as `init` says, else as the model's own code (`_init_weights`, `init_weights`,
            `reset_parameters`) draws them.
        wiring: of `neoteny.trace` or `neoteny.Wiring.load`, instead of tracing here; no example is needed then.
        accumulate: what is kept of each pass until the tick. With "sums", the inputs of layers are forgotten when the
            next pass begins, so that gradient accumulation needs no more memory; for `ContinualBackprop` alone.
        ranks: under DistributedDataParallel, whose batches count: those of all ranks, or the first rank's.
        process_group: of ranks that train replicas of the model without DistributedDataParallel.
        capturable: count on the CUDA device when units are due, so that a whole update, `plastic.step()` included, can
            be captured in a CUDA graph.

    Returns:
        The attachment; print it to see groups, utilities and counts.

    Example:
        >>> from neoteny.methods import ContinualBackprop
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        >>> plastic = attach(model, optimizer, ContinualBackprop(1e-3), example=torch.zeros(1, 4))
        >>> plastic.replaced
        {'0': 0}
    """
    check_arguments(model, methods, seed)
    check_accumulation(accumulate, methods)
    check_ranks(ranks, process_group)
    check_capturable(capturable, model, methods, accumulate, process_group)
    optimizers = check_optimizers(optimizer)
    inner = unwrap(model)
    refuse_called(model)
    state_of = OptimizerState(*optimizers)
    earlier = overlapping(inner, state_of)
    check_owner(inner, state_of, earlier)
    traced: Wiring | None = None
    live: list[LiveGroup] = []
    laws: Laws = {}
    if any(method.needs_units for method in methods):
        traced = find_groups("attach", inner, example, groups, leave_out, norm, wiring, heads)
        traced = owned_groups(traced, inner, state_of)
    producers = [] if traced is None else producers_of(traced)
    drawn = owned_layers(inner, state_of) if any(method.redraws_weights for method in methods) else []
    if producers or drawn:
        laws = choose_laws(inner, list(dict.fromkeys([*producers, *drawn])), init, trained)
    if traced is not None:
        live = bind_groups(inner, traced, {name: laws[name].initial for name in producers})
        prepare_state(state_of, live, inner)
    if seed is None:
        seed = int(torch.randint(0, 2**63 - 1, ()))
    view = ModuleView(inner, state_of, live, seed, init, laws)
    view.example, view.totals = example, {} if accumulate == "sums" else None
    view.capturable = capturable
    retrace = functools.partial(find_again, inner, groups, leave_out, norm, heads)
    replica = (model, ranks, process_group)
    made = Attachment(inner, optimizers, methods, view, traced, retrace, auto=auto, trained=trained, replica=replica)
    view.example = None  # shown to the methods; not kept alive
    for each in earlier:
        each.detach()
    return made


class Attachment(Replica):
    """Methods at work on one module; made by `attach`.

    Attributes:
        methods: in the order in which they act.
        optimizers: whose updates count.
        wiring: the traced unit groups (None if no method needs units).
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: tuple[Optimizer, ...],
        methods: tuple[Method, ...],
        view: ModuleView,
        wiring: Wiring | None,
        retrace: Callable[[Any], Wiring],
        *,
        auto: bool,
        trained: bool,
        replica: tuple[nn.Module, str, Any],
    ) -> None:
        super().__init__(*replica)
        self.methods = methods
        self.optimizers = optimizers
        self.wiring = wiring
        self.auto = auto
        self.trained = trained
        self.view = view
        self._chain = Chain(methods, view)
        self._chain.check_reads({*dict(model.named_modules()), *read_modules(view)})
        self._model = model
        self._retrace = retrace
        self._had_gradients = self._unseen = False
        self._unread = Unread()
        try:
            self._record()
            after = self._tick if auto else self._forget_excess
            self._watch = StepWatch(optimizers, self._before_update, after, auto=auto)
        except BaseException:
            if hasattr(self, "_recorder"):
                self._recorder.remove()
            raise
        view.on_rewrite = self._watch.listen
        ATTACHED.setdefault(model, WeakSet()).add(self)
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
        self.view.loss = check_loss(loss)

    @run_eagerly
    def step(self) -> None:
        """Let every method act, after `optimizer.step()`.

        An update that a gradient scaler skipped does not count.

        Raises:
            RuntimeError: detached, or `auto=True` already ticks.
            ValueError: no update was made since the last call.
        """
        if not self._attached:
            raise RuntimeError(
                "plastic.step() after it was detached (by plastic.detach(), or because the model was attached with "
                "another optimizer): use the newer attachment, or attach again."
            )
        if self.auto:
            raise RuntimeError("attach(..., auto=True) ticks by itself: remove the call of plastic.step().")
        if self._watch.updated():
            self._tick()
        else:
            self._announce(0)
            self._forget()

    @run_eagerly
    def task_boundary(self, data: Iterable[tuple[Any, Any]] | None = None, loss: Loss | None = None) -> None:
        """Tell the methods that ask for it that a new task begins.

        Args:
            data: batches (inputs, targets) of the new task, for methods that look at it; inputs as `attach`'s example.
            loss: a function of (outputs, targets), needed with `data`.
        """
        if data is None:
            self._chain.task_boundary(None)
            return
        if loss is None:
            raise ValueError("task_boundary(data=...) also needs loss=..., a function of (outputs, targets).")

        def gradients(inputs: Any, targets: Any) -> dict[str, Tensor]:
            parameters = self.view.parameters
            with torch.enable_grad(), self._recorder.paused():
                value = loss(call(self._model, inputs), targets)
                found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
            found = self._average(found, list(parameters.values()))
            return {name: each for name, each in zip(parameters, found, strict=True) if each is not None}

        self._chain.task_boundary(BoundaryData(data, gradients))

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """The model with the weights to evaluate with (averages, say); what was trained is put back at the end.

        Use it as `with plastic.evaluating() as model: accuracy = test(model)`. Without a method that keeps such weights
        nothing changes. Whether the model is in evaluation mode is for the caller to set.
        """
        with self.view.holding(self._chain.evaluation()):
            yield self._model

    def refresh(self, example: Any = None) -> None:
        """Follow changes that were made to the model since attach: modules put in the place of others.

        Without an example the unit groups stay as they are, and are found in the modules that bear their names now: a
        new output layer, say, for new classes. That much is also done at the next update. With an example the model is
        traced again, which is needed where layers were added (a head for a new task). Statistics of units that are
        still there are kept.

        Raises:
            ValueError: the groups do not fit the new modules, or the optimizer does not own their parameters.
        """
        retraced = example is not None and self.wiring is not None
        with self._recorder.paused():
            wiring = self._retrace(example) if retraced else with_added(self.wiring, self._model)
        follow(self._model, wiring, self.view, self._chain, retraced=retraced)
        self.wiring = wiring
        ran = () if retraced else self._recorder.ran()
        self._recorder.remove()
        self._record()
        self._recorder.note_run(ran)
        self._unread.clear()

    def detach(self) -> None:
        """Remove every hook; the model and its optimizer go on as they are."""
        if not self._attached:
            return
        warn_of_graphs(self.view)
        for hooks in (self._recorder, self._watch, self._counting):
            if hooks is not None:
                hooks.remove()
        ATTACHED[self._model].discard(self)
        self._attached = False

    def state_dict(self) -> dict[str, Any]:
        """Everything that a bit-identical continuation needs besides the model's and the optimizer's own."""
        kept = {"version": SAVE_VERSION, "seed": self.seed, **self._chain.saved()}
        return {**kept, "laws": unit_laws.saved(self.view.laws)} if self.view.laws else kept

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict()`.

        New units are drawn from the saved distributions, where none was declared at attach. Where a method has put
        other modules into the network (`PlasticityInjection`), they are put there now: load the model's and the
        optimizer's own states after this one.

        Raises:
            ValueError: the state is of another model or of other methods; nothing is changed then.
        """
        self._restore(state)
        self._forget()
        self.trained = False  # the ages are those of the state

    def _restore(self, state: Mapping[str, Any]) -> None:
        mine = {key: value for key, value in self.state_dict().items() if key != "laws"}  # earlier versions have none
        check_saved(state, mine, self.methods)
        laws = unit_laws.restored(self.view.laws, state.get("laws", {}))
        self._chain.rebuild(state)
        check_shapes(state, self.state_dict())
        self.view.use_laws(laws)
        self.view.seeds.fill_(state["seed"])
        self._chain.restore(state)

    def __str__(self) -> str:
        return summarize(self._chain, self.wiring, self.view.laws, self.seed, self.trained)

    def __reduce__(self) -> tuple[type[Copied], tuple[dict[str, Any]]]:
        return Copied, (self.state_dict(),)  # hooks and optimizers cannot be copied with a model

    def __deepcopy__(self, memo: dict[int, Any]) -> Copied:
        return Copied(self.state_dict())

    def _record(self) -> None:
        chain, uncalled = self._chain, () if self.wiring is None else self.wiring.uncalled
        fold = None if self.view.totals is None else self._fold
        recorder = Recorder(self._model, chain.reads(), chain.reads_gradients(), uncalled, chain.needs_inputs(), fold)
        self._recorder = recorder  # first: what fails from here on finds its hooks
        self.view.calls = recorder.calls
        self._show(recorder)

    def _forget_excess(self, updates: int) -> None:
        if self._recorder.forget_excess(updates, self._chain.acting) and self.view.totals is not None:
            self.view.totals.clear()

    def _fold(self) -> None:
        """Add what was recorded to the methods' sums, and forget it."""
        self._chain.accumulate()
        self._recorder.folded()

    def _before_update(self, *, joined: bool = False) -> None:  # bound to this object, so that the hooks keep it alive
        refuse_capture(self.view, self.methods, self._forget)
        self._meet(joined)
        self._unseen = False
        self._follow()
        self._had_gradients = any(parameter.grad is not None for parameter in self._model.parameters())
        if self.view.ranks is None:  # a group may have run on other ranks
            self._unread.before_update(self.view)
        if not (self._unseen and self._chain.needs_inputs()):
            self._chain.before_update()

    def _follow(self) -> None:
        if self.view.changed():
            self.refresh()  # the new modules' hooks have not seen this update: what reads activations skips it
            self._unseen = not self._recorder.has_inputs() or self._chain.needs_inputs()

    def _tick(self, updates: int = 0, *, joined: bool = False) -> None:
        acts = self._recorder.has_inputs() or self._had_gradients  # else: another model's parameters were updated
        if not joined:
            self._announce(int(acts))
        if not (joined or acts):
            return
        self._follow()
        if not self._unseen:
            self._recorder.check(alone=self.view.ranks is None)
            if self.view.follow_device():
                self._chain.move(self.view.device())
            if not joined:
                self._unread.after_update(self.view)
            if self.view.totals is not None:
                self._fold()
            try:
                self._chain.after_update()
            except BaseException:
                self._forget()  # else the next tick would read it: of a capture that failed, numbers never computed
                raise
        self._forget()
        self.view.loss = None

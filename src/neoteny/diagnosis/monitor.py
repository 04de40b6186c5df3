"""Monitor: whether a network in training is losing plasticity, measured at regular intervals, training left as it is.

Between samples the monitor counts steps. When a sample is due it keeps the inputs of the next training passes until
they are enough (`gathering.py`), and measures the layers on them in one pass of its own, in evaluation mode and in a
sandbox, as `diagnose` does (`measure.py`). Samples go to `destinations.py`, and `sample.py` says when they mean that
something is wrong.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from neoteny import metrics
from neoteny.attachment.registry import attachments
from neoteny.diagnosis.advice import with_attached
from neoteny.diagnosis.destinations import Destination, destination
from neoteny.diagnosis.diagnose import find_units
from neoteny.diagnosis.fresh_copy import FreshCopies
from neoteny.diagnosis.gathering import Gathering, Hook, check_model, first_process
from neoteny.diagnosis.measure import Bounds, find_bounds, incoming_magnitude, measure
from neoteny.diagnosis.sample import FIRST, LATEST, LayerSample, Sample, announce, judge
from neoteny.optim.state import unwrap_optimizer
from neoteny.wiring.sandbox import Sandbox, few_examples
from neoteny.wiring.trace import Norm
from neoteny.wiring.wiring import Wiring

VERSION = 1
MOST_SAMPLES = 2000
"""Samples that are kept in memory; beyond it, every second one of the middle is dropped. Files and loggers have all."""

_PATIENCE = 100  # updates without a training pass before the user is told
_NOT_CALLED = (
    "was not called in training, so that there is nothing to measure on. Monitor the part of the model that is called, "
    "or what torch.compile returned; or pass optimizer=... and inputs=... (a batch, or a function that returns one)."
)


class Monitor:
    """Measures the hidden units of a network while it trains, and warns once when it is losing plasticity.

    Every `every` steps, each layer's dead units, ranks and weights are measured on inputs of training passes, and
    written to `to`. The warning (a RuntimeWarning) comes when something stands out in three samples one after the
    other, by the limits of `diagnose`: against the first three samples, more dead or saturated units (beyond 5% and
    beyond chance) or an effective rank below half; or weights three times as large as a fresh copy's. Its sentences
    say what and where.

    Training is not changed: the monitor draws no random number of the training's, and leaves every buffer as it was. In
    distributed training the first process measures and writes, the others only count. `close()` takes the hooks off, as
    does the end of a `with` block. A copied or pickled model is not monitored; a copied monitor keeps its samples.

    Args:
        model: any feed-forward module; of a compiled one what torch.compile returned, as compiled code ignores hooks.
        every: steps between samples.
        optimizer: steps are then its updates, and gradient norms are measured; else a step is a training pass of the
            model (in training mode, with gradients).
        to: where samples go: a path (`.csv`; `.parquet`, a folder of files; any other is a folder for TensorBoard), a
            SummaryWriter, a W&B run, the mlflow module, a Lightning logger, a function of a dict, or a list of these.
        inputs: a batch to measure on, or a function that returns one, instead of what the model is trained on: for
            models that are trained without being called themselves (agents). With an optimizer, no pass is counted.
        examples: how many are gathered for a sample, if as many come within `every` passes and fit into 64 MB.
        norm: "accept" includes units behind a LayerNorm, "refuse" leaves them out.

    Attributes:
        steps: how many were counted.
        samples: the first ones and the latest, at most 2,000.
        warned: whether the warning came.
        notes: what limits the comparison of weights with a fresh copy's, known after the first pass.

    Raises:
        TypeError, ValueError, ImportError: on arguments that cannot be used; and at the first training pass, if the
            model cannot be traced. Later errors become warnings, so that training goes on.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        >>> with Monitor(model, every=10, examples=32) as monitor:
        ...     for _ in range(30):
        ...         model(torch.randn(32, 4)).mean().backward()
        >>> [sample.step for sample in monitor.samples], monitor.samples[0].layers[0].numbers.units
        ([0, 10, 20], 8)
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = 1000,
        *,
        optimizer: Optimizer | None = None,
        to: Any = None,
        inputs: Any = None,
        examples: int = 500,
        norm: Norm = "accept",
    ) -> None:
        for name, value, least in (("every", every, 1), ("examples", examples, 2)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}; got {value!r}.")
        if optimizer is not None and not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer; got {type(optimizer).__name__}.")
        if isinstance(model, nn.Module) and model._compiled_call_impl and (optimizer is None or inputs is None):
            raise ValueError(
                "model.compile() leaves no place for a hook outside of the compiled code: monitor what "
                "torch.compile(model) returns, or pass optimizer=... and inputs=..."
            )
        self.every = every
        self.steps = 0
        self.samples: list[Sample] = []
        self.warned = False
        self.notes: tuple[str, ...] = ()
        self._model: nn.Module | None = check_model(model)
        self._norm: Norm = norm
        self._inputs = inputs
        self._optimizer = None if optimizer is None else unwrap_optimizer(optimizer)
        self._wiring: Wiring | None = None
        self._bounds: Bounds = {}
        self._fresh: dict[str, float] = {}
        self._due = 0
        self._told: set[str] = set()
        given = [] if to is None else to if isinstance(to, (list, tuple)) else [to]
        self._to: tuple[Destination, ...] = tuple(destination(each) for each in given)
        self._unwritten: dict[int, list[Sample]] = {}
        self._gathering = Gathering(examples, every)
        if inputs is not None:
            self._prepare(self._batch())
        self._handles: list[Any] = []
        if self._optimizer is not None:
            self._handles.append(self._optimizer.register_step_post_hook(Hook(self._after_update)))
        self._called: nn.Module | None = model
        self._pass_handle: Any = None
        if self._optimizer is None or inputs is None:
            self._listen(True)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the hooks off, and close what was opened; the samples stay."""
        if self._pass_handle is not None and not self.steps and self._wiring is None:
            self._warn("inputs", f"{type(self._inner).__name__} {_NOT_CALLED}")
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._listen(False)
        self._gathering.clear()
        for each in self._to:
            each.close()

    def measure(self, inputs: Any = None) -> Sample:
        """Take a sample now, on these inputs or on the monitor's own, beside the regular ones; it is not written.

        Raises:
            ValueError: no inputs, or the model does not accept them.
        """
        batch = self._batch() if inputs is None else inputs
        if batch is None:
            raise ValueError("measure() needs inputs, as the monitor was made without any: monitor.measure(batch).")
        if self._wiring is None:
            self._prepare(batch)
        return Sample(self.steps, self._measured([batch]))

    def plot(self) -> Any:
        """A matplotlib figure of dead units, effective rank and weights over steps, one line per layer."""
        from neoteny.diagnosis.plot import plot_samples

        return plot_samples(self.samples)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed monitor goes on with; plain numbers, strings, lists and dicts."""
        return {
            "version": VERSION,
            "steps": self.steps,
            "due": self._due,
            "warned": self.warned,
            "fresh": dict(self._fresh),
            "samples": [sample.as_dict() for sample in self.samples],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict()` was taken: rows of later steps are taken off a table.

        Raises:
            ValueError: not a monitor's state, or one of a later version; nothing is changed then.
        """
        missing = [name for name in ("version", "steps", "due", "warned", "fresh", "samples") if name not in state]
        if missing or state["version"] != VERSION:
            what = f"it has no {', '.join(missing)}" if missing else f"version {state['version']}"
            raise ValueError(f"expected the state of a Monitor of version {VERSION}; got another: {what}.")
        samples = [Sample.from_dict(each) for each in state["samples"]]
        self.steps, self._due, self.warned = int(state["steps"]), int(state["due"]), bool(state["warned"])
        self._fresh = dict(state["fresh"])
        self.samples = samples
        self._gathering.clear()
        for each in self._to:
            each.rewind(self.steps)

    def __getstate__(self) -> dict[str, Any]:
        gone = {
            "_model": None,
            "_called": None,
            "_pass_handle": None,
            "_optimizer": None,
            "_handles": [],
            "_to": (),
            "_inputs": None,
            "_unwritten": {},
        }
        return {**vars(self), **gone, "_gathering": Gathering(2, 1), "_bounds": {}, "_wiring": None}

    # --- what the hooks call -----------------------------------------------------------------------------------------

    def _before_pass(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or not (module.training and torch.is_grad_enabled()):
            return
        if self._inputs is None and self.steps >= self._due and first_process():
            self._gathering.add(self._inner, args, kwargs)
            if self._wiring is None:
                self._prepare(self._gathering.batches[0])
        if self._optimizer is None:
            self._sample_if_due()
            self.steps += 1

    def _after_update(self, *_: Any) -> None:
        self.steps += 1
        self._sample_if_due()
        if self._inputs is None:
            self._listen(self.steps >= self._due)  # passes cost nothing in between
        if self.steps == _PATIENCE and self._wiring is None and first_process():
            self._warn(
                "inputs",
                f"The optimizer made {_PATIENCE} updates, but {type(self._inner).__name__} {_NOT_CALLED}",
            )

    def _listen(self, on: bool) -> None:
        """Have the model's passes call this monitor, or no longer."""
        if on and self._pass_handle is None and self._called is not None:
            hook = Hook(self._before_pass)
            self._pass_handle = self._called.register_forward_pre_hook(hook, with_kwargs=True)
        elif not on and self._pass_handle is not None:
            self._pass_handle.remove()
            self._pass_handle = None

    def _sample_if_due(self) -> None:
        if self.steps < self._due or not first_process():
            return
        if self._inputs is None and not self._gathering.enough():
            return
        try:
            sample = Sample(self.steps, self._measured_now())
        except Exception as error:
            self._warn("measure", f"No sample was taken after {self.steps} steps: {type(error).__name__}: {error}")
        else:
            self._keep(sample)
        self._gathering.clear()
        self._due += self.every * max(1, math.ceil((self.steps - self._due) / self.every))

    def _keep(self, sample: Sample) -> None:
        sample = Sample(sample.step, sample.layers, judge([*self.samples, sample]))
        self.samples.append(sample)
        if len(self.samples) > MOST_SAMPLES:
            del self.samples[FIRST:-LATEST:2]
        for number, each in enumerate(self._to):
            waiting = self._unwritten.setdefault(number, [])
            waiting.append(sample)
            try:
                while waiting:
                    each.write(waiting[0])
                    del waiting[0]
            except Exception as error:
                self._warn(
                    f"to {number}",
                    f"A sample could not be written ({type(error).__name__}: {error}); it is kept for the next time.",
                )
                del waiting[:-MOST_SAMPLES]
        if sample.findings and not self.warned:
            self.warned = True
            findings = with_attached(sample.findings, self._inner)
            warnings.warn(announce(sample, findings), RuntimeWarning, stacklevel=2)

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            warnings.warn(f"Monitor: {text}", RuntimeWarning, stacklevel=3)

    # --- measuring ---------------------------------------------------------------------------------------------------

    @property
    def _inner(self) -> nn.Module:
        if self._model is None:
            raise RuntimeError("this is a copy of a monitor, which watches no model: make a new Monitor(model).")
        return self._model

    def _batch(self) -> Any:
        return self._inputs() if callable(self._inputs) else self._inputs

    def _prepare(self, batch: Any) -> None:
        """Find the units, the limits of their activation functions, and how large a fresh copy's weights are."""
        with _without_autocast(self._inner):
            wiring, example = find_units(self._inner, batch, self._norm)
            with Sandbox(self._inner, example) as sandbox:
                bounds = find_bounds(sandbox, wiring, few_examples(example))
                fresh, notes = (self._fresh, self.notes) if self._fresh else self._fresh_magnitudes(wiring)
        # Not inside: a model that holds its monitor is put back with it.
        self._wiring, self._bounds, self._fresh, self.notes = wiring, bounds, fresh, notes

    def _fresh_magnitudes(self, wiring: Wiring) -> tuple[dict[str, float], tuple[str, ...]]:
        """Mean absolute incoming weights of a fresh copy, and what limits the comparison."""
        try:
            copies = FreshCopies(self._inner)
            fresh, notes = copies.draw(0), copies.notes
        except Exception as error:  # it cannot be copied, or the copy does not fit into memory
            fresh, notes = self._inner, [f"weights are compared with those at the start, as there is no copy: {error}"]
        return {group.name: incoming_magnitude(fresh, group) for group in wiring}, tuple(notes)

    def _measured_now(self) -> tuple[LayerSample, ...]:
        """The layers on the inputs that there are; where batches were joined and the model refuses it, one by one."""
        if self._inputs is not None:
            return self._measured([self._batch()])
        batches, joined = self._gathering.batches, self._gathering.joined()
        self._gathering.clear()
        if len(joined) < len(batches):
            try:
                return self._measured(joined)
            except Exception:  # an argument without an axis of examples was as long as one with it
                pass
        return self._measured(batches)

    def _measured(self, batches: Sequence[Any]) -> tuple[LayerSample, ...]:
        model, wiring = self._inner, self._wiring
        assert wiring is not None
        replaced: dict[str, int] = {}
        for each in attachments(model):
            replaced |= each.replaced
        with _without_autocast(model), Sandbox(model, batches[0], parameters=False) as sandbox:
            layers = measure(sandbox, wiring, self._bounds, batches, quickly=True)
        producers = {group.name: [port.module for port in group.producers] for group in wiring}
        return tuple(
            LayerSample(
                layer,
                self._fresh.get(name, layer.weight_magnitude),
                None if self._optimizer is None else _gradient_norm(model, producers[name]),
                replaced.get(name),
            )
            for name, layer in layers.items()
        )


def _gradient_norm(model: nn.Module, names: Sequence[str]) -> float | None:
    gradients: list[Tensor] = []
    for name in names:
        gradient = model.get_submodule(name).weight.grad
        gradients += [gradient] if isinstance(gradient, Tensor) else []
    return float(metrics.gradient_norm(gradients)) if gradients else None


def _without_autocast(model: nn.Module) -> torch.autocast:
    kind = next((parameter.device.type for parameter in model.parameters()), "cpu")
    return torch.autocast(kind, enabled=False)

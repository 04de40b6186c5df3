"""Which ticks the fused kernels serve: a user's module on a CUDA device with Triton, whose layers they know."""

from __future__ import annotations

import importlib.util
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from neoteny.units.utilities import GRADIENT, UTILITIES
from neoteny.units.view import View

if TYPE_CHECKING:
    from neoteny.units.device.rewrite import FusedReset
    from neoteny.units.device.tick import FusedMeasure


SERVED = {"cuda"}
"""Types of devices on which the kernels run; a test that interprets them adds the CPU."""
NOT_READY = (
    "A tick is being captured in a CUDA graph before its tables were made, or after the model, its optimizer's state "
    "or the shapes of its inputs have changed. Make three whole updates of the same shapes, plastic.step() included, "
    "then capture."
)


class Fused(NamedTuple):
    """The fused tick of one method on one model; `why` says why units are not chosen and reset by it."""

    measuring: FusedMeasure
    reset: FusedReset | None
    why: str

    def measure(self, view: View) -> bool:
        """One tick of means and utilities; see `FusedMeasure.measure`."""
        return self.measuring.measure(view)


class Settings(NamedTuple):
    """What the fused tick needs to know of `ContinualBackprop`."""

    decay: float | tuple[float, ...]
    utility: str
    threshold: int | tuple[int, ...]
    compensate: bool


def tick_on_device(view: View, state: dict[str, Any], settings: Settings) -> None:
    """One whole tick that asks nothing of the host, so that a CUDA graph can hold it.

    Raises:
        RuntimeError: the fused tick does not serve the model, or the first of its kind is to be captured.
    """
    capturing = view.seeds.is_cuda and torch.cuda.is_current_stream_capturing()
    if capturing and not is_ready(view):
        raise RuntimeError(NOT_READY)
    fused = fused_tick(view, state, settings)
    if fused is None or fused.reset is None or not fused.measure(view):
        raise RuntimeError(_why_not_capturable(view, state, capturing))
    fused.reset.replace_by_schedule(view, state)


def is_ready(view: View) -> bool:
    """Whether the tables are there that a captured tick reads: during a capture none can be made."""
    found = [made for _, made in view.fused.values()]
    return bool(found) and all(isinstance(each, Fused) and each.measuring.holds() for each in found)


def is_captured(view: View) -> bool:
    """Whether some captured graph holds a tick of this network."""
    found = [made for _, made in view.fused.values()]
    return bool(view.retired) or any(isinstance(made, Fused) and made.measuring.captured for made in found)


def retire(view: View, made: Any) -> None:
    """Keep a fused tick that is no longer in use, where a captured graph reads its tables: it may be replayed."""
    if isinstance(made, Fused) and made.measuring.captured:
        view.retired.append(made)
        warn_of_stale_graphs()


def warn_of_stale_graphs() -> None:
    """Warn that a graph with a tick inside does not see what has changed."""
    warnings.warn(
        "The model or its optimizer's state has changed since a tick was captured in a CUDA graph: capture again.",
        RuntimeWarning,
        stacklevel=3,
    )


def _why_not_capturable(view: View, state: dict[str, Any], capturing: bool) -> str:
    expected = "attach(..., capturable=True) needs ticks that run on a CUDA device alone"
    if not view.seeds.is_cuda:
        return f"{expected}, but the model is on {view.seeds.device}. Move it there first, or leave capturable out."
    _, found = view.fused.get(id(state), (None, None))
    why = found if isinstance(found, str) else found.why if isinstance(found, Fused) else ""
    if why:
        return f"{expected}, but {why}. Leave capturable out, or, if it is one layer, that layer (leave_out=[...])."
    if capturing:
        return NOT_READY
    return (
        f"{expected}, and at this update some layer did not run, or is frozen, or was given inputs of a kind that the "
        "kernels do not know. Leave that layer out (leave_out=[...]), or leave capturable out. A layer that was "
        "compiled and called before attach does not count as run: attach first."
    )


def fused_tick(view: View, state: dict[str, Any], settings: Settings) -> Fused | None:
    """The fused tick, or None where the general path is to be taken."""
    known, found = view.fused.get(id(state), (None, None))
    if known is not state:
        found = None
    if isinstance(found, Fused):
        found.measuring.is_fresh = False  # also where this tick is not measured there
    if isinstance(found, str) or view.seeds.device.type not in SERVED or view.runs or not view.groups:
        return None
    if found is not None and found.measuring.holds():
        return found
    if not all(view.activations.get(name) for group in view.groups for name in group.read_modules()):
        return None
    if not all(view.trainable(group) for group in view.groups):
        return None
    made = _make(view, state, settings)
    view.fused[id(state)] = (state, made)
    retire(view, found)
    return None if isinstance(made, str) else made


def fused_reset(view: View, state: dict[str, Any]) -> FusedReset | None:
    """What chooses and resets units after a fused measure, or None where the general path is to be taken."""
    known, found = view.fused.get(id(state), (None, None))
    if known is not state or found is None or isinstance(found, str) or not view.resets_are_private:
        return None
    return found.reset if found.measuring.is_fresh else None


def why_not_fused(view: View) -> str:
    """Why ticks take the general path on a CUDA device, or ""."""
    if view.seeds.device.type in SERVED and view.groups and (view.ranks is not None or view.totals is not None):
        return "sums are kept instead of inputs" if view.ranks is None else "sums are added over all ranks"
    found = [made for _, made in view.fused.values()]
    return next((made if isinstance(made, str) else made.why for made in found), "")


def _make(view: View, state: dict[str, Any], settings: Settings) -> Fused | str:
    if UTILITIES[settings.utility] & GRADIENT:
        return f"the utility {settings.utility!r} is computed from gradients"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    from neoteny.units.device import layout, plan, rewrite, tick

    decay, threshold = settings.decay, settings.threshold
    if not isinstance(decay, (int, float)) or not isinstance(threshold, int):
        return "hyperparameters are sequences"
    why = layout.why_not(view, view.groups, view.modules)
    if why:
        return why
    measure = tick.FusedMeasure(view, view.groups, state, view.modules, float(decay), UTILITIES[settings.utility])
    why = plan.why_not(view.groups)
    return Fused(measure, None if why else rewrite.FusedReset(measure, threshold, settings.compensate), why)

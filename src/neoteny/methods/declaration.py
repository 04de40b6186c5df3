"""What a method declares about itself to the compiled backends, which never look at its type.

- `KernelTerms`: its part of an update in the terms that kernels compute; `KernelState`: where its state lies.
- `RecordedStep`: how its step is recorded in a CUDA graph.

A declaration is not inherited: a subclass may compute something else, so it has to declare for itself. Methods that
declare nothing are trained by the library.

Before this: nothing; after it: every method, `backends.kernel` and `backends.graphs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from neoteny.methods.method import Method

Number = float | tuple[float, ...]
"""A hyperparameter: one for all runs of a stack, or one per run."""


@dataclass(frozen=True)
class Replacement:
    """Units are replaced after the update; the arguments of `ContinualBackprop`, which see."""

    rate: Number
    maturity_threshold: Number
    decay_rate: Number
    utility: str
    compensate: bool
    count: str


@dataclass(frozen=True)
class UtilityStep:
    """An update that spares useful weights; the arguments of `UPGD`, which see. The average is its first moment."""

    decay_rate: float
    noise_std: Number
    weight_decay: Number
    factor: float
    scale: str
    protect: bool


@dataclass(frozen=True)
class PeriodicReset:
    """Units are reset every `period` updates if a score of theirs is at most `threshold`.

    Attributes:
        score: over the layer's mean of it: "activity", the mean of |h| (see `ReDo`), or "gradient", the mean of |g| of
            the incoming weights (see `ReGraMa`).
        period, threshold: see there.
    """

    score: str
    period: int
    threshold: Number


@dataclass(frozen=True)
class SilenceReset:
    """Units are reset at silences that are long for them; the arguments of `SelfNormalizedResets`, which see.

    Attributes:
        period: updates between two recalibrations; 0 where tasks are counted instead.
    """

    rejection: Number
    first_threshold: int
    longest: int
    period: int


@dataclass(frozen=True)
class Reinit:
    """Single weights are redrawn every `period` updates; the arguments of `SelectiveWeightReinit`, which see."""

    period: int
    amount: Number
    utility: str
    rule: str
    decay_rate: Number


@dataclass(frozen=True)
class Clip:
    """Weights and biases are clipped after the update; the arguments of `WeightClipping`, which see."""

    bound: Number
    spare_output: bool


@dataclass(frozen=True)
class SlowCopy:
    """A running average of all weights, copied back every `period` updates (0: never); see `HareAndTortoise`."""

    decay: Number
    period: int


@dataclass(frozen=True)
class KernelTerms:
    """A method's part of one update, in the terms that kernels compute; what is left out, the method does not do.

    Attributes:
        optimizer: the rule of the update, "sgd", "momentum", "adam" or "upgd"; "" for a method that is not the
            optimizer.
        step_size, momentum, betas, eps: of the optimizer.
        weight_decay: of "adam", decoupled: the weights shrink before the update.
        utility_step: of "upgd".
        l2: strength of an L2 term that joins the gradients before the update.
        anchor: strength of a pull to the initial weights that joins the gradients, but for those of norms.
        noise_std: standard deviation of the noise that is added to every weight after the update.
        replacement: how units are replaced after the update.
        reset: which units are reset after the update.
        reinit: which weights are redrawn after the update.
        clip: the bounds that the weights are held within after the update.
        slow: the running average that is kept after the update.
    """

    optimizer: str = ""
    step_size: Number = 0.0
    momentum: Number = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    l2: Number | None = None
    noise_std: Number | None = None
    replacement: Replacement | None = None
    utility_step: UtilityStep | None = None
    anchor: Number | None = None
    weight_decay: Number | None = None
    reset: PeriodicReset | SilenceReset | None = None
    reinit: Reinit | None = None
    clip: Clip | None = None
    slow: SlowCopy | None = None


@dataclass(frozen=True)
class KernelState:
    """Where a method's state lies, so that a kernel can copy it out and back.

    Attributes:
        moments: tensors by parameter that are zero for a new element: the velocity, Adam's first and second moments.
        copies: tensors by parameter that are the new element itself: initial weights, slow weights.
        clock: the dict whose entry "step" is the number of updates; None if the method does not count them.
        resets: the reset steps of rows and columns by parameter (see `ElementSteps`); None if none are kept.
        units: a group's statistics and schedule by its name (see `ContinualBackprop.init`).
        worth: tensors by weight that `Reinit` has measured since it last redrew some; empty right after that.
        redrawn: int64 (n,), how many weights were redrawn; None where none are.
        groups: a group's dict by its name (see `UnitMethod.init`): how many of its units were reset, "replaced", and
            what the method keeps of them.
    """

    moments: tuple[dict[str, Tensor], ...] = ()
    copies: Mapping[str, Tensor] = field(default_factory=dict)
    clock: dict[str, Any] | None = None
    resets: dict[str, Any] | None = None
    units: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    worth: dict[str, Tensor] = field(default_factory=dict)
    redrawn: Tensor | None = None
    groups: Mapping[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordedStep:
    """How a method's step is recorded in a CUDA graph.

    A step that acts at few updates only has two parts: `record` happens at every update and is recorded, `between`
    happens between two replays and gets what `record` returned. With `ahead`, a backend may do what `between` does
    inside the graph, where the replacement that `kernel_terms` declares says all about it.

    Attributes:
        record: (view, state) to anything; None records the whole `Method.step`.
        between: (view, state, what `record` returned) to None; None for a step that is recorded whole.
        ahead: (view, state, updates) to how many units are due at the next updates (see
            `ContinualBackprop.count_ahead`); None for a step that does not replace units.
        counts: whether the step counts updates in `state["step"]`, which the graph then does on the device.
    """

    record: Callable[..., Any] | None = None
    between: Callable[..., None] | None = None
    ahead: Callable[..., tuple[Any, int]] | None = None
    counts: bool = False


def kernel_terms_of(method: Method) -> KernelTerms | str:
    """The method's own declaration, or why no kernel trains it.

    Example:
        >>> from neoteny.methods import L2
        >>> kernel_terms_of(L2(1e-4)).l2
        0.0001
    """
    return method.kernel_terms() if "kernel_terms" in vars(type(method)) else undeclared(method)


def recorded_step_of(method: Method) -> RecordedStep | str:
    """The method's own declaration, or why its step cannot be recorded."""
    return method.recorded_step() if "recorded_step" in vars(type(method)) else undeclared(method)


def undeclared(method: Method) -> str:
    """Why a method that declares nothing is left to the library."""
    return f"{type(method).__name__} is not covered"

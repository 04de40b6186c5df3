"""Hare and Tortoise: fast weights learn, their slow average is evaluated, and at times the fast restart from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from neoteny.layers.regions import Region
from neoteny.methods.card import Card
from neoteny.methods.declaration import KernelState, KernelTerms, SlowCopy
from neoteny.methods.method import Method, State, check_flag, check_number, count_update, slot
from neoteny.units.view import View


@dataclass(frozen=True)
class HareAndTortoise(Method):
    r"""Trains fast weights, evaluates their slow average, and at times restarts the fast from it (Lee et al. 2024).

    After every update \(\text{slow} \leftarrow \mu\,\text{slow} + (1 - \mu)\,\text{fast}\), for parameters and
    floating-point buffers. Every `period` updates \(\text{fast} \leftarrow \text{slow}\), by value. The slow weights
    are those to evaluate with: `stack.predict`, the suite's measures, and `with plastic.evaluating():`. The optimizer's
    state is kept at a copy, as in the authors' code. When another method resets an element, its slow value is the new
    one.

    Args:
        decay: \(\mu\), in [0, 1]; the authors use 0.999.
        period: updates between two copies, at least 1, or 0 for none. The authors copy every 10 epochs.
        clear_optimizer: also put the optimizer's state back to its start at a copy.

    Example:
        >>> HareAndTortoise(period=1000).decay
        0.999
    """

    decay: float | tuple[float, ...] = 0.999
    period: int = 1000
    clear_optimizer: bool = False

    averages_weights: ClassVar[bool] = True

    card: ClassVar[Card] = Card(
        "resets and projections of weights",
        "all parameters and buffers",
        "an average at every update, a copy every `period` updates",
        "a copy of the weights",
        "Lee et al. 2024, Slow and steady wins the race: maintaining plasticity with Hare and Tortoise networks",
    )

    def __post_init__(self) -> None:
        check_number(self, "decay", 0.0, 1.0)
        check_number(self, "period", 0, whole=True, single=True)
        check_flag(self, "clear_optimizer")

    def init(self, view: View) -> State:
        """The slow copy of every tensor."""
        state: State = {"step": 0, "parameters": {}}
        for name, tensor in _averaged(view).items():
            _slow(state, name, tensor)
        return state

    def step(self, view: View, state: State) -> None:
        """Move the slow weights; at the end of a period restart the fast ones from them."""
        copies = count_update(state, self.period or 1) and self.period > 0
        trained = _averaged(view)
        frozen_since = {name: view.tensor(name) for name in state["parameters"] if name not in trained}
        for name, fast in (trained | frozen_since).items():
            slow = _slow(state, name, fast)
            decay = view.per_run(self.decay, fast, view.axes(fast))
            slow.lerp_(fast.detach(), 1.0 - decay)
            if copies and name in trained:
                fast.copy_(slow)
                if self.clear_optimizer:
                    view.clear_optimizer(Region.whole(name, fast, len(view.runs)))

    def evaluation(self, view: View, state: State) -> Mapping[str, Tensor]:
        """The slow weights."""
        return state["parameters"]

    def on_reset(self, view: View, state: State, region: Region) -> None:
        """The slow value of a reset element is its new one."""
        if region.name in state["parameters"]:
            region.copy(view.tensor(region.name), state["parameters"][region.name])

    def kernel_terms(self) -> KernelTerms | str:
        """The running average, and its copies."""
        if self.clear_optimizer:
            return "HareAndTortoise(clear_optimizer=True) is not covered"
        return KernelTerms(slow=SlowCopy(self.decay, self.period))

    def kernel_state(self, state: State) -> KernelState:
        """The slow weights, and the number of updates."""
        return KernelState(clock=state, copies=state["parameters"])


def _slow(state: State, name: str, tensor: Tensor) -> Tensor:
    return slot(state, name, lambda: tensor.detach().clone())


def _averaged(view: View) -> dict[str, Tensor]:
    """Trainable parameters and floating-point buffers."""
    buffers = {name: buffer for name, buffer in view.buffers.items() if buffer.is_floating_point()}
    return {**view.parameters, **buffers}

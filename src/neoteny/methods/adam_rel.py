"""Adam-Rel: when the target of learning changes, Adam counts its updates from zero again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from neoteny.methods.card import Card
from neoteny.methods.method import BoundaryData, Method, State, check_number, count_update
from neoteny.units.view import View


@dataclass(frozen=True)
class AdamRel(Method):
    r"""Starts Adam's step count again when the target changes, and keeps its moments (Ellis et al. 2024).

    Adam with relative time steps: at a change of the target, \(t \leftarrow 0\). Both moments are kept; only the step
    count \(t\) in \(\hat m = m / (1 - \beta_1^t)\), \(\hat v = v / (1 - \beta_2^t)\) goes back to zero, for all
    weights. With settled moments the next update is then
    \(\sqrt{1 - \beta_2} / (1 - \beta_1)\) of its usual size, 0.316 with the usual betas, and larger gradients of the
    new target do not make it long. It acts on the optimizer: `torch.optim.Adam`, `AdamW` and others of that kind,
    `neoteny.optim.Adam`, and in a stack `Adam`, `AdamW` and `AdamO`. Other optimizers are refused.

    From memory of the paper; not verified against its code.

    Args:
        period: also act after each period of this many updates; 0 for task boundaries alone. The authors act at each
            new target network (DQN) and at each new rollout (PPO).

    Example:
        >>> AdamRel().period
        0
    """

    period: int = 0

    needs_step_count: ClassVar[bool] = True

    card: ClassVar[Card] = Card(
        "optimizers",
        "Adam's step count",
        "at a task boundary, or every `period` updates",
        "nothing",
        "Ellis et al. 2024, Adam on local time: addressing nonstationarity in RL with relative Adam timesteps",
    )

    def __post_init__(self) -> None:
        check_number(self, "period", 0, whole=True, single=True)

    def init(self, view: View) -> State:
        """The number of updates."""
        return {"step": 0}

    def step(self, view: View, state: State) -> None:
        """Restart at the end of a period."""
        if count_update(state, self.period or 1) and self.period > 0:
            view.restart_step_counts()

    def task_boundary(self, view: View, state: State, data: BoundaryData | None = None) -> None:
        """Restart."""
        view.restart_step_counts()

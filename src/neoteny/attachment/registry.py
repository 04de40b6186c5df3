"""The attachments that are at work, by model: to find an earlier one, and to detach without having it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from torch import nn
from torch.optim import Optimizer

from neoteny.optim.state import OptimizerState
from neoteny.wiring.modules import unwrap

if TYPE_CHECKING:
    from neoteny.attachment.attachment import Attachment

# Weak on both sides: hooks keep an attachment alive, and a copied or saved model carries nothing of it.
ATTACHED: WeakKeyDictionary[nn.Module, WeakSet[Attachment]] = WeakKeyDictionary()


def attachments(model: nn.Module, optimizer: Optimizer | None = None) -> list[Attachment]:
    """The attachments that are at work on a model (with one optimizer, or with any)."""
    return [each for each in ATTACHED.get(model, ()) if optimizer is None or optimizer in each.optimizers]


def overlapping(model: nn.Module, state: OptimizerState) -> list[Attachment]:
    """The attachments at work whose optimizers own a parameter that these own, too, or that watch the same ones."""
    owned = {id(parameter) for group in state.param_groups for parameter in group["params"]}
    return [
        each
        for each in attachments(model)
        if any(
            id(parameter) in owned for group in each.view.optimizer_state.param_groups for parameter in group["params"]
        )
    ]


def detach(model: nn.Module) -> None:
    """Detach everything that is attached to a model, for callers that no longer have the attachment."""
    for each in attachments(unwrap(model)):
        each.detach()

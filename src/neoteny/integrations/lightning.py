"""Lightning: `Trainer(callbacks=[Plasticity(neoteny.ContinualBackprop(1e-4))])` and nothing else.

Works with `lightning` and with `pytorch_lightning`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from torch import nn

from neoteny.integrations.attaching import Attaching
from neoteny.methods.method import Method


def _callbacks() -> tuple[type, ...]:
    """The class of callbacks of each installed Lightning; they have the same hooks."""
    found: list[type] = []
    for package in ("lightning.pytorch", "pytorch_lightning"):
        try:
            found.append(importlib.import_module(package).Callback)
        except ImportError:
            continue
    if not found:
        raise ImportError("neoteny.integrations.lightning needs Lightning: pip install lightning")
    return tuple(dict.fromkeys(found))


class Plasticity(*_callbacks()):
    """Attaches methods when training begins, ticks after every optimizer step, and is saved in every checkpoint.

    Several parts, such as the two networks of a GAN, get a callback each, with `module=`. The number of units replaced
    is logged as `plasticity/replaced`; of several callbacks, each as `plasticity/<module>/replaced`. A run that is
    resumed from a checkpoint goes on as if it had not stopped; a second `fit` of the same module goes on with the
    statistics of the first.

    Args:
        methods: as for `neoteny.attach`.
        module: the name of the part to attach, such as "net"; by default the whole LightningModule, which must then be
            called as `self(...)` in `training_step`.
        example: a batch that this module accepts; by default its first training pass.
        log: whether to log.
        options: the other options of `neoteny.attach` (seed, leave_out, init, ...).
    """

    def __init__(
        self, *methods: Method, module: str = "", example: Any = None, log: bool = True, **options: Any
    ) -> None:
        super().__init__()
        hint = 'If training_step calls a part of the LightningModule and not self(...), name it: module="net".'
        self._attaching = Attaching(methods, example, options, hint)
        self._module = module
        self._log = log

    @property
    def plastic(self) -> Any:
        """The attachment while a fit is running; print it to see groups, utilities and counts."""
        return self._attaching.plastic

    @property
    def state_key(self) -> str:
        """Under which a checkpoint keeps the state: every part has a key of its own."""
        return self._generate_state_key(module=self._module) if self._module else super().state_key

    @property
    def replaced(self) -> dict[str, int]:
        """How many units of each group were replaced so far."""
        return self._attaching.replaced

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Attach; weights, optimizers and the state of this callback are restored by now."""
        if trainer.world_size > 1:
            raise TypeError(
                f"Training on {trainer.world_size} processes is not supported yet: every rank would replace units on "
                "its own and the ranks would diverge. Use Trainer(devices=1)."
            )
        self._attaching.start(pl_module.get_submodule(self._module), trainer.optimizers)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Log the number of units replaced so far."""
        if self._log and self._attaching.plastic is not None:
            alone = sum(isinstance(each, Plasticity) for each in trainer.callbacks) == 1 or not self._module
            name = "plasticity/replaced" if alone else f"plasticity/{self._module}/replaced"
            pl_module.log(name, float(sum(self.replaced.values())))

    def on_fit_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Detach: the next fit has other optimizers."""
        self._attaching.stop()

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        """Detach when a fit ends by an error."""
        self._attaching.stop()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return self._attaching.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore what a checkpoint kept."""
        self._attaching.load_state_dict(state_dict)

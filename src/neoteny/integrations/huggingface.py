"""Hugging Face: `Trainer(callbacks=[Plasticity(neoteny.ContinualBackprop(1e-4))], ...)` and nothing else.

With accelerate alone no callback is needed: `plastic = neoteny.attach(model, optimizer, ..., auto=True)` after
`prepare`, and `accelerator.register_for_checkpointing(plastic)`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError("neoteny.integrations.huggingface needs transformers: pip install transformers") from error

from neoteny.integrations.attaching import Attaching
from neoteny.methods.method import Method
from neoteny.optim.state import unwrap_optimizer

FILE = "plasticity.pt"


class Plasticity(TrainerCallback):
    """Attaches methods when training begins, ticks after every optimizer step, and is saved beside every checkpoint.

    The number of units replaced joins the logs as `plasticity/replaced`. A run that is resumed from a checkpoint goes
    on as if it had not stopped.

    Args:
        methods: as for `neoteny.attach`.
        example: a batch that the model accepts; by default its first training pass.
        resume_from: the checkpoint that training is resumed from, where it does not lie in the output folder.
        options: the other options of `neoteny.attach` (seed, leave_out, init, ...).
    """

    def __init__(
        self, *methods: Method, example: Any = None, resume_from: str | Path | None = None, **options: Any
    ) -> None:
        self._attaching = Attaching(methods, example, options)
        self._resume_from = resume_from

    @property
    def plastic(self) -> Any:
        """The attachment while training is running; print it to see groups, utilities and counts."""
        return self._attaching.plastic

    @property
    def replaced(self) -> dict[str, int]:
        """How many units of each group were replaced so far."""
        return self._attaching.replaced

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attach; weights and optimizer are restored by now."""
        if args.world_size > 1:
            raise TypeError(
                f"Training on {args.world_size} processes is not supported yet: every rank would replace units on its "
                "own and the ranks would diverge. Train on one device."
            )
        if state.global_step > 0:
            path = Path(self._resume_from or _checkpoint(args, state)) / FILE
            if not path.is_file():
                raise FileNotFoundError(
                    f"Training is resumed at step {state.global_step}, but there is no {path}: expected what this "
                    "callback saved beside the checkpoint. Pass resume_from=... if the checkpoint is elsewhere."
                )
            self._attaching.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        self._attaching.start(kwargs["model"], [unwrap_optimizer(kwargs["optimizer"])])

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the state into the checkpoint's folder, whole or not at all."""
        path = _checkpoint(args, state) / FILE
        temporary = path.with_name(f".{FILE}.tmp")
        torch.save(self._attaching.state_dict(), temporary)
        temporary.replace(path)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Add the number of units replaced so far."""
        if logs is not None and self._attaching.plastic is not None:
            logs["plasticity/replaced"] = sum(self.replaced.values())
            if state.log_history and state.log_history[-1].get("step") == state.global_step:
                state.log_history[-1].setdefault("plasticity/replaced", logs["plasticity/replaced"])

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Detach."""
        self._attaching.stop()


def _checkpoint(args: Any, state: Any) -> Path:
    """The folder of the checkpoint of this step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"

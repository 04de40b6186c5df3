"""Groups whose units are not read although the model trains: a user must hear of it, since none of them is replaced."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import Tensor

from neoteny.attachment.hooks import PATIENCE
from neoteny.attachment.module_view import ModuleView
from neoteny.units.view import LiveGroup


class Unread:
    """Warns once of each group that ran without being read, and of each that has not run for long."""

    def __init__(self) -> None:
        self._updates: dict[str, int] = {}
        self._ran: list[LiveGroup] = []
        self._told: set[str] = set()

    def clear(self) -> None:
        """The groups have changed."""
        self.__init__()

    def before_update(self, view: ModuleView) -> None:
        """Note the groups that were not read, but whose consumers have gradients, so they ran."""
        if view.capturable or all(view.own_activations.values()):  # a capturable tick refuses what was not read
            self._ran = []
            return
        unread = [group for group in view.groups if group.reading(view.own_activations) is None]
        self._ran = [group for group in unread if group.name not in self._told and _has_gradients(view, group)]

    def after_update(self, view: ModuleView) -> None:
        """Warn of what is found."""
        if self._ran:
            self._told.update(group.name for group in self._ran)
            names = ", ".join(repr(group.name) for group in self._ran)
            _warn(
                f"The units of {names} were not read in this update, so none of them is replaced, although gradients "
                f"reached {_consumers(self._ran)}: hooks did not run there. Code that was compiled before attach "
                "ignores hooks that are added later: call neoteny.attach(...) before the first call, or put "
                "torch.compiler.reset() on the line before attach."
            )
        if all(view.own_activations.values()):
            self._updates.clear()
            return
        for group in view.groups:
            if group.reading(view.own_activations) is not None:
                self._updates.pop(group.name, None)
                continue
            self._updates[group.name] = self._updates.get(group.name, 0) + 1
            if self._updates[group.name] == PATIENCE and group.name not in self._told:
                _warn(
                    f"The units of {group.name!r} were not read in {PATIENCE} updates, so none of them is replaced: "
                    f"{_consumers([group])} did not run in training. If the model has other layers that read them, "
                    "pass an example of each way to call it: plastic.refresh(example=[...])."
                )


def _has_gradients(view: ModuleView, group: LiveGroup) -> bool:
    gradients: list[Tensor | None] = [view.tensor(port.weight).grad for port in group.consumers]
    return any(gradient is not None and bool(gradient.any()) for gradient in gradients)


def _consumers(groups: Sequence[LiveGroup]) -> str:
    return ", ".join(dict.fromkeys(port.module for group in groups for port in group.consumers))


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=4)

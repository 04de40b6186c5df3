"""Copied: what an attachment becomes in a copied or saved model."""

from __future__ import annotations

from typing import Any


class Copied:
    """What an attachment becomes in a copied or saved model, where nobody ticks: its state, to be loaded again."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """The state at the time of the copy: `attach(...)` the new model, then `load_state_dict` this."""
        return self._state

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying and pickling ask for these before there is a state
            raise AttributeError(name)
        raise RuntimeError(
            f"plastic.{name}: this is what an attachment becomes in a copied or loaded model. Attach that model with "
            "its own optimizer, then give it the state: neoteny.attach(...).load_state_dict(copied.state_dict())."
        )

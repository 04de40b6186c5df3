"""A parser of command lines that names the nearest known word where one is misspelt, as the rest of the suite does."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

INTERNAL = ("work",)
"""Commands that neoteny gives to processes of its own; nobody is told of them."""


class SuggestingParser(argparse.ArgumentParser):
    """argparse's parser with other words for unknown commands, options and choices; exit status 2 as before."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As argparse has it, but nothing may be left: the parser of a command knows that command's options."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [word.partition("=")[0] for word in unknown if word.startswith("--")]
            known = [name for name in self._option_string_actions if name.startswith("--")]
            self.error(f"unrecognized arguments: {' '.join(unknown)}.{_first_hint(options, known)}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(each) for each in action.choices if each not in INTERNAL]
        hint = _first_hint([value], known)
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}.{hint} Known are {', '.join(known)}.")


def _first_hint(words: Iterable[str], known: Sequence[str]) -> str:
    """The hint on the first of these words that has one."""
    from neoteny.text import nearest

    return next(filter(None, (nearest(word, known) for word in words)), "")

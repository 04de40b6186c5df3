"""Plain text: tables for the terminal, text that is safe to print, hints on misspelt names, checks of numbers."""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real


def render(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns under a header: numbers to the right, words to the left.

    Example:
        >>> print(render(["layer", "units"], [["fc1", "8"], ["fc2", "16"]]))
        layer  units
        fc1        8
        fc2       16
    """
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    numeric = [bool(rows) and all(_is_number(row[i]) for row in rows) for i in range(len(header))]
    lines = (
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def nearest(name: object, known: Iterable[str]) -> str:
    """The hint " Did you mean 'x'?" for a name that is not among the known ones; "" if none is near.

    Example:
        >>> nearest("minst", ["mnist", "imagenet32"])
        " Did you mean 'mnist'?"
    """
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def say_count(number: int, one: str, many: str = "") -> str:
    """A number of things: `one`, else `many`, which is `one` with an s where it is not given.

    Example:
        >>> say_count(1, "run"), say_count(2000, "run"), say_count(0, "stack is", "stacks are")
        ('1 run', '2,000 runs', '0 stacks are')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def shorten_names(names: Sequence[str], longest: int = 120) -> list[str]:
    """Names for a terminal: long ones without their middle, with a number where others look the same then.

    Example:
        >>> shorten_names(["CBP", "CBP (width=100)", "CBP (depth=100)"], longest=11)
        ['CBP', 'CBP ...100)', 'CBP ...100) [2]']
    """
    half = (longest - 3) // 2
    short: dict[str, str] = {}
    alike: Counter[str] = Counter()
    for name in dict.fromkeys(names):
        cut = name if len(name) <= longest else f"{name[:half]}...{name[-half:]}"
        alike[cut] += 1
        short[name] = cut if alike[cut] == 1 else f"{cut} [{alike[cut]}]"
    return [short[name] for name in names]


def compact(names: Sequence[str]) -> str:
    """Layer names in short: those that differ in one or more numbers count as one.

    Example:
        >>> compact(["stem", "block.0.fc", "block.1.fc", "block.2.fc"])
        'stem, block.*.fc (3 layers)'
    """
    patterns: dict[str, list[str]] = {}
    for name in names:
        patterns.setdefault(_pattern(name), []).append(name)
    short = [_together(some) for some in patterns.values()]
    return ", ".join(short if len(short) <= 6 else [*short[:5], f"and {len(short) - 5} more kinds"])


def by_kind(reasons: Mapping[str, str]) -> list[tuple[str, str]]:
    """What is said of each layer, with layers that differ in numbers alone as one.

    Example:
        >>> by_kind({"stem": "frozen", "block.0.fc": "feeds block.0.out", "block.1.fc": "feeds block.1.out"})
        [('stem', 'frozen'), ('block.*.fc (2 layers)', 'feeds block.*.out')]
    """
    kinds: dict[tuple[str, str], list[str]] = {}
    for name, reason in reasons.items():
        kinds.setdefault((_pattern(name), re.sub(r"(?<=[._])\d+(?!\w)", "*", reason)), []).append(name)
    return [(_together(some), _merged([reasons[name] for name in some])) for some in kinds.values()]


def _pattern(name: str) -> str:
    pattern = re.sub(r"(?<![^._])\d+(?![^.])", "*", name)
    return name if pattern == "*" else pattern


def _together(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{_merged(names)} ({len(names)} layers)"


def _merged(texts: Sequence[str]) -> str:
    """Texts that differ in numbers alone as one, with a star for each number that differs."""
    parts = zip(*(re.split(r"(\d+)", text) for text in texts), strict=True)
    return "".join(some[0] if len(set(some)) == 1 else "*" for some in parts)


def printable(text: str) -> str:
    """Text without characters that steer a terminal or reorder what is read: they are written out.

    Example:
        >>> print(printable("red \\x1b[31m and\\r overwritten"))
        red \\x1b[31m and\\r overwritten
    """
    if all(line.isprintable() for line in text.split("\n")):
        return text
    return "".join(_spell(sign) if not sign.isprintable() else sign for sign in text)


def _spell(sign: str) -> str:
    if sign in "\n\t" or unicodedata.category(sign) in ("Zs", "Co", "Cn"):  # spaces; letters newer than Python's table
        return sign
    return sign.encode("unicode_escape").decode()


def check_whole(owner: object, **least: int) -> None:
    """Raise unless fields of an object are whole numbers of at least the given value: `check_whole(self, tasks=1)`.

    Whole numbers of NumPy become Python's, so that they can be written down and compared.
    """
    for name, lowest in least.items():
        value = getattr(owner, name)
        if isinstance(value, bool) or not isinstance(value, Integral) or value < lowest:
            raise ValueError(
                f"{type(owner).__name__}: {name} must be a whole number of at least {lowest}; got {value!r}."
            )
        object.__setattr__(owner, name, int(value))


def check_share(owner: object, *names: str, inside: bool = False) -> None:
    """Raise unless fields of an object are numbers from 0 to 1; with `inside`, above 0 and below 1.

    Numbers of NumPy become Python's.
    """
    for name in names:
        value = getattr(owner, name)
        number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
        if not (0.0 < number < 1.0 if inside else 0.0 <= number <= 1.0):
            expected = "above 0 and below 1" if inside else "in [0, 1]"
            raise ValueError(f"{type(owner).__name__}: {name} must be a number {expected}; got {value!r}.")
        object.__setattr__(owner, name, value if isinstance(value, (int, float)) else number)


def _is_number(text: str) -> bool:
    try:
        float(text.rstrip("%"))
    except ValueError:
        return text == "-"
    return True

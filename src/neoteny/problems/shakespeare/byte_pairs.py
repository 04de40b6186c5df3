"""BytePairs: GPT-2's byte-pair encoding, from a text to the numbers of its tokens and back.

A text is cut into pieces: contractions ('s, 't, 're, 've, 'm, 'll, 'd), runs of letters, of digits and of other signs,
each with at most one space in front, and white space. The bytes of a piece become symbols, one per byte; then the
pair of neighbours that comes first in the list of merges is joined, until no pair is in the list.

Before this: tables in files, or generated ones (`text.py`); after it: `text.py` encodes words.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from neoteny.problems.data.files import DataError

_NOT_SPACE = frozenset("\x1c\x1d\x1e\x1f")  # separators that str.isspace() takes for white space and Unicode does not


@dataclass(eq=False)
class BytePairs:
    """An encoder.

    Args:
        numbers: the number of each token; a token is written in the symbols of its bytes (`byte_symbols`).
        merges: pairs of tokens to join, the most important first.

    Example:
        >>> small = BytePairs({"t": 0, "h": 1, "e": 2, "th": 3, "the": 4}, [("t", "h"), ("th", "e")])
        >>> small.encode("thethet")
        [4, 4, 0]
        >>> small.decode([4, 0])
        'thet'
    """

    numbers: dict[str, int]
    merges: Sequence[tuple[str, str]]
    _ranks: dict[tuple[str, str], int] = field(init=False, repr=False)
    _tokens: dict[int, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for pair in self.merges:
            for token in (*pair, "".join(pair)):
                if token not in self.numbers:
                    raise DataError(f"The byte-pair table joins {pair!r}, but {token!r} has no number.")
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        self._tokens = {number: token for token, number in self.numbers.items()}
        if len(self._tokens) < len(self.numbers):
            raise DataError("The byte-pair table gives one number to two tokens.")

    def encode(self, text: str) -> list[int]:
        """The numbers of a text's tokens.

        Raises:
            ValueError: the table has no token for one of the text's bytes.
        """
        symbols = byte_symbols()
        found: list[int] = []
        for piece in pieces(text):
            for token in self._join([symbols[byte] for byte in piece.encode()]):
                if token not in self.numbers:
                    raise ValueError(f"BytePairs: the table has no token for {token!r} in {piece!r}.")
                found.append(self.numbers[token])
        return found

    def decode(self, numbers: Iterable[int]) -> str:
        """The text of some tokens; bytes that are no UTF-8 become U+FFFD.

        Raises:
            ValueError: a number that no token has.
        """
        bytes_of = _bytes_of()
        text = bytearray()
        for number in numbers:
            if number not in self._tokens:
                raise ValueError(f"BytePairs: expected numbers of its {len(self._tokens):,} tokens; got {number!r}.")
            text.extend(bytes_of[symbol] for symbol in self._tokens[number])
        return text.decode(errors="replace")

    def _join(self, parts: list[str]) -> list[str]:
        """The tokens of one piece."""
        unranked = len(self._ranks)
        while len(parts) > 1:
            pairs = list(itertools.pairwise(parts))
            first = min(pairs, key=lambda pair: self._ranks.get(pair, unranked))
            if first not in self._ranks:
                break
            joined: list[str] = []
            place = 0
            while place < len(parts):
                if place < len(pairs) and pairs[place] == first:
                    joined.append(parts[place] + parts[place + 1])
                    place += 2
                else:
                    joined.append(parts[place])
                    place += 1
            parts = joined
        return parts


def read_byte_pairs(numbers: str, merges: str) -> BytePairs:
    """An encoder from GPT-2's two tables.

    Args:
        numbers: a JSON object from tokens to numbers.
        merges: one pair per line, separated by a space; a line that begins with #version is passed over.

    Raises:
        DataError: a table is not of this form.
    """
    try:
        table = json.loads(numbers)
    except ValueError as fault:
        raise DataError(f"Expected a JSON object from tokens to numbers; {fault}.") from fault
    if not isinstance(table, dict) or not all(isinstance(number, int) for number in table.values()):
        raise DataError(f"Expected a JSON object from tokens to numbers; got {type(table).__name__}.")
    lines = merges.split("\n")
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise DataError(f"Expected two tokens per line of merges; got {' '.join(wrong)!r}.")
    return BytePairs(table, [(first, second) for first, second in pairs])


@functools.cache
def byte_symbols() -> dict[int, str]:
    """The printable character that stands for each byte: itself, or one from U+0100 on for bytes that do not print.

    Example:
        >>> byte_symbols()[ord("a")], byte_symbols()[ord(" ")], byte_symbols()[0]
        ('a', 'Ġ', 'Ā')
    """
    prints = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in prints)
    return {byte: chr(byte) for byte in prints} | {byte: chr(0x100 + place) for place, byte in enumerate(others)}


def pieces(text: str) -> list[str]:
    """The pieces of a text, within which pairs are joined; together they are the text.

    Example:
        >>> pieces("He'll have 3  of them.")
        ['He', "'ll", ' have', ' 3', ' ', ' of', ' them', '.']
    """
    return _pattern(frozenset(character for character in text if character > "\x7f")).findall(text)


@functools.lru_cache(maxsize=64)
def _pattern(beyond_ascii: frozenset[str]) -> re.Pattern[str]:
    """The pattern of a piece for ASCII and these characters: `re` itself has no classes of letters and numbers."""
    classes: dict[str, list[str]] = {"letter": [], "number": [], "space": []}
    for character in [*map(chr, range(128)), *sorted(beyond_ascii)]:
        kind = _kind(character)
        if kind:
            classes[kind].append(re.escape(character))
    letter, number, space = ("".join(classes[kind]) for kind in ("letter", "number", "space"))
    return re.compile(
        f"'(?:s|t|re|ve|m|ll|d)| ?[{letter}]+| ?[{number}]+| ?[^{space}{letter}{number}]+"
        f"|[{space}]+(?![^{space}])|[{space}]+"
    )


def _kind(character: str) -> str:
    if character.isspace() and character not in _NOT_SPACE:
        return "space"
    return {"L": "letter", "N": "number"}.get(unicodedata.category(character)[0], "")


@functools.cache
def _bytes_of() -> dict[str, int]:
    return {symbol: byte for byte, symbol in byte_symbols().items()}

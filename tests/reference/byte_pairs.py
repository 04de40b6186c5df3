"""Byte-pair encoding as GPT-2 does it, naively: one character at a time, one merge at a time.

A text is cut into pieces (contractions, runs of letters, of digits, of other signs, each with at most one space in
front, and white space). The bytes of a piece become symbols; while any two neighbours are in the list of merges, all
places of the pair that is first in that list are joined, from left to right.
"""

from __future__ import annotations

import unicodedata

CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")


def byte_symbols() -> dict[int, str]:
    """The printable character that stands for each byte: itself, or one from 256 on for bytes that do not print."""
    printing = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = {byte: chr(byte) for byte in printing}
    extra = 0
    for byte in range(256):
        if byte not in symbols:
            symbols[byte] = chr(256 + extra)
            extra += 1
    return symbols


def kind(character: str) -> str:
    if character.isspace() and character not in "\x1c\x1d\x1e\x1f":
        return "space"
    return {"L": "letter", "N": "number"}.get(unicodedata.category(character)[0], "other")


def pieces(text: str) -> list[str]:
    """The pieces of a text; together they are the text."""
    found = []
    start = 0
    while start < len(text):
        stop = start
        for contraction in CONTRACTIONS:
            if text.startswith(contraction, start):
                stop = start + len(contraction)
                break
        if stop == start:
            first = start + 1 if text[start] == " " else start
            if first < len(text) and kind(text[first]) != "space":
                stop = first
                while stop < len(text) and kind(text[stop]) == kind(text[first]):
                    stop += 1
        if stop == start:  # white space; the last of it is left for the word behind it
            stop = start
            while stop < len(text) and kind(text[stop]) == "space":
                stop += 1
            if stop < len(text) and stop - start > 1:
                stop -= 1
        found.append(text[start:stop])
        start = stop
    return found


def encode(text: str, merges: list[tuple[str, str]], numbers: dict[str, int]) -> list[int]:
    """The tokens of a text."""
    symbols = byte_symbols()
    tokens = []
    for piece in pieces(text):
        parts = [symbols[byte] for byte in piece.encode()]
        while True:
            pairs = [(parts[place], parts[place + 1]) for place in range(len(parts) - 1)]
            best = [merge for merge in merges if merge in pairs]
            if not best:
                break
            joined, place = [], 0
            while place < len(parts):
                if place + 1 < len(parts) and (parts[place], parts[place + 1]) == best[0]:
                    joined.append(parts[place] + parts[place + 1])
                    place += 2
                else:
                    joined.append(parts[place])
                    place += 1
            parts = joined
        tokens += [numbers[part] for part in parts]
    return tokens


def decode(tokens: list[int], numbers: dict[str, int]) -> str:
    """The text of some tokens."""
    names = {number: name for name, number in numbers.items()}
    bytes_of = {symbol: byte for byte, symbol in byte_symbols().items()}
    return bytes(bytes_of[symbol] for token in tokens for symbol in names[token]).decode()

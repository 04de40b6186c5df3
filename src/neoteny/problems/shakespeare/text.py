"""EncodedText: a text as numbers of words, and each word as numbers of tokens; one copy per process.

A word is what white space separates. It is encoded with a space in front, also the first, so that its tokens do not
depend on its neighbours: the pieces of the byte-pair encoding end where words do. Tokens are numbered among those
that occur; as a permutation of words keeps the words, all tasks have the same tokens.

Before this: `byte_pairs.py`, `generated.py`, `data/datasets.py`; after it: `permuted.py`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from neoteny.problems.data.datasets import DATASETS, find
from neoteny.problems.data.files import DataError, content_of
from neoteny.problems.shakespeare.byte_pairs import BytePairs, read_byte_pairs
from neoteny.problems.shakespeare.generated import FINGERPRINT, generated_pairs, generated_words

TOKENS = {"shakespeare": 18_983, "shakespeare_start": 5_774, "shakespeare_page": 757}
"""Tokens that occur in a text whose file is needed to count them."""
WORDS = {"shakespeare_start": 40_000, "shakespeare_page": 1_500}
"""Words of the texts that are the beginning of Shakespeare: fewer tokens occur, so that an update takes less time."""
SOURCES = (*TOKENS, "synthetic")
_VERSION = "1"  # of how words are found and encoded


@dataclass(frozen=True, eq=False)
class EncodedText:
    """A text.

    Attributes:
        text: numbers of words in the order of the text, int32; a word's number is its place in `words`.
        words: the different words, in the order in which they first occur.
        tokens: the tokens of all words, one word after the other, numbered among those that occur; int32.
        starts: where the tokens of each word begin, and at its end their number; int64 (words + 1,).
        known: the encoder's own number of each token that occurs, smallest first; int64.
        fingerprint: identifies the text and its table.
    """

    text: np.ndarray
    words: tuple[str, ...]
    tokens: np.ndarray
    starts: np.ndarray
    known: np.ndarray
    fingerprint: str

    def first_tokens(self, order: np.ndarray, count: int) -> np.ndarray:
        """The first tokens of the text in which word i is written as word order[i]; int32 (count,).

        Raises:
            ValueError: the text has fewer words than `count`, so it might have too few tokens.
        """
        if count > len(self.text):
            raise ValueError(f"Expected at most {len(self.text):,} tokens, one per word of the text; got {count:,}.")
        written = order[self.text[:count]]  # a word has at least one token
        lengths = np.diff(self.starts)[written]
        written = written[: int(np.searchsorted(lengths.cumsum(), count)) + 1]
        lengths = lengths[: len(written)]
        ends = lengths.cumsum()
        within = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        return self.tokens[np.repeat(self.starts[written], lengths) + within][:count]


def encode_words(words: Sequence[str], pairs: BytePairs, fingerprint: str) -> EncodedText:
    """A text of these words, encoded."""
    places: dict[str, int] = {}
    text = np.array([places.setdefault(word, len(places)) for word in words], np.int32)
    found = [pairs.encode(f" {word}") for word in places]
    known, numbers = np.unique(np.array(list(itertools.chain.from_iterable(found)), np.int64), return_inverse=True)
    starts = np.array([0, *itertools.accumulate(map(len, found))], np.int64)
    return EncodedText(text, tuple(places), numbers.astype(np.int32), starts, known, fingerprint)


def count_tokens(source: str) -> int:
    """How many different tokens the text of a source has."""
    return len(_generated().known) if source == "synthetic" else TOKENS[source]


def open_text(source: str, data: Path | str | None = None) -> EncodedText:
    """The text of a source: "shakespeare", the beginning of it, or "synthetic".

    Raises:
        DataError: data is missing or corrupt.
    """
    return _generated() if source == "synthetic" else _read(find("shakespeare", data).resolve(), source)


@functools.lru_cache(maxsize=2)
def _read(folder: Path, source: str) -> EncodedText:
    """The text, or its beginning, and the tables in a folder that was checked."""
    text, numbers, merges = (content_of(folder, file).decode() for file in DATASETS["shakespeare"].contents)
    digest = "-".join(file.sha256[:12] for file in DATASETS["shakespeare"].contents)
    words = text.split()[: WORDS.get(source)]
    encoded = encode_words(words, read_byte_pairs(numbers, merges), f"{digest}-{_VERSION}")
    if len(encoded.known) != TOKENS[source]:
        raise DataError(f"{folder}: expected {TOKENS[source]:,} different tokens; got {len(encoded.known):,}.")
    return encoded


@functools.cache
def _generated() -> EncodedText:
    return encode_words(generated_words(), generated_pairs(), f"{FINGERPRINT}-{_VERSION}")

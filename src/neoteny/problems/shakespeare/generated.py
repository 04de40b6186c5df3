"""A generated text and a small byte-pair table: made in memory, the same everywhere; they need no download.

The text has words of a few syllables. Frequent words are short, a word's successor is one of a few, so that there is
something to learn. The table is what byte-pair encoding gives for the text: the most frequent pair is joined,
again and again. Only uniform draws and whole numbers are used.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter

from neoteny.problems.draws import draw_whole
from neoteny.problems.shakespeare.byte_pairs import BytePairs, byte_symbols

FINGERPRINT = "generated-text-1"
"""Version of the generated text: increase it when it changes."""

WORDS = 40_000
DIFFERENT_WORDS = 120
MERGES = 60
_SUCCESSORS = 6
_SEED = 20_230_613
_CONSONANTS, _VOWELS = "bdfgklmnprst", "aeiou"


@functools.cache
def generated_words() -> tuple[str, ...]:
    """The words of the text in their order, 40,000 of 120 different ones.

    Example:
        >>> len(generated_words()), len(set(generated_words()))
        (40000, 120)
    """
    known = _vocabulary()
    following = draw_whole([_SEED], 0, "generated.following", 0, len(known) * _SUCCESSORS, len(known))[0]
    successors = following.view(len(known), _SUCCESSORS).tolist()
    choices = draw_whole([_SEED], 0, "generated.choices", 0, WORDS, _SUCCESSORS)[0].tolist()
    anywhere = draw_whole([_SEED], 0, "generated.anywhere", 0, WORDS, len(known))[0].tolist()
    number, found = 0, []
    for place, choice in enumerate(choices):
        # Every eighth word is any word, so that none is left out and no small circle of words is closed.
        number = anywhere[place] if place % 8 == 0 else successors[number][choice]
        found.append(known[number])
    return tuple(found)


@functools.cache
def generated_pairs() -> BytePairs:
    """A byte-pair table for the text: its letters, the space, and 60 merges."""
    symbols = byte_symbols()
    counts = Counter(generated_words())
    spelled = {word: [symbols[byte] for byte in f" {word}".encode()] for word in sorted(counts)}
    tokens = sorted({symbol for parts in spelled.values() for symbol in parts})
    merges: list[tuple[str, str]] = []
    for _ in range(MERGES):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in spelled.items():
            for pair in itertools.pairwise(parts):
                pairs[pair] += counts[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        tokens.append("".join(best))
        spelled = {word: _joined(parts, best) for word, parts in spelled.items()}
    return BytePairs({token: number for number, token in enumerate(tokens)}, merges)


def _vocabulary() -> list[str]:
    """Different words of one to three syllables, the shortest first."""
    syllables = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]
    picks = draw_whole([_SEED], 0, "generated.syllables", 0, 6 * DIFFERENT_WORDS, len(syllables))[0].tolist()
    words = ("".join(syllables[pick] for pick in picks[3 * n : 3 * n + 1 + n % 3]) for n in range(2 * DIFFERENT_WORDS))
    return sorted(dict.fromkeys(words), key=lambda word: (len(word), word))[:DIFFERENT_WORDS]


def _joined(parts: list[str], pair: tuple[str, str]) -> list[str]:
    found: list[str] = []
    for part in parts:
        if found and (found[-1], part) == pair:
            found[-1] += part
        else:
            found.append(part)
    return found

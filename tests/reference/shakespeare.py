"""Permuted Shakespeare, naively: a task's text is written out word by word and then encoded as one text.

Words are what white space separates, in the order in which they first occur. In a task word i is written as word
order[i]. The first tokens of the new text, with a space in front of every word, are cut into rows of context + 1.
"""

from __future__ import annotations

import numpy as np

from reference import byte_pairs


def vocabulary(words: list[str]) -> list[str]:
    """The different words, first come first."""
    found: list[str] = []
    for word in words:
        if word not in found:
            found.append(word)
    return found


def occurring(words: list[str], merges: list[tuple[str, str]], numbers: dict[str, int]) -> list[int]:
    """The tokens that the text has, smallest first."""
    return sorted({token for word in words for token in byte_pairs.encode(f" {word}", merges, numbers)})


def rows(
    words: list[str],
    order: np.ndarray,
    count: int,
    length: int,
    merges: list[tuple[str, str]],
    numbers: dict[str, int],
) -> np.ndarray:
    """The task's rows of tokens (count, length), numbered among those that occur."""
    known = vocabulary(words)
    among = {token: place for place, token in enumerate(occurring(words, merges, numbers))}
    text, tokens = "", []
    for word in words:
        text += " " + known[order[known.index(word)]]
        if len(text) > 8 * count * length:
            break
    tokens = [among[token] for token in byte_pairs.encode(text, merges, numbers)]
    return np.array(tokens[: count * length]).reshape(count, length)


def batch(table: np.ndarray, order: np.ndarray, step: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of an update; order (epochs, count) is that of the rows in each epoch."""
    per_epoch = len(table) // size
    epoch, place = divmod(step, per_epoch)
    chosen = table[order[epoch][place * size : (place + 1) * size]]
    return chosen[:, :-1], chosen[:, 1:]

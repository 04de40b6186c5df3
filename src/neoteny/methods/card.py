"""Card: what the table of all methods says of one; `docs/methods.md` is made from the cards and the docstrings."""

from __future__ import annotations

from dataclasses import dataclass

FAMILIES = (
    "resets of units",
    "resets and projections of weights",
    "regularisers",
    "optimizers",
    "networks",
)
"""The sections of the table, in its order."""


@dataclass(frozen=True)
class Card:
    """One row of the table of methods.

    Attributes:
        family: one of `FAMILIES`.
        acts_on: what it changes ("hidden units", "all weights and biases", "gradients of weights").
        when: at which moments it acts ("every `period` updates", "at every update", "at a task boundary").
        keeps: what it stores beside the network ("nothing", "two numbers per unit", "a copy of the weights").
        reference: authors, year and title of the paper, or "" for common knowledge.

    Example:
        >>> Card("regularisers", "all weights", "at every update", "nothing", "").family
        'regularisers'
    """

    family: str
    acts_on: str
    when: str
    keeps: str
    reference: str

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"A card's family must be one of {', '.join(FAMILIES)}; got {self.family!r}.")

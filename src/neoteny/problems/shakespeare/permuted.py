"""Permuted Shakespeare: in every task the words of a text change their meaning, and a small GPT learns it again.

A task draws a permutation of the text's different words and writes each word as another one. Its data are the first
tokens of the new text, cut into sequences, which are gone through several times, each time in another order. What is
learnt is the next token at every position; the learner is not told of task changes.

The protocol is that of the paper on self-normalised resets. It does not say how white space is encoded: here every
word has one space in front. Nor does it say in which order sequences come: here in a new random order each time.

Before this: `text.py` encodes the text, `draws.py` draws; after it: `suite/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from neoteny.problems.draws import draw_whole, shuffle
from neoteny.problems.problem import Plan, Problem, Stream, check_range
from neoteny.problems.shakespeare.text import SOURCES, EncodedText, count_tokens, open_text
from neoteny.text import check_whole


@dataclass(frozen=True)
class PermutedShakespeare(Problem):
    """Prediction of the next token in a text whose words get a new permutation in every task.

    The defaults are the published ones: 33,024 tokens per task, gone through 100 times, in 3,200 updates.

    Args:
        tasks: permutations.
        sequences_per_task: sequences of `context` + 1 tokens, from the beginning of the text; a multiple of
            `batch_size`.
        epochs: how often a task's sequences are gone through.
        batch_size: sequences per update.
        context: inputs of a sequence; each has the token behind it as its target.
        source: "shakespeare", 42 works encoded with GPT-2's tables, of which 18,983 tokens occur; "shakespeare_start",
            their first 40,000 words with 5,774 tokens; "shakespeare_page", their first 1,500 words with 757 tokens; or
            "synthetic", a generated text that needs no download.

    Example:
        >>> PermutedShakespeare().steps_per_task
        3200
    """

    tasks: int = 500
    sequences_per_task: int = 256
    epochs: int = 100
    batch_size: int = 8
    context: int = 128
    source: str = "shakespeare"

    loss: ClassVar[str] = "token_cross_entropy"
    performance: ClassVar[str] = "loss"
    tokens: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole(self, tasks=1, sequences_per_task=1, epochs=1, batch_size=1, context=1)
        if self.sequences_per_task % self.batch_size:
            raise ValueError(
                f"PermutedShakespeare: sequences_per_task must be a multiple of batch_size; got "
                f"{self.sequences_per_task} and {self.batch_size}."
            )
        if self.source not in SOURCES:
            known = ", ".join(map(repr, SOURCES))
            raise ValueError(f"PermutedShakespeare: source must be one of {known}; got {self.source!r}.")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.context,)

    @property
    def outputs(self) -> int:
        return count_tokens(self.source)

    @property
    def steps_per_task(self) -> int:
        return self.epochs * self.sequences_per_task // self.batch_size

    def open(self, data: Path | str | None = None) -> PermutedTextStream:
        text = open_text(self.source, data)
        wanted = self.sequences_per_task * (self.context + 1)
        if wanted > len(text.text):
            raise ValueError(
                f"PermutedShakespeare: sequences_per_task times context + 1 must be at most {len(text.text):,}, the "
                f"words of {self.source!r}; got {wanted:,}."
            )
        return PermutedTextStream(self, text)


@dataclass
class PermutedTextStream(Stream):
    """The encoded text, one copy for all runs."""

    problem: PermutedShakespeare
    data: EncodedText

    def __post_init__(self) -> None:
        self.fingerprint = self.data.fingerprint

    def plan(self, seeds: Sequence[int], task: int) -> PermutedTextPlan:
        problem, length = self.problem, self.problem.context + 1
        rows = [
            self.data.first_tokens(
                shuffle([seed], task, "shakespeare.words", len(self.data.words))[0, 0].numpy(),
                problem.sequences_per_task * length,
            )
            for seed in seeds
        ]
        return PermutedTextPlan(
            tuple(seeds), task, torch.from_numpy(np.stack(rows)).unflatten(-1, (-1, length)), problem
        )


@dataclass
class PermutedTextPlan(Plan):
    """The sequences of one task.

    Attributes:
        sequences: tokens (n, sequences, context + 1), int32.
    """

    seeds: tuple[int, ...]
    task: int
    sequences: Tensor
    problem: PermutedShakespeare
    steps: int = field(init=False)
    steps_of_a_pass: int = field(init=False)

    def __post_init__(self) -> None:
        self.steps = self.problem.steps_per_task
        self.steps_of_a_pass = self.sequences.shape[1] // self.problem.batch_size

    def batches(self, start: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
        check_range(self, start, stop)
        runs, count, length = self.sequences.shape
        size = self.problem.batch_size
        first, last = start // self.steps_of_a_pass, -(-stop // self.steps_of_a_pass)
        order = shuffle(self.seeds, self.task, "shakespeare.order", count, first, max(last - first, 0)).flatten(1)
        begin = start * size - first * count
        chosen = order[:, begin : begin + (stop - start) * size].long()  # (n, sequences)
        rows = torch.gather(self.sequences, 1, chosen.unsqueeze(-1).expand(-1, -1, length)).long()
        rows = rows.view(runs, stop - start, size, length).transpose(0, 1).to(device)
        return rows[..., :-1].contiguous(), rows[..., 1:].contiguous()

    def probe(self, count: int, device: torch.device) -> Tensor:
        chosen = draw_whole(self.seeds, self.task, "shakespeare.probe", 0, count, self.sequences.shape[1])
        picked = chosen.unsqueeze(-1).expand(-1, -1, self.sequences.shape[2] - 1)
        return torch.gather(self.sequences, 1, picked).long().to(device)

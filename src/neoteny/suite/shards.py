"""Shard: a share of a sweep's stacks, for processes that do not talk to each other (`--shard 2/8`)."""

from __future__ import annotations

from dataclasses import dataclass

from neoteny.suite.stacks import PlannedStack, Run, stacks_of
from neoteny.suite.sweep import Sweep


@dataclass(frozen=True)
class Shard:
    """Every `count`-th stack, beginning with number `index`, which counts from 0.

    Which stack is whose depends on the sweep alone, not on what is finished. So shards that begin at different times,
    or are repeated, agree.

    Example:
        >>> Shard.parse("2/8")
        Shard(index=2, count=8)
    """

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From "INDEX/COUNT"; ValueError for anything else."""
        index, slash, count = text.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
            raise ValueError(f"expected INDEX/COUNT with INDEX from 0 to COUNT - 1, as in 0/4, got {text!r}")
        return cls(int(index), int(count))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def keep(self, sweep: Sweep, runs: list[Run], stacks: list[PlannedStack]) -> list[PlannedStack]:
        """Those of the stacks that are in this share.

        Args:
            sweep: where they come from.
            runs: all runs of the stage, finished or not: they number the stacks.
            stacks: what is left to train.
        """
        if self.count == 1:
            return stacks
        numbers = {run.run_id: number for number, each in enumerate(stacks_of(sweep, runs, ())) for run in each.runs}
        return [stack for stack in stacks if numbers[stack.runs[0].run_id] % self.count == self.index]


WHOLE = Shard()

"""A network's initial weights follow from its seed alone, also where several threads build networks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from neoteny import experiments
from neoteny.draws.seeded import seeded
from neoteny.suite.stacks import Run, runs_of

ROUNDS = 40


def test_threads_that_build_networks_at_once_get_those_of_their_seeds() -> None:
    sweep = experiments.load("mnist-methods").make_sweep("smoke")
    runs = runs_of(sweep, sweep.settings[:1], "cpu", range(6))

    def weights(run: Run) -> list[torch.Tensor]:
        return [parameter.detach() for parameter in run.make_network(torch.float32).parameters()]

    expected = [weights(run) for run in runs]

    def count_wrong(number: int) -> int:
        wrong = 0
        for _ in range(ROUNDS):
            built = weights(runs[number])
            wrong += any(not torch.equal(mine, other) for mine, other in zip(built, expected[number], strict=True))
        return wrong

    with ThreadPoolExecutor(len(runs)) as pool:
        assert list(pool.map(count_wrong, range(len(runs)))) == [0] * len(runs)


def test_the_generator_is_as_it_was() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with seeded(-1):
        torch.rand(7)
    assert torch.equal(torch.rand(3), expected)

"""A network's initial weights follow from its seed alone, also where several threads build networks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
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


def test_two_networks_of_one_process_without_turns_are_those_that_were_recorded() -> None:
    """What two threads once made of seeds 2 (Adam) and 0 (shrink and perturb) at 100 units, with the mean absolute
    weights that their results have for the first task: the draws of both, in this order, from the stream of seed 2."""
    layers = [(784, 100, 2**0.5), (100, 100, 2**0.5), (100, 100, 2**0.5), (100, 10, 1.0)]
    generator = torch.Generator().manual_seed(2)
    # Torch's own initial weights of both, but for the biases of Adam's output layer, and less what was drawn before.
    torch.rand(99_700 + 21_210, generator=generator)
    weights: dict[str, list[torch.Tensor]] = {"S&P": [], "Adam": []}
    order = ["S&P", "", "Adam", "S&P", "S&P", "Adam", "Adam", "S&P", "Adam"]
    for owner in order:
        if not owner:
            torch.rand(10, generator=generator)
            continue
        inputs, outputs, gain = layers[len(weights[owner])]
        bound = gain * (3 / inputs) ** 0.5
        weights[owner].append(torch.empty(inputs * outputs).uniform_(-bound, bound, generator=generator))
    means = {owner: torch.cat(drawn).abs().double().mean().item() for owner, drawn in weights.items()}
    assert means == pytest.approx({"Adam": 0.060222972731884, "S&P": 0.060133454438399125}, rel=1e-14)

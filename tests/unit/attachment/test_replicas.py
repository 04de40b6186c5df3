"""Attachments under DistributedDataParallel: every rank stays the same, and is as one process with the whole batch."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import replicas
from tests.support.replicas import Trained

TWO = (
    replicas.hundreds,
    replicas.utilities,
    replicas.uneven,
    replicas.accumulated,
    replicas.summed,
    replicas.of_first,
    replicas.combined,
    replicas.gathered,
    replicas.joined,
    replicas.refused,
)
FOUR = (replicas.uneven, replicas.joined)
"""`hundreds` on four ranks is slow, and a test of its own."""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What two ranks returned, by scenario."""
    found = replicas.run(TWO, 2, tmp_path_factory.mktemp("two"))
    return {scenario.__name__: each for scenario, each in zip(TWO, found, strict=True)}


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What four ranks returned, by scenario."""
    found = replicas.run(FOUR, 4, tmp_path_factory.mktemp("four"))
    return {scenario.__name__: each for scenario, each in zip(FOUR, found, strict=True)}


@functools.cache
def alone(name: str) -> Any:
    """What one process returns with the whole batch."""
    return getattr(replicas, name)(0, 1, Path())


def assert_equal_ranks(ranks: list[Trained], least: int) -> None:
    assert len({each.digest for each in ranks}) == 1
    assert all(each.replaced >= least for each in ranks), ranks[0].replaced


def assert_as_alone(found: Trained, expected: Trained) -> None:
    assert found.replaced == expected.replaced > 0
    for name, value in expected.weights.items():
        torch.testing.assert_close(found.weights[name], value, rtol=1e-8, atol=1e-8)
    _assert_close(found.state, expected.state)


def _assert_close(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            _assert_close(found[key], expected[key])
    elif isinstance(expected, list):
        for mine, other in zip(found, expected, strict=True):
            _assert_close(mine, other)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-8)
    else:
        assert found == expected


def test_ranks_are_bit_identical_after_500_updates_with_hundreds_of_replacements(
    two: dict[str, list[Any]],
) -> None:
    assert_equal_ranks(two["hundreds"], least=300)


@pytest.mark.slow
def test_so_are_four_ranks(tmp_path: Path) -> None:
    (found,) = replicas.run((replicas.hundreds,), 4, tmp_path)
    assert_equal_ranks(found, least=300)


def test_every_utility_is_that_of_the_whole_batch(two: dict[str, list[Any]]) -> None:
    for name, expected in alone("utilities").items():
        assert_equal_ranks([rank[name] for rank in two["utilities"]], least=1)
        assert_as_alone(two["utilities"][0][name], expected)


def test_batches_of_other_sizes_and_empty_ones_count_by_their_rows(
    two: dict[str, list[Any]], four: dict[str, list[Any]]
) -> None:
    for found in (two, four):
        assert_equal_ranks(found["uneven"], least=10)
        assert_as_alone(found["uneven"][0], alone("uneven"))


def test_passes_without_synchronisation_count_at_the_next_update(two: dict[str, list[Any]]) -> None:
    assert_equal_ranks(two["accumulated"], least=10)
    assert_as_alone(two["accumulated"][0], alone("accumulated"))


def test_sums_of_passes_are_added_over_ranks(two: dict[str, list[Any]]) -> None:
    assert_equal_ranks(two["summed"], least=10)


def test_the_first_rank_alone_can_count(two: dict[str, list[Any]]) -> None:
    assert_equal_ranks(two["of_first"], least=10)
    assert_as_alone(two["of_first"][0], alone("of_first"))


def test_methods_with_draws_and_anchors_begin_with_the_first_ranks_state(two: dict[str, list[Any]]) -> None:
    assert_equal_ranks(two["combined"], least=10)


def test_methods_that_read_in_their_own_way_see_the_whole_batch(two: dict[str, list[Any]]) -> None:
    assert_equal_ranks(two["gathered"], least=10)
    assert_as_alone(two["gathered"][0], alone("gathered"))


def test_ranks_that_have_no_batch_left_stay_the_same(two: dict[str, list[Any]], four: dict[str, list[Any]]) -> None:
    for found in (two, four):
        digests = {each[0] for each in found["joined"]}
        assert len(digests) == 1
        assert all(each[1] > 10 for each in found["joined"])


def test_mistakes_are_told_on_every_rank(two: dict[str, list[Any]]) -> None:
    expected = [
        "The ranks have attached different things",
        "Join([ddp, plastic])",
        "the wrapped model must come first",
        "a second pass began before plastic.step()",
        "'0' in the model is a DistributedDataParallel, which is not supported inside of a model",
        "CChain runs the network on inputs that each rank has for itself",
        "capturable=True is for one device",
        "capturable=True is for one device",
    ]
    for messages in two["refused"]:
        for message, part in zip(messages, expected, strict=True):
            assert part in message


def test_a_run_whose_rank_was_killed_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("whole", "killed", "resumed")]
    for folder in folders:
        folder.mkdir()
    whole = replicas.run([replicas.interrupted], 2, folders[0])[0]
    (tmp_path / "checkpoint.pt").unlink()
    (folders[1] / "kill").touch()
    with pytest.raises(RuntimeError, match="exit codes"):
        replicas.run([replicas.interrupted], 2, folders[1])
    resumed = replicas.run([replicas.interrupted], 2, folders[2])[0]
    assert len({*whole, *resumed}) == 1

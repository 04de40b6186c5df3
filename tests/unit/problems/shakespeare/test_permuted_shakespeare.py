"""Permuted Shakespeare: the stream against a naive transcription, its text, and its data."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from neoteny.problems import PermutedShakespeare
from neoteny.problems.data import datasets
from neoteny.problems.data.datasets import DATASETS, DataError, Dataset, describe, find
from neoteny.problems.data.files import File, checksum
from neoteny.problems.draws import shuffle
from neoteny.problems.shakespeare.generated import generated_pairs, generated_words
from neoteny.problems.shakespeare.permuted import PermutedTextStream
from neoteny.problems.shakespeare.text import TOKENS, WORDS, encode_words, open_text
from reference import shakespeare as naive
from support.problem_streams import CPU, SEEDS
from support.shared_data import SHARED

SMALL = PermutedShakespeare(tasks=4, sequences_per_task=6, epochs=3, batch_size=2, context=9, source="synthetic")


def test_the_published_numbers_are_the_defaults() -> None:
    problem = PermutedShakespeare()
    assert problem.sequences_per_task * (problem.context + 1) == 8 * 129 * 32
    assert (problem.steps_per_task, problem.tasks, problem.input_shape, problem.outputs) == (3200, 500, (128,), 18_983)
    assert not problem.higher_is_better


def test_batches_are_those_of_the_naive_stream() -> None:
    words, pairs = list(generated_words())[:100], generated_pairs()
    stream = PermutedTextStream(SMALL, encode_words(words, pairs, "some words"))
    known = naive.vocabulary(words)
    for task in (0, 3):
        plan = stream.plan(SEEDS, task)
        inputs, targets = plan.batches(0, plan.steps, CPU)
        for run, seed in enumerate(SEEDS):
            order = shuffle([seed], task, "shakespeare.words", len(known))[0, 0].numpy()
            table = naive.rows(words, order, 6, 10, list(pairs.merges), pairs.numbers)
            rows = shuffle([seed], task, "shakespeare.order", 6, 0, 3)[0].numpy()
            for step in range(plan.steps):
                expected = naive.batch(table, rows, step, 2)
                assert np.array_equal(inputs[step, run], expected[0])
                assert np.array_equal(targets[step, run], expected[1])


def test_an_epoch_has_every_sequence_once() -> None:
    plan = SMALL.open().plan([5], 1)
    inputs, _ = plan.batches(3, 6, CPU)
    seen = sorted(map(tuple, inputs.flatten(0, 2).tolist()))
    assert seen == sorted(map(tuple, plan.sequences[0, :, :-1].tolist()))
    assert plan.steps_of_a_pass == 3


def test_tokens_are_numbered_without_gaps_and_in_the_order_of_the_table() -> None:
    text, words, pairs = open_text("synthetic"), generated_words(), generated_pairs()
    assert len(text.known) == SMALL.outputs == int(text.tokens.max()) + 1
    assert naive.occurring(sorted(set(words)), list(pairs.merges), pairs.numbers) == text.known.tolist()
    same = text.first_tokens(np.arange(len(text.words)), 500)
    assert pairs.decode(text.known[same].tolist()) == (" " + " ".join(words))[: len(pairs.decode(text.known[same]))]


def test_a_task_longer_than_the_text_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at most 40,000, the words of 'synthetic'; got 129,000"):
        PermutedShakespeare(sequences_per_task=1000, source="synthetic").open()
    with pytest.raises(ValueError, match="at most 40,000 tokens"):
        open_text("synthetic").first_tokens(np.arange(120), 40_001)


def test_the_generated_text_is_the_same_on_every_machine() -> None:
    words = generated_words()
    assert words[:6] == ("ne", "la", "biri", "fe", "pute", "faku")
    plan = SMALL.open().plan([0], 0)
    assert plan.sequences[0, 0].tolist() == [17, 6, 30, 1, 11, 34, 60, 15, 11, 21]


def packed(folder: Path, contents: dict[str, bytes], zipped: bool) -> Dataset:
    """A dataset of these files, and the files in a folder."""
    folder.mkdir(parents=True)
    files = []
    for name, content in contents.items():
        path = folder / (f"{name}.gz" if zipped else name)
        (folder / "plain").write_bytes(content)
        files.append(File(name, len(content), checksum(folder / "plain")))
        path.write_bytes(gzip.compress(content) if zipped else content)
    (folder / "plain").unlink()
    return Dataset("little", "text", "two texts", "none", contents=tuple(files), obtain="Write it.")


@pytest.mark.parametrize("zipped", [True, False])
def test_files_are_known_by_what_is_in_them(cache: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool) -> None:
    folder = cache / "little"
    little = packed(folder, {"one.txt": b"words", "two.txt": b"more words"}, zipped)
    monkeypatch.setitem(datasets.DATASETS, "little", little)
    assert find("little") == folder
    assert next(row for row in describe() if row.dataset is little).state == "good"
    path = folder / ("two.txt.gz" if zipped else "two.txt")
    path.write_bytes(gzip.compress(b"other words") if zipped else b"other words")
    with pytest.raises(DataError, match=r"two\.txt.* is corrupt: expected 10 bytes .* found 11 .* Write it\."):
        find("little")
    path.write_bytes(b"no archive" if zipped else b"")
    with pytest.raises(DataError, match=r"is corrupt"):
        find("little")
    path.unlink()
    with pytest.raises(DataError, match=r"two\.txt is missing, with the ending \.gz and without"):
        find("little")


def test_where_the_text_is_missing_the_message_says_how_to_get_it(cache: Path) -> None:
    with pytest.raises(DataError, match=r"looked for works\.txt .*gpt2-encoder\.json"):
        PermutedShakespeare().open()


@pytest.mark.data
@pytest.mark.skipif(not (SHARED / "shakespeare").is_dir(), reason="needs the text of Shakespeare")
def test_the_real_text_opens() -> None:
    stream = PermutedShakespeare().open(SHARED)
    assert len(stream.data.text) == 905_018
    assert len(stream.data.words) == 74_315
    assert len(stream.data.known) == TOKENS["shakespeare"]
    inputs, targets = stream.plan([0, 1], 3).batches(31, 33, CPU)
    assert inputs.shape == (2, 2, 8, 128)
    assert torch.equal(inputs[..., 1:], targets[..., :-1])
    assert DATASETS["shakespeare"].contents[0].name == "works.txt"


@pytest.mark.data
@pytest.mark.skipif(not (SHARED / "shakespeare").is_dir(), reason="needs the text of Shakespeare")
@pytest.mark.parametrize(("source", "count"), [("shakespeare_start", 33_024), ("shakespeare_page", 1_056)])
def test_the_beginning_of_the_text_has_its_own_words_and_tokens(source: str, count: int) -> None:
    problem = PermutedShakespeare(source=source, sequences_per_task=8, context=count // 8 - 1)
    whole, start = open_text("shakespeare", SHARED), problem.open(SHARED).data
    assert np.array_equal(start.text, whole.text[: WORDS[source]])
    assert start.words == whole.words[: len(start.words)]
    assert len(start.known) == problem.outputs == TOKENS[source]
    assert set(start.known.tolist()) < set(whole.known.tolist())
    order = np.arange(len(start.words))
    same = start.known[start.first_tokens(order, count)]
    assert np.array_equal(same, whole.known[whole.first_tokens(np.arange(len(whole.words)), count)])

"""Byte-pair encoding: by hand, against a naive transcription, and against GPT-2's own tables."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neoteny.problems.data.datasets import DATASETS
from neoteny.problems.data.files import DataError, content_of
from neoteny.problems.shakespeare.byte_pairs import BytePairs, byte_symbols, pieces, read_byte_pairs
from neoteny.problems.shakespeare.generated import MERGES, generated_pairs, generated_words
from reference import byte_pairs as naive
from support.shared_data import SHARED

SYMBOLS = list(byte_symbols().values())
LETTERS = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("a", "a"), ("aa", "a"), ("e", "n"), ("Ã", "©")]
SMALL = BytePairs({token: number for number, token in enumerate([*SYMBOLS, *map("".join, LETTERS)])}, LETTERS)
SIGNS = st.sampled_from(["a", "t", "h", "e", "n", " ", "\n", "'", "s", "l", "3", ".", "é", "½", "日", "\x1c", "\u00a0"])


def test_encoding_by_hand() -> None:
    tokens = SMALL.numbers
    assert SMALL.encode("the") == [tokens["the"]]
    assert SMALL.encode(" then") == [tokens["Ġthe"], tokens["n"]]  # the pair e n comes too late
    assert SMALL.encode("aaaa") == [tokens["aa"], tokens["aa"]]  # from the left, so that no aaa remains
    assert SMALL.encode("aaaaa") == [tokens["aa"], tokens["aaa"]]
    assert SMALL.encode("t he") == [tokens["t"], tokens["Ġ"], tokens["h"], tokens["e"]]  # not across pieces
    assert SMALL.encode("é") == [tokens["Ã©"]]
    assert SMALL.encode("") == []


def test_pieces_by_hand() -> None:
    assert pieces("I'll  go, 'tis\n\n12th  ") == [
        "I",
        "'ll",
        " ",
        " go",
        ",",
        " '",
        "tis",
        "\n",
        "\n",
        "12",
        "th",
        "  ",
    ]
    assert pieces("'Tis they've") == ["'", "Tis", " they", "'ve"]
    assert pieces("½x²") == ["½", "x", "²"]


def test_every_byte_has_a_symbol_of_its_own() -> None:
    assert len(set(SYMBOLS)) == 256
    assert byte_symbols() == naive.byte_symbols()
    assert not any(symbol.isspace() for symbol in SYMBOLS)


@settings(max_examples=200, deadline=None)
@given(st.lists(SIGNS, max_size=25).map("".join))
def test_it_is_the_naive_encoding_and_round_trips(text: str) -> None:
    assert pieces(text) == naive.pieces(text)
    tokens = SMALL.encode(text)
    assert tokens == naive.encode(text, LETTERS, SMALL.numbers)
    assert SMALL.decode(tokens) == text == naive.decode(tokens, SMALL.numbers)


def test_pieces_are_those_of_the_published_pattern() -> None:
    regex = pytest.importorskip("regex")
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    for text in ("naïve  café ½²x 日本語\t\n a\u00a0b\u2003c\x1cd 'tis they've…—!? ", " x ", "\n\n x", "ǅ ⅷ ٣ a_b"):
        assert pieces(text) == regex.findall(pattern, text)


def test_the_generated_table_is_what_its_text_gives() -> None:
    pairs, words = generated_pairs(), generated_words()
    assert len(pairs.merges) == MERGES
    for word in sorted(set(words))[::10]:
        tokens = pairs.encode(f" {word}")
        assert tokens == naive.encode(f" {word}", list(pairs.merges), pairs.numbers)
        assert pairs.decode(tokens) == f" {word}"


def test_a_byte_without_a_token_and_a_token_without_a_byte_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no token for 'Z' in 'Z'"):
        generated_pairs().encode("Z")
    with pytest.raises(ValueError, match="got 9999"):
        generated_pairs().decode([9999])


@pytest.mark.parametrize(
    ("numbers", "merges", "words"),
    [
        ("[1]", "", "JSON object from tokens to numbers; got list"),
        ("{", "", "JSON object from tokens to numbers"),
        ('{"a": 0}', "a a a", "two tokens per line of merges; got 'a a a'"),
        ('{"a": 0}', "#version: 0.2\na b\n", "but 'b' has no number"),
        ('{"a": 0, "b": 0}', "", "one number to two tokens"),
    ],
)
def test_tables_of_another_form_are_refused(numbers: str, merges: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_byte_pairs(numbers, merges)


def test_tables_are_read() -> None:
    pairs = read_byte_pairs(json.dumps({"a": 0, "b": 1, "ab": 2}), "#version: 0.2\na b\n")
    assert pairs.encode("abab") == [2, 2]


@pytest.mark.data
@pytest.mark.skipif(not (SHARED / "shakespeare").is_dir(), reason="needs the text of Shakespeare")
def test_known_encodings_of_gpt2() -> None:
    folder = SHARED / "shakespeare"
    _, numbers, merges = (content_of(folder, file).decode() for file in DATASETS["shakespeare"].contents)
    pairs = read_byte_pairs(numbers, merges)
    assert pairs.encode("hello world") == [31373, 995]
    assert pairs.encode("Hello, world!") == [15496, 11, 995, 0]
    text = "To be, or not to be -- that's the question:\n\n  naïve ½ 日本 "
    assert pairs.decode(pairs.encode(text)) == text
    assert pairs.encode(text[:12]) == naive.encode(text[:12], list(pairs.merges), pairs.numbers)

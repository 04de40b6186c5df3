"""The tests fail on mistakes that public code makes; the default suite checks that each mistake still fits the code."""

from __future__ import annotations

import pytest

from support.mutations import MUTATIONS, ROOT, Mutation, run


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_the_mistake_fits_the_code(mutation: Mutation) -> None:
    text = (ROOT / "src" / "neoteny" / mutation.file).read_text()
    assert text.count(mutation.right) == 1
    assert all((ROOT / each).exists() for each in mutation.tests if each.startswith("tests/"))


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_the_mistake_is_caught(mutation: Mutation) -> None:
    caught, closing = run(mutation)
    assert caught, closing

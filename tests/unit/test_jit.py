"""The cache of compiled functions may fail: the functions are compiled instead."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from neoteny.jit import compiler


def compile_function(folder: Path) -> Any:
    """A new compiled function whose cache lies below the folder."""
    decorate = compiler()
    if decorate is None:
        pytest.skip("numba is not installed (the extra fast)")
    file = folder / "doubling.py"
    if not file.exists():
        file.write_text("def double(x):\n    return 2.0 * x\n")
    spec = importlib.util.spec_from_file_location("doubling", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return decorate(module.double)


def index_of(compiled: Any) -> Path:
    """The file in which numba looks the function up."""
    (found,) = Path(compiled.stats.cache_path).glob("*.nbi")
    return found


@pytest.mark.parametrize("content", [b"", b"\x80", b"no pickle"], ids=["empty", "cut", "other"])
def test_half_an_index_is_replaced(tmp_path: Path, content: bytes) -> None:
    compiled = compile_function(tmp_path)
    assert compiled(1.5) == 3.0
    index_of(compiled).write_bytes(content)
    again = compile_function(tmp_path)
    assert again(1.5) == 3.0
    assert not again.stats.cache_hits
    third = compile_function(tmp_path)
    assert third(1.5) == 3.0
    assert third.stats.cache_hits


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    compiled = compile_function(tmp_path)
    assert compiled(1.5) == 3.0
    index = index_of(compiled)
    index.unlink()
    index.mkdir()  # so that opening it fails, for root too
    again = compile_function(tmp_path)
    with pytest.warns(RuntimeWarning, match="cannot be kept in .*Is a directory.*NUMBA_CACHE_DIR"):
        assert again(1.5) == 3.0

"""A cache folder of its own for each test of problems and data."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and no $NEOTENY_DATA."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("NEOTENY_DATA", raising=False)
    return tmp_path / "neoteny"

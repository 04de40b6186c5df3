"""The version has one place, neoteny.__version__; the installed package and CITATION.cff say the same."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import neoteny

ROOT = Path(__file__).parents[2]


def test_the_citation_file_names_this_version() -> None:
    found = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert found == [neoteny.__version__]


def test_the_installed_package_has_this_version() -> None:
    assert metadata.version("neoteny") == neoteny.__version__


def test_pyproject_reads_the_version_from_the_package() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in text
    assert neoteny.__version__ not in text

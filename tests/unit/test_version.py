"""The version has one place, neoteny.__version__; what is built from here and CITATION.cff have the same."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools.config.pyprojecttoml import read_configuration

import neoteny

ROOT = Path(__file__).parents[2]


def test_the_citation_file_names_this_version() -> None:
    found = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert found == [neoteny.__version__]


def test_a_wheel_built_from_here_has_this_version() -> None:
    assert read_configuration(ROOT / "pyproject.toml")["project"]["version"] == neoteny.__version__


def test_pyproject_reads_the_version_from_the_package() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in text
    assert neoteny.__version__ not in text

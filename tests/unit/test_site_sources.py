"""What docs/conf.py makes of docstrings and of links before Sphinx reads them."""

from __future__ import annotations

import importlib.util
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from support.pages import ROOT

pytest.importorskip("sphinx", reason="sphinx is not installed (the extra docs)")


@pytest.fixture(scope="module")
def conf() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_conf", ROOT / "docs" / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"The term \(\lambda w\), in `weights`.", r"The term :math:`\lambda w`, in `weights`."),
        ("float64 (*R, n), |w| and name_ as they are", r"float64 (\*R, n), \|w\| and name\_ as they are"),
        ("an *important* word", "an *important* word"),
        ("`code that is\n  wrapped` and `f`s", "`code that is wrapped` and `f`\\ s"),
        ("    >>> a = 2 * b  # |c|\n    4\n\n2 * 3", "    >>> a = 2 * b  # |c|\n    4\n\n2 \\* 3"),
        (".. math::\n    a * |b|\n\n2 * 3", ".. math::\n    a * |b|\n\n2 \\* 3"),
        ("Args:\n    low, high: the band, y: too", "Args:\n    low,high: the band, y: too"),
        ("===  ===\na    *b\n===  ===\n\n2 * 3", "===  ===\na    *b\n===  ===\n\n2 \\* 3"),
    ],
)
def test_docstrings_are_read_as_they_are_meant(conf: ModuleType, written: str, read: str) -> None:
    lines = written.splitlines()
    conf.read_docstring(None, "function", "name", None, None, lines)
    assert "\n".join(lines) == read


def read_page(conf: ModuleType, page: str, text: str) -> str:
    app: Any = SimpleNamespace(env=SimpleNamespace(note_dependency=lambda path: None))
    source = [text]
    conf.read_page(app, page, source)
    return source[0]


@pytest.mark.parametrize(
    ("page", "link", "on_the_site"),
    [
        ("start", "../SECURITY.md", "security.md"),
        ("api/index", "../../CHANGELOG.md#a", "../changelog.md#a"),
        ("results", "../evidence/README.md", "evidence.md"),
        ("start", "attach.md#saving", "attach.md#saving"),
        ("start", "../gone.md", "../gone.md"),  # Sphinx says that it is not there
        ("start", "https://arxiv.org/abs/2306.13812", "https://arxiv.org/abs/2306.13812"),
    ],
)
def test_links_lead_to_pages_of_the_site(conf: ModuleType, page: str, link: str, on_the_site: str) -> None:
    assert read_page(conf, page, f"See [it]({link}).") == f"See [it]({on_the_site})."


def test_files_of_the_root_are_pages(conf: ModuleType) -> None:
    page = read_page(conf, "contributing", "On the site this page shows another.")
    assert page.startswith("# Contributing")
    assert "](adding-a-method.md)" in page
    assert "](docs/" not in page

"""The checker of the built site finds every kind of broken link, and lets a whole site pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.site_links import check, main

WHOLE = """<link rel="stylesheet" href="static/page.css"><h1 id="top">A page</h1>
<a href="#top">up</a> <a href="other.html#part%201">on</a> <a href="folder/">a folder</a> <a href="https://a.org/">away</a>
<a href="mailto:someone@a.org">a person</a> <img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name, text in {
        "index.html": WHOLE,
        "other.html": '<p id="part 1">',
        "folder/index.html": '<a href="../index.html#top">up</a>',
        "static/page.css": "body { background: url(picture.png) }",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_whole_site_passes(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(site) == ([], {"https://a.org/": 1})
    assert main(site) == 0
    assert "3 pages, 0 broken links" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('<a href="gone.html">', "index.html links to gone.html, which is not there"),
        ('<a href="other.html#part2">', "index.html links to other.html#part2: the page is there, the anchor is not"),
        ('<a href="#gone">', "index.html links to #gone: the page is there, the anchor is not"),
        ('<img src="gone.png">', "index.html loads gone.png, which is not there"),
        ('<script src="https://a.org/a.js">', "index.html loads https://a.org/a.js from another server"),
        ('<link rel="preconnect" href="//a.org">', "index.html loads //a.org from another server"),
        ("<style>@import 'https://a.org/font'</style>", "index.html loads https://a.org/font from another server"),
    ],
)
def test_what_is_broken_is_named(site: Path, text: str, complaint: str) -> None:
    (site / "index.html").write_text(text)
    wrong, _ = check(site)
    assert complaint in wrong
    assert main(site) == 1


def test_a_style_from_another_server_is_named(site: Path) -> None:
    (site / "static" / "page.css").write_text("@font-face { src: url('https://a.org/f.woff2') }")
    assert check(site)[0] == ["static/page.css loads https://a.org/f.woff2 from another server"]


def test_a_folder_without_pages_is_no_site(tmp_path: Path) -> None:
    assert main(tmp_path) == 1

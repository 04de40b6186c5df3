"""The page as a file: complete, self-contained, escaped, whole or not there. How it looks is test_report_browser's."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from neoteny.report.chart import Chart, Series
from neoteny.report.page import Report, render_page, write_report
from neoteny.suite.store.errors import StoreError
from support.made_up_report import EVIL, METHODS, make_report

VOID = {"meta", "br", "hr", "img", "input", "link", "path", "circle"}


class Outline(HTMLParser):
    """What a page is made of: its tags, attributes and text outside scripts; refuses tags that do not match."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.data = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            if self.tags[-1][1].get("id") == "charts":
                self.data += data
        elif not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def count(self, tag: str, **attributes: str) -> int:
        return sum(
            name == tag and all(found.get(key.rstrip("_")) == value for key, value in attributes.items())
            for name, found in self.tags
        )


@pytest.fixture(scope="module")
def page() -> str:
    return render_page(make_report())


@pytest.fixture(scope="module")
def outline(page: str) -> Outline:
    return Outline(page)


def test_the_page_shows_everything_it_was_given(outline: Outline) -> None:
    for expected in (
        "Four methods",
        "four-methods",
        "smoke scale",
        "24 of 24",
        "What differs:",
        "Six runs, one standard error.",
        "last tasks against BP",
        "CBP minus BP: 0.1 [0.09, 0.11] (6 runs), expected above 0",
        "does not hold",
        "inconclusive",
        "Figure 2",
        "Cannot be checked here",
        "Section 9",
        "Assumptions where the paper is silent",
        '"tasks": 40',
        "neoteny 0.1.0",
    ):
        assert expected in outline.text
    assert outline.count("div", class_="plot") == 5
    assert outline.count("li", class_="claim") == 3


def test_text_is_escaped_wherever_it_comes_from(page: str, outline: Outline) -> None:
    assert EVIL not in page
    assert "window.broken = true</script>" not in page
    assert outline.count("script") == 3
    assert outline.count("b") == 0
    assert outline.text.count(EVIL) >= 10


def test_the_page_asks_nothing_of_the_network(outline: Outline) -> None:
    for tag, attributes in outline.tags:
        assert "src" not in attributes, tag
        assert tag != "link"
        if tag == "a":
            assert (attributes["href"] or "").startswith("#")
    (policy,) = [found["content"] for _, found in outline.tags if found.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_the_charts_data_is_strict_json_with_gaps_as_null(outline: Outline) -> None:
    charts = json.loads(outline.data, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert [chart["title"] for chart in charts][:2] == ["Accuracy", "Dead units"]
    assert [series["key"] for series in charts[0]["series"]] == list(METHODS)
    assert charts[3]["series"][0]["y"] == [0.9, 0.8, None]
    assert charts[2]["logY"] is True
    assert all(low > 0 for series in charts[2]["series"] for low in series["low"])


def test_charts_have_words_and_toggles_have_states(outline: Outline) -> None:
    labels = [found["aria-label"] or "" for _, found in outline.tags if found.get("class") == "plot"]
    assert re.search(r"BP: from 0\.9\d* at 1 to 0\.8\d* at 40\.", labels[0])
    chips = [found for _, found in outline.tags if found.get("class") == "chip"]
    assert [chip["data-key"] for chip in chips] == list(METHODS)
    assert {chip["aria-pressed"] for chip in chips} == {"true"}
    assert outline.count("html", lang="en") == 1
    headings = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch("h[1-6]", tag)]
    assert headings.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(headings))


def test_with_many_toggles_every_chart_has_its_legend(outline: Outline) -> None:
    assert outline.count("ul", class_="legend") == 1  # the chart whose line is not named as its method
    names = [f"setting {number}" for number in range(11)]
    chart = Chart("Settings", "x", "y", [Series(name, [1], [1.0]) for name in names])
    many = Outline(render_page(Report("T", "x", "smoke", charts=[chart])))
    assert many.count("ul", class_="legend") == 1
    assert many.text.count("setting 10") == 2
    few = Outline(render_page(Report("T", "x", "smoke", charts=[replace(chart, series=chart.series[:3])])))
    assert few.count("ul", class_="legend") == 0


def test_small_multiples_show_a_shared_caption_once(outline: Outline) -> None:
    assert outline.text.count("Six runs, one standard error.") == 2  # the single chart, and the group of two


def test_lists_and_code_of_the_description_are_marked_up(page: str) -> None:
    assert "<p>What differs:</p>" in page
    assert "<li>one thing, <code>code</code> continued</li>" in page


def test_a_description_that_begins_with_the_title_does_not_repeat_it() -> None:
    report = Report("Four methods", "x", "smoke", description="Four methods.\n\nThe rest.")
    words = Outline(render_page(report)).text
    assert words.count("Four methods") == 2  # in the title of the window and in the heading
    assert "The rest." in words


def test_an_empty_report_is_a_page_without_the_charting_library() -> None:
    page = render_page(Report("Nothing yet", "x", "smoke"))
    assert len(page) < 50_000
    assert "Figures" not in Outline(page).text


def test_the_file_is_written_whole_and_replaces_the_old_one(tmp_path: Path) -> None:
    report = replace(make_report(), charts=())
    first = write_report(tmp_path / "new", report)
    assert first == tmp_path / "new" / "report.html"
    write_report(tmp_path / "new", replace(report, title="Second"))
    assert "<h1>Second</h1>" in first.read_text("utf-8")
    assert [path.name for path in first.parent.iterdir()] == ["report.html"]


def test_a_failed_write_leaves_the_old_page_and_no_debris(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.mkdir()  # a folder of that name cannot be replaced
    with pytest.raises(StoreError, match=r"report\.html"):
        write_report(tmp_path, Report("T", "x", "smoke"))
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_text_that_is_not_valid_unicode_does_not_stop_the_page(tmp_path: Path) -> None:
    path = write_report(tmp_path, Report("Odd \udcff title", "x", "smoke"))
    assert "Odd ? title" in path.read_text("utf-8")


def test_the_same_report_gives_the_same_page() -> None:
    assert render_page(make_report()) == render_page(make_report())

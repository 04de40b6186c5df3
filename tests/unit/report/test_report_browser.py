"""The page in a real browser: drawn without the network or an error, toggles, themes, phones, hostile text."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from neoteny.report.page import write_report
from support.made_up_report import METHODS, make_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (apt install chromium)")

BAND = "path.js-fill"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # A container's superuser may not use Chromium's sandbox; the page is our own.
        found = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def complaints() -> list[str]:
    """Errors of any page, and everything it requested from the network."""
    return []


@pytest.fixture(autouse=True)
def no_complaints(complaints: list[str]) -> Iterator[None]:
    yield
    assert complaints == []


@pytest.fixture(scope="module")
def open_page(browser: Browser, complaints: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Page]:
    address = write_report(tmp_path_factory.mktemp("page"), make_report()).as_uri()

    def leaves_page(url: str) -> bool:
        return url != address and not url.startswith(("blob:", "data:"))

    def open_one(**options: Any) -> Page:
        page = browser.new_context(viewport={"width": 1280, "height": 800}, offline=True, **options).new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if leaves_page(request.url) else None)
        page.goto(address)
        page.wait_for_selector("html[data-ready=yes]", timeout=30_000)
        return page

    return open_one


@pytest.fixture(scope="module")
def light_page(open_page: Callable[..., Page]) -> Page:
    """One page for all tests that leave it as they found it: half of a test's time is the charting library's start."""
    return open_page(color_scheme="light")


def count_drawn(page: Page, chart: int) -> int:
    """Lines of a chart that are really there, with a path or a point."""
    return page.evaluate(
        """chart => [...document.querySelectorAll(`#chart-${chart} .scatterlayer .trace`)].filter(trace =>
            [...trace.querySelectorAll("path.js-line, .points path")].some(path => path.getBBox().width
                || path.closest(".points"))).length""",
        chart,
    )


def list_visible(page: Page, chart: int) -> list[str]:
    return page.evaluate(
        "chart => document.getElementById(`chart-${chart}`).data.filter(trace => trace.visible && "
        "trace.hoverinfo !== 'skip').map(trace => trace.name)",
        chart,
    )


def read_colours(page: Page) -> dict[str, str]:
    return page.evaluate(
        """() => ({
            ground: getComputedStyle(document.body).backgroundColor,
            line: document.getElementById("chart-0").data.find(trace => trace.name === "BP"
                && trace.hoverinfo !== "skip").line.color,
            chip: getComputedStyle(document.querySelector(".chip .swatch path")).stroke,
            axis: document.querySelector("#chart-0 .xtick text").style.fill,
        })"""
    )


def wait_for_lines(page: Page, chart: int, count: int) -> None:
    page.wait_for_function(
        "([chart, count]) => document.querySelectorAll(`#chart-${chart} .scatterlayer .trace`).length === count",
        arg=[chart, count],
    )


def wait_for_axis(page: Page, colour: str) -> None:
    page.wait_for_function("colour => document.querySelector('#chart-0 .xtick text').style.fill === colour", arg=colour)


def test_all_charts_are_drawn_with_lines_and_bands(light_page: Page) -> None:
    bands = [4, 4, 4, 1, 0]  # the last has error bars
    for chart, lines in enumerate([4, 4, 4, 1, 1]):
        assert count_drawn(light_page, chart) == lines + bands[chart]
        assert light_page.locator(f"#chart-{chart} {BAND}").count() == bands[chart]
        size = light_page.locator(f"#chart-{chart}").bounding_box()
        assert size is not None
        assert size["height"] >= 250
    assert light_page.locator("#chart-4 .errorbar").count() == 3
    assert light_page.locator("#chart-4 .xtick text").all_text_contents() == ["0", "10⁻⁵", "10⁻⁴"]


def test_a_toggle_hides_and_shows_its_method_in_all_charts(light_page: Page) -> None:
    chip = light_page.get_by_role("button", name="CBP", exact=True)
    chip.click()
    wait_for_lines(light_page, 0, 6)
    assert chip.get_attribute("aria-pressed") == "false"
    for chart in (0, 1, 2):
        assert list_visible(light_page, chart) == ["BP", "L2", "S&amp;P"]
        assert light_page.locator(f"#chart-{chart} {BAND}").count() == 3
    assert list_visible(light_page, 4) == []
    chip.focus()
    light_page.keyboard.press("Space")
    wait_for_lines(light_page, 0, 8)
    assert chip.get_attribute("aria-pressed") == "true"
    assert list_visible(light_page, 4) == ["CBP"]


def test_a_double_click_shows_one_method_alone_and_a_button_brings_all_back(light_page: Page) -> None:
    assert light_page.locator("#all").is_disabled()
    light_page.locator(".chip[data-key=BP]").dblclick()
    wait_for_lines(light_page, 0, 2)
    assert list_visible(light_page, 0) == ["BP"]
    light_page.get_by_role("button", name="Show all").click()
    wait_for_lines(light_page, 0, 8)
    assert [chip.get_attribute("aria-pressed") for chip in light_page.locator(".chip").all()] == ["true"] * len(METHODS)


def test_hostile_text_stays_text(light_page: Page) -> None:
    assert light_page.evaluate("window.broken") is None
    assert light_page.locator("b").count() == 0
    assert "<script>window.broken = true</script>" in light_page.locator("h1").inner_text()
    assert "<script>window.broken" in (light_page.locator("#chart-3 .xtitle").text_content() or "")


def test_hovering_reads_out_every_line_at_that_place(light_page: Page) -> None:
    light_page.locator("#chart-0").scroll_into_view_if_needed()
    light_page.locator("#chart-0 .nsewdrag").hover()
    light_page.wait_for_selector("#chart-0 .hoverlayer .legend")
    words = light_page.locator("#chart-0 .hoverlayer").text_content() or ""
    assert "Task number" in words
    for method in METHODS:
        assert f"{method} :" in words
    assert "[" in words


@pytest.mark.parametrize("width", [320, 375, 1280])
def test_nothing_overflows_and_text_is_legible(light_page: Page, width: int) -> None:
    light_page.set_viewport_size({"width": width, "height": 800})
    light_page.wait_for_function(
        "() => [...document.querySelectorAll('.plot')].every("
        "one => one.querySelector('svg').clientWidth <= one.clientWidth)"
    )
    assert light_page.evaluate("document.documentElement.scrollWidth") <= width
    ends = "[...document.querySelectorAll('.plot, .card, figcaption')].map(one => one.getBoundingClientRect().right)"
    assert max(light_page.evaluate(ends)) <= width
    columns = light_page.evaluate("new Set([1, 2].map(i => document.getElementById(`chart-${i}`).offsetTop)).size")
    assert columns == (1 if width == 1280 else 2)  # small multiples: side by side, or below each other
    small = light_page.evaluate(
        "[...document.querySelectorAll('p, li, td, dd, figcaption, button')].filter(one => one.innerText && "
        "parseFloat(getComputedStyle(one).fontSize) < 12).length"
    )
    assert small == 0
    light_page.set_viewport_size({"width": 1280, "height": 800})


def test_the_preferred_theme_is_honoured_and_the_switch_changes_page_and_charts(
    light_page: Page, open_page: Callable[..., Page]
) -> None:
    light = read_colours(light_page)
    page = open_page(color_scheme="dark")
    dark = read_colours(page)
    assert all(light[part] != dark[part] for part in light)
    page.get_by_role("button", name="Switch to the light theme").click()
    wait_for_axis(page, light["axis"])
    assert read_colours(page) == light
    page.get_by_role("button", name="Switch to the dark theme").click()
    wait_for_axis(page, dark["axis"])
    assert read_colours(page) == dark
    light_page.emulate_media(color_scheme="dark")  # a change of preference while the page is open
    wait_for_axis(light_page, dark["axis"])
    assert read_colours(light_page) == dark
    light_page.emulate_media(color_scheme="light")
    wait_for_axis(light_page, light["axis"])


def test_a_chart_can_be_saved_as_a_picture(light_page: Page) -> None:
    with light_page.expect_download() as waiting:
        light_page.get_by_role("button", name="Save Dead units as a picture", exact=True).click()
    assert waiting.value.suggested_filename == "dead-units.png"
    assert waiting.value.path().read_bytes().startswith(b"\x89PNG")

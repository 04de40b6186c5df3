"""The page of `neoteny watch` in a real browser: it follows a folder by itself, in both themes, on phones."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from neoteny.cli import parser as cli
from neoteny.cli import watch as watching
from neoteny.cli.watch import Watch, make_server
from neoteny.suite.store.results import Results
from support.suite import write_experiment

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (apt install chromium)")
HOSTILE = "<img src=x onerror='window.broken = true'>"


class Sweep(NamedTuple):
    """A folder that is watched, and the command that continues it."""

    folder: Path
    address: str
    run: Callable[..., int]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweep]:
    """A sweep of which one method is finished."""
    place = tmp_path_factory.mktemp("watched")
    experiment = write_experiment(place / "small.py", tasks=3, examples=20)

    def run(*more: str) -> int:
        options = ("--out", str(place / "out"), "--jobs", "1", "--kernel", "reference")
        return cli.main(["run", str(experiment), *options, *more])

    assert run("--methods", "BP") == 0
    before = watching.FIGURES_SECONDS, watching.STATE_SECONDS, watching.PAGE_SECONDS
    watching.FIGURES_SECONDS, watching.STATE_SECONDS, watching.PAGE_SECONDS = 0.2, 0.1, (0.2, 0.3)
    watch = Watch(place / "out", experiment)
    server, address = make_server(watch)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    watch.start()
    yield Sweep(place / "out", address, run)
    watch.stop()
    server.shutdown()
    server.server_close()
    watching.FIGURES_SECONDS, watching.STATE_SECONDS, watching.PAGE_SECONDS = before


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # A container's superuser may not use Chromium's sandbox; the page is our own.
        found = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


@pytest.fixture
def open_page(browser: Browser, sweep: Sweep) -> Iterator[Callable[..., Page]]:
    """Opens the page; afterwards it must have complained of nothing and asked nobody else."""
    complaints: list[str] = []

    def open_one(width: int = 1280, **options: Any) -> Page:
        page = browser.new_context(viewport={"width": width, "height": 800}, **options).new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith((sweep.address, "data:", "blob:")) else complaints.append(request.url)
            ),
        )
        page.goto(sweep.address)
        page.wait_for_selector("html[data-ready=yes]", timeout=30_000)
        page.wait_for_selector("#chart-0 .scatterlayer .trace", timeout=30_000)
        return page

    yield open_one
    assert complaints == []


def read_tile(page: Page, name: str) -> str:
    return page.locator(f"#{name}").inner_text()


def wait_for_tile(page: Page, name: str, text: str) -> None:
    page.wait_for_function(
        "([name, text]) => document.getElementById(name).textContent === text", arg=[name, text], timeout=30_000
    )


def test_the_page_follows_the_folder_by_itself(open_page: Callable[..., Page], sweep: Sweep) -> None:
    page = open_page(color_scheme="light")
    assert page.locator("#chart-0 .scatterlayer .trace").count() == 4  # two lines and their bands
    assert read_tile(page, "runs") == "6 of 6"
    assert read_tile(page, "live-text") == "finished"
    page.locator(".chip").first.click()  # a line that is hidden stays hidden when the figures are drawn again
    results = Results.open(sweep.folder)
    (stack, entry) = next(iter(results.progress().items()))
    running = {"name": HOSTILE, "state": "running", "updates": 15, "updates_per_second": 2.0, "resumed_at": 5}
    parts = [sweep.folder / "parts" / f"{stack}{suffix}" for suffix in (".parquet", ".json")]
    for path in parts:
        path.rename(sweep.folder / path.name)
    results.write_progress(stack, {**entry, **running, "latest": None})
    with results.lock(stack):
        wait_for_tile(page, "live-text", "running")
        assert read_tile(page, "count-running") == "1"
        assert read_tile(page, "retried") == "1"
        assert read_tile(page, "rate") == "12.0 updates/s"
        assert read_tile(page, "to-go") == "23 s"
        assert HOSTILE in page.locator("#rows tr").first.inner_text()  # text of the folder stays text
        assert page.evaluate("window.broken") is None
        assert page.locator("#rows .state").first.inner_text() == "running"
    results.write_progress(stack, {**entry, "state": "failed", "error": f"it broke {HOSTILE}"})
    wait_for_tile(page, "count-failed", "1")
    assert HOSTILE in page.locator("#failures li").inner_text()
    for path in parts:
        (sweep.folder / path.name).rename(path)
    results.write_progress(stack, entry)
    assert sweep.run() == 0
    wait_for_tile(page, "runs", "12 of 12")
    page.wait_for_function("() => document.querySelectorAll('.chip').length === 4", timeout=30_000)
    assert page.locator("#failures").is_hidden()
    assert [chip.get_attribute("aria-pressed") for chip in page.locator(".chip").all()].count("false") == 1


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_overflows(open_page: Callable[..., Page], width: int) -> None:
    page = open_page(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ends = "[...document.querySelectorAll('.plot, .card, .tile')].map(one => one.getBoundingClientRect().right)"
    assert max(page.evaluate(ends)) <= width


def test_both_themes_and_the_switch_between_them(open_page: Callable[..., Page]) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    axis = "document.querySelector('#chart-0 .xtick text').style.fill"
    light, dark = open_page(color_scheme="light"), open_page(color_scheme="dark")
    assert light.evaluate(ground) != dark.evaluate(ground)
    before = dark.evaluate(axis)
    dark.get_by_role("button", name="Switch to the light theme").click()
    dark.wait_for_function(f"before => {axis} !== before", arg=before)
    assert dark.evaluate(ground) == light.evaluate(ground)


def test_a_server_that_is_gone_is_said(browser: Browser, sweep: Sweep) -> None:
    watch = Watch(sweep.folder)
    server, address = make_server(watch)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    page = browser.new_page()
    page.goto(address)
    page.wait_for_selector("html[data-ready=yes]", timeout=30_000)
    server.shutdown()
    server.server_close()
    page.context.set_offline(True)
    wait_for_tile(page, "live-text", "no connection")
    page.close()

"""Whether a built site hangs together: `python tests/support/site_links.py site`.

Every link to a page, a file or an anchor of the site must have its target, and nothing may be loaded from another
server. Links to other sites are counted and listed, not followed.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src")}
LOADED_LINKS = {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "modulepreload"}
REMOTE_STYLE = re.compile(r"(?:@import\s+|url\()[\"']?\s*((?:https?:)?//[^\"')\s]+)")


class Page(HTMLParser):
    """The anchors of a page, the links a reader can follow, and what a browser loads with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = REMOTE_STYLE.findall(text)
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value is not None}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        kinds = set(found.get("rel", "").split())
        for name, value in found.items():
            if (tag, name) in LOADED or (tag == "link" and name == "href" and kinds & LOADED_LINKS):
                self.loaded.append(value)
            elif name == "href":
                self.links.append(value)


def check(site: Path) -> tuple[list[str], dict[str, int]]:
    """What is wrong in the pages of a folder, in sentences; and the links to other sites with how often they appear."""
    pages = {path.resolve(): Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    wrong: list[str] = []
    others: dict[str, int] = defaultdict(int)
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        for address in page.loaded:
            if _is_remote(address):
                wrong.append(f"{name} loads {address} from another server")
            elif not address.startswith("data:") and not _file(path, address).is_file():
                wrong.append(f"{name} loads {address}, which is not there")
        for address in page.links:
            if _is_remote(address):
                others[address] += 1
            elif not urlsplit(address).scheme:
                wrong += [f"{name} {sentence}" for sentence in _missing(pages, path, address)]
    for path in sorted(site.rglob("*.css")):
        remote = REMOTE_STYLE.findall(path.read_text())
        wrong += [f"{path.relative_to(site)} loads {address} from another server" for address in remote]
    return wrong, dict(others)


def _missing(pages: dict[Path, Page], path: Path, address: str) -> list[str]:
    target = _file(path, address)
    if not target.is_file():
        return [f"links to {address}, which is not there"]
    anchor = unquote(urlsplit(address).fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return [f"links to {address}: the page is there, the anchor is not"]
    return []


def _file(path: Path, address: str) -> Path:
    """The file behind an address on a page; a folder's is its index."""
    place = unquote(urlsplit(address).path)
    target = (path.parent / place).resolve() if place else path
    return target / "index.html" if target.is_dir() else target


def _is_remote(address: str) -> bool:
    return address.startswith("//") or urlsplit(address).scheme in ("http", "https")


def main(site: Path) -> int:
    """Prints what was found; 1 if anything is wrong."""
    wrong, others = check(site)
    pages = len(list(site.rglob("*.html")))
    print(f"{site}: {pages} pages, {len(wrong)} broken links")
    for sentence in wrong:
        print(f"  {sentence}")
    print("links to other sites, not followed:")
    for address, times in sorted(others.items()):
        print(f"  {address} ({times})")
    return 1 if wrong or not pages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

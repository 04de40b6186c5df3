"""Writing `docs/`: claims.md, the marked blocks of results.md, and the figures, all from what `evidence/` keeps.

Before this: `keep`, which fills `evidence/`. The text of the pages is made by `pages`, the figures by `pictures`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from neoteny.publish.entries import ENTRIES, Entry
from neoteny.publish.keep import EvidenceError, find_kept
from neoteny.publish.pages import Findings, find, write_claims, write_overview, write_verdicts
from neoteny.publish.pictures import choose_pictures, draw
from neoteny.publish.summary import Summary
from neoteny.suite.store.files import write_atomically
from neoteny.text import nearest

LARGEST_FIGURES = 3_000_000
"""Bytes of all of docs/figures."""
_BLOCK = re.compile(r"(<!-- (claims|verdicts)(?: ([\w-]+))?: begin -->\n)(.*?)(<!-- \2(?: \3)?: end -->)", re.S)


def publish(root: Path, entries: Sequence[Entry] = ENTRIES, figures: bool = True) -> list[Path]:
    """Write the pages and figures; returns the files whose content changed.

    Args:
        root: of the repository, with `evidence/` and `docs/results.md`.
        entries: the folders, the largest scale first.
        figures: draw them, too.

    Raises:
        EvidenceError: a mark or a picture names what is not there, or the figures are too large.
    """
    found = {entry.name: find_kept(root, entry) for entry in entries}
    summaries = {name: summary for name, summary in found.items() if summary is not None}
    findings = find(entries, summaries)
    page = (root / "docs" / "results.md").read_text()
    sections = re.findall(r"^#+ (.+)$", page, re.M)
    written = {
        root / "docs" / "claims.md": write_claims(findings, sections).encode(),
        root / "docs" / "results.md": fill_blocks(page, summaries, findings, sections).encode(),
    }
    if figures:
        written |= _draw_all(root / "docs" / "figures", entries, summaries)
    changed = [path for path, content in written.items() if not path.exists() or path.read_bytes() != content]
    for path in changed:
        write_atomically(path, lambda file, content=written[path]: file.write(content))
    return changed


def fill_blocks(page: str, summaries: dict[str, Summary], findings: Findings, sections: Sequence[str]) -> str:
    """Fill what stands between marks: the table of all claims, and the verdicts of a folder.

    A block is `<!-- claims: begin -->` to `<!-- claims: end -->`, or `<!-- verdicts NAME: begin -->` with its end.
    """

    def fill(block: re.Match[str]) -> str:
        begin, kind, name, _, end = block.groups()
        if kind == "claims":
            return f"{begin}{write_overview(findings, sections)}\n{end}"
        if name not in summaries:
            raise EvidenceError(
                f"docs/results.md has a block {kind!r} of {name!r}, of which nothing is kept."
                f"{nearest(name or '', list(summaries))} Keep it with `python -m neoteny.publish --keep {name}`."
            )
        return f"{begin}{write_verdicts(findings, name)}\n{end}"

    filled, count = _BLOCK.subn(fill, page)
    if count != page.count(": begin -->") or "<!-- claims: begin -->" not in page:
        raise EvidenceError(
            "docs/results.md must have the block <!-- claims: begin --> ... <!-- claims: end -->, and every mark of "
            "the kinds claims and verdicts NAME its end; one is missing, misspelt or without its end."
        )
    return filled


def _draw_all(folder: Path, entries: Sequence[Entry], summaries: dict[str, Summary]) -> dict[Path, bytes]:
    drawn = {
        folder / f"{picture.file}.png": draw(picture, summaries[entry.name].charts)
        for entry in entries
        if entry.name in summaries
        for picture in choose_pictures(entry, summaries[entry.name])
    }
    others = sum(path.stat().st_size for path in folder.glob("*") if path not in drawn)
    size = others + sum(map(len, drawn.values()))
    if size > LARGEST_FIGURES:
        raise EvidenceError(
            f"docs/figures would have {size:,} bytes, of at most {LARGEST_FIGURES:,}; nothing was written. Choose "
            "fewer charts in publish/entries.py, or remove figures that no page shows."
        )
    return drawn

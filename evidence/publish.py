"""From results folders to the pages and figures of `docs/`: which claims hold, at which scale, by which numbers.

    python evidence/publish.py                       write docs/claims.md, docs/figures, blocks of docs/results.md
    python evidence/publish.py --keep hundred-units  first take results/hundred-units, as it is now, into evidence/

`entries.py` lists the folders. What is published comes from `evidence/` alone; running it twice changes nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from entries import ENTRIES, Entry
from keeping import LARGEST_EVIDENCE, EvidenceError, find_kept, is_whole, keep, measure, write_command
from pages import Findings, find, write_claims, write_overview, write_verdicts
from pictures import choose_pictures, draw
from summary import Summary

from neoteny.cli.show import explain
from neoteny.suite.store.files import write_atomically
from neoteny.suite.sweep import nearest

ROOT = Path(__file__).resolve().parents[1]
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
                f"{nearest(name or '', list(summaries))} Keep it with `python evidence/publish.py --keep {name}`."
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
            "fewer charts in evidence/entries.py, or remove figures that no page shows."
        )
    return drawn


def describe(root: Path, entries: Sequence[Entry]) -> list[str]:
    """A line for each entry: what is kept of it, or how to make it."""
    lines = []
    for entry in entries:
        kept, made = root / "evidence" / entry.folder, root / "results" / entry.folder
        if (summary := find_kept(root, entry)) is not None:
            what = "whole" if is_whole(root, entry) else "summary"
            runs = f"{summary.finished} of {summary.planned} runs, {len(summary.verdicts)} claims"
            lines.append(f"{entry.name}: {what}, {measure(kept) / 1000:,.0f} kB, {runs}")
        elif made.is_dir():
            lines.append(f"{entry.name}: not kept yet: python evidence/publish.py --keep {entry.name}")
        else:
            lines.append(f"{entry.name}: missing: {write_command(entry)}")
    return lines


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Keep what is asked for, publish, and say what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--keep",
        nargs="+",
        default=[],
        metavar="NAME",
        help="whose folder of results/ to take in first, with all views of it",
    )
    parser.add_argument("--no-figures", action="store_true", help="write the pages only")
    options = parser.parse_args(arguments)
    known = {entry.name: entry for entry in ENTRIES}
    try:
        for name in options.keep:
            if name not in known:
                raise EvidenceError(f"No entry {name!r} in evidence/entries.py.{nearest(name, list(known))}")
            kept = keep(root, [entry for entry in ENTRIES if entry.folder == known[name].folder])
            print(f"kept {kept.relative_to(root)}: {measure(kept):,} bytes")
        changed = publish(root, figures=not options.no_figures)
    except Exception as error:
        text = str(error) if isinstance(error, EvidenceError) else explain(error)
        if text is None:
            raise
        print(f"publish: {text}", file=sys.stderr)
        return 1
    print("\n".join(describe(root, ENTRIES)))
    size = measure(root / "evidence")
    print(f"evidence/ has {size:,} bytes" + (f", MORE than {LARGEST_EVIDENCE:,}" if size > LARGEST_EVIDENCE else ""))
    print("\n".join(f"wrote {path.relative_to(root)}" for path in changed) or "nothing changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""From results folders to the pages and figures of `docs/`: which claims hold, at which scale, by which numbers.

    python -m neoteny.publish                       write docs/claims.md, docs/figures, blocks of docs/results.md,
                                                    docs/methods.md and docs/field.md
    python -m neoteny.publish --keep hundred-units  first copy results/hundred-units, as it is now, into evidence/
    python -m neoteny.publish --field results/field-laptop   first keep what `neoteny run field` made there

Run it in the root of the repository. `neoteny.publish.entries` lists the folders. What is published comes from
`evidence/` alone; running it twice changes nothing.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and sys.path[:1] == [os.getcwd()]:  # as in neoteny/__main__.py
    del sys.path[0]

import argparse
from collections.abc import Sequence
from pathlib import Path

from neoteny.cli.explain import explain
from neoteny.publish.docs import publish
from neoteny.publish.entries import ENTRIES, Entry
from neoteny.publish.field import keep_field, publish_field
from neoteny.publish.keep import LARGEST_EVIDENCE, EvidenceError, find_kept, is_whole, keep, measure, write_command
from neoteny.publish.methods import publish_methods
from neoteny.text import nearest


def main(arguments: Sequence[str] | None = None, root: Path | None = None) -> int:
    """Keep the named folders, publish, and print what is there; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m neoteny.publish", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--keep",
        nargs="+",
        default=[],
        metavar="NAME",
        help="copy this folder of results/ into evidence/ first, with all its views",
    )
    parser.add_argument(
        "--field",
        type=Path,
        metavar="DIR",
        help="first keep the results of the field in this folder, or in those below it, in evidence/field",
    )
    parser.add_argument("--no-figures", action="store_true", help="write the pages only")
    options = parser.parse_args(arguments)
    root = root or Path.cwd()
    known = {entry.name: entry for entry in ENTRIES}
    try:
        if not (root / "docs" / "results.md").is_file():
            raise EvidenceError("There is no docs/results.md here. Run this in the root of the repository.")
        for name in options.keep:
            if name not in known:
                raise EvidenceError(f"No entry {name!r} in publish/entries.py.{nearest(name, list(known))}")
            kept = keep(root, [entry for entry in ENTRIES if entry.folder == known[name].folder])
            print(f"kept {kept.relative_to(root)}: {measure(kept):,} bytes")
        if options.field is not None:
            for path in keep_field(root, options.field):
                print(f"kept {path.relative_to(root)}: {path.stat().st_size:,} bytes")
        figures = not options.no_figures
        changed = [*publish(root, figures=figures), *publish_methods(root), *publish_field(root, figures)]
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


def describe(root: Path, entries: Sequence[Entry]) -> list[str]:
    """One line per entry: what is kept of it, or how to make it."""
    lines = []
    for entry in entries:
        kept, made = root / "evidence" / entry.folder, root / "results" / entry.folder
        if (summary := find_kept(root, entry)) is not None:
            what = "whole" if is_whole(root, entry) else "summary"
            runs = f"{summary.finished} of {summary.planned} runs, {len(summary.verdicts)} claims"
            lines.append(f"{entry.name}: {what}, {measure(kept) / 1000:,.0f} kB, {runs}")
        elif made.is_dir():
            lines.append(f"{entry.name}: not kept yet: python -m neoteny.publish --keep {entry.name}")
        else:
            lines.append(f"{entry.name}: missing: {write_command(entry)}")
    return lines


if __name__ == "__main__":
    sys.exit(main())

"""Whether real models attach at the first try: a table with groups, coverage, overhead and a check of the promise.

    python benchmarks/zoo.py [--family NAME] [--only NAME ...] [--quick] [--markdown] [--json FILE] [--show]

Each model is built from its configuration (nothing is downloaded), attached with its example and nothing else, and
trained until every group had a unit replaced. Each such tick is checked by `zoo_parts/check.py`, which does not use
the library's own indices. The models come from

    pip install '.[zoo]'      # timm, torchvision, transformers

and a family whose library is not installed is skipped. The exit status is 1 if a promise was broken, or if fewer models
than the bar attach at the first try (only where all families run).
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoo_parts.entry import Entry
    from zoo_parts.measure import Row

FAMILIES = {
    "handwritten": "zoo_parts.handwritten",
    "torchvision": "zoo_parts.torchvision_models",
    "timm": "zoo_parts.timm_models",
    "transformers": "zoo_parts.transformers_models",
}
BAR = 55
HEADER = ["model", "parameters", "first try", "attach s", "groups", "units", "covered", "overhead", "promise"]


def entries(family: str) -> list[Entry]:
    """The models of a family.

    Raises:
        ImportError: its library is not installed.
    """
    return importlib.import_module(FAMILIES[family]).ENTRIES


def read(path: Path | None) -> dict[tuple[str, str], Row]:
    """The rows of earlier runs, by family and name."""
    from zoo_parts.measure import Row

    if path is None or not path.exists():
        return {}
    rows = [{key: value for key, value in each.items() if key != "kept"} for each in json.loads(path.read_text())]
    return {(each["family"], each["name"]): Row(**each) for each in rows}


def cells(row: Row) -> list[str]:
    """One line of the table, under `HEADER`."""
    promise = "-"
    if row.groups:
        promise = "kept" if row.kept else f"{len(row.faults)} faults" if row.faults else "not all checked"
    return [
        f"{row.family} {row.name}",
        f"{row.parameters / 1e6:.2f}M",
        "yes" if row.first_try else "no",
        "-" if row.attach_seconds is None else f"{row.attach_seconds:.1f}",
        str(row.groups),
        str(row.units),
        "-" if row.covered is None else f"{100 * row.covered:.0f}%",
        "-" if row.overhead is None else f"{row.overhead:.2f}",
        promise,
    ]


def _first_lines(row: Row) -> list[str]:
    """Errors and faults, shortened for a line of progress."""
    return [text[:200].replace("\n", " / ") for text in (row.error, *row.faults[:3]) if text]


def markdown(rows: list[list[str]]) -> str:
    """The table as documentation has it."""
    lines = [HEADER, ["---"] * len(HEADER), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only these (default: all)")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="models whose name contains this")
    parser.add_argument("--quick", action="store_true", help="every fourth model, without the overhead")
    parser.add_argument("--no-overhead", action="store_true", help="do not measure the overhead")
    parser.add_argument("--limit", type=int, default=300, metavar="SECONDS", help="of CPU time, per model")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the rows there; rows of earlier runs stay")
    parser.add_argument("--show", action="store_true", help="run nothing, print what --json holds")
    options = parser.parse_args()
    import torch
    from zoo_parts.measure import measure

    from neoteny.text import render

    torch.set_num_threads(1)
    kept = read(options.json)
    skipped: list[str] = []
    for family in [] if options.show else options.family or FAMILIES:
        try:
            models = entries(family)
        except ImportError as missing:
            skipped.append(f"{family}: skipped, {missing.name} is not installed")
            continue
        if options.only:
            models = [entry for entry in models if any(name in entry.name for name in options.only)]
        for entry in models[:: 4 if options.quick and not options.only else 1]:
            overhead = not (options.quick or options.no_overhead)
            row = measure(family, entry, overhead=overhead, limit_seconds=options.limit)
            kept[family, entry.name] = row
            print("  ".join(cells(row)), *_first_lines(row), file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps([each.as_dict() for each in kept.values()], indent=1) + "\n")
    rows = sorted(kept.values(), key=lambda row: list(FAMILIES).index(row.family))
    table = [cells(row) for row in rows]
    print(markdown(table) if options.markdown else render(HEADER, table))
    first = sum(row.first_try for row in rows)
    broken = [row.name for row in rows if row.groups and not row.kept]
    kept = sum(row.kept for row in rows)
    print(
        f"\n{first} of {len(rows)} models attach at the first try; the promise was kept in {kept}", *skipped, sep="\n"
    )
    all_ran = not (options.only or options.quick or options.family or skipped)
    return int(bool(broken) or (all_ran and first < BAR))


if __name__ == "__main__":
    sys.exit(main())

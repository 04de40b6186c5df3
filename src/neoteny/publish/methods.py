"""The part of `docs/methods.md` that is made from the code: a table per family, and a section per method.

A method says of itself what stands here, by its `card` and its docstring; networks do so by `nets.remedies`. What an
update costs is read from `evidence/methods/cost.json`, which `benchmarks/methods.py --keep` writes.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import neoteny
from neoteny import methods
from neoteny.methods.card import FAMILIES, Card
from neoteny.methods.method import Method
from neoteny.publish.keep import EvidenceError
from neoteny.suite.store.files import write_atomically

BEGIN, END = "<!-- methods: begin -->", "<!-- methods: end -->"
COSTS = Path("evidence") / "methods" / "cost.json"
_YEAR = re.compile(r".+? \d{4}")


def publish_methods(root: Path) -> list[Path]:
    """Write the marked part of docs/methods.md; returns the page if its content changed."""
    page = root / "docs" / "methods.md"
    if not page.is_file():
        return []
    before = page.read_text()
    after = fill_page(before, read_costs(root))
    if after == before:
        return []
    write_atomically(page, lambda file: file.write(after.encode()))
    return [page]


def fill_page(page: str, costs: Mapping[str, Any]) -> str:
    """The page with what stands between its marks made from the code."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise EvidenceError(f"docs/methods.md must have the marks {BEGIN} and {END}, in this order.")
    return f"{head}{BEGIN}\n{write_methods(costs)}\n{END}{tail}"


def read_costs(root: Path) -> dict[str, Any]:
    """What an update with each method costs, as measured; empty if it was not kept."""
    path = root / COSTS
    return json.loads(path.read_text()) if path.is_file() else {}


def find_methods() -> dict[str, type[Method]]:
    """Every method that the package exports, by name."""
    found = {name: getattr(methods, name) for name in methods.__all__}
    return {name: kind for name, kind in found.items() if dataclasses.is_dataclass(kind)}


def write_methods(costs: Mapping[str, Any]) -> str:
    """Tables and sections of all families, as Markdown."""
    parts: list[str] = []
    if costs:
        parts.append(f"Cost: {costs['what']}.")
    found = find_methods()
    for family in FAMILIES:
        members = {name: kind for name, kind in found.items() if kind.card.family == family}
        if not members:
            continue
        rows = [_row(name, kind.card, costs.get("methods", {}).get(name)) for name, kind in members.items()]
        parts += [f"## {family[0].upper()}{family[1:]}", _table(rows)]
        parts += [_section(name, kind) for name, kind in members.items()]
    return "\n\n".join(["", *parts, ""])


def _row(name: str, card: Card, cost: str | None) -> list[str]:
    paper = _YEAR.match(card.reference)
    return [
        f"[`{public_name(name)}`](#{name.lower()})",
        card.acts_on,
        card.when,
        card.keeps,
        cost or "not measured",
        paper[0] if paper else card.reference,
    ]


def _table(rows: list[list[str]]) -> str:
    head = ["method", "acts on", "when", "keeps", "cost", "paper"]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def _section(name: str, kind: type[Method]) -> str:
    paper = f"\n\n{kind.card.reference}." if kind.card.reference else ""
    return f"### {name}{paper}\n\n```{{eval-rst}}\n.. autoclass:: {public_name(name)}\n```"


def public_name(name: str) -> str:
    """Where a user finds a method: `neoteny.ReDo`, or `neoteny.methods.SGD`."""
    return f"neoteny.{name}" if name in neoteny.__all__ else f"neoteny.methods.{name}"

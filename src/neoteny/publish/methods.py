"""The part of `docs/methods.md` that is made from the code: a table per family, and a section per method.

A method says of itself what stands here, by its `card` and its docstring; layers do so by `methods.remedies`. What an
update costs is read from `evidence/methods/cost.json`, which `benchmarks/methods.py --keep` writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import neoteny
from neoteny import methods, nets
from neoteny.methods.card import FAMILIES, Card
from neoteny.methods.method import Method
from neoteny.methods.remedies import REMEDIES, Remedy
from neoteny.publish.keep import EvidenceError
from neoteny.publish.markdown import write_table
from neoteny.suite.store.files import write_atomically

BEGIN, END = "<!-- methods: begin -->", "<!-- methods: end -->"
COSTS = Path("evidence") / "methods" / "cost.json"
HEAD = ("method", "acts on", "when", "keeps", "cost", "paper")
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
    found: dict[str, type[Method]] = {name: getattr(methods, name) for name in methods.__all__}
    return {name: kind for name, kind in found.items() if "__dataclass_fields__" in vars(kind)}


def write_methods(costs: Mapping[str, Any]) -> str:
    """Tables and sections of all families, as Markdown."""
    parts: list[str] = []
    if costs:
        parts.append(f"Cost: {costs['what']}.")
    found = find_methods()
    for family in FAMILIES:
        members = {name: kind for name, kind in found.items() if kind.card.family == family}
        layers = {name: each for name, each in REMEDIES.items() if each.card.family == family}
        rows = [_row(public_name(name), kind.card, costs, name) for name, kind in members.items()]
        rows += [_row(layer_name(name), each.card, costs, name) for name, each in layers.items()]
        parts += [f"## {family[0].upper()}{family[1:]}", write_table(HEAD, rows)]
        parts += [_section(name, kind) for name, kind in members.items()]
        parts += [_layer_section(name, each) for name, each in layers.items()]
    return "\n\n".join(["", *parts, ""])


def _row(shown: str, card: Card, costs: Mapping[str, Any], name: str) -> list[str]:
    paper = _YEAR.match(card.reference)
    cost = costs.get("methods", {}).get(name, "not measured")
    return [
        f"[`{shown}`](#{name.lower()})",
        card.acts_on,
        card.when,
        card.keeps,
        "part of the network" if card.family == "networks" else cost,
        paper[0] if paper else card.reference,
    ]


def _section(name: str, kind: type[Method]) -> str:
    paper = f"\n\n{kind.card.reference}." if kind.card.reference else ""
    return f"### {name}{paper}\n\n```{{eval-rst}}\n.. autoclass:: {public_name(name)}\n```"


def _layer_section(name: str, remedy: Remedy) -> str:
    return f"### {name}\n\n{remedy.card.reference}.\n\n{remedy.what} In a network of `neoteny.nets`: `{remedy.use}`."


def layer_name(name: str) -> str:
    """Where a user finds a layer: in `neoteny.nets`, or in torch."""
    return f"neoteny.nets.{name}" if hasattr(nets, name) else f"torch.nn.{name}"


def public_name(name: str) -> str:
    """Where a user finds a method: `neoteny.ReDo`, or `neoteny.methods.SGD`."""
    return f"neoteny.{name}" if name in neoteny.__all__ else f"neoteny.methods.{name}"

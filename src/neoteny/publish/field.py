"""docs/field.md: every method on every problem of the field, from the tables that `evidence/field/` keeps.

A results folder of an experiment of the field becomes one JSON file (`keep_field`): the mean over all tasks of each
run, by setting and seed. From these files come the page's tables (`field_page`) and figures (`field_figures`).
Published numbers that were made again are kept and shown by `published`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from neoteny import experiments
from neoteny.experiments.field.bench import load_bench
from neoteny.publish.field_figures import draw_gains, draw_map
from neoteny.publish.field_page import BEGIN, END, write_field
from neoteny.publish.field_table import FieldTable
from neoteny.publish.keep import EvidenceError
from neoteny.publish.methods import read_costs
from neoteny.publish.pictures import save
from neoteny.publish.published import Kept, keep_published, read_published
from neoteny.report.field import read_scores
from neoteny.suite.store.files import write_atomically
from neoteny.suite.store.results import Results

FOLDER = Path("evidence") / "field"
DIGITS = 6
"""Of each kept number."""


def keep_field(root: Path, folder: Path) -> list[Path]:
    """Keep the results of `neoteny run field`, of `neoteny run published`, or of one of their experiments.

    Args:
        root: of the repository.
        folder: the results folder of one experiment, or one with several below it.

    Returns:
        The files.

    Raises:
        EvidenceError: there are no results of the field in it.
    """
    places = [folder] if (folder / "experiment.json").is_file() else sorted(folder.glob("*/"))
    kept = []
    for place in places:
        if not (place / "experiment.json").is_file():
            continue
        results = Results.open(place)
        if results.about["experiment"] in experiments.FIELD:
            kept.append(_keep(root, results))
        elif results.about["experiment"] in experiments.PUBLISHED:
            kept.append(keep_published(root, results))
    if not kept:
        raise EvidenceError(f"{folder} has no results of the field. Make them: neoteny run field --out {folder}")
    return kept


def _keep(root: Path, results: Results) -> Path:
    name, scale = results.about["experiment"], results.about["scale"]
    experiment = experiments.load(name)
    sweep = experiment.make_sweep(scale)
    scores = read_scores(results.frame(), sweep.problem.performance)
    bench = load_bench(name, scale)
    document = {
        "experiment": name,
        "scale": scale,
        "metric": sweep.problem.performance,
        "higher_is_better": sweep.problem.higher_is_better,
        "tasks": sweep.problem.tasks,
        "updates_per_task": sweep.problem.steps_per_task,
        "base": bench.base,
        "settings": [_describe(setting, rows) for setting, rows in scores.groupby("setting", sort=False)],
    }
    path = root / FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document, indent=1, allow_nan=False)
    write_atomically(path, lambda file: file.write((text + "\n").encode()))
    return path


def _describe(setting: Any, rows: pd.DataFrame) -> dict[str, Any]:
    values = {
        str(seed): None if not math.isfinite(value) else float(f"{value:.{DIGITS}g}")
        for seed, value in sorted(zip(rows["seed"].tolist(), rows["value"].tolist(), strict=True))
    }
    return {
        "method": str(rows["method"].iloc[0]),
        "role": str(rows["role"].iloc[0]),
        "setting": str(setting),
        "values": values,
    }


def read_tables(root: Path) -> list[FieldTable]:
    """What is kept, in the order of the experiments."""
    paths = {path.stem: path for path in (root / FOLDER).glob("*.json")}
    return [FieldTable.read(paths[name]) for name in experiments.FIELD if name in paths]


def publish_field(root: Path, figures: bool = True) -> list[Path]:
    """Write the marked part of docs/field.md and its figures; returns the files whose content changed."""
    page = root / "docs" / "field.md"
    if not page.is_file():
        return []
    tables = read_tables(root)
    text = fill_page(page.read_text(), tables, read_costs(root), read_published(root))
    written = {page: text.encode()}
    if figures and tables:
        folder = root / "docs" / "figures"
        written[folder / "field.png"] = save(draw_map(tables))
        for table in tables:
            written[folder / f"{table.experiment}.png"] = save(draw_gains(table))
    changed = [path for path, content in written.items() if not path.exists() or path.read_bytes() != content]
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file, content=written[path]: file.write(content))
    return changed


def fill_page(page: str, tables: list[FieldTable], costs: dict[str, Any], published: Sequence[Kept] = ()) -> str:
    """The page with what stands between its marks made from the tables."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise EvidenceError(f"docs/field.md must have the marks {BEGIN} and {END}, in this order.")
    return f"{head}{BEGIN}\n\n{write_field(tables, costs, published)}\n\n{END}{tail}"

"""The Markdown of docs/field.md: tables of every method on every problem, from kept tables.

Before this: `field_table`, which reads them; after it: `field`, which puts the text between the page's marks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from neoteny import experiments
from neoteny.experiments.field.recipes import BASELINES, COSTS, RECIPES, SCRATCH
from neoteny.publish.field_figures import order_methods
from neoteny.publish.field_table import FieldTable
from neoteny.publish.markdown import write_table
from neoteny.publish.published import Kept, write_published
from neoteny.report.field import Standing
from neoteny.report.statistics import Estimate, say_count

BEGIN, END = "<!-- field: begin -->", "<!-- field: end -->"


def write_field(tables: Sequence[FieldTable], costs: Mapping[str, Any], published: Sequence[Kept] = ()) -> str:
    """All tables, as Markdown, and published numbers beside ours; without any, how to make them."""
    missing = [name for name in experiments.FIELD if name not in {table.experiment for table in tables}]
    parts: list[str] = []
    if tables:
        parts = [*_map(tables), *_overview(tables, costs)]
    parts += write_published(published)
    for table in tables:
        parts += _problem(table, costs)
    if missing:
        commands = "\n".join(f"neoteny run {name} --scale laptop --out results/field-laptop/{name}" for name in missing)
        parts += ["## Not run yet", f"```\n{commands}\npython -m neoteny.publish --field results/field-laptop\n```"]
    return "\n\n".join(parts)


def _map(tables: Sequence[FieldTable]) -> list[str]:
    count = len(order_methods(tables))
    return [
        "## The map",
        f"![Map of {count} methods by {say_count(len(tables), 'problem')}: the colour is the mean rank]"
        "(figures/field.png)",
        f"{count} methods by {say_count(len(tables), 'problem')}. Colour: mean rank among all methods of the problem, "
        "blue the best. Number: mean performance over all tasks and judging seeds, at the best of four settings that "
        "other seeds chose. Star: better or worse than the plain optimizer beyond chance (5%, corrected for the number "
        "of methods by Holm's method).",
    ]


def _overview(tables: Sequence[FieldTable], costs: Mapping[str, Any]) -> list[str]:
    """Counts over problems: where a method is certainly better or worse."""
    rows = []
    for method in order_methods(tables):
        found = [(table, one) for table in tables for one in table.standings if one.method == method]
        places = ", ".join(str(table.standings.index(one) + 1) for table, one in found)
        cells = [_name(method), str(len(found)), places]
        for which in range(2):
            better, worse = (
                sum(_is_certain(one, table.baselines[which], sign) for table, one in found) for sign in (1, -1)
            )
            cells.append(f"{better} / {worse}")
        rows.append([*cells, find_cost(method, costs)])
    heads = ["method", "problems", "place on each", "better / worse than plain", "better / worse than from scratch"]
    order = "; ".join(f"{number}: {table.title}" for number, table in enumerate(tables, start=1))
    return [
        "## Over all problems",
        write_table([*heads, "cost of an update"], rows),
        f"Places are in the order {order}. Better and worse count problems on which the difference is beyond chance. "
        f"Cost: {costs.get('what', 'not measured')}; here the first network. "
        "A dagger marks methods that act on a clock as long as a task, and so at its end.",
    ]


def _problem(table: FieldTable, costs: Mapping[str, Any]) -> list[str]:
    tuning, judging = table.seeds
    rows = []
    for one in table.standings:
        plain, scratch = (_gain(one, baseline) for baseline in table.baselines)
        diverged = f", {one.diverged} diverged" if one.diverged else ""
        setting = one.setting.partition(" (")[2].removesuffix(")").replace("role=", "")
        rows.append(
            [
                *(_name(one.method), show(one.published), show(one.value) + diverged, setting),
                *(plain, scratch, show(one.rank, 3), find_cost(one.method, costs)),
            ]
        )
    heads = ["method", "published setting", "best of four", "that setting", f"gain over {table.base}"]
    heads += ["gain over from scratch", "mean rank", "cost"]
    better = "more" if table.higher_is_better else "less"
    return [
        f"## {table.title[0].upper()}{table.title[1:]}",
        f"`{table.command}`: {table.tasks} tasks of {table.updates_per_task} updates, methods on {table.base}; "
        f"{table.metric}, {better} is better. {say_count(tuning, 'tuning seed')}, {judging} judging.",
        f"![What each method gains over {table.base} and over from scratch, with 95% intervals]"
        f"(figures/{table.experiment}.png)",
        write_table(heads, rows),
        *_left_out(table),
        "Means over all tasks and judging seeds with 95% intervals (Student's t); gains are paired by seed, since run "
        "k of every method sees the same stream, and are positive where the method is better. **Bold**: beyond chance "
        "after Holm's correction. Ranks are taken seed by seed.",
    ]


def _left_out(table: FieldTable) -> list[str]:
    """Methods of the experiment that have no judging runs."""
    wanted = dict.fromkeys(
        setting.method for setting in experiments.load(table.experiment).make_sweep(table.scale).settings
    )
    missing = [method for method in wanted if method not in {one.method for one in table.standings}]
    return [f"Not run: {', '.join(missing)}. The command above runs them, too."] if missing else []


def find_cost(method: str, costs: Mapping[str, Any]) -> str:
    """What an update with a method costs, in updates with plain SGD, on the MLP."""
    if RECIPES[method].options and method not in COSTS:
        return "part of the network"
    found = costs.get("methods", {}).get(COSTS.get(method, method))
    return "not measured" if found is None else str(found).partition(" / ")[0]


def show(value: Estimate, digits: int = 4) -> str:
    """An estimate with its interval."""
    if not value.runs:
        return "not run"
    if math.isnan(value.mean):
        return "diverged"
    mean = f"{value.mean:.{digits}g}"
    return mean if value.runs < 2 else f"{mean} [{value.low:.{digits}g}, {value.high:.{digits}g}]"


def _gain(one: Standing, baseline: str) -> str:
    gain = one.gains.get(baseline)
    if gain is None:
        return "the baseline" if one.method == baseline else "not run"
    if math.isnan(gain.mean):
        return "diverged"
    text = f"{gain.mean:+.3g} [{gain.low:+.3g}, {gain.high:+.3g}]"
    return f"**{text}**" if one.certain[baseline] else text


def _is_certain(one: Standing, baseline: str, sign: int) -> bool:
    return bool(one.certain.get(baseline)) and sign * one.gains[baseline].mean > 0


TOLD = (
    *(SCRATCH, "Head reset", "Adam-Rel", "FIRE", "DASH", "Boundary shrink and perturb"),
    *("ReDo", "ReGraMa", "Hare and Tortoise"),
)
"""Methods that act when a task ends, or whose period is as long as a task."""


def _name(method: str) -> str:
    text = f"*{method}*" if method in BASELINES else method
    return f"{text}†" if method in TOLD else text

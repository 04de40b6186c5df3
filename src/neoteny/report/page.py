"""One self-contained HTML page: figures, tables, verdicts, and how the results came about.

`write_report` is the end of the flow: what it shows was computed before (`statistics`, `tables`, `claim`). The page
needs no network: Plotly's JavaScript comes from its installed package, and a content security policy forbids the rest.
Templates: page.html, page.css, charts.js and page.js beside this file; `live` has the page of a running sweep.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neoteny.report.analysis import Stated
from neoteny.report.axes import Drawable, format_number, prepare, share_caption
from neoteny.report.chart import Chart, Series
from neoteny.report.claim import Claim, Outcome, Unchecked, Verdict
from neoteny.report.palette import Look, choose_colours, choose_keys, choose_looks
from neoteny.report.tables import Table
from neoteny.suite.store.files import write_atomically

if TYPE_CHECKING:
    from markupsafe import Markup

_DIGITS = 6
"""Significant digits of the numbers in the page: more than a screen can show."""


_MOST_TOGGLES = 10
"""With more of them the row no longer serves as a legend, nor stays in view."""


@dataclass(frozen=True)
class Report:
    """Everything the page shows.

    Args:
        title: of the page.
        experiment: the experiment's name, as the command line takes it.
        scale: "smoke", "laptop" or "paper".
        description: the experiment's docstring; paragraphs, "- " lists and `code` are understood.
        charts: in order; neighbours of one group stand side by side.
        tables: of numbers.
        claims: with their verdicts.
        unchecked: statements that these results cannot test.
        chosen: (what, value, reason) where the paper is silent.
        configuration: what JSON can hold; shown folded.
        facts: how long it took, on what, versions; the first three stand in the page's head.
        note: where figures and claims come from, if they were not made for this page.
        failures: what could not be drawn or checked, and why.
    """

    title: str
    experiment: str
    scale: str
    description: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    claims: Sequence[tuple[Claim | Stated, Verdict]] = ()
    unchecked: Sequence[Unchecked] = ()
    chosen: Sequence[tuple[str, str, str]] = ()
    configuration: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    failures: Sequence[str] = ()


def write_report(folder: Path, report: Report) -> Path:
    """Write `report.html` into a folder, whole or not at all, and return its path."""
    path = Path(folder) / "report.html"
    content = render_page(report).encode("utf-8", errors="replace")
    write_atomically(path, lambda file: file.write(content))
    return path


def render_page(report: Report) -> str:
    """The page as text."""
    import jinja2
    from plotly.offline import get_plotlyjs

    assets = resources.files("neoteny.report")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["prose"] = _to_prose
    environment.filters["code"] = _mark_code
    environment.filters["interval"] = _split_interval
    environment.filters["details"] = _split_details
    drawables = [prepare(chart) for chart in report.charts]
    looks = choose_looks(report.charts)
    keys, colours = choose_keys(report.charts), choose_colours(report.charts)
    plenty = len(keys) > _MOST_TOGGLES
    figures = [describe_figure(i, drawables[i], looks[i], plenty) for i in range(len(drawables))]
    facts = list(report.facts.items())
    script = "".join((assets / name).read_text("utf-8") for name in ("charts.js", "page.js"))
    # A closing tag inside a string of the library would end the script element.
    plotly = get_plotlyjs().replace("</script", "<\\/script") if drawables else ""
    return environment.from_string((assets / "page.html").read_text("utf-8")).render(
        report=report,
        description=_drop_title(report.description, report.title),
        groups=group_figures(figures),
        toggles=[(key, colours[key], dashed) for key, dashed in keys.items()],
        plenty=plenty,
        tally=[(outcome, _count(report, outcome)) for outcome in Outcome],
        head_facts=facts[:3],
        facts=facts,
        configuration=json.dumps(report.configuration, indent=2, default=str, ensure_ascii=False),
        data=_to_script(
            [describe_chart(drawable, look) for drawable, look in zip(drawables, looks, strict=True)],
        ),
        css=trust((assets / "page.css").read_text("utf-8")),
        script=trust(script),
        plotly=trust(plotly),
        script_hashes=trust(" ".join(hash_script(text) for text in (plotly, script) if text)),
        Outcome=Outcome,
    )


def describe_chart(drawable: Drawable, looks: Sequence[Look]) -> dict[str, Any]:
    """What page.js draws."""
    chart = drawable.chart
    return {
        "title": chart.title,
        "xLabel": chart.x_label,
        "yLabel": chart.y_label,
        "logX": chart.log_x,
        "logY": chart.log_y,
        "markers": chart.markers,
        "xTicks": _pairs(drawable.x_ticks),
        "yTicks": _pairs(drawable.y_ticks),
        "series": [
            {
                "name": series.name,
                "key": look.key,
                "light": look.colour.light,
                "dark": look.colour.dark,
                "dash": look.dash,
                "x": _shorten(series.x),
                "y": _shorten(series.y),
                "low": _shorten(series.low),
                "high": _shorten(series.high),
            }
            for series, look in zip(chart.series, looks, strict=True)
        ],
    }


def describe_figure(number: int, drawable: Drawable, looks: Sequence[Look], plenty: bool) -> dict[str, Any]:
    """What page.html shows around a chart. A legend only where the toggles do not name its lines, or are too many."""
    chart = drawable.chart
    named = all(series.name == look.key for series, look in zip(chart.series, looks, strict=True))
    return {
        "number": number,
        "drawable": drawable,
        "title": chart.title,
        "alternative": _tell(chart),
        "legend": [] if named and not plenty else list(zip(chart.series, looks, strict=True)),
    }


def _tell(chart: Chart) -> str:
    """The chart in words, for those who do not see it."""
    lines = [f"{chart.y_label} against {chart.x_label}."]
    lines += [_tell_series(series) for series in chart.series]
    return f"Chart: {chart.title}. " + " ".join(lines)


def _tell_series(series: Series) -> str:
    points = [(x, y) for x, y in zip(series.x, series.y, strict=True) if math.isfinite(y)]
    if not points:
        return f"{series.name}: no values."
    (first_x, first), (last_x, last) = points[0], points[-1]
    if len(points) == 1:
        return f"{series.name}: {first:.3g} at {format_number(first_x)}."
    return f"{series.name}: from {first:.3g} at {format_number(first_x)} to {last:.3g} at {format_number(last_x)}."


def group_figures(figures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours of one group together, with the caption they share; a chart without a group stands alone."""
    groups: list[dict[str, Any]] = []
    for figure in figures:
        name = figure["drawable"].chart.group
        if name and groups and groups[-1]["name"] == name:
            groups[-1]["figures"].append(figure)
        else:
            groups.append({"name": name, "figures": [figure]})
    for group in groups:
        group["caption"] = share_caption([figure["drawable"] for figure in group["figures"]])
        for figure in group["figures"]:
            drawable = figure["drawable"]
            own = "" if group["caption"] else drawable.chart.caption
            figure["caption"] = " ".join(part for part in (own, drawable.notes) if part)
    return groups


def _count(report: Report, outcome: Outcome) -> int:
    return Counter(verdict.outcome for _, verdict in report.claims)[outcome]


def _pairs(ticks: Mapping[float, str] | None) -> list[list[Any]] | None:
    return None if ticks is None else [list(ticks), list(ticks.values())]


def _shorten(values: Sequence[float]) -> list[float | None]:
    return [float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None for value in values]


def _to_script(value: Any) -> Markup:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return trust(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def hash_script(text: str) -> str:
    """A script as the content security policy names it; any other script in the page is refused by the browser."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _to_prose(text: str) -> Markup:
    """Paragraphs, lists and `code` of a docstring."""
    from markupsafe import Markup

    parts = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = [line.strip() for line in block.splitlines()]
        lead = " ".join(line for line in lines[: _first_item(lines)])
        if lead:
            parts.append(Markup("<p>{}</p>").format(_mark_code(lead)))
        items = re.split(r"(?:^| )- ", " ".join(lines[_first_item(lines) :]))[1:]
        if items:
            parts.append(
                Markup("<ul>{}</ul>").format(
                    Markup().join(Markup("<li>{}</li>").format(_mark_code(item)) for item in items)
                )
            )
    return Markup("\n").join(parts)


def _first_item(lines: Sequence[str]) -> int:
    return next((i for i, line in enumerate(lines) if line.startswith("- ")), len(lines))


def _mark_code(text: str) -> Markup:
    """Escaped text with `code` as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`+([^`]+)`+", r"<code>\1</code>", str(escape(text))))


def _split_interval(cell: str) -> tuple[str, str]:
    """A cell's number and its interval, which stands smaller below it."""
    number, bracket, rest = cell.partition(" [")
    return number, f"[{rest}" if bracket else ""


def _split_details(cell: str) -> tuple[str, str]:
    """A setting's method and its details, which stand smaller below it."""
    found = re.fullmatch(r"(.*?) \((.*)\)", cell, flags=re.DOTALL)
    return (found[1], found[2]) if found else (cell, "")


def _drop_title(description: str, title: str) -> str:
    """A docstring begins with the title, which the page already has as its heading."""
    first, _, rest = description.strip().partition("\n")
    return rest if first.strip().rstrip(".") == title.strip().rstrip(".") else description


def trust(text: str) -> Markup:
    from markupsafe import Markup

    return Markup(text)

"""The page of a sweep that runs: its frame, and the figures so far as plain values.

`neoteny watch` serves it. The page asks for both again and again; nothing in it comes from elsewhere. Templates:
live.html, live.css and live.js beside this file, with page.css and charts.js of the report.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from neoteny.report.axes import prepare
from neoteny.report.chart import Chart
from neoteny.report.page import describe_chart, describe_figure, group_figures, hash_script, trust
from neoteny.report.palette import choose_colours, choose_keys, choose_looks

_MOST_TOGGLES = 10


def render_live(
    experiment: str, scale: str, folder: str, state_seconds: float, figures_seconds: float
) -> tuple[str, str]:
    """The page, and the content security policy that it must be served with.

    Args:
        experiment, scale, folder: what is said of the sweep.
        state_seconds, figures_seconds: how often the page asks for the state and for the figures.
    """
    import jinja2
    from plotly.offline import get_plotlyjs

    assets = resources.files("neoteny.report")
    css, script = (
        "".join((assets / name).read_text("utf-8") for name in names)
        for names in (("page.css", "live.css"), ("charts.js", "live.js"))
    )
    # A closing tag inside a string of the library would end the script element.
    plotly = get_plotlyjs().replace("</script", "<\\/script")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    page = environment.from_string((assets / "live.html").read_text("utf-8")).render(
        experiment=experiment,
        scale=scale,
        folder=folder,
        state_seconds=state_seconds,
        figures_seconds=figures_seconds,
        css=trust(css),
        script=trust(script),
        plotly=trust(plotly),
    )
    policy = (
        f"default-src 'none'; script-src {hash_script(plotly)} {hash_script(script)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


def describe_figures(charts: Sequence[Chart], note: str = "") -> dict[str, Any]:
    """What the page draws: charts, how they are grouped, the toggles, a note, and a version that names all of it."""
    drawables = [prepare(chart) for chart in charts]
    looks = choose_looks(charts)
    keys, colours = choose_keys(charts), choose_colours(charts)
    plenty = len(keys) > _MOST_TOGGLES
    figures = [describe_figure(i, drawables[i], looks[i], plenty) for i in range(len(drawables))]
    groups = [
        {
            "name": group["name"],
            "caption": group["caption"],
            "figures": [
                {
                    **{name: figure[name] for name in ("number", "title", "alternative", "caption")},
                    "legend": [
                        {"name": series.name, "light": look.colour.light, "dark": look.colour.dark, "dash": look.dash}
                        for series, look in figure["legend"]
                    ],
                }
                for figure in group["figures"]
            ],
        }
        for group in group_figures(figures)
    ]
    found = {
        "groups": groups,
        "charts": [describe_chart(drawable, look) for drawable, look in zip(drawables, looks, strict=True)],
        "toggles": [
            {"key": key, "light": colours[key].light, "dark": colours[key].dark, "dash": "dash" if dashed else "solid"}
            for key, dashed in keys.items()
        ],
        "note": note,
    }
    version = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]
    return {**found, "version": version}

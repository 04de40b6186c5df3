"""A made-up report with everything a page can show, and text that would break one that does not escape it."""

from __future__ import annotations

import math

from neoteny.report.chart import Chart, Series
from neoteny.report.claim import Claim, Outcome, Unchecked, Verdict
from neoteny.report.page import Report
from neoteny.report.statistics import curve, select
from neoteny.report.tables import performance_table
from support.frames import Curve, make_frame

METHODS = ("BP", "L2", "S&P", "CBP")
EVIL = "</script><script>window.broken = true</script><b>&amp;"


def make_report() -> Report:
    """Four methods, a chart of performance, two correlates (one logarithmic), a chart over a hyperparameter."""
    shapes = {"BP": (0.95, 0.85), "L2": (0.95, 0.9), "S&P": (0.95, 0.93), "CBP": (0.94, 0.95)}
    curves = [
        Curve(
            method,
            {"step_size": 0.01},
            {
                "accuracy": lambda task, first=first, last=last: last + (first - last) * math.exp(-task / 10),
                "dead_units": lambda task, last=last: (0.96 - last) * task / 20,
            },
        )
        for method, (first, last) in shapes.items()
    ]
    frame = make_frame(curves, runs=6, tasks=40, noise={"accuracy": 0.004, "dead_units": 0.01})

    def draw(metric: str, title: str, group: str = "", log_y: bool = False) -> Chart:
        lines = [curve(select(frame, metric, method=method), method, method=method) for method in METHODS]
        return Chart(title, "Task number", metric, lines, "Six runs, one standard error.", group, log_y=log_y)

    broken = Series(EVIL, [1, 2, 3], [0.9, 0.8, math.nan], [0.8, 0.7, math.nan], [1.0, 0.9, math.nan], method="BP")
    rates = Series("CBP", [0, 1e-5, 1e-4], [1.0, 2.0, 1.5], [0.8, 1.8, 1.2], [1.2, 2.2, 1.8], method="CBP")
    charts = [
        draw("accuracy", "Accuracy"),
        draw("dead_units", "Dead units", "Correlates"),
        draw("dead_units", "Dead units, logarithmic", "Correlates", log_y=True),
        Chart(EVIL, EVIL, EVIL, [broken], EVIL, group=EVIL),
        Chart("Replacement rates", "Replacement rate", "Error", [rates], log_x=True, markers=True),
    ]
    verdicts = [
        Verdict(Outcome.HOLDS, "CBP minus BP: 0.1 [0.09, 0.11] (6 runs), expected above 0"),
        Verdict(Outcome.FAILS, "BP: 0.1 [0.09, 0.11] (6 runs), expected below 0"),
        Verdict(Outcome.INCONCLUSIVE, EVIL),
    ]
    claims = [
        (Claim(f"claim-{i}", f"Statement {i} about `CBP` {EVIL}", f"Figure {i}", lambda frame: verdicts[0]), verdict)
        for i, verdict in enumerate(verdicts)
    ]
    return Report(
        title=f"Four methods {EVIL}",
        experiment="four-methods",
        scale="smoke",
        description=f"Four methods.\n\nWhat differs:\n- one thing, `code`\n  continued\n- another {EVIL}",
        charts=charts,
        tables=[performance_table(frame, "accuracy", higher_is_better=True)],
        claims=claims,
        unchecked=[Unchecked(f"Something else {EVIL}", "Section 9", EVIL)],
        chosen=[("step size", "0.01", EVIL)],
        configuration={"problem": {"name": EVIL, "tasks": 40}, "rate": math.inf},
        facts={"Runs": "24 of 24", "Time": "3 s", "Device": EVIL, "Versions": "neoteny 0.1.0"},
    )

"""The parts of `online.py`'s table for the CPU."""

from __future__ import annotations

from collections.abc import Iterable

from neoteny.methods import Adam, ContinualBackprop
from online_parts.rows import (
    BP,
    CBP,
    CORES,
    RUNS,
    WIDTHS,
    Learner,
    Part,
    bandwidth,
    by_runs,
    by_width,
    compare,
    cost_row,
    digits,
    measures,
    others,
    regression,
    whole_regression,
)
from online_parts.sides import Engine, alternate, engine
from online_parts.table import Goal, Table

CBP_ADAM = (Adam(0.001), ContinualBackprop(1e-4))


def threads_over_one(table: Table, cases: Iterable[tuple[str, Engine]], blocks: int) -> None:
    """All cores over one."""
    for name, side in cases:
        times = alternate({"one": side.with_threads(1), "all": side.with_threads(CORES)}, blocks)
        ratio = times["one"].median / times["all"].median
        goal = Goal(1.8, 1.95) if CORES == 2 else None
        table.row(f"{name}, {side.runs} runs", times["all"].median, times["all"].best, times["one"].median, ratio, goal)


def memory(table: Table) -> None:
    """The measured bandwidth, of which the table gives shares."""
    for threads in sorted({1, CORES}):
        table.note(f"triad, {threads} thread(s): {bandwidth('cpu', threads) / 1e9:.1f} GB/s")


def small(table: Table, blocks: int) -> None:
    """Slowly-changing regression."""
    learners = {
        "BP": Learner(BP, Goal(1000, 3000)),
        "CBP": Learner(CBP, Goal(500, 1500), 1.6),
        "CBP with Adam": Learner(CBP_ADAM, Goal(300, 600), 1.6),
    }
    compare(table, regression("cpu"), (5,), learners, 100, 400, blocks)


def narrow(table: Table, blocks: int) -> None:
    """100 units."""
    table.note(digits("cpu").says)
    learners = {"BP": Learner(BP, Goal(20, 40)), "CBP": Learner(CBP, Goal(25, 50), 1.6)}
    times = compare(table, digits("cpu"), (100,) * 3, learners, 1, 300, blocks)
    cost_row(table, times, Goal(1.2, 1.1, higher=False))


def wide(table: Table, blocks: int) -> None:
    """2,000 units."""
    learners = {"BP": Learner(BP, Goal(3.5, 7)), "CBP": Learner(CBP, Goal(4.5, 9), 1.4)}
    times = compare(table, digits("cpu"), (2000,) * 3, learners, 1, 25, blocks)
    cost_row(table, times, Goal(1.2, 1.1, higher=False))


def cores(table: Table, blocks: int, quick: bool) -> None:
    """All cores over one."""
    cases = [
        ("regression, CBP", engine(regression("cpu"), (5,), CBP, 200)),
        ("N=100, CBP", engine(digits("cpu"), (100,) * 3, CBP, 8, updates=2000)),
    ]
    if not quick:
        cases.append(("N=2000, CBP", engine(digits("cpu"), (2000,) * 3, CBP, 4, updates=120)))
    threads_over_one(table, cases, blocks)


def cpu_parts(quick: bool) -> list[Part]:
    """The parts for the CPU."""
    blocks = 3 if quick else 7
    widths, counts = ((100, 2000), (1, 30)) if quick else (WIDTHS, RUNS)
    goal = Goal(25, 10, False, " min")
    found: list[Part] = [
        ("memory", memory),
        ("slowly-changing regression, 1 core", lambda table: small(table, blocks)),
        ("permuted MNIST, N=100, 1 core", lambda table: narrow(table, blocks)),
        ("permuted MNIST, N=2000, 1 core", lambda table: wide(table, blocks)),
        ("all cores over one", lambda table: cores(table, 3 if quick else 5, quick)),
        ("measures, N=2000", lambda table: measures(table, digits("cpu"), 2000, 1, Goal(2, 1, False, "%"))),
        ("whole scr-activations", lambda table: whole_regression(table, regression("cpu"), CORES, goal, quick)),
        ("cost by width, 1 core", lambda table: by_width(table, digits("cpu"), 1, 3, widths)),
        (
            "cost by number of runs, N=100, all cores",
            lambda table: by_runs(table, digits("cpu"), (100,) * 3, 3, counts, CORES),
        ),
    ]
    if not quick:
        found += [
            (
                "cost by number of runs, regression, 1 core",
                lambda table: by_runs(table, regression("cpu"), (5,), 3, RUNS, CORES),
            ),
            ("other methods, N=100, 1 core", lambda table: others(table, digits("cpu"), 100, 1, 3)),
        ]
    return found

"""What the zoo measures of one model: attaching, the promise after a tick, coverage and overhead."""

from __future__ import annotations

import copy
import gc
import signal
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

import neoteny
from zoo_parts import check
from zoo_parts.entry import Entry, call
from zoo_parts.layouts import Model

RATE, MATURITY = 0.25, 1
TICKS = 8
"""At most; the check ends as soon as every group had a unit replaced."""


@dataclass
class Row:
    """One line of the table, as it is kept in the JSON file."""

    family: str
    name: str
    note: str = ""
    parameters: int = 0
    first_try: bool = False
    error: str = ""
    left_out_to_attach: list[str] = field(default_factory=list)
    attach_seconds: float | None = None
    groups: int = 0
    units: int = 0
    covered: float | None = None
    groups_checked: int = 0
    units_checked: int = 0
    means_kept: int = 0
    faults: list[str] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    plain_seconds: float | None = None
    overhead: float | None = None

    @property
    def kept(self) -> bool:
        """Whether every group was checked and no check failed."""
        return self.groups > 0 and not self.faults and self.groups_checked == self.groups

    def as_dict(self) -> dict[str, Any]:
        """The row as plain values."""
        return {**asdict(self), "kept": self.kept}


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in what takes more of this process's CPU time."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"not finished after {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def measure(family: str, entry: Entry, *, overhead: bool, limit_seconds: int) -> Row:
    """Everything about one model; an exception becomes a line of the row."""
    row = Row(family, entry.name, entry.note)
    try:
        with at_most(limit_seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _measure(row, entry, overhead)
    except Exception as error:
        row.error = row.error or f"{_place(error)}{type(error).__name__}: {error}"
        row.faults.append(f"not finished: {_place(error)}{type(error).__name__}: {str(error)[:300]}")
    gc.collect()
    return row


def _place(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{'/'.join(last.filename.split('/')[-2:])}:{last.lineno} "


def _measure(row: Row, entry: Entry, overhead: bool) -> None:
    torch.manual_seed(0)
    model, example = entry.build().train(), entry.example()
    row.parameters = sum(parameter.numel() for parameter in model.parameters())
    plain = copy.deepcopy(model) if overhead else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    method = neoteny.ContinualBackprop(RATE, maturity_threshold=MATURITY, decay_rate=0.0)
    plastic = _attach(row, model, optimizer, method, example)
    if plastic is None:
        return
    assert plastic.wiring is not None
    names = dict(model.named_modules())
    for reason in plastic.wiring.left_out.values():
        kind = " ".join("..." if word.strip(",") in names else word for word in reason.partition(":")[0].split())
        row.left_out[kind] = row.left_out.get(kind, 0) + 1
    row.groups, row.units = len(plastic.wiring), sum(group.units for group in plastic.wiring)
    known = Model(model)
    row.covered = check.covered_share(known, plastic.wiring.groups)
    _check(row, entry, known, plastic, optimizer, example)
    if plain is not None:
        plastic.detach()
        again = neoteny.attach(
            model, optimizer, neoteny.ContinualBackprop(), wiring=plastic.wiring, trained=True
        )  # the default rate, 1e-4
        row.plain_seconds, row.overhead = _overhead(entry, plain, (model, optimizer, again), example)
        again.detach()


def _attach(row: Row, model: nn.Module, optimizer: Any, method: Any, example: Any) -> neoteny.Attachment | None:
    """The attachment; where it was refused, one without the layers that the error names."""
    start = time.process_time()
    refused: list[str] = []
    try:
        plastic = neoteny.attach(model, optimizer, method, example=example)
    except ValueError as error:
        row.error = str(error)
        if not isinstance(error, neoteny.WiringError):
            return None
        refused = list(error.wiring.refused)
    else:
        row.attach_seconds = time.process_time() - start
        row.first_try = len(plastic.wiring or ()) > 0
        row.error = "" if row.first_try else "no group was found"
        return plastic
    try:
        plastic = neoteny.attach(model, optimizer, method, example=example, leave_out=refused)
    except ValueError as error:
        row.error += f"\nand without them: {error}"
        return None
    row.attach_seconds = time.process_time() - start
    row.left_out_to_attach = refused
    return plastic


def _check(row: Row, entry: Entry, model: Model, plastic: Any, optimizer: Any, example: Any) -> None:
    """Train until every group had a unit replaced, and look at each such tick."""
    groups = plastic.wiring.groups
    fresh = check.spreads(model, groups)
    checked: set[str] = set()
    with check.consumer_inputs(model, groups) as inputs:
        for _ in range(TICKS):
            for each in inputs.values():
                each.clear()
            train(entry, model.module, optimizer, example)
            tick = check.Tick(model, plastic, optimizer, fresh, inputs)
            plastic.step()
            faults = tick.faults()
            row.faults += [fault for fault in faults if fault not in row.faults]
            checked |= {name for name, count in tick.replaced.items() if count}
            row.units_checked += sum(tick.replaced.values())
            row.means_kept += tick.means_kept
            if len(checked) == len(groups):
                break
    row.groups_checked = len(checked)


def train(entry: Entry, model: nn.Module, optimizer: Any, example: Any) -> None:
    """One update."""
    loss = entry.loss(call(model, example))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _overhead(entry: Entry, plain: nn.Module, attached: tuple[Any, Any, Any], example: Any) -> tuple[float, float]:
    """CPU seconds of a plain update, and how many times as long one with a tick takes.

    Both train in turns; the fastest block of each counts, because other work on the machine only adds time.
    """
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-4)

    def without() -> None:
        train(entry, plain, optimizer, example)

    def with_tick() -> None:
        train(entry, attached[0], attached[1], example)
        attached[2].step()

    without()
    start = time.process_time()
    without()
    updates = max(1, min(50, round(0.15 / max(1e-3, time.process_time() - start))))
    with_tick()
    times: dict[Any, list[float]] = {without: [], with_tick: []}
    for block in range(4):
        for side in (without, with_tick) if block % 2 else (with_tick, without):
            start = time.process_time()
            for _ in range(updates):
                side()
            times[side].append((time.process_time() - start) / updates)
    return min(times[without]), min(times[with_tick]) / min(times[without])

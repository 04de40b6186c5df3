"""Nothing is left over: attachments that were taken off, diagnoses and stacks that were dropped; and how it is judged.

The short form of `benchmarks/soak.py`, with exact counts of objects instead of the memory of the process.
"""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neoteny
from neoteny.methods import SGD

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`benchmarks/soak_parts/library.py`."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("soak_parts.library")


@pytest.fixture
def growth(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`benchmarks/soak_parts/growth.py`."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("soak_parts.growth")


def alive() -> dict[str, int]:
    """How many tensors, modules and attachments there are in this process."""
    gc.collect()
    kinds = (torch.Tensor, nn.Module, neoteny.Attachment)
    found = gc.get_objects()
    return {kind.__name__: sum(issubclass(type(each), kind) for each in found) for kind in kinds}


def test_detach_leaves_no_hook_no_activation_and_no_reference(library: Any) -> None:
    cycle = library.Cycle()
    cycle.once()
    before = alive()
    references = [reference for _ in range(2) for reference in cycle.once()]
    assert library.count_hooks(cycle.model, cycle.optimizer) == cycle.hooks_before == 0
    gc.collect()
    assert [reference() for reference in references if reference() is not None] == []
    assert alive() == before


def test_the_check_for_left_over_hooks_and_references_sees_an_attachment_that_is_not_taken_off(library: Any) -> None:
    cycle = library.Cycle()
    example = torch.zeros(1, library.SIZES[0])
    plastic = weakref.ref(neoteny.attach(cycle.model, cycle.optimizer, library.continual(), example=example))
    gc.collect()
    assert plastic() is not None
    assert library.count_hooks(cycle.model, cycle.optimizer) > cycle.hooks_before


def test_a_model_goes_with_its_attachment_when_its_user_lets_go_of_both(library: Any) -> None:
    model = library.network()
    optimizer = torch.optim.Adam(model.parameters())
    plastic = neoteny.attach(model, optimizer, library.continual(), example=torch.zeros(1, library.SIZES[0]))
    library.update(model, optimizer, torch.ones(1, library.SIZES[0]))
    references = [weakref.ref(each) for each in (model, optimizer, plastic)]
    del model, optimizer, plastic
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


def diagnose_once(library: Any) -> list[weakref.ref[Any]]:
    model = library.network()
    diagnosis = neoteny.diagnose(model, torch.ones(10, library.SIZES[0]))
    assert str(diagnosis)
    assert sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()) == 0
    return [weakref.ref(model), weakref.ref(diagnosis)]


def stack_once(library: Any) -> list[weakref.ref[Any]]:
    networks = [library.network() for _ in range(2)]
    inputs = torch.ones(2, 1, library.SIZES[0])
    runs = neoteny.stack(networks, SGD(0.01), library.continual(), example=inputs[0], seeds=[0, 1])
    runs.step(inputs, inputs[..., :1])
    return [weakref.ref(each) for each in (runs, *networks)]


@pytest.mark.parametrize("once", [diagnose_once, stack_once])
def test_nothing_of_it_is_left(once: Callable[[Any], list[weakref.ref[Any]]], library: Any) -> None:
    once(library)  # what is made once for the process is made here
    before = alive()
    references = [reference for _ in range(2) for reference in once(library)]
    gc.collect()
    assert [reference() for reference in references if reference() is not None] == []
    assert alive() == before


@pytest.mark.parametrize(
    ("memory", "files", "blocks", "expected"),
    [
        (0, 0, 0, []),
        (2**20, 0, 0, ["memory_bytes grows"]),
        (0, 1, 0, ["files grows"]),
        (0, 0, 200, ["blocks grows"]),
        (2**16, 0, 20, []),
        (-(2**20), -1, -200, []),
    ],
)
def test_what_grows_after_the_warm_up_is_named(
    growth: Any, memory: int, files: int, blocks: int, expected: list[str]
) -> None:
    found = growth.Growth("made up")
    for number in range(growth.SAMPLES):
        late = max(0, number - growth.WARM_SAMPLES)
        early = min(number, growth.WARM_SAMPLES)  # growth during the warm-up counts for nothing
        grown = (
            2**30 + early * 2**24 + late * memory,
            10 + early + late * files,
            10**6 + early * 10**4 + late * blocks,
        )
        found.samples.append(growth.Sample(100 * number, *grown))
    assert found.faults_found() == expected
    assert found.row()[-1] == ("missed" if expected else "met")


def test_a_part_with_too_few_samples_or_a_failure_is_not_flat(growth: Any) -> None:
    found = growth.Growth("made up", samples=[growth.look(0), growth.look(1)], faults=["a report failed"])
    assert found.faults_found() == [f"2 samples instead of {growth.SAMPLES}", "a report failed"]
    assert found.row()[-1] == "missed"


def test_an_open_file_and_a_kept_object_are_seen() -> None:
    """In a process of its own: here, threads of other tests may open files meanwhile."""
    code = """
        from soak_parts.growth import look
        before = look(0)
        with open("soak.py") as file:
            kept = [[number] for number in range(1000)]
            after = look(1)
        print(after.files - before.files, after.blocks - before.blocks >= len(kept))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    assert subprocess.check_output(command, cwd=BENCHMARKS, text=True).split() == ["1", "True"]

"""Every method is found here by existing: it prints, refuses bad settings, is seeded, and trains in usual loops."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import neoteny
from neoteny import methods
from neoteny.methods import Method
from support.method_cases import (
    EXAMPLES,
    FOUND,
    INPUTS,
    OPTIMIZERS,
    OTHERS,
    Attached,
    make,
    network,
    settings_per_run,
    stacked,
    stream,
)


def test_every_exported_method_has_an_example_and_nothing_else_has() -> None:
    assert set(EXAMPLES) == set(FOUND)
    always = [name for name, kind in FOUND.items() if kind.is_optimizer or kind.wraps_optimizer]
    assert [name for name in FOUND if EXAMPLES[name].off is None] == always


def test_a_method_of_a_user_may_have_an_init_of_its_own() -> None:
    class Named(Method):
        def __init__(self, **settings: float) -> None:
            self.settings = settings

    class Late(Method):
        def __init__(self, after: int = 3) -> None:
            self.after = after

    assert Named(rate=1.0).settings == {"rate": 1.0}
    assert Late(after=4).after == copy.copy(Late(4)).after == 4
    with pytest.raises(TypeError, match="Did you mean 'after'"):
        Late(aftr=1)  # pyright: ignore[reportCallIssue]


def test_every_method_of_the_package_is_exported() -> None:
    def below(kind: type[Method]) -> set[type[Method]]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    concrete = {
        kind for kind in below(Method) if kind.__module__.startswith("neoteny.") and dataclasses.is_dataclass(kind)
    }
    assert {kind.__name__ for kind in concrete} == set(FOUND)


@pytest.mark.parametrize("name", FOUND)
class TestSettings:
    def test_are_frozen_and_can_be_pickled_compared_and_printed(self, name: str) -> None:
        method = make(name)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, dataclasses.fields(method)[0].name, 0.5)  # pyright: ignore[reportArgumentType]
        assert pickle.loads(pickle.dumps(method)) == method
        assert eval(repr(method), dict(vars(methods))) == method
        assert hash(method) == hash(make(name))

    def test_are_the_signature_of_the_class(self, name: str) -> None:
        kind, settings = FOUND[name], [field.name for field in dataclasses.fields(make(name))]  # pyright: ignore
        assert list(inspect.signature(kind).parameters) == settings
        assert kind(**make(name).hyperparameters()) == copy.deepcopy(make(name)) == make(name)

    def test_that_are_misspelt_are_refused_with_the_nearest_that_is_known(self, name: str) -> None:
        settings = make(name).hyperparameters()
        longest = max(settings, key=len)
        with pytest.raises(TypeError, match=rf"{name} has no parameter '{longest}x'\. Did you mean '{longest}'\?"):
            FOUND[name](**{f"{longest}x": settings.pop(longest)}, **settings)

    def test_have_a_card_for_the_table_of_methods(self, name: str) -> None:
        card = FOUND[name].card
        assert all((card.acts_on, card.when, card.keeps))
        assert all(text == text.strip() and not text.endswith(".") for text in dataclasses.astuple(card))

    def test_are_all_explained(self, name: str) -> None:
        text = FOUND[name].__doc__ or ""
        assert "Args:" in text
        explained = text.partition("Args:")[2].partition("Example:")[0]
        for setting in make(name).hyperparameters():
            assert f"{setting}" in explained, setting

    def test_have_the_rule_the_paper_and_an_example_in_their_docstring(self, name: str) -> None:
        kind = FOUND[name]
        text = " ".join((vars(kind).get("__doc__") or "").split())
        assert r"\(" in text or ".. math::" in text
        assert ">>>" in text
        paper = re.match(r".+? \d{4}|", kind.card.reference)  # authors and year
        assert paper is not None
        assert paper[0] in text

    def test_that_are_unknown_or_impossible_are_refused_by_name(self, name: str) -> None:
        with pytest.raises(TypeError, match="has no parameter"):
            make(name, no_such_setting=1)
        for setting, value in make(name).hyperparameters().items():
            if isinstance(value, bool):
                wrong: tuple[Any, ...] = ("yes", 2)
            elif isinstance(value, (int, float)):
                wrong = (-1, float("nan"), float("inf"), "1", True)
            elif isinstance(value, str):
                wrong = (f"{value}x", 1)
            else:
                continue
            for each in wrong:
                with pytest.raises((ValueError, TypeError), match=rf"{name}.*{setting}"):
                    make(name, **{setting: each})

    def test_of_several_runs_belong_in_a_stack_of_as_many(self, name: str) -> None:
        settings = make(name).hyperparameters()
        for setting in settings_per_run(name):
            two = make(name, **{setting: (settings[setting],) * 2})
            assert two.runs() == 2
            with pytest.raises(ValueError, match=f"{name}.*sequence"):
                stacked(two)
            if name in OTHERS:
                with pytest.raises(ValueError, match=f"{name}.*sequence"):
                    Attached(two)


@pytest.mark.parametrize("name", OTHERS)
def test_the_attachment_prints_the_method(name: str) -> None:
    run = Attached(make(name))
    assert repr(make(name)) in str(run.plastic)
    run.train(stream(30))
    after = str(run.plastic)
    assert repr(make(name)) in after
    assert "nan" not in after


def tensors_in(state: Any) -> Iterator[Tensor]:
    """Every tensor of a nested state that has elements."""
    if isinstance(state, Tensor):
        yield from [state] if state.numel() else []
    elif isinstance(state, (Mapping, list, tuple)):
        for value in state.values() if isinstance(state, Mapping) else state:
            yield from tensors_in(value)


def memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("name", FOUND)
class TestRuns:
    def test_with_one_seed_are_equal_and_learn(self, name: str) -> None:
        ends = []
        for _ in range(2):
            runs = stacked(make(name))
            ends.append(torch.stack([runs.step(x, y).losses for x, y in stream(150)]))
        assert torch.equal(ends[0], ends[1])
        assert bool((ends[0][-30:].mean(0) < ends[0][:30].mean(0)).all())

    def test_attached_and_stacked_are_the_same(self, name: str) -> None:
        run = Attached(make(name))
        runs = stacked(make(name), members=[network()], seeds=[7])
        for x, y in stream(60, runs=1):
            expected = float(runs.step(x, y).losses)
            assert run.step(x[0], y[0]) == pytest.approx(expected, rel=1e-11, abs=1e-12)
        for ours, theirs in zip(run.weights(), runs.module(0).parameters(), strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-10, atol=1e-12)

    def test_in_bfloat16_autocast_learn(self, name: str) -> None:
        run = Attached(make(name), model=network(dtype=torch.float32))
        losses = []
        for x, y in stream(150):
            run.optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = (run.model(x[0].float()) - y[0].float()).square().mean()
            loss.backward()
            run.optimizer.step()
            if run.plastic is not None:
                run.plastic.step()
            losses.append(loss.item())
        assert all(parameter.dtype == torch.float32 for parameter in run.model.parameters())
        assert all(bool(weight.isfinite().all()) for weight in run.weights())
        assert sum(losses[-30:]) < sum(losses[:30])

    def test_keep_nothing_that_shares_memory_with_the_network(self, name: str) -> None:
        """A copy that is another name of the weights would follow every update."""
        run, runs = Attached(make(name)), stacked(make(name))
        for x, y in stream(16):
            run.step(x[0], y[0])
            runs.step(x, y)
        states = list(run.plastic._chain.states) if run.plastic is not None else [run.optimizer.state]
        live = {memory_of(value) for value in run.model.state_dict(keep_vars=True).values()}
        assert live.isdisjoint(map(memory_of, tensors_in(states)))
        stacks = {memory_of(value) for value in runs.view.tensors.values()}
        assert stacks.isdisjoint(map(memory_of, tensors_in(runs.chain.states)))
        kept = [memory_of(value) for value in tensors_in(states)]
        assert len(set(kept)) == len(kept)

    def test_do_not_notice_a_task_boundary_that_the_method_does_not_use(self, name: str) -> None:
        if FOUND[name].task_boundary is not Method.task_boundary:
            pytest.skip("the method acts at task boundaries")
        told, untold = stacked(make(name)), stacked(make(name))
        for number, (x, y) in enumerate(stream(30)):
            if number % 7 == 3:
                told.task_boundary()
            assert torch.equal(told.step(x, y).losses, untold.step(x, y).losses)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_not_attached(name: str) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    with pytest.raises(TypeError, match="not a method to attach"):
        neoteny.attach(model, optimizer, make(name), example=torch.zeros(2, INPUTS, dtype=torch.float64))

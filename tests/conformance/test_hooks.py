"""Each hook of a method acts at its place in an update, attached and in a stack; shown by small methods of our own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from neoteny.layers.regions import Region
from neoteny.methods import L2, Method
from neoteny.methods.method import BoundaryData, State
from neoteny.units.view import View
from support.method_cases import Attached, make, network, stacked, stream


@dataclass(frozen=True)
class SquaredWeights(Method):
    """L2 written as a loss term."""

    strength: float | tuple[float, ...]

    def penalty(self, view: View, state: State) -> Tensor:
        total = torch.zeros(view.runs, dtype=torch.float64)
        for parameter in view.parameters.values():
            total = total + parameter.square().flatten(len(view.runs)).sum(-1)
        return total * view.per_run(self.strength, total, axes=0) / 2


@dataclass(frozen=True)
class Clamped(Method):
    """Gradients clamped to a bound."""

    bound: float

    def transform_gradients(self, view: View, state: State) -> None:
        for name in view.parameters:
            gradient = view.gradient(name)
            if gradient is not None:
                gradient.clamp_(-self.bound, self.bound)


@dataclass(frozen=True)
class Watcher(Method):
    """Keeps what it saw: sizes of gradients before and after loss terms, and which elements were reset."""

    seen: list[Any]

    def observe(self, view: View, state: State) -> None:
        self.seen.append(("observe", self._gradients(view)))

    def transform_gradients(self, view: View, state: State) -> None:
        self.seen.append(("transform", self._gradients(view)))

    def step(self, view: View, state: State) -> None:
        self.seen.append(("step", None))

    def on_reset(self, view: View, state: State, region: Region) -> None:
        mark = torch.zeros_like(view.tensor(region.name))
        region.write(mark, 1.0)
        value = region.read(view.tensor(region.name)).detach().clone()
        self.seen.append(("reset", (region.name, mark.bool(), value)))

    def _gradients(self, view: View) -> dict[str, Tensor]:
        found = {name: view.gradient(name) for name in view.parameters}
        return {name: value.clone() for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Doubled(Method):
    """Evaluates with twice the weights of the output layer."""

    averages_weights: ClassVar[bool] = True

    def evaluation(self, view: View, state: State) -> Mapping[str, Tensor]:
        return {name: 2.0 * view.tensor(name).detach() for name in ("4.weight", "4.bias")}


@dataclass(frozen=True)
class FirstGradient(Method):
    """At a boundary, keeps the gradient of the new task's first batch."""

    seen: list[Any]
    needs_boundary_data: ClassVar[bool] = True

    def task_boundary(self, view: View, state: State, data: BoundaryData | None = None) -> None:
        assert data is not None
        self.seen.append(dict(next(iter(data.gradients()))))


@dataclass(frozen=True)
class Unsociable(Method):
    """Refuses L2 beside it."""

    def why_not_with(self, others: Sequence[Method]) -> str:
        return "it brings L2 of its own, so take L2 out." if any(isinstance(other, L2) for other in others) else ""


@dataclass(frozen=True)
class Counting(Method):
    """Plain gradient descent that counts its updates."""

    step_size: float = 0.01
    is_optimizer: ClassVar[bool] = True
    counts_steps: ClassVar[bool] = True

    def init(self, view: View) -> State:
        return {"step": 0}

    def step(self, view: View, state: State) -> None:
        state["step"] += 1
        for name, parameter in view.parameters.items():
            gradient = view.gradient(name)
            if gradient is not None:
                parameter.sub_(gradient * self.step_size)

    def restart_count(self, view: View, state: State) -> None:
        state["step"] = 0


class TestStepCounts:
    def test_restart_in_an_optimizer_of_our_own_attached_and_in_a_stack(self) -> None:
        run, runs = Attached(Counting(), make("AdamRel")), stacked(Counting(), make("AdamRel"))
        assert run.plastic is not None
        for x, y in stream(5):
            run.step(x[0], y[0])
            runs.step(x, y)
        counts = [run.optimizer.state_dict()["state"]["group 0"]["step"], runs.chain.states[0]["step"]]
        assert counts == [5, 5]
        run.plastic.task_boundary()
        runs.task_boundary()
        counts = [run.optimizer.state_dict()["state"]["group 0"]["step"], runs.chain.states[0]["step"]]
        assert counts == [0, 0]

    def test_are_needed_by_a_method_that_acts_on_them(self) -> None:
        for build in (Attached, stacked):
            with pytest.raises(ValueError, match="AdamRel acts on the step count of Adam, and SGD has none"):
                build(make("SGD"), make("AdamRel"))

    def test_two_methods_that_wrap_the_optimizer_are_refused(self) -> None:
        for build in (Attached, stacked):
            with pytest.raises(ValueError, match="TRAC and TRAC both decide"):
                build(make("TRAC"), make("TRAC"))


class TestPenalty:
    def test_is_the_gradient_of_the_term_attached(self) -> None:
        term, gradient = Attached(SquaredWeights(0.05)), Attached(L2(0.05))
        assert term.train(stream(40)) == pytest.approx(gradient.train(stream(40)), rel=1e-12)

    def test_is_each_runs_own_in_a_stack(self) -> None:
        strengths = (0.1, 0.01, 0.0)
        term, gradient = stacked(SquaredWeights(strengths)), stacked(L2(strengths))
        for x, y in stream(40):
            torch.testing.assert_close(term.step(x, y).losses, gradient.step(x, y).losses, rtol=1e-12, atol=1e-13)

    def test_of_another_shape_or_without_gradient_is_refused(self) -> None:
        class Wrong(SquaredWeights):
            def penalty(self, view: View, state: State) -> Tensor:
                return super().penalty(view, state).expand(2)

        class Constant(SquaredWeights):
            def penalty(self, view: View, state: State) -> Tensor:
                return super().penalty(view, state).detach()

        x, y = stream(1)[0]
        with pytest.raises(ValueError, match=r"Wrong.*one number per run.*got shape \(2,\)"):
            Attached(Wrong(0.1)).step(x[0], y[0])
        with pytest.raises(ValueError, match=r"Constant.*without a gradient"):
            Attached(Constant(0.1)).step(x[0], y[0])


class TestOrder:
    def test_gradients_are_observed_before_loss_terms_and_transformed_after_all_of_them(self) -> None:
        seen: list[Any] = []
        run = Attached(Watcher(seen), L2(0.5))  # listed before the term, and still sees it
        x, y = stream(1)[0]
        weights = dict(zip(dict(run.model.named_parameters()), run.weights(), strict=True))
        run.step(x[0], y[0])
        assert [kind for kind, _ in seen] == ["observe", "transform", "step"]
        for name, before in seen[0][1].items():
            torch.testing.assert_close(seen[1][1][name], before + 0.5 * weights[name])

    def test_what_is_transformed_is_what_the_optimizer_gets(self) -> None:
        run = Attached(Clamped(0.01))
        plain = Attached()
        for x, y in stream(20):
            run.step(x[0], y[0])
            plain.optimizer.zero_grad()
            (plain.model(x[0]) - y[0]).square().mean().backward()
            torch.nn.utils.clip_grad_value_(plain.model.parameters(), 0.01)
            plain.optimizer.step()
        for ours, theirs in zip(run.weights(), plain.weights(), strict=True):
            assert torch.equal(ours, theirs)

    def test_in_a_stack_it_is_the_same(self) -> None:
        alone, runs = Attached(Clamped(0.01), L2(0.1)), stacked(Clamped(0.01), L2(0.1), members=[network()])
        for x, y in stream(20, runs=1):
            assert float(runs.step(x, y).losses) == pytest.approx(alone.step(x[0], y[0]), rel=1e-12)


class TestResets:
    @pytest.mark.parametrize("name", ["ContinualBackprop", "ReDo"])
    def test_every_method_is_told_which_elements_are_new_after_they_were_written(self, name: str) -> None:
        seen: list[Any] = []
        run = Attached(make(name), Watcher(seen))
        assert run.plastic is not None
        for x, y in stream(40):
            run.update(x[0], y[0])
            before = {key: value.detach().clone() for key, value in run.model.named_parameters()}
            seen.clear()
            run.plastic.step()
            told = {key: torch.zeros_like(value, dtype=torch.bool) for key, value in before.items()}
            for kind, report in seen:
                if kind == "reset":
                    told[report[0]] |= report[1]
            for key, value in run.model.named_parameters():
                changed = value.detach() != before[key]
                compensated = key.endswith("bias")  # a consumer's bias may take over a mean, and is not new
                assert compensated or not bool((changed & ~told[key]).any()), key
        assert sum(run.plastic.replaced.values()) > 3


class TestEvaluation:
    def test_weights_serve_inside_the_context_alone(self) -> None:
        run = Attached(Doubled())
        run.train(stream(5))
        assert run.plastic is not None
        x = stream(1)[0][0][0]
        trained = run.weights()
        with torch.no_grad():
            before = run.model(x)
            with run.plastic.evaluating() as model:
                torch.testing.assert_close(model(x), 2.0 * before)
            assert torch.equal(run.model(x), before)
        for now, then in zip(run.weights(), trained, strict=True):
            assert torch.equal(now, then)

    def test_weights_are_put_back_after_an_error(self) -> None:
        run = Attached(Doubled())
        assert run.plastic is not None
        trained = run.weights()
        with pytest.raises(KeyError), run.plastic.evaluating():
            raise KeyError
        for now, then in zip(run.weights(), trained, strict=True):
            assert torch.equal(now, then)

    def test_weights_are_what_a_stack_predicts_with(self) -> None:
        runs, plain = stacked(Doubled()), stacked()
        for x, y in stream(5):
            runs.step(x, y)
            plain.step(x, y)
        x = stream(1)[0][0]
        torch.testing.assert_close(runs.predict(x), 2.0 * plain.predict(x))
        for ours, theirs in zip(runs.view.tensors.values(), plain.view.tensors.values(), strict=True):
            assert torch.equal(ours, theirs)

    def test_weights_of_two_methods_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"Doubled and Doubled both"):
            Attached(Doubled(), Doubled())


class TestBoundary:
    def test_data_reach_the_method_as_gradients_of_the_loss(self) -> None:
        seen: list[Any] = []
        run = Attached(FirstGradient(seen))
        run.train(stream(3))
        assert run.plastic is not None
        x, y = stream(1, seed=9)[0]
        batches: Iterable[tuple[Tensor, Tensor]] = [(x[0], y[0])]
        run.plastic.task_boundary(batches, loss=lambda outputs, targets: (outputs - targets).square().mean())
        run.optimizer.zero_grad()
        (run.model(x[0]) - y[0]).square().mean().backward()
        assert set(seen[0]) == set(dict(run.model.named_parameters()))
        for name, parameter in run.model.named_parameters():
            torch.testing.assert_close(seen[0][name], parameter.grad)

    def test_without_data_is_refused_by_a_method_that_needs_them(self) -> None:
        run = Attached(FirstGradient([]))
        assert run.plastic is not None
        with pytest.raises(ValueError, match=r"FirstGradient needs data"):
            run.plastic.task_boundary()


def test_a_method_may_refuse_another_with_its_reason() -> None:
    for build in (Attached, stacked):
        with pytest.raises(ValueError, match=r"Unsociable.*take L2 out"):
            build(Unsociable(), L2(0.1))

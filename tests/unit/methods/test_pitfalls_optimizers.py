"""Mistakes of published optimizers and of obvious ways to write them; each test fails on the mistake it names."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special
from torch import Tensor, nn

import neoteny
from neoteny.layers.regions import Region
from neoteny.methods import TRAC, UPGD, Adam, AdamO, AdamRel, AdamW, AdaUPGD, ContinualBackprop, Method, Muon
from neoteny.methods.adam_o import isometry_gradient, isometry_penalty
from neoteny.methods.muon import orthogonalise
from neoteny.methods.trac import erfi
from support.method_cases import Attached, make, network, stacked, stream

pytestmark = pytest.mark.usefixtures("double_precision")


def pair(first: list[float], second: list[float]) -> list[nn.Parameter]:
    return [nn.Parameter(torch.tensor([values])) for values in (first, second)]


def step_with(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], gradients: list[list[float]]) -> None:
    for parameter, values in zip(parameters, gradients, strict=True):
        parameter.grad = torch.tensor([values])
    optimizer.step()


class TestUPGD:
    def test_divides_by_the_largest_utility_of_the_network_not_of_each_layer(self) -> None:
        parameters = pair([1.0], [1.0])
        optimizer = neoteny.optim.from_method(UPGD(0.1, decay_rate=0.9, noise_std=0.0), parameters)
        step_with(optimizer, parameters, [[-4.0], [-1.0]])  # utilities 4 and 1
        free = 1.0 - 1.0 / (1.0 + math.exp(-0.25))
        assert float(parameters[1].detach()) == pytest.approx(1.0 + 0.1 * free)

    def test_protects_the_most_useful_weight_alike_at_the_first_update_and_later(self) -> None:
        parameters = pair([1.0], [1e-3])
        optimizer = neoteny.optim.from_method(UPGD(1e-6, decay_rate=0.99, noise_std=0.0), parameters)
        for _ in range(20):
            before = float(parameters[0].detach())
            step_with(optimizer, parameters, [[-2.0], [-1.0]])
            free = (float(parameters[0].detach()) - before) / 2e-6
            assert free == pytest.approx(1.0 - 1.0 / (1.0 + math.exp(-1.0)), rel=1e-6)

    @pytest.mark.parametrize("kind", [UPGD, AdaUPGD])
    def test_never_climbs_where_no_weight_is_useful(self, kind: type[UPGD]) -> None:
        parameters = pair([1.0, 2.0], [3.0])
        optimizer = neoteny.optim.from_method(kind(0.1, noise_std=0.0, factor=1.0), parameters)
        before = [parameter.detach().clone() for parameter in parameters]
        step_with(optimizer, parameters, [[1.0, 1.0], [1.0]])  # every utility is negative
        for parameter, old in zip(parameters, before, strict=True):
            torch.testing.assert_close(parameter.detach(), old - 0.1, rtol=0, atol=1e-5)


SETTLED: list[Method] = [
    Adam(0.01),
    AdamW(0.01, weight_decay=0.0),
    AdamO(0.01, strength=0.0),
    AdaUPGD(0.01, noise_std=0.0, factor=1.0, protect=False),
    Muon(0.1, adam="all"),
]


@pytest.mark.parametrize("method", SETTLED, ids=lambda method: type(method).__name__)
def test_a_reset_row_moves_by_one_step_size_and_the_others_as_before(method: Method) -> None:
    weight = nn.Parameter(torch.zeros(3, 2))
    optimizer = neoteny.optim.from_method(method, [weight])
    moves: list[Tensor] = []
    for update in range(401):
        if update == 400:
            optimizer.clear_elements(weight, Region("any", (torch.tensor([[1]]),)))
        before = weight.detach().clone()
        weight.grad = torch.full((3, 2), 0.5)
        optimizer.step()
        moves.append(before - weight.detach())
    torch.testing.assert_close(moves[-1], torch.full((3, 2), 0.01), rtol=1e-4, atol=0)


class TestAdamO:
    @pytest.mark.parametrize("shape", [(2, 5), (5, 2), (3, 3)])
    def test_gradient_is_that_of_the_penalty(self, shape: tuple[int, int]) -> None:
        matrix = torch.randn(4, *shape, requires_grad=True)
        isometry_penalty(matrix).sum().backward()
        torch.testing.assert_close(isometry_gradient(matrix.detach()), matrix.grad)

    def test_moments_see_the_loss_alone(self) -> None:
        weight = nn.Parameter(torch.tensor([[2.0, 0.0], [0.0, 0.5]]))
        optimizer = neoteny.optim.from_method(AdamO(0.1, strength=0.3), [weight])
        for _ in range(300):
            weight.grad = torch.zeros(2, 2)
            optimizer.step()
        moments = optimizer.state_dict()["state"]["group 0"]["moments"]
        assert not any(bool(each.any()) for kept in moments.values() for each in kept.values())
        torch.testing.assert_close(weight.detach(), torch.eye(2), rtol=0, atol=1e-6)

    def test_takes_a_convolution_as_out_times_rest_and_leaves_biases(self) -> None:
        conv = nn.Conv2d(2, 4, 2)
        bias = conv.bias
        assert bias is not None
        start = bias.detach().clone()
        optimizer = neoteny.optim.from_method(AdamO(0.1, strength=0.3), conv.parameters())
        for _ in range(300):
            for parameter in conv.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
        rows = conv.weight.detach().flatten(1)
        torch.testing.assert_close(rows @ rows.mT, torch.eye(4), rtol=0, atol=1e-6)
        assert torch.equal(bias.detach(), start)


def test_adam_w_is_torchs() -> None:
    model, twin = network(), network()
    ours = neoteny.optim.from_method(AdamW(0.01, weight_decay=0.3), model.parameters())
    theirs = torch.optim.AdamW(twin.parameters(), lr=0.01, weight_decay=0.3)
    runs = stacked(AdamW(0.01, weight_decay=(0.3, 0.3, 0.0)))
    for x, y in stream(60):
        for each, optimizer in ((model, ours), (twin, theirs)):
            optimizer.zero_grad()
            (each(x[0]) - y[0]).square().mean().backward()
            optimizer.step()
        runs.step(x, y)
    for mine, other, in_stack in zip(model.parameters(), twin.parameters(), runs.module(0).parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(in_stack, other, rtol=1e-10, atol=1e-12)


class TestMuon:
    @pytest.mark.parametrize("shape", [(6, 3), (3, 6), (4, 4)])
    def test_is_torchs_muon(self, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Tensor, "bfloat16", Tensor.double)  # torch orthogonalises in bfloat16
        start = torch.randn(shape)
        ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
        optimizer = neoteny.optim.from_method(Muon(0.02, adam="vectors", weight_decay=0.1), [ours])
        twin = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1)
        for _ in range(30):
            gradient = torch.randn(shape)
            ours.grad, theirs.grad = gradient.clone(), gradient.clone()
            optimizer.step()
            twin.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)

    def test_is_near_torchs_muon_in_its_own_precision(self) -> None:
        start, gradient = torch.randn(5, 4), torch.randn(5, 4)
        ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        neoteny.optim.from_method(Muon(0.02, adam="vectors"), [ours]).step()
        torch.optim.Muon([theirs], lr=0.02, weight_decay=0.0).step()
        torch.testing.assert_close(ours - start, theirs - start, rtol=0, atol=0.02 * 0.03)

    def test_takes_a_convolution_as_out_times_rest(self) -> None:
        conv = nn.Conv2d(3, 4, 2)
        gradient = torch.randn(4, 3, 2, 2)
        conv.weight.grad = gradient.clone()
        start = conv.weight.detach().clone()
        neoteny.optim.from_method(Muon(0.1, adam="vectors"), [conv.weight]).step()
        expected = orthogonalise(gradient.reshape(4, 12)).reshape(4, 3, 2, 2)
        torch.testing.assert_close((start - conv.weight.detach()) / 0.1, expected)
        spectrum = torch.linalg.svdvals(expected.reshape(4, 12))
        assert float(spectrum.min()) > 0.6
        assert float(spectrum.max()) < 1.3

    @pytest.mark.parametrize("build", ["stack", "from_method", "two groups", "no names"])
    def test_leaves_the_output_layer_and_vectors_to_adam(self, build: str) -> None:
        method = Muon(0.02)
        if build == "stack":
            runs = stacked(method)
            runs.step(*stream(1)[0])
            kept: Any = runs.state_dict()["states"][0]["parameters"]
        else:
            model = network()
            named = list(model.named_parameters())
            groups: Any = {
                "from_method": named,
                "no names": list(model.parameters()),
                "two groups": [{"params": named[:4]}, {"params": named[4:]}],
            }[build]
            optimizer = neoteny.optim.from_method(method, groups)
            (model(stream(1)[0][0][0])).square().mean().backward()
            optimizer.step()
            states = optimizer.state_dict()["state"]
            kept = {name: value for state in states.values() for name, value in state["parameters"].items()}
        keys = [set(value) for value in kept.values()]
        adam = {"first", "second"}
        assert keys == [{"momentum"}, adam, {"momentum"}, adam, adam, adam]

    def test_by_groups_trains_an_embedding_by_adam(self) -> None:
        embedding, layer = nn.Embedding(3, 2), nn.Linear(2, 2, bias=False)
        groups = [{"params": [layer.weight], "adam": "vectors"}, {"params": [embedding.weight], "adam": "all"}]
        optimizer = neoteny.optim.from_method(Muon(0.02), groups)
        layer(embedding(torch.tensor([0, 2]))).square().sum().backward()
        optimizer.step()
        states = optimizer.state_dict()["state"]
        assert [set(next(iter(state["parameters"].values()))) for state in states.values()] == [
            {"momentum"},
            {"first", "second"},
        ]


class TestTRAC:
    def test_erfi_is_scipys(self) -> None:
        x = np.concatenate([-np.logspace(-12, 1.41, 60), [0.0], np.logspace(-12, 1.41, 60)])
        ours = erfi(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(ours, special.erfi(x), rtol=2e-13)
        assert torch.isfinite(erfi(torch.tensor([1e9, -1e9]))).all()

    def test_a_reset_is_not_something_learned(self) -> None:
        run = Attached(TRAC(), ContinualBackprop(0.2, maturity_threshold=2, decay_rate=0.9))
        assert run.plastic is not None
        previous = torch.zeros(6)
        for x, y in stream(30):
            run.step(x[0], y[0])
            sigma = run.plastic.state_dict()["states"][0]["sigma"]
            assert float((sigma - previous).abs().max()) < 5.0  # a redrawn weight over S = 1e-7 would be 1e6
            previous = sigma
        assert sum(run.plastic.replaced.values()) > 5

    @pytest.mark.parametrize("name", ["ShrinkAndPerturb", "HareAndTortoise"])
    def test_what_others_change_after_the_update_is_not_something_learned(self, name: str) -> None:
        run = Attached(TRAC(), make(name))
        assert run.plastic is not None
        for x, y in stream(30):
            run.step(x[0], y[0])
            assert float(run.plastic.state_dict()["states"][0]["sigma"].abs().max()) < 5.0

    def test_what_others_change_after_the_update_is_kept(self) -> None:
        run = Attached(TRAC())  # with scales of 1e-7 the optimizer itself moves nothing that could be seen
        batches = stream(6)
        run.train(batches[:3])
        with torch.no_grad():
            for parameter in run.model.parameters():
                parameter.add_(0.25)
        moved = run.weights()
        run.train(batches[3:])
        for now, then in zip(run.weights(), moved, strict=True):
            torch.testing.assert_close(now, then, rtol=0, atol=1e-6)

    def test_the_start_shares_no_storage_with_the_weights(self) -> None:
        run = Attached(TRAC())
        assert run.plastic is not None
        kept = run.plastic._chain.states[0]["parameters"]
        for name, parameter in run.model.named_parameters():
            pointers = {kept[name][key].data_ptr() for key in ("start", "base")} | {parameter.data_ptr()}
            assert len(pointers) == 3

    def test_in_float32_the_first_tiny_displacements_are_not_rounded_away(self) -> None:
        totals: list[list[float]] = []
        for dtype in (torch.float32, torch.float64):
            model = nn.Linear(1, 1, bias=False).to(dtype)
            with torch.no_grad():
                model.weight.fill_(1.0)  # 1 + 1e-8 is 1 in float32
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            plastic = neoteny.attach(model, optimizer, TRAC())
            totals.append([])
            for _ in range(60):
                optimizer.zero_grad()
                model(torch.ones(1, 1, dtype=dtype)).sum().backward()
                optimizer.step()
                plastic.step()
                totals[-1].append(float(plastic.state_dict()["states"][0]["total"]))
        np.testing.assert_allclose(totals[0], totals[1], rtol=1e-3)
        assert totals[0][-1] > 1e3 * totals[0][0]

    def test_weights_between_two_updates_are_the_start_plus_the_scaled_path(self) -> None:
        run = Attached(make("TRAC"))
        run.train(stream(20))
        assert run.plastic is not None
        state = run.plastic.state_dict()["states"][0]
        for name, parameter in run.model.named_parameters():
            kept = state["parameters"][name]
            expected = kept["start"] + float(state["total"]) * (kept["base"] - kept["start"])
            torch.testing.assert_close(parameter.detach(), expected, rtol=1e-12, atol=1e-13)

    def test_an_update_that_was_begun_is_not_saved_and_does_not_stop_loading(self) -> None:
        run = Attached(make("TRAC"))
        assert run.plastic is not None
        batches = stream(12)
        run.train(batches[:5])
        saved = copy.deepcopy((run.model.state_dict(), run.optimizer.state_dict(), run.plastic.state_dict()))
        expected = run.train(batches[6:])
        run.update(batches[5][0][0], batches[5][1][0])  # without plastic.step()
        run.model.load_state_dict(saved[0])
        run.optimizer.load_state_dict(saved[1])
        run.plastic.load_state_dict(saved[2])
        assert run.train(batches[6:]) == expected


class TestAdamRel:
    @pytest.mark.parametrize(
        "make_optimizer",
        [
            lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=False),
            lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=True),
            lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
            lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True),
            lambda parameters: neoteny.optim.Adam(parameters, lr=0.01),
            lambda parameters: neoteny.optim.from_method(Adam(0.01), parameters),
        ],
        ids=["Adam", "foreach", "AdamW", "amsgrad", "neoteny.optim.Adam", "from_method"],
    )
    def test_restarts_the_count_and_keeps_the_moments(self, make_optimizer: Any) -> None:
        model = network()
        optimizer = make_optimizer(model.parameters())
        plastic = neoteny.attach(model, optimizer, AdamRel())
        for x, y in stream(7):
            optimizer.zero_grad()
            (model(x[0]) - y[0]).square().mean().backward()
            optimizer.step()
            plastic.step()
        before = copy.deepcopy(optimizer.state_dict()["state"])
        plastic.task_boundary()
        after = optimizer.state_dict()["state"]
        counts, moments = split(before), split(after)
        assert counts[0]
        assert all(count == 7 for count in counts[0])
        assert all(count == 0 for count in moments[0])
        assert len(counts[1]) >= 12
        for old, new in zip(counts[1], moments[1], strict=True):
            assert torch.equal(old, new)

    @pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.NAdam, torch.optim.Adagrad])
    def test_refuses_optimizers_without_a_count_that_it_could_restart(self, kind: Any) -> None:
        model = network()
        with pytest.raises(ValueError, match=rf"AdamRel acts on the step count of Adam, and {kind.__name__} has none"):
            neoteny.attach(model, kind(model.parameters(), lr=0.01), AdamRel())

    def test_acts_on_adam_where_several_optimizers_share_the_model(self) -> None:
        model = network()
        first = torch.optim.SGD(model[0].parameters(), lr=0.01)
        second = torch.optim.Adam([*model[2].parameters(), *model[4].parameters()], lr=0.01)
        plastic = neoteny.attach(model, [first, second], AdamRel())
        model(stream(1)[0][0][0]).square().mean().backward()
        first.step()
        second.step()
        plastic.task_boundary()
        assert all(float(state["step"]) == 0.0 for state in second.state.values())

    def test_restarts_counts_of_reset_weights_too(self) -> None:
        runs = stacked(make("Adam"), make("ContinualBackprop"), make("AdamRel"))
        for x, y in stream(14):
            runs.step(x, y)  # the period is 7, so that counts are at zero now
        state = runs.state_dict()["states"][0]
        assert state["step"] == 0
        vectors = [counted["step"] for kept in state["resets"].values() for counted in kept.values()]
        assert vectors
        assert not any(bool(vector.any()) for vector in vectors)


def split(states: Any) -> tuple[list[float], list[Tensor]]:
    """Step counts, and tensors of more than one number, of a torch optimizer's saved state."""
    counts: list[float] = []
    tensors: list[Tensor] = []
    for key, value in states.items():
        if isinstance(value, dict):
            more = split(value)
            counts += more[0]
            tensors += more[1]
        elif key == "step":
            counts.append(float(value))
        elif isinstance(value, Tensor) and value.numel() > 1:
            tensors.append(value)
    return counts, tensors

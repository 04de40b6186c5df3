"""Mistakes of public code for resets and projections of weights; each test fails where one is made."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import (
    FIRE,
    SGD,
    ContinualBackprop,
    HardReset,
    L2Init,
    Method,
    NormalizeAndProject,
    PlasticityInjection,
    SoftShrinkAndPerturb,
    WarmStartShrinkAndPerturb,
    WeightClipping,
)
from neoteny.methods.plasticity_injection import InjectedHead


def network(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    layers = [nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 2)]
    return nn.Sequential(*layers)


def update(model: nn.Module, optimizer: Any, plastic: neoteny.Attachment, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 6, generator=generator)
    optimizer.zero_grad()
    model(x).sub(1.0).square().mean().backward()
    optimizer.step()
    plastic.step()


def attach(model: nn.Module, *methods: Method, lr: float = 0.0, **options: Any) -> tuple[Any, neoteny.Attachment]:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return optimizer, neoteny.attach(model, optimizer, *methods, seed=1, **options)


class TestWeightClipping:
    def test_a_bias_has_the_bound_of_its_own_weight_in_any_order_of_definition(self) -> None:
        class Backwards(nn.Module):  # the output layer is defined first, and a norm lies between weight and bias
            def __init__(self) -> None:
                super().__init__()
                self.head, self.norm, self.body = nn.Linear(4, 2), nn.LayerNorm(4), nn.Linear(100, 4)

            def forward(self, x: Tensor) -> Tensor:
                return self.head(self.norm(self.body(x)).relu())

        model = Backwards()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(50.0)
        optimizer, plastic = attach(model, WeightClipping(1.0))
        optimizer.zero_grad()
        model(torch.zeros(1, 100)).sum().backward()
        optimizer.step()
        plastic.step()
        for layer, bound in ((model.head, 0.5), (model.body, 0.1)):
            for parameter in (layer.weight, layer.bias):
                assert torch.equal(parameter, torch.full_like(parameter, bound))
        assert torch.equal(model.norm.weight, torch.full((4,), 50.0))

    def test_the_spared_layer_is_the_output_layer_and_not_the_end_of_every_parameter_group(self) -> None:
        model = network()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(50.0)
        groups = [{"params": list(model[:2].parameters())}, {"params": list(model[2:].parameters())}]
        optimizer = torch.optim.SGD(groups, lr=0.0)
        plastic = neoteny.attach(model, optimizer, WeightClipping(1.0, spare_output=True))
        update(model, optimizer, plastic)
        assert float(model[0].weight.detach().max()) == pytest.approx(1 / math.sqrt(6))
        assert float(model[0].bias.detach().max()) == pytest.approx(1 / math.sqrt(6))
        assert float(model[3].bias.detach().max()) == pytest.approx(1 / math.sqrt(8))
        assert float(model[6].weight.detach().max()) == float(model[6].bias.detach().max()) == 50.0

    def test_moments_are_kept(self) -> None:
        model = network()
        optimizer, plastic = attach(model, WeightClipping(0.3), lr=0.1)
        for seed in range(3):
            update(model, optimizer, plastic, seed)
        assert all(bool(state["momentum_buffer"].any()) for state in optimizer.state.values())


class TestNormalizeAndProject:
    def test_every_update_is_projected(self) -> None:
        model = network()
        first = float(model[0].weight.detach().norm())
        optimizer, plastic = attach(model, NormalizeAndProject(), lr=0.1)
        for seed in range(12):
            update(model, optimizer, plastic, seed)
            assert float(model[0].weight.detach().norm()) == pytest.approx(first, rel=1e-6)

    def test_scales_and_shifts_of_norms_are_treated_whatever_they_are_called(self) -> None:
        model = network()
        size = float(torch.cat([model[1].weight, model[1].bias]).detach().norm())
        optimizer, plastic = attach(model, NormalizeAndProject(), lr=0.1)
        before = model[1].weight.detach().clone()
        for seed in range(12):
            update(model, optimizer, plastic, seed)
            now = torch.cat([model[1].weight, model[1].bias]).detach().norm()
            assert float(now) == pytest.approx(size, rel=1e-6)
        assert not torch.equal(before, model[1].weight)

    def test_or_decay_to_one_and_zero(self) -> None:
        model = network()
        with torch.no_grad():
            model[1].weight.fill_(3.0)
            model[1].bias.fill_(2.0)
        optimizer, plastic = attach(model, NormalizeAndProject(norms="decay", decay_rate=0.25))
        update(model, optimizer, plastic)
        assert torch.equal(model[1].weight, torch.full((8,), 2.5))
        assert torch.equal(model[1].bias, torch.full((8,), 1.5))

    def test_a_hidden_layer_without_norm_is_told_and_the_output_layer_is_not(self) -> None:
        bare: Any = nn.Sequential(
            nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2)
        )
        with pytest.warns(UserWarning, match=r"none is defined behind 0: .*presume_norms=True"):
            attach(bare, NormalizeAndProject())
        for method in (NormalizeAndProject(), NormalizeAndProject(project_output=True)):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                attach(network(), method)
        neoteny.detach(bare)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            attach(bare, NormalizeAndProject(presume_norms=True))

    def test_a_weight_that_is_drawn_new_as_a_whole_keeps_its_new_norm(self) -> None:
        model = network()
        optimizer, plastic = attach(model, NormalizeAndProject(), HardReset(("0",)), lr=0.1)
        update(model, optimizer, plastic)
        first = float(model[0].weight.detach().norm())
        plastic.task_boundary()
        second = float(model[0].weight.detach().norm())
        assert second != pytest.approx(first, rel=1e-3)
        update(model, optimizer, plastic, 1)
        assert float(model[0].weight.detach().norm()) == pytest.approx(second, rel=1e-6)

    def test_weights_of_zero_stay_zero(self) -> None:
        model = network()
        with torch.no_grad():
            model[3].weight.zero_()
        optimizer, plastic = attach(model, NormalizeAndProject())
        update(model, optimizer, plastic)
        assert torch.equal(model[3].weight, torch.zeros(5, 8))


class TestShrinkAndPerturb:
    def test_softly_each_update_draws_another_network(self) -> None:
        model = network()
        optimizer, plastic = attach(model, SoftShrinkAndPerturb(1.0))
        seen = []
        for _ in range(3):
            update(model, optimizer, plastic)
            seen.append(model[0].weight.detach().clone())
        assert not torch.equal(seen[0], seen[1])
        assert not torch.equal(seen[1], seen[2])
        assert all(0.0 < float(each.abs().max()) <= 1 / math.sqrt(6) for each in seen)
        assert torch.equal(model[1].weight, torch.ones(8))  # a new norm is not noise

    def test_softly_the_optimizer_is_kept_and_at_a_boundary_it_starts_again(self) -> None:
        for method, kept in ((SoftShrinkAndPerturb(0.1), True), (WarmStartShrinkAndPerturb(), False)):
            model = network()
            optimizer, plastic = attach(model, method, lr=0.1)
            update(model, optimizer, plastic)
            plastic.task_boundary()
            assert any("momentum_buffer" in state for state in optimizer.state.values()) == kept

    def test_each_boundary_draws_another_network_and_towards_the_start_the_same(self) -> None:
        for method, same in (
            (WarmStartShrinkAndPerturb(0.0, 1.0), False),
            (WarmStartShrinkAndPerturb.towards_initial(1.0), True),
        ):
            model = network()
            first = model[0].weight.detach().clone()
            optimizer, plastic = attach(model, method, lr=0.1)
            update(model, optimizer, plastic)
            plastic.task_boundary()
            second = model[0].weight.detach().clone()
            plastic.task_boundary()  # two boundaries with no update between them
            assert torch.equal(second, model[0].weight) == same
            assert torch.equal(first, second) == same

    def test_towards_the_start_a_unit_that_was_reset_starts_where_it_was_drawn(self) -> None:
        model = network()
        methods = ContinualBackprop(0.5, maturity_threshold=1), WarmStartShrinkAndPerturb.towards_initial(1.0)
        optimizer, plastic = attach(model, *methods, lr=0.1, example=torch.zeros(2, 6))
        start = model[0].weight.detach().clone()
        for seed in range(3):
            update(model, optimizer, plastic, seed)
        assert plastic.replaced["0"] > 0
        after = model[0].weight.detach().clone()
        plastic.task_boundary()
        back = model[0].weight.detach()
        new = ~(back == start).all(-1)
        assert bool(new.any())
        assert bool((~new).any())
        assert int(new.sum()) <= plastic.replaced["0"]
        assert not torch.equal(back, after)


class TestHardReset:
    def test_draws_new_numbers_at_every_reset_and_tells_everyone(self) -> None:
        model = network()
        first = model[6].weight.detach().clone()
        optimizer, plastic = attach(model, HardReset(), L2Init(0.1), lr=0.1)
        update(model, optimizer, plastic)
        plastic.task_boundary()
        second = model[6].weight.detach().clone()
        anchors = plastic._chain.states[1]["parameters"]
        assert torch.equal(anchors["6.weight"], second)
        assert not torch.equal(anchors["3.weight"], model[3].weight)
        assert not optimizer.state.get(model[6].weight)
        assert optimizer.state[model[3].weight]
        plastic.task_boundary()
        assert not torch.equal(second, model[6].weight)
        assert not torch.equal(first, second)

    def test_from_scratch_is_a_new_network_with_new_statistics(self) -> None:
        torch.manual_seed(0)
        model: Any = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        nn.init.zeros_(model[3].bias)
        optimizer, plastic = attach(model, HardReset.from_scratch(), lr=0.1)
        for seed in range(4):
            update(model, optimizer, plastic, seed)
        plastic.task_boundary()
        assert torch.equal(model[1].weight, torch.ones(8))
        assert torch.equal(model[1].bias, torch.zeros(8))
        assert torch.equal(model[1].running_mean, torch.zeros(8))
        assert torch.equal(model[1].running_var, torch.ones(8))
        assert int(model[1].num_batches_tracked) == 0
        assert torch.equal(model[3].bias, torch.zeros(2))  # as it began
        assert len(model[0].bias.unique()) == 8
        assert not optimizer.state

    def test_what_is_drawn_follows_the_law_of_the_layer(self) -> None:
        torch.manual_seed(0)
        model: Any = nn.Sequential(nn.Linear(60, 80), nn.ReLU(), nn.Linear(80, 70))
        for layer in (model[0], model[2]):
            nn.init.kaiming_normal_(layer.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plastic = neoteny.attach(model, optimizer, HardReset("all"))
        before = [float(model[place].weight.detach().std()) for place in (0, 2)]
        plastic.task_boundary()
        after = [float(model[place].weight.detach().std()) for place in (0, 2)]
        assert after == pytest.approx(before, rel=0.05)
        assert float(model[0].weight.detach().abs().max()) > 2.5 * after[0]  # normal, not uniform
        with pytest.raises(ValueError, match=r"run 0, 0: the initial distribution has a standard deviation"):
            neoteny.stack([model], SGD(0.1), HardReset("all"))
        runs = neoteny.stack([model], SGD(0.1), HardReset("all"), init="kaiming_normal")
        runs.task_boundary()
        assert float(runs.view.tensor("2.weight").detach().std()) == pytest.approx(before[1], rel=0.05)

    def test_units_of_reset_layers_are_new_to_methods_that_follow_units(self) -> None:
        model = network()
        methods = ContinualBackprop(1e-9), HardReset.from_scratch()
        optimizer, plastic = attach(model, *methods, lr=0.1, example=torch.zeros(2, 6))
        for seed in range(5):
            update(model, optimizer, plastic, seed)
        born = plastic.state_dict()["states"][0]["0"]["born"]
        assert not bool(born.any())
        plastic.task_boundary()
        assert bool((plastic.state_dict()["states"][0]["0"]["born"] == 5).all())

    def test_an_unknown_or_ambiguous_layer_is_refused_at_once(self) -> None:
        class TwoHeads(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body, self.policy, self.value = nn.Linear(6, 4), nn.Linear(4, 2), nn.Linear(4, 1)

            def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
                h = self.body(x).relu()
                return self.policy(h), self.value(h)

        with pytest.raises(ValueError, match=r"no module 'heda'.*It has body, policy, value"):
            attach(TwoHeads(), HardReset(("heda",)))
        with pytest.raises(ValueError, match=r"not known which layer of TwoHeads.*pass example="):
            attach(TwoHeads(), HardReset())
        with pytest.raises(ValueError, match=r"2 layers give the output of TwoHeads: policy, value.*Name the layer"):
            attach(TwoHeads(), HardReset(), example=torch.zeros(2, 6))
        model = TwoHeads()
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        attach(model, HardReset(("policy", "value")))[1].task_boundary()
        changed = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
        assert changed == {"policy.weight", "policy.bias", "value.weight", "value.bias"}


class TestFIRE:
    def test_the_optimizer_starts_again_for_all_parameters_and_biases_and_norms_are_kept(self) -> None:
        model = network()
        optimizer, plastic = attach(model, FIRE(), lr=0.1)
        update(model, optimizer, plastic)
        kept = {name: value.detach().clone() for name, value in model.named_parameters() if value.dim() == 1}
        plastic.task_boundary()
        assert not optimizer.state
        for name, value in kept.items():
            assert torch.equal(model.get_parameter(name), value)

    def test_named_layers_alone(self) -> None:
        model = network()
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        attach(model, FIRE(layers=("3",)))[1].task_boundary()
        changed = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
        assert changed == {"3.weight"}

    def test_queries_keys_and_values_are_three_matrices(self) -> None:
        attention = nn.MultiheadAttention(6, 2).double()
        model = nn.ModuleDict({"attention": attention})
        attach(model, FIRE(25))[1].task_boundary()
        for part in attention.in_proj_weight.detach().chunk(3):
            torch.testing.assert_close(part @ part.T, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-6)


class TestPlasticityInjection:
    def test_the_new_head_is_in_the_optimizer_and_learns_and_nothing_is_shared(self) -> None:
        model = network()
        optimizer = torch.optim.Adam(model.named_parameters(), lr=0.01)
        plastic = neoteny.attach(model, optimizer, PlasticityInjection(at=3))
        for seed in range(3):
            update(model, optimizer, plastic, seed)
        head = model[6]
        assert isinstance(head, InjectedHead)
        owned = {id(each) for group in optimizer.param_groups for each in group["params"]}
        assert {id(each) for each in head.trained.parameters()} <= owned
        assert owned == {id(each) for each in model.parameters() if each.requires_grad}
        assert optimizer.param_groups[0]["param_names"][-2:] == ["6.trained.weight", "6.trained.bias"]
        storages = [each.data_ptr() for each in head.parameters()]
        assert len(set(storages)) == 6
        start = {name: value.detach().clone() for name, value in head.named_parameters()}
        body = model[0].weight.detach().clone()
        for seed in range(3):
            update(model, optimizer, plastic, seed)
        moved = {name for name, value in head.named_parameters() if not torch.equal(value, start[name])}
        assert moved == {"trained.weight", "trained.bias"}
        assert not torch.equal(body, model[0].weight)
        assert "injected 1 times" in str(plastic)

    def test_the_gradient_of_the_body_flows_through_all_three_heads(self) -> None:
        model = network()
        x = torch.randn(4, 6)
        model(x).sum().backward()
        before = model[0].weight.grad.clone()
        attach(model, PlasticityInjection())[1].task_boundary()
        model.zero_grad()
        model(x).sum().backward()
        torch.testing.assert_close(model[0].weight.grad, before)

    def test_a_frozen_head_waits(self) -> None:
        model = network()
        model[6].requires_grad_(False)
        optimizer, plastic = attach(model, PlasticityInjection(at=1), lr=0.1)
        update(model, optimizer, plastic)
        assert isinstance(model[6], nn.Linear)
        model[6].requires_grad_(True)
        update(model, optimizer, plastic)
        assert isinstance(model[6], InjectedHead)

    def test_units_that_feed_the_head_cannot_be_reset_beside_it(self) -> None:
        with pytest.raises(ValueError, match=r"PlasticityInjection cannot be combined.*ContinualBackprop resets units"):
            attach(network(), PlasticityInjection(), ContinualBackprop(), example=torch.zeros(2, 6))
        with pytest.raises(ValueError, match="'6' cannot be replaced by another module"):
            attach(network(), PlasticityInjection(("6",)), ContinualBackprop(), example=torch.zeros(2, 6))
        with pytest.raises(ValueError, match="single layer"):
            attach(nn.Linear(6, 2), PlasticityInjection())
        with pytest.raises(ValueError, match="must name one module"):
            PlasticityInjection(("a", "b"))

    def test_a_head_of_several_layers_is_injected_as_a_whole(self) -> None:
        class Agent(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.encoder = nn.Linear(6, 8)
                self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))

            def forward(self, x: Tensor) -> Tensor:
                return self.head(self.encoder(x).relu())

        model = Agent()
        x = torch.randn(3, 6)
        before = model(x)
        optimizer, plastic = attach(model, PlasticityInjection(("head",)), lr=0.1)
        for number in range(2):
            plastic.task_boundary()
            assert torch.equal(model(x), before) == (number == 0)
            update(model, optimizer, plastic, number)
        assert sum(each.requires_grad for each in model.parameters()) == 6

"""Mistakes that partial resets, redrawn single weights and continual backpropagation invite: each test fails on one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import CalibratedPartialResets, ContinualBackprop, L2Init, SelectiveWeightReinit
from support.quiet_units import INPUTS, Images, attach, mlp, tensors, update

pytestmark = pytest.mark.usefixtures("double_precision")


class TestCalibratedPartialResets:
    def test_leave_biases_and_the_optimizer_alone(self) -> None:
        model = mlp()
        optimizer = neoteny.optim.Adam(model.parameters(), lr=1e-3)
        plastic = attach(model, optimizer, CalibratedPartialResets(period=3, strength=0.5), L2Init(0.0))
        anchors = {name: value.clone() for name, value in plastic._chain.states[1]["parameters"].items()}
        for _ in range(2):
            update(model, optimizer, INPUTS)
            plastic.step()
        update(model, optimizer, INPUTS)
        biases = [value.detach().clone() for name, value in model.named_parameters() if "bias" in name]
        state = [optimizer.state[each] for each in model.parameters()]
        moments = [each[key].clone() for each in state for key in ("exp_avg", "exp_avg_sq")]
        weights = tensors(model)[0].clone()
        plastic.step()
        assert not bool((tensors(model)[0] == weights).any())
        assert all(map(torch.equal, biases, [value for name, value in model.named_parameters() if "bias" in name]))
        assert all(map(torch.equal, moments, [each[key] for each in state for key in ("exp_avg", "exp_avg_sq")]))
        assert all("resets" not in each for each in state)
        assert all(map(torch.equal, anchors.values(), plastic._chain.states[1]["parameters"].values()))

    def test_change_the_output_in_proportion_to_their_strength(self) -> None:
        changes: list[float] = []
        for strength in (1e-3, 1e-4):
            model = mlp()
            optimizer = torch.optim.SGD(model.parameters(), 0.0)
            plastic = attach(model, optimizer, CalibratedPartialResets(1, strength))
            before = model(INPUTS).detach()
            plastic._recorder.clear()
            update(model, optimizer, INPUTS)
            plastic.step()
            changes.append(float((model(INPUTS).detach() - before).norm()))
        assert changes[1] > 0.0
        assert changes[0] / changes[1] == pytest.approx(10.0, rel=0.05)

    @pytest.mark.parametrize("channels_last", [True, False], ids=["channels last", "channels first"])
    def test_shrink_the_columns_of_a_channel_by_its_own_share(self, channels_last: bool) -> None:
        torch.manual_seed(1)
        model = Images(channels_last)
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        plastic = attach(
            model, optimizer, CalibratedPartialResets(1, 0.5, decay_rate=0.0), example=torch.zeros(2, 1, 4, 4)
        )
        update(model, optimizer, torch.randn(6, 1, 4, 4))
        utility = plastic._chain.states[0]["utility"]["conv"]
        utility.copy_(torch.tensor([1.0, 1.05, 1.1]))
        before = model.outgoing().clone()
        plastic.step()
        shares = 1.0 - model.outgoing() / before
        expected = torch.tensor([0.5, 0.5 * 0.6200512, 0.5 * 0.3359]).expand(2, 4, 3)
        torch.testing.assert_close(shares, expected, rtol=1e-3, atol=0.0)


class TestSelectiveWeightReinit:
    @pytest.mark.parametrize(
        "make", [torch.optim.Adam, neoteny.optim.Adam, torch.optim.SGD], ids=lambda make: str(make)
    )
    def test_clears_the_optimizers_state_of_redrawn_weights_and_of_no_other(self, make: Any) -> None:
        """The authors' class leaves it."""
        model = mlp()
        options: dict[str, Any] = {"momentum": 0.9} if make is torch.optim.SGD else {}
        optimizer = make(model.parameters(), lr=1e-2, **options)
        plastic = attach(model, optimizer, SelectiveWeightReinit(3, 0.3), L2Init(1e-3))
        generator = torch.Generator().manual_seed(0)
        for _ in range(2):
            update(model, optimizer, torch.randn(8, 4, generator=generator))
            plastic.step()
        update(model, optimizer, torch.randn(8, 4, generator=generator))
        trained = {name: value.detach().clone() for name, value in model.named_parameters()}
        plastic.step()
        redrawn = 0
        for name, parameter in model.named_parameters():
            new = parameter.detach() != trained[name]
            redrawn += int(new.sum())
            assert "bias" not in name or not bool(new.any())
            for key, kept in optimizer.state[parameter].items():
                if isinstance(kept, Tensor) and kept.shape == parameter.shape:
                    assert not bool(kept[new].any()), key
                    assert int((kept[~new] != 0).sum()) > 0, key
            anchor = plastic._chain.states[1]["parameters"][name]
            assert torch.equal(anchor[new], parameter.detach()[new])
            assert not bool((anchor[~new] == parameter.detach()[~new]).any())
        assert redrawn == int(plastic._chain.states[0]["redrawn"])
        assert 30 * 0.3 - 2 <= redrawn <= 30 * 0.3 + 2

    def test_draws_from_each_tensors_own_initial_law(self) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(40, 50), nn.ReLU(), nn.Linear(50, 60))
        nn.init.normal_(model.get_parameter("0.weight"), std=3.0)
        nn.init.uniform_(model.get_parameter("2.weight"), -0.01, 0.01)
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        plastic = neoteny.attach(model, optimizer, SelectiveWeightReinit(1, 1.0), seed=3)
        start = [model.get_parameter(name).detach().clone() for name in ("0.weight", "2.weight")]
        update(model, optimizer, torch.randn(8, 40))
        plastic.step()
        first, last = (model.get_parameter(name).detach() for name in ("0.weight", "2.weight"))
        assert not bool((first == start[0]).any() or (last == start[1]).any())
        assert float(first.std()) == pytest.approx(3.0, rel=0.1)
        assert float(last.abs().max()) <= 0.0101

    def test_draws_whole_weights_of_a_module_with_an_initialisation_of_its_own(self) -> None:
        class Own(nn.ConvTranspose2d):
            def reset_parameters(self) -> None:
                with torch.no_grad():
                    torch.nn.init.normal_(self.weight, 5.0, 0.1)
                    assert self.bias is not None
                    self.bias.zero_()

        torch.manual_seed(0)
        model = nn.Sequential(Own(2, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 1, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        plastic = neoteny.attach(model, optimizer, SelectiveWeightReinit(1, 1.0), seed=3, init="default")
        update(model, optimizer, torch.randn(2, 2, 4, 4))
        start = model.get_parameter("0.weight").detach().clone()
        plastic.step()
        weight = model.get_parameter("0.weight").detach()
        assert not bool((weight == start).any())
        assert float(weight.mean()) == pytest.approx(5.0, abs=0.1)

    def test_leaves_a_head_without_a_gradient_alone(self) -> None:
        model = mlp()
        model.add_module("unused", nn.Linear(2, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        plastic = neoteny.attach(model, optimizer, SelectiveWeightReinit(1, 1.0, "magnitude"), seed=3)
        unused = model.get_parameter("unused.weight").detach().clone()
        model[2](model[1](model[0](INPUTS))).square().mean().backward()
        optimizer.step()
        plastic.step()
        assert torch.equal(model.get_parameter("unused.weight").detach(), unused)
        assert int(plastic._chain.states[0]["redrawn"]) == 30


class TestContinualBackpropOfTheNatureVersion:
    def test_is_the_contribution_without_compensation_counted_by_layer(self) -> None:
        expected = ContinualBackprop(1e-5, 1000, 0.99, "contribution", compensate=False, count="layer")
        assert ContinualBackprop.nature() == expected
        assert ContinualBackprop.nature(1e-4, 10_000).maturity_threshold == 10_000

    def test_keeps_a_decayed_mean_that_a_reset_clears(self) -> None:
        """The authors' code for residual networks adds activations up without decay, also of replaced units."""
        model = mlp()
        tensors(model)[1].fill_(5.0)
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        plastic = attach(model, optimizer, ContinualBackprop.nature(0.1, 20, 0.9))
        statistics = plastic._chain.states[0]["0"]
        for _ in range(20):
            update(model, optimizer, INPUTS)
            plastic.step()
        h = torch.relu(model[0](INPUTS)).detach().mean(0)
        torch.testing.assert_close(statistics["mean_activation"], (1 - 0.9**20) * h)
        for _ in range(2):
            update(model, optimizer, INPUTS)
            plastic.step()
        assert plastic.replaced == {"0": 1}
        assert int((statistics["mean_activation"] == 0.0).sum()) == 1

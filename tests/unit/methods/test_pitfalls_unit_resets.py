"""Mistakes seen in public code of methods that reset units: each test fails on one of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import neoteny
from neoteny.methods import Method, ReDo, ReGraMa, SelfNormalizedResets
from support.quiet_units import INPUTS, Images, attach, mlp, quieten, tensors, update

pytestmark = pytest.mark.usefixtures("double_precision")


def resetting(name: str, period: int = 1) -> Method:
    """A method that replaces the one quiet unit or channel of the networks below at update `period`."""
    known: dict[str, Method] = {
        "ReDo": ReDo(period, threshold=0.0),
        "scheduled ReDo": ReDo(period, schedule=1),
        "ReGraMa": ReGraMa(period, threshold=0.0),
        "ReGraMa activations": ReGraMa(period, threshold=1e-3, score="activations"),
        "SNR": SelfNormalizedResets(first_threshold=1),
    }
    return known[name]


each_resetting = pytest.mark.parametrize("name", ["ReDo", "scheduled ReDo", "ReGraMa", "ReGraMa activations", "SNR"])


@each_resetting
@pytest.mark.parametrize("channels_last", [True, False], ids=["channels last", "channels first"])
def test_the_outgoing_weights_of_a_channel_are_its_own_columns_in_either_layout(name: str, channels_last: bool) -> None:
    """Public code repeats a channel's mask over neighbouring columns although its flatten is channels-last."""
    torch.manual_seed(1)
    model = Images(channels_last)
    bias = model.get_parameter("conv.bias").detach()
    bias.fill_(5.0)
    bias[1] = -100.0
    model.outgoing()[..., 1] = 1e-9
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    plastic = attach(model, optimizer, resetting(name), example=torch.zeros(2, 1, 4, 4))
    before = model.outgoing().clone()
    update(model, optimizer, torch.randn(6, 1, 4, 4))
    plastic.step()
    assert plastic.replaced == {"conv": 1}
    assert not bool(model.outgoing()[..., 1].any())
    assert torch.equal(model.outgoing()[..., [0, 2]], before[..., [0, 2]])


@each_resetting
class TestAResetUnit:
    def test_is_written_into_the_live_parameters_and_moments(self, name: str) -> None:
        """Ports that write into a masked copy reset nothing."""
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
        plastic = attach(model, optimizer, resetting(name, 2))
        update(model, optimizer, INPUTS)
        plastic.step() if name != "SNR" else plastic._recorder.clear()
        quieten(model)
        storage = [parameter.data_ptr() for parameter in model.parameters()]
        incoming = tensors(model)[0].clone()
        update(model, optimizer, INPUTS)
        already = dict(plastic.replaced)
        plastic.step()
        assert [parameter.data_ptr() for parameter in model.parameters()] == storage
        assert plastic.replaced["0"] - already["0"] == 1
        weight, bias, outgoing = tensors(model)
        assert bool((weight[2] != incoming[2]).all())
        assert float(bias[2]) == 0.0
        assert not bool(outgoing[:, 2].any())
        moments = [optimizer.state[parameter]["momentum_buffer"] for parameter in model.parameters()]
        assert not any(bool(each.any()) for each in (moments[0][2], moments[1][2], moments[2][:, 2]))
        assert all(bool(each.any()) for each in moments)

    def test_is_a_new_draw_each_time_and_not_its_first_weights(self, name: str) -> None:
        """One copy of ReDo restores the weights that the unit once began with."""
        model = mlp()
        drawn = [tensors(model)[0][2].clone()]
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        plastic = attach(model, optimizer, resetting(name))
        for _ in range(3):
            quieten(model)
            update(model, optimizer, INPUTS)
            plastic.step()
            drawn.append(tensors(model)[0][2].clone())
        assert plastic.replaced == {"0": 3}
        assert len(torch.cat(drawn).unique()) == 16

    def test_moves_one_step_size_of_adam_and_its_neighbours_go_on(self, name: str) -> None:
        """With moments left, or one step count for all, the new unit moves 3.16 step sizes, or the others a third."""
        model, twin = mlp(), mlp()
        pairs = [(each, neoteny.optim.Adam(each.parameters(), lr=1e-3)) for each in (model, twin)]
        plastic = attach(*pairs[0], resetting(name, 41))
        for each, _ in pairs:
            tensors(each)[1].fill_(5.0)  # all units fire
        for number in range(41):
            for each, optimizer in pairs:
                if number == 40:
                    quieten(each)
                update(each, optimizer, INPUTS)
            plastic.step()
        assert plastic.replaced == {"0": 1}
        before = [tensors(each)[0].clone() for each, _ in pairs]
        for each, optimizer in pairs:
            for parameter in each.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        ours, theirs = (old - tensors(each)[0] for old, (each, _) in zip(before, pairs, strict=True))
        torch.testing.assert_close(ours[2], torch.full((4,), 1e-3), rtol=1e-6, atol=0.0)
        others = [0, 1, 3, 4]
        torch.testing.assert_close(ours[others], theirs[others], rtol=1e-9, atol=0.0)


def test_redo_reads_what_the_activation_function_gives_and_not_a_relu() -> None:
    """Public hooks put a ReLU behind every layer: a unit of tanh that is always negative would be dormant."""
    model = mlp(nn.Tanh())
    tensors(model)[1].copy_(torch.tensor([-5.0, 5.0, -5.0, 5.0, -5.0]))
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    plastic = attach(model, optimizer, ReDo(period=1, threshold=0.5))
    update(model, optimizer, INPUTS)
    plastic.step()
    assert plastic.replaced == {"0": 0}


def test_a_state_from_before_redo_had_a_schedule_is_loaded() -> None:
    model = mlp()
    plastic = attach(model, torch.optim.SGD(model.parameters(), 0.0), ReDo(5, 0.2))
    saved = plastic.state_dict()
    for name in ("schedule", "share"):
        del saved["methods"][0][name]
    plastic.load_state_dict(saved)
    saved["methods"][0]["threshold"] = 0.3
    with pytest.raises(ValueError, match="other methods or settings"):
        plastic.load_state_dict(saved)
    other = mlp()
    scheduled = attach(other, torch.optim.SGD(other.parameters(), 0.0), ReDo(5, 0.3, schedule=7))
    with pytest.raises(ValueError, match="other methods or settings"):
        scheduled.load_state_dict(saved)


class TestSelfNormalizedResets:
    @staticmethod
    def history(fires: list[bool], first_threshold: int, **settings: Any) -> tuple[neoteny.Attachment, int]:
        """One unit (of two, the other always fires) with a history, in batches of 8; the last threshold."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        method = SelfNormalizedResets(0.1, first_threshold, **settings)
        plastic = attach(model, optimizer, method)
        for each in fires:
            _, bias, _ = tensors(model)
            bias.copy_(torch.tensor([9.0 if each else -100.0, 9.0]))
            update(model, optimizer, INPUTS)
            plastic.step()
        return plastic, int(plastic._chain.states[0]["groups"]["0"]["threshold"][0])

    def test_the_smallest_threshold_is_the_batch_and_not_a_hundred(self) -> None:
        """The authors' code has its own batch size, 100, in the bound."""
        _, threshold = self.history([True, False] * 5 + [True], 1000, period=11)
        assert threshold == 8

    def test_a_unit_that_always_fired_is_not_reset_at_its_first_silent_batch(self) -> None:
        """An empty histogram gives the smallest threshold in the authors' code."""
        plastic, threshold = self.history([True] * 12 + [False, True], 1000, period=4)
        assert threshold == 1000
        assert plastic.replaced == {"0": 0}

    def test_a_unit_that_fires_in_every_batch_is_never_reset(self) -> None:
        plastic, threshold = self.history([True] * 30, 1, period=3)
        assert plastic.replaced == {"0": 0}
        assert threshold == 1

    def test_ages_beyond_the_histogram_count_as_its_longest(self) -> None:
        plastic, threshold = self.history([False] * 9 + [True] * 3, 1000, longest=5, period=12)
        assert threshold == 40  # 5 batches of 8
        assert plastic.replaced == {"0": 0}

    def test_recalibrates_every_few_tasks(self) -> None:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        plastic = attach(model, optimizer, SelfNormalizedResets(0.1, 1000, period=2, clock="tasks"))
        for task in range(4):
            for silent in (True, False, True, False):
                tensors(model)[1].fill_(-100.0 if silent else 9.0)
                update(model, optimizer, INPUTS)
                plastic.step()
            plastic.task_boundary()
            threshold = plastic._chain.states[0]["groups"]["0"]["threshold"]
            assert bool((threshold == (1000 if task == 0 else 8 if task < 3 else 16)).all())

    def test_another_batch_size_starts_the_histograms_again(self) -> None:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        plastic = attach(model, optimizer, SelfNormalizedResets(0.1, 1000, period=10**6))
        kept = plastic._chain.states[0]["groups"]["0"]
        for silent, x in ((True, INPUTS[:3]), (False, INPUTS[:3]), (False, INPUTS[:2])):
            tensors(model)[1].fill_(-100.0 if silent else 9.0)
            update(model, optimizer, x)
            plastic.step()
        assert kept["histogram"].sum() == 5
        update(model, optimizer, INPUTS)
        plastic.step()
        assert kept["histogram"].sum() == 0
        assert kept["batch"] == 8


class TestReGraMa:
    @pytest.mark.parametrize("score", ["weights", "activations"])
    def test_reads_the_gradient_of_the_loss_before_terms_clipping_and_zero_grad(self, score: str) -> None:
        model = mlp()
        quieten(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        plastic = attach(model, optimizer, neoteny.L2(100.0), ReGraMa(1, 1e-3, score))
        model(INPUTS).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
        optimizer.zero_grad()
        plastic.step()
        assert plastic.replaced == {"0": 1}
        assert not bool(tensors(model)[2][:, 2].any())

    def test_finds_units_that_redo_cannot_behind_a_smooth_activation(self) -> None:
        replaced: list[dict[str, int]] = []
        for method in (ReGraMa(1, 0.01), ReDo(1, 0.01)):
            model = mlp(nn.Tanh())
            tensors(model)[1].copy_(torch.tensor([0.0, 0.0, 30.0, 0.0, 0.0]))  # one saturated unit
            optimizer = torch.optim.SGD(model.parameters(), 0.0)
            plastic = attach(model, optimizer, method)
            update(model, optimizer, INPUTS)
            plastic.step()
            replaced.append(plastic.replaced)
        assert replaced == [{"0": 1}, {"0": 0}]

    def test_reads_the_weight_behind_a_weight_norm(self) -> None:
        model = mlp()
        quieten(model)
        nn.utils.parametrizations.weight_norm(model[0])
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        plastic = attach(model, optimizer, ReGraMa(1, 0.0))
        update(model, optimizer, INPUTS)
        plastic.step()
        assert plastic.replaced == {"0": 1}

    def test_leaves_units_without_any_gradient_alone(self) -> None:
        """A layer that took no part in the loss tells nothing."""
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        plastic = attach(model, optimizer, ReGraMa(1, 1e9))
        optimizer.zero_grad()
        model(INPUTS)
        model.get_parameter("2.bias").grad = torch.ones(2)
        optimizer.step()
        plastic._watch._backward.seen = True
        plastic.step()
        assert plastic.replaced == {"0": 0}

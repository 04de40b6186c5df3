"""Pitfalls of settings and networks with which a method does nothing, or ruins training, without a word."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import (
    DASH,
    FIRE,
    TRAC,
    UPGD,
    Adam,
    AdaUPGD,
    HardReset,
    Method,
    Muon,
    NormalizeAndProject,
    Parseval,
    PlasticityInjection,
    SelectiveWeightReinit,
    Spectral,
    WarmStartShrinkAndPerturb,
    WeightClipping,
)  # fmt: skip


class Recurrent(nn.Module):
    """A network without a linear layer, convolution or norm."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x)[0]


class TwoHeads(nn.Module):
    """A policy and a value on one body."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 6)
        self.policy, self.value = nn.Linear(6, 2), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.body(x))
        return self.policy(hidden), self.value(hidden)


def attach(model: nn.Module, method: Method, x: Tensor) -> neoteny.Attachment:
    owned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return neoteny.attach(model, torch.optim.SGD(owned, 0.01), method, example=x, seed=1)


def update(model: nn.Module, plastic: neoteny.Attachment, x: Tensor) -> None:
    plastic.optimizers[0].zero_grad()
    outputs = model(x)
    sum(each.square().mean() for each in (outputs if isinstance(outputs, tuple) else (outputs,))).backward()  # pyright: ignore
    plastic.optimizers[0].step()
    plastic.step()


def presuming(**settings: Any) -> NormalizeAndProject:
    return NormalizeAndProject(presume_norms=True, **settings)


NEED_LAYERS: list[Method] = [
    DASH(), FIRE(), presuming(), Parseval(1e-3), SelectiveWeightReinit(1, 0.1), Spectral(1e-3), WeightClipping(1.0)
]  # fmt: skip


@pytest.mark.parametrize("method", NEED_LAYERS, ids=lambda method: type(method).__name__)
def test_a_network_without_a_layer_to_act_on_is_refused(method: Method) -> None:
    words = rf"^{type(method).__name__} acts on .*the network has none, so it would do nothing"
    with pytest.raises(ValueError, match=words):
        attach(Recurrent(), method, torch.zeros(1, 2, 3))


@pytest.mark.parametrize("method", [presuming(), Parseval(1e-3), WeightClipping(1.0, spare_output=True)], ids=repr)
def test_a_network_whose_only_layer_is_spared_is_refused(method: Method) -> None:
    with pytest.raises(ValueError, match="so it would do nothing"):
        attach(nn.Linear(3, 2), method, torch.zeros(1, 3))
    attach(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), method, torch.zeros(1, 3))


def test_a_frozen_network_is_not_refused_since_it_may_be_unfrozen() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model[0].requires_grad_(False)
    for method in (presuming(), Parseval(1e-3)):
        neoteny.attach(model, optimizer, method, example=torch.zeros(1, 3)).detach()


@pytest.mark.parametrize("method", [presuming(norms="leave"), WeightClipping(0.1, spare_output=True)], ids=repr)
def test_all_heads_are_spared(method: Method) -> None:
    torch.manual_seed(0)
    model, x = TwoHeads(), torch.randn(4, 3)
    twin = TwoHeads()
    twin.load_state_dict(model.state_dict())
    plastic = attach(model, method, x)
    update(model, plastic, x)
    update(twin, attach(twin, neoteny.L2(0.0), x), x)
    for head in ("policy", "value"):
        assert torch.equal(model.get_submodule(head).weight, twin.get_submodule(head).weight)  # pyright: ignore
    assert not torch.equal(model.body.weight, twin.body.weight)


def test_all_heads_are_projected_where_that_is_asked_for() -> None:
    torch.manual_seed(0)
    model, x = TwoHeads(), torch.randn(4, 3)
    lengths = {
        name: float(value.detach().norm()) for name, value in model.named_parameters() if name.endswith("weight")
    }
    plastic = attach(model, presuming(project_output=True), x)
    for _ in range(3):
        update(model, plastic, x)
    for name, length in lengths.items():
        assert float(model.get_parameter(name).detach().norm()) == pytest.approx(length, rel=1e-5)


def test_a_hard_reset_leaves_the_statistics_of_a_frozen_norm() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 5), nn.BatchNorm1d(5))
    for norm in (model[1], model[4]):
        norm.running_mean.fill_(3.0)  # pyright: ignore
    model[:2].requires_grad_(False)
    attach(model, HardReset.from_scratch(), torch.randn(4, 3)).task_boundary()
    assert bool((model[1].running_mean == 3.0).all())  # pyright: ignore
    assert bool((model[4].running_mean == 0.0).all())  # pyright: ignore


def test_parseval_leaves_a_head_alone_after_an_injection() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    plastic = neoteny.attach(model, optimizer, PlasticityInjection(), Parseval(10.0), example=x, seed=1)
    for _ in range(2):
        plastic.task_boundary()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    before = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    optimizer.step()
    changed = [name for name, value in before.items() if not torch.equal(value, model.get_parameter(name).grad)]  # pyright: ignore
    assert changed == ["0.weight"]


def test_a_head_that_returns_a_tuple_is_refused() -> None:
    with pytest.raises(ValueError, match="'gru' returns a tuple: name a module that returns one tensor"):
        attach(Recurrent(), PlasticityInjection(), torch.zeros(1, 2, 3))
    model = nn.Sequential(nn.Linear(3, 3), TwoHeads())
    plastic = attach(model, PlasticityInjection(head=("1",)), torch.zeros(1, 3))
    plastic.task_boundary()
    with pytest.raises(TypeError, match="this one returns a tuple: name a module"):
        model(torch.zeros(1, 3))


@pytest.mark.parametrize("sigma", [1e-6, (1e-8, 1e-7), 1e30])
def test_trac_refuses_a_trust_with_which_the_first_update_has_no_end(sigma: Any) -> None:
    with pytest.raises(ValueError, match="initial_sigma must be at most some four eps"):
        TRAC(initial_sigma=sigma)
    TRAC(initial_sigma=3e-8)
    with pytest.raises(ValueError, match="one length"):
        TRAC(initial_sigma=(1e-8, 1e-8), initial_scale=(1e-8, 1e-8, 1e-8))


KINDS: list[Callable[..., Method]] = [Adam, AdaUPGD, Muon]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "betas", [0.9, None, True, "ab", (0.9, "x"), (0.9, True), (0.9,), (0.9, 1.0), (0.9, float("nan")), []]
)
def test_betas_that_are_no_two_rates_are_refused(kind: Callable[..., Method], betas: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^{kind.__name__}: betas must be two numbers in \[0, 1\); got"):  # pyright: ignore
        kind(0.01, betas=betas)


@pytest.mark.parametrize("betas", [0.9, (), (0.9, "x"), (0.9, 1.0)])
def test_trac_needs_one_rate_or_more(betas: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^TRAC: betas must be one or more numbers in \[0, 1\); got"):
        TRAC(betas=betas)


@pytest.mark.parametrize("kind", KINDS)
def test_betas_may_come_as_a_list(kind: Callable[..., Method]) -> None:
    model = nn.Linear(3, 2)
    optimizer = neoteny.optim.from_method(kind(0.01, betas=[0.9, 0.99]), model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("value", [[], (), b"x", 10**400, -(10**400)])
def test_no_value_and_one_beyond_every_float_are_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^L2: strength must"):
        neoteny.L2(value)
    with pytest.raises((TypeError, ValueError), match=r"^UPGD: step_size must"):
        UPGD(value)


@pytest.mark.parametrize("outputs", [3, "head", True, {}, [3]])
def test_parseval_refuses_outputs_that_are_no_names(outputs: Any) -> None:
    with pytest.raises(TypeError, match="Parseval: outputs must be a sequence of names of modules"):
        Parseval(1e-3, outputs=outputs)


@pytest.mark.parametrize("share", [-0.1, 1.5, "0.8", None, float("nan"), True])
def test_a_share_of_the_initial_network_is_named_in_the_refusal(share: Any) -> None:
    with pytest.raises(ValueError, match=r"towards_initial: share must be a number in \[0, 1\]"):
        WarmStartShrinkAndPerturb.towards_initial(share)


@pytest.mark.parametrize(("loss", "words"), [(0.5, "a tensor; got float"), (torch.ones(3), r"got shape \(3,\)")])
def test_a_loss_that_is_not_one_number_is_refused(loss: Any, words: str) -> None:
    plastic = attach(nn.Sequential(nn.Linear(3, 2)), neoteny.CChain(), torch.zeros(1, 3))
    with pytest.raises((TypeError, ValueError), match=words):
        plastic.observe(loss)
    plastic.observe(torch.ones(1))
    assert plastic.view.loss is not None
    assert plastic.view.loss.shape == ()


@pytest.mark.parametrize(("method", "told"), [(WeightClipping(1.0), True), (neoteny.L2(1e-4), False)], ids=repr)
def test_a_forgotten_step_is_told_where_a_method_acts_in_it(method: Method, told: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    plastic = neoteny.attach(model, optimizer, method)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(150):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
    said = [str(each.message) for each in caught]
    assert len(said) == told
    assert not told or "100 updates without plastic.step(), where WeightClipping would have acted" in said[0]
    plastic.detach()


def test_a_hook_put_on_after_attach_clips_loss_and_term_together() -> None:
    model, x = nn.Sequential(nn.Linear(3, 2)), torch.ones(1, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    plastic = neoteny.attach(model, optimizer, neoteny.L2(1e3))

    def clip(*_: object) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    optimizer.register_step_pre_hook(clip)
    for _ in range(3):
        update(model, plastic, x)
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert float(nn.utils.get_total_norm(gradients)) == pytest.approx(1.0, rel=1e-4)

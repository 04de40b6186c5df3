"""attach: what new units are drawn from is found for every layer, said, kept and asked for."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.attachment.attachment import Attachment
from neoteny.draws.initial import resolve
from neoteny.units.law_search import search
from neoteny.units.laws import code
from support.initialised_models import FAMILIES, Blocks, batch, mlp


def attach(model: nn.Module, **options: Any) -> Attachment:
    method = neoteny.ContinualBackprop(replacement_rate=1.0, maturity_threshold=0)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    return neoteny.attach(model, optimizer, method, example=batch(model, 2), seed=0, auto=True, **options)


def replace_all(model: nn.Module, plastic: Any) -> None:
    """Updates after which every unit was replaced at least once."""
    for _ in range(2):
        model(batch(model)).square().sum().backward()
        plastic.optimizers[0].step()


def trained(model: nn.Module) -> nn.Module:
    """The weights far from any distribution, in every layer."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.copy_(parameter.sign() * parameter.abs().pow(3) * 400.0)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_attach_finds_the_law_and_new_units_look_like_the_old(family: str) -> None:
    torch.manual_seed(0)
    make, text = FAMILIES[family]
    model = make()
    plastic = attach(model)
    law = [line for line in str(plastic).splitlines() if "new units of" in line]
    assert len(law) == 1
    assert law[0].endswith(f": {text}; as the weights were drawn")
    first = plastic.wiring.groups[0].producers[0].module  # type: ignore[union-attr]
    weight = model.get_parameter(f"{first}.weight")
    before = weight.detach().clone()
    replace_all(model, plastic)
    assert not bool((weight == before).all(dim=1).any())
    # Each row is one unit: as long as an initial one, give or take what chance allows with few weights.
    lengths = [each.flatten(1).norm(dim=1).mean() for each in (before, weight.detach())]
    assert float(lengths[1]) == pytest.approx(float(lengths[0]), rel=0.15 if family == "ResNet" else 0.08)


@pytest.mark.parametrize("family", FAMILIES)
def test_laws_are_declarations_that_can_be_pasted(family: str) -> None:
    torch.manual_seed(1)
    model = FAMILIES[family][0]()
    laws = {name: law.initial for name, law in attach(copy.deepcopy(model)).view.laws.items()}
    pasted = {name: eval(code(initial), {"neoteny": neoteny}) for name, initial in laws.items()}
    again = attach(model, init=pasted)
    assert "as declared" in str(again)
    for name, initial in laws.items():
        expected = resolve(model.get_submodule(name), initial)
        assert again.view.initial(f"{name}.weight").std == pytest.approx(expected.std, rel=1e-3)


def test_a_small_layer_takes_the_law_of_the_others() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 300), nn.ReLU(), nn.Linear(300, 200), nn.Linear(200, 2)
    )
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")
    assert {str(found.initial) for found in search(net).values()} == {"normal, kaiming fan_out, gain sqrt(2)"}


def test_layers_may_have_different_laws() -> None:
    torch.manual_seed(0)
    net = mlp(nn.init.xavier_uniform_)
    nn.init.normal_(net.get_parameter("2.weight"), std=0.02)
    lines = [line for line in str(attach(net)).splitlines() if "new units of" in line]
    assert lines == [
        "- new units of 0: uniform, xavier, gain 1; as the weights were drawn",
        "- new units of 2: normal, standard deviation 0.02; as the weights were drawn",
    ]


# --- trained weights -------------------------------------------------------------------------------------------------


def test_trained_weights_are_drawn_as_the_models_own_code_draws() -> None:
    torch.manual_seed(0)
    model = trained(Blocks())
    state = torch.get_rng_state()
    weights = copy.deepcopy(model.state_dict())
    with pytest.warns(UserWarning, match=r"first, second do not look freshly drawn.*Blocks\._init_weights"):
        plastic = attach(copy.deepcopy(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = attach(model, trained=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    for each in (plastic, said):
        assert "new units of first, second: normal, standard deviation 0.02; as Blocks._init_weights draws it" in str(
            each
        )
    replace_all(model, said)
    assert float(model.get_parameter("first.weight").detach().std()) == pytest.approx(0.02, rel=0.1)


def test_what_the_user_declares_wins_over_everything() -> None:
    torch.manual_seed(0)
    model = trained(Blocks())
    plastic = attach(model, trained=True, init={"first": neoteny.Initial("normal", scale=0.3)})
    assert "new units of first: normal, standard deviation 0.3; as declared" in str(plastic)
    assert "new units of second: normal, standard deviation 0.02; as Blocks._init_weights draws it" in str(plastic)


def test_weights_that_nothing_explains_are_asked_about_once_for_all_layers() -> None:
    torch.manual_seed(0)
    model = trained(mlp(nn.init.xavier_normal_))
    with pytest.raises(ValueError, match=r"0 \(standard deviation.*, 2 \(standard deviation.*trained=True") as caught:
        attach(model)
    declaration = str(caught.value).split("init=", 1)[1].rsplit(").", 1)[0]
    assert set(eval(declaration, {"neoteny": neoteny})) == {"0", "2"}
    assert "as declared" in str(attach(copy.deepcopy(model), init=eval(declaration, {"neoteny": neoteny})))
    assert "torch's own (reset_parameters); for want of another" in str(attach(model, trained=True))


def test_zero_weights_are_replaced_by_torchs_own() -> None:
    """A new unit with zero weights on both sides could never learn."""
    torch.manual_seed(0)
    model = mlp(nn.init.xavier_uniform_)
    nn.init.zeros_(model.get_parameter("0.weight"))
    assert "new units of 0: torch's own (reset_parameters); for want of another" in str(attach(model))


class Failing(Blocks):
    def _init_weights(self, module: nn.Module) -> None:
        if not hasattr(self, "made"):
            super()._init_weights(module)
        else:
            raise RuntimeError("once only")


def test_own_code_that_fails_is_not_relied_upon() -> None:
    torch.manual_seed(0)
    model = Failing()
    model.made = True  # type: ignore[assignment]
    with pytest.raises(ValueError, match="fit no initial distribution"):
        attach(trained(model))


# --- kept ------------------------------------------------------------------------------------------------------------


def weights_after(model: nn.Module, plastic: Any) -> Tensor:
    replace_all(model, plastic)
    return model.get_parameter("0.weight").detach().clone()


def test_a_restored_attachment_draws_as_before(tmp_path: Any) -> None:
    torch.manual_seed(0)
    model = mlp(lambda weight: nn.init.normal_(weight, std=0.0374))
    plastic = attach(model)
    state = {"model": copy.deepcopy(model.state_dict()), "plastic": plastic.state_dict()}
    torch.save(state, tmp_path / "saved.pt")
    expected = weights_after(model, plastic)
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    again = mlp(nn.init.xavier_uniform_)
    restored = attach(again)
    again.load_state_dict(saved["model"])
    restored.load_state_dict(saved["plastic"])
    assert str(restored).splitlines()[-3:] == str(plastic).splitlines()[-3:]
    assert torch.equal(weights_after(again, restored), expected)
    declared = mlp(nn.init.xavier_uniform_)
    kept = attach(declared, init="xavier_uniform")
    kept.load_state_dict(saved["plastic"])
    assert "xavier, gain 1; as declared" in str(kept)


def test_a_state_saved_by_an_earlier_version_still_loads() -> None:
    torch.manual_seed(0)
    model = mlp(nn.init.xavier_uniform_)
    plastic = attach(model)
    state = {key: value for key, value in plastic.state_dict().items() if key != "laws"}
    plastic.load_state_dict(state)
    assert "uniform, xavier, gain 1; as the weights were drawn" in str(plastic)

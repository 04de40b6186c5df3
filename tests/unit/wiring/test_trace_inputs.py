"""trace: examples, declared groups, precisions, devices, and wrong input."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup
from neoteny.wiring.trace import trace
from neoteny.wiring.wiring import WiringError
from support.wiring_checks import checked, outline
from support.wiring_models import (
    ActorCritic,
    ConvNet,
    FunctionalMLP,
    ResNet,
    Swallow,
)


def test_examples_as_tuple_and_dict() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = FunctionalMLP()

        def forward(self, x: Tensor, scale: Tensor, *, flip: bool = False) -> Tensor:
            return self.inner(x * scale) * (-1 if flip else 1)

    x, scale = torch.randn(3, 5), torch.ones(5)
    assert len(checked(Two(), (x, scale))) == 2
    assert len(checked(Two(), {"x": x, "scale": scale, "flip": True})) == 2


def test_under_autocast_the_same_groups_are_found_and_wrong_ones_refused() -> None:
    hidden = [nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU()]
    model = nn.Sequential(*hidden, nn.Linear(16, 2))
    two = ActorCritic()
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(8, 6))  # keeps copies of the weights in half precision
        assert [group.name for group in trace(model, torch.randn(8, 6))] == ["0", "3"]
        assert torch.is_autocast_cache_enabled()
        two(torch.randn(3, 4))
        with pytest.raises(WiringError):
            trace(two, torch.randn(3, 4), groups=[UnitGroup("trunk.2", ["actor"])])


def test_layers_called_by_keyword() -> None:
    class Keyword(FunctionalMLP):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc3(input=F.relu(self.fc2(input=F.relu(self.fc1(input=x)))))

    assert len(checked(Keyword(), torch.randn(3, 5))) == 2


def test_wrong_input_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"shape \(3, 4\).*pass an example batch") as caught:
        trace(FunctionalMLP(), torch.randn(3, 4))
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        trace(lambda x: x, torch.randn(3, 4))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="norm must be"):
        trace(FunctionalMLP(), torch.randn(3, 5), norm="layer")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="NaN"):
        trace(FunctionalMLP(), torch.full((3, 5), torch.nan))
    with pytest.raises(ValueError, match="no shape yet"):
        trace(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)), torch.randn(3, 5))


@pytest.mark.parametrize("model", [nn.Linear(5, 2), nn.Sequential(nn.Linear(5, 2)), nn.ReLU(), nn.GRU(5, 2)])
def test_models_without_hidden_units(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="at least one group of hidden units"):
        trace(model, torch.randn(3, 5))


def test_declared_groups_good_and_bad() -> None:
    model, x = FunctionalMLP(), torch.randn(3, 5)
    wiring = checked(model, x, groups=[UnitGroup("fc2", "fc3"), UnitGroup(Port("fc1", torch.arange(7)), "fc2")])
    assert outline(wiring) == [(["fc1"], [], ["fc2"], "fc2"), (["fc2"], [], ["fc3"], "fc3")]
    with pytest.raises(ValueError, match="Did you mean 'fc2'"):
        trace(model, x, groups=[UnitGroup("fc1", "fcc2")])
    with pytest.raises(ValueError, match="must lie in"):
        trace(model, x, groups=[UnitGroup("fc1", Port("fc3", offset=1))])
    with pytest.raises(WiringError, match="still move"):
        trace(model, x, groups=[UnitGroup("fc1", Port("fc2", torch.arange(7).flip(0)))])
    with pytest.raises(WiringError, match="still move"):
        trace(ActorCritic(), torch.randn(3, 4), groups=[UnitGroup("trunk.2", "actor")])
    with pytest.raises(TypeError, match="a linear layer, a convolution or a recurrent layer"):
        trace(nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2)), x, groups=[UnitGroup("0", "1")])
    with pytest.raises(TypeError, match="list of neoteny"):
        trace(model, x, groups=UnitGroup("fc1", "fc2"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="claimed twice"):
        trace(model, x, groups=[UnitGroup("fc1", "fc2"), UnitGroup("fc1", "fc2")])
    model.fc2.weight.requires_grad_(False)
    with pytest.raises(WiringError, match="frozen"):
        trace(model, x, groups=[UnitGroup("fc1", "fc2")])


def test_declared_groups_are_added_to_the_traced_ones_and_win() -> None:
    model = nn.Sequential(FunctionalMLP(), nn.ReLU(), nn.Linear(2, 2))
    x = torch.randn(3, 5)
    part = UnitGroup(Port("0.fc1", torch.arange(4)), Port("0.fc2", torch.arange(4)))
    wiring = checked(model, x, groups=[part])
    assert [(group.name, group.units) for group in wiring] == [("0.fc1", 4), ("0.fc2", 6), ("0.fc3", 2)]
    assert wiring.left_out == {"2": "output layer: its values are the model's output"}
    wiring = checked(model, x, groups=[part], leave_out="others")
    assert [(group.name, group.units) for group in wiring] == [("0.fc1", 4)]
    assert wiring.left_out["0.fc2"] == "not in a declared group"
    with pytest.raises(ValueError, match="pass groups="):
        trace(model, x, leave_out="others")
    swallow = nn.Sequential(Swallow("where"), nn.ReLU(), nn.Linear(2, 5), FunctionalMLP())
    wiring = checked(swallow, torch.randn(3, 4), groups=[UnitGroup("3.fc1", "3.fc2")])
    assert [group.name for group in wiring] == ["0.fc2", "2", "3.fc1", "3.fc2"]
    assert "swallows NaN" in wiring.left_out["0.fc1"]


def test_a_declared_norm_is_read_in_the_right_place_and_noted() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.LayerNorm(6), nn.Linear(6, 2))
    wiring = checked(model, torch.randn(3, 4), groups=[UnitGroup("0", "3", "2")])
    assert wiring.groups[0].read == "2"
    assert "couples units" in wiring.groups[0].notes[0]
    with pytest.raises(WiringError, match="still move"):
        trace(model, torch.randn(3, 4), groups=[UnitGroup("0", "3")])


def test_a_compiled_model_is_looked_through() -> None:
    model = FunctionalMLP()
    compiled = torch.compile(model)
    assert [g.name for g in trace(compiled, torch.randn(3, 5))] == ["fc1", "fc2"]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    model = nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 2)
    )
    wiring = checked(model.to(dtype), torch.randn(3, 4, dtype=dtype))
    assert outline(wiring) == [(["0"], ["2"], ["3"], "2"), (["3"], [], ["5"], "5")]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda() -> None:
    wiring = checked(ResNet().cuda(), torch.randn(2, 3, 16, 16, device="cuda"))
    assert len(wiring) == 8
    assert len(checked(ConvNet().cuda(), torch.randn(2, 3, 32, 32, device="cuda"))) == 5

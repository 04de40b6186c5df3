"""Pitfalls of heads and of data: weights that two layers share, injections that repeat, inputs by keyword."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import DASH, FIRE, SGD, HardReset, Method, PlasticityInjection
from neoteny.methods.plasticity_injection import InjectedHead


class Tied(nn.Module):
    """A head whose weight is that of the embedding, as in many language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, shift: Tensor | None = None) -> Tensor:
        hidden = torch.relu(self.body(self.embedding(tokens)))
        return self.head(hidden if shift is None else hidden + shift)


TOKENS = torch.tensor([[1, 2, 3], [4, 5, 6]])


def attach(model: nn.Module, method: Method) -> neoteny.Attachment:
    return neoteny.attach(model, torch.optim.Adam(model.parameters(), 0.01), method, example=TOKENS, seed=1)


class TestAHeadThatSharesItsWeight:
    @pytest.mark.parametrize("method", [HardReset(), PlasticityInjection(), FIRE(layers=("head",))], ids=repr)
    def test_is_refused_by_name_instead_of_left_as_it_is(self, method: Method) -> None:
        words = rf"{type(method).__name__}: head.weight is the same parameter as embedding.weight"
        with pytest.raises(ValueError, match=words):
            attach(Tied(), method)
        with pytest.raises(ValueError, match=words):
            neoteny.stack([Tied(), Tied()], SGD(0.1), method, example=TOKENS, loss="cross_entropy")

    @pytest.mark.parametrize("layers", ["all", ("head", "embedding"), ("embedding",)], ids=str)
    def test_is_reset_where_the_layers_hold_both(self, layers: str | tuple[str, ...]) -> None:
        model = Tied()
        before = model.head.weight.detach().clone()
        attach(model, HardReset(layers)).task_boundary()
        assert model.head.weight is model.embedding.weight
        assert bool((model.head.weight != before).all())


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 3)).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("method", "injections"),
    [
        (PlasticityInjection(), 2),
        (PlasticityInjection(at=1), 1),
        (PlasticityInjection(at=1, at_boundaries=True), 3),
        (PlasticityInjection(at_boundaries=False), 0),
    ],
    ids=repr,
)
def test_an_injection_at_an_update_is_the_only_one_unless_boundaries_are_asked_for(
    method: PlasticityInjection, injections: int
) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    plastic = neoteny.attach(model, optimizer, method)
    update(model, optimizer)
    plastic.step()
    for _ in range(2):
        plastic.task_boundary()
    assert f"injected {injections} times" in str(plastic)
    assert isinstance(model[2], InjectedHead) == (injections > 0)


def test_data_of_a_new_task_come_as_the_example_does() -> None:
    shift = torch.full((4,), 0.5)
    targets = TOKENS.flip(0)

    def loss(outputs: Tensor, wanted: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs.flatten(0, 1), wanted.flatten())

    found: list[list[Tensor]] = []
    for inputs in ((TOKENS, shift), {"tokens": TOKENS, "shift": shift}):
        torch.manual_seed(0)
        model = Tied()
        attach(model, DASH()).task_boundary([(inputs, targets)], loss)
        found.append([parameter.detach() for parameter in model.parameters()])
    torch.manual_seed(0)
    start = list(Tied().parameters())
    assert not torch.equal(found[0][1], start[1])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)

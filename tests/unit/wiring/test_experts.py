"""trace and attach: experts, of which each input runs some only."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.wiring.trace import find
from support.wiring_checks import checked


class Expert(nn.Module):
    def __init__(self, skip: bool = False) -> None:
        super().__init__()
        self.up, self.down, self.skip = nn.Linear(6, 6 if skip else 9), nn.Linear(6 if skip else 9, 6), skip

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x).relu()
        return self.down(hidden + x if self.skip else hidden)


class Mixture(nn.Module):
    """Each row goes to the two experts that the router likes best."""

    def __init__(self, experts: int = 4, skip: bool = False) -> None:
        super().__init__()
        self.router = nn.Linear(6, experts)
        self.experts = nn.ModuleList(Expert(skip) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                result = result.index_add(0, rows, expert(x[rows]) * weights[rows, place, None])
        return result


class Blocks(nn.Module):
    """Two residual blocks of a mixture and a dense layer each."""

    def __init__(self, skip: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.mixtures = nn.ModuleList([Mixture(skip=skip), Mixture(skip=skip)])
        self.dense = nn.ModuleList(nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 6)) for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for mixture, dense in zip(self.mixtures, self.dense, strict=True):
            x = x + mixture(x)
            x = x + dense(x)
        return self.head(x)


class EarlyExit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(5, 6)
        self.blocks = nn.ModuleList(Expert() for _ in range(3))
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
            if x.sum() > 0:
                break
        return self.head(x)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(5, 6)
        self.heads = nn.ModuleList(nn.Linear(6, 2) for _ in range(3))

    def forward(self, x: Tensor, task: int = 0) -> Tensor:
        return self.heads[task](self.trunk(x).relu())


def experts(wiring: neoteny.Wiring) -> set[str]:
    return {group.name for group in wiring if "experts" in group.name}


def test_every_expert_is_found_also_those_that_the_example_does_not_reach() -> None:
    torch.manual_seed(0)
    model = Blocks()
    wiring = checked(model, torch.tensor([3]))  # two of four experts run in each block
    assert experts(wiring) == {f"mixtures.{block}.experts.{number}.up" for block in (0, 1) for number in range(4)}
    assert {group.name for group in wiring} - experts(wiring) == {"dense.0.0", "dense.1.0"}
    unreached = [group for group in wiring if any("does not reach it: traced alone" in note for note in group.notes)]
    assert len(unreached) == 4
    assert "its values decide which of mixtures.*.experts.* (8 layers) run" in wiring.left_out["mixtures.1.router"]
    assert "runs for some inputs only" in wiring.left_out["mixtures.0.experts.2.down"]


def test_more_of_the_example_is_used_where_a_few_rows_miss_experts() -> None:
    torch.manual_seed(0)
    wiring = neoteny.trace(Mixture(), torch.randn(64, 6))
    assert len(experts(wiring)) == 4
    assert not any("does not reach" in note for group in wiring for note in group.notes)


@pytest.mark.parametrize("tokens", [torch.tensor([3]), torch.arange(20)])
def test_columns_of_an_expert_that_also_carry_its_input_are_left_out(tokens: Tensor) -> None:
    torch.manual_seed(0)
    wiring = neoteny.trace(Blocks(skip=True), tokens)
    assert {group.name for group in wiring} == {"dense.0.0", "dense.1.0"}


def test_blocks_behind_an_early_exit_are_traced_one_by_one() -> None:
    torch.manual_seed(0)
    wiring = neoteny.trace(EarlyExit(), torch.randn(2, 5))
    assert {group.name for group in wiring} == {f"blocks.{number}.up" for number in range(3)}
    assert "run for some inputs only" in wiring.left_out["enter"]


def test_heads_that_a_number_chooses_are_no_experts() -> None:
    wiring = find(Heads(), torch.randn(2, 5))
    assert [group.name for group in wiring] == ["trunk"]
    assert wiring.uncalled == ("heads.1", "heads.2")


def test_leave_out_reaches_into_experts() -> None:
    torch.manual_seed(0)
    wiring = neoteny.trace(Blocks(), torch.tensor([3]), leave_out=["mixtures.0", "mixtures.1.experts.2.up"])
    assert experts(wiring) == {f"mixtures.1.experts.{number}.up" for number in (0, 1, 3)}


def test_units_of_an_expert_age_only_when_it_runs(recwarn: pytest.WarningsRecorder) -> None:
    torch.manual_seed(0)
    model = Mixture()
    with torch.no_grad():
        model.router.weight.zero_()
        model.router.bias.copy_(torch.tensor([3.0, 2.0, 1.0, 0.0]))  # experts 0 and 1
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    method = neoteny.ContinualBackprop(0.2, maturity_threshold=3)
    plastic = neoteny.attach(model, optimizer, method, example=torch.randn(4, 6), seed=1)
    assert len(plastic.replaced) == 4
    before = {name: each.clone() for name, each in model.experts[2].state_dict().items()}

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            model.router.weight.grad = model.router.bias.grad = None
            optimizer.step()
            plastic.step()

    train(12)
    ages = {name: state["schedule"]["step"] for name, state in plastic.state_dict()["states"][0].items()}
    assert ages == {"experts.0.up": 12, "experts.1.up": 12, "experts.2.up": 0, "experts.3.up": 0}
    assert plastic.replaced["experts.0.up"] > 3
    assert plastic.replaced["experts.2.up"] == 0
    assert all(torch.equal(each, before[name]) for name, each in model.experts[2].state_dict().items())
    with torch.no_grad():
        model.router.bias.copy_(torch.tensor([3.0, 1.0, 2.0, 0.0]))  # experts 0 and 2
    train(6)
    after = {name: state["schedule"]["step"] for name, state in plastic.state_dict()["states"][0].items()}
    assert after == {"experts.0.up": 18, "experts.1.up": 12, "experts.2.up": 6, "experts.3.up": 0}
    assert not recwarn.list


class Fused(nn.Module):
    """Experts whose weights lie in one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(torch.randn(3, 6, 9)), nn.Parameter(torch.randn(3, 9, 6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,eij,ejk->bk", x, self.up, self.down)


def test_fused_experts_are_named_and_the_rest_is_found() -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), Fused(), nn.Linear(6, 2))
    wiring = neoteny.trace(model, torch.randn(2, 5))
    assert [group.name for group in wiring] == ["0"]
    assert wiring.left_out["3"].startswith("Fused: its up, down hold one matrix per expert in one parameter")

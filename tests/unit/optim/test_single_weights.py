"""Regions of single weights: what they write, and the step count of Adam that goes with them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.layers.regions import Region
from neoteny.methods import UPGD, SelectiveWeightReinit

pytestmark = pytest.mark.usefixtures("double_precision")


def test_a_mask_writes_copies_and_names_its_elements_alone() -> None:
    mask = torch.tensor([[True, False], [False, True]])
    region = Region.where("weight", mask)
    tensor = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    region.write(tensor, 0.0)
    assert tensor.tolist() == [[0.0, 2.0], [3.0, 0.0]]
    region.write(tensor, torch.full((2, 2), 7.0))
    assert tensor.tolist() == [[7.0, 2.0], [3.0, 7.0]]
    target = torch.zeros(2, 2)
    region.copy(tensor, target)
    assert target.tolist() == [[7.0, 0.0], [0.0, 7.0]]
    steps = torch.zeros(2, 2, dtype=torch.int64)
    region.write(steps, 5)
    assert steps.tolist() == [[5, 0], [0, 5]]


def naive_adam(weight: Tensor, gradients: list[Tensor], resets: dict[int, tuple[Tensor, Tensor]], lr: float) -> Tensor:
    """Adam with a step count per weight; after update n, `resets[n]` = (mask, fresh weights)."""
    weight, first, second, steps = weight.clone(), *(torch.zeros_like(weight) for _ in range(3))
    for number, gradient in enumerate(gradients):
        steps += 1
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        weight -= lr * (first / (1 - 0.9**steps)) / ((second / (1 - 0.999**steps)).sqrt() + 1e-8)
        if number in resets:
            mask, fresh = resets[number]
            weight, first, second, steps = (
                torch.where(mask, new, old)
                for new, old in (
                    (fresh, weight),
                    (torch.zeros(()), first),
                    (torch.zeros(()), second),
                    (torch.zeros(()), steps),
                )
            )
    return weight


@pytest.mark.parametrize("shape", [(3, 4), (4, 2, 3, 3)], ids=str)
def test_adam_counts_the_steps_of_single_weights_rows_and_columns_together_and_is_saved(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(shape, generator=generator))
    gradients = [torch.randn(shape, generator=generator) for _ in range(12)]
    fresh = torch.randn(shape, generator=generator)
    some = torch.rand(shape, generator=generator) < 0.3
    row, column = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    row[1], column[:, 0] = True, True
    resets = {2: (row, fresh), 4: (some, fresh), 6: (column, fresh), 8: (~some, fresh)}
    expected = naive_adam(weight.detach(), gradients, resets, 0.01)
    regions = {
        2: Region("w", (torch.tensor([[1]]),)),
        4: Region.where("w", some),
        6: Region("w", (torch.tensor([[0]]), torch.tensor([[0]])), groups=1),
        8: Region.where("w", ~some),
    }
    optimizer = neoteny.optim.Adam([weight], lr=0.01)
    for number, gradient in enumerate(gradients):
        weight.grad = gradient.clone()
        optimizer.step()
        if number in resets:
            mask, values = resets[number]
            weight.data.copy_(torch.where(mask, values, weight.data))
            optimizer.clear_elements(weight, regions[number])
        if number == 5:
            other = neoteny.optim.Adam([weight], lr=0.5)
            other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            optimizer = other
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=1e-14)


def test_a_factored_optimizer_keeps_what_it_has_for_rows_and_columns() -> None:
    """Adafactor's two vectors are of many weights: a single new one does not start them again."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    optimizer = torch.optim.Adafactor(model.parameters(), lr=0.01)
    plastic = neoteny.attach(model, optimizer, SelectiveWeightReinit(1, 0.3), seed=1)
    model(torch.randn(5, 4)).square().mean().backward()
    optimizer.step()
    kept = copy.deepcopy(optimizer.state_dict()["state"])
    plastic.step()
    assert int(plastic._chain.states[0]["redrawn"]) > 0
    for number, state in optimizer.state_dict()["state"].items():
        for key in ("row_var", "col_var"):
            if key in state:
                assert torch.equal(state[key], kept[number][key])


def test_upgd_starts_the_average_of_a_redrawn_weight_again() -> None:
    torch.manual_seed(0)
    nets: list[nn.Module] = [nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)) for _ in range(2)]
    runs = neoteny.stack(nets, UPGD(0.01), SelectiveWeightReinit(3, 0.3))
    for _ in range(2):
        runs.step(torch.randn(2, 5, 4), torch.randn(2, 5, 1))
    trained = {}
    runs.step(torch.randn(2, 5, 4), torch.randn(2, 5, 1))
    optimizer = runs.chain.states[0]
    for name in ("0.weight", "2.weight"):
        steps = optimizer["resets"][name]["elements"]["step"]
        new = steps == 3
        trained[name] = int(new.sum())
        assert set(steps.unique().tolist()) == {0, 3}
        assert not bool(optimizer["parameters"][name][new].any())
    assert sum(trained.values()) == int(runs.chain.states[1]["redrawn"].sum())

"""trace: layers and groups that share passes are told apart, and what is hidden is found all the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neoteny.layers.groups import Port, UnitGroup
from neoteny.wiring.flow import OUTPUT, Flow, apart
from neoteny.wiring.recording import Recording
from neoteny.wiring.sandbox import Sandbox
from neoteny.wiring.trace import find, trace
from neoteny.wiring.verify import Verifier
from neoteny.wiring.wiring import WiringError
from support.wiring_checks import checked, outline
from support.wiring_models import Branches, FunctionalMLP


class Chain(nn.Module):
    """Three hidden layers, and a use of their values that a subclass adds."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        one = F.relu(self.fc1(x))
        two = F.relu(self.fc2(one))
        three = F.relu(self.fc3(two))
        return self.head(three) + self.hidden(one, two, three)

    def hidden(self, one: Tensor, two: Tensor, three: Tensor) -> Tensor | float:
        return 0.0


class Item(Chain):
    def hidden(self, one: Tensor, two: Tensor, three: Tensor) -> float:
        return one[0, 3].item()


class Numpy(Chain):
    def hidden(self, one: Tensor, two: Tensor, three: Tensor) -> Tensor:
        return torch.from_numpy(two.numpy()[:, 2:3].copy())


class Cancelling(Chain):
    """The first two layers reach the output; equal changes of both would cancel."""

    def hidden(self, one: Tensor, two: Tensor, three: Tensor) -> Tensor:
        return (torch.nan_to_num(one) - torch.nan_to_num(two)).sum(1, keepdim=True)


class Saturating(Chain):
    """One unit each of two layers reaches the output through a comparison, which swallows NaN."""

    def hidden(self, one: Tensor, two: Tensor, three: Tensor) -> Tensor:
        return torch.maximum((one[:, :1] > 1).float(), (three[:, :1] > 1).float())


@pytest.mark.parametrize(
    ("model", "kept"),
    [(Chain(), ["fc1", "fc2", "fc3"]), (Item(), ["fc2", "fc3"]), (Numpy(), ["fc1", "fc3"])],
    ids=["plain", "item", "numpy"],
)
def test_a_value_that_leaves_torch_is_still_followed(model: nn.Module, kept: list[str]) -> None:
    assert [group.name for group in checked(model, torch.randn(3, 4))] == kept


@pytest.mark.parametrize(("model", "kept"), [(Cancelling(), ["fc3"]), (Saturating(), ["fc2"])])
def test_layers_do_not_hide_each_other(model: nn.Module, kept: list[str]) -> None:
    x = torch.randn(3, 4)
    assert [group.name for group in find(model, x).groups] == kept
    groups = [UnitGroup("fc1", "fc2"), UnitGroup("fc2", "fc3"), UnitGroup("fc3", "head")]
    with pytest.raises(WiringError) as caught:
        trace(model, x, groups=groups)
    assert set(caught.value.wiring.refused) == {"fc1", "fc2", "fc3"} - set(kept)


def test_wrong_groups_are_found_among_right_ones() -> None:
    model = Chain()
    x = torch.randn(3, 4)
    right = trace(model, x).groups
    swapped = UnitGroup(right[1].producers, [Port("fc3", torch.arange(6).roll(1)[:, None])])
    crossed = Branches()
    parts = trace(crossed, torch.randn(2, 1, 4, 4)).groups
    other = torch.cat([torch.arange(4, 12), torch.arange(12, 16)]).view(3, 4)  # the last unit's belong to b
    stolen = UnitGroup(parts[0].producers, [Port("head", other)])
    for net, example, groups, failing in (
        (model, x, [right[0], swapped, right[2]], [1]),
        (crossed, torch.randn(2, 1, 4, 4), [stolen, parts[1]], [0]),
    ):
        with Sandbox(net, example) as sandbox:
            failures = Verifier(Recording(sandbox, example)).check(groups)
        assert [number for number, failure in enumerate(failures) if failure is not None] == failing


class Sized(nn.Module):
    """Adds hidden units to the output for large images only; or loses the axis of a batch of one."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.conv1, self.conv2 = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.conv1(x))
        y = F.relu(self.conv2(h)).mean((2, 3))
        if self.how == "squeeze":
            y = y.squeeze()
        y = self.head(y)
        return y + torch.nan_to_num(h).mean((2, 3)) if self.how == "large" and x.shape[-1] > 100 else y


def test_a_smaller_example_is_used_only_where_the_model_does_the_same() -> None:
    x = torch.randn(2, 3, 128, 128)
    both = [(["conv1"], [], ["conv2"], "conv2"), (["conv2"], [], ["head"], "head")]
    assert outline(trace(Sized("plain"), x)) == both
    assert outline(trace(Sized("squeeze"), x)) == both
    assert outline(trace(Sized("large"), x)) == both[1:]
    assert outline(trace(Sized("large"), x[:, :, :64, :64])) == both


def test_passes_do_not_grow_with_the_number_of_layers() -> None:
    shallow, deep = (
        find(nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(8, 8), nn.ReLU())]), torch.randn(3, 8))
        for depth in (3, 12)
    )
    assert (len(shallow), len(deep)) == (2, 11)
    assert deep.passes == shallow.passes < 40


def test_flow_follows_views_writes_and_values_that_leave_torch() -> None:
    flow = Flow()
    with flow:
        a, b, c = torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 3)
        for name, tensor in (("a", a), ("b", b), ("c", c)):
            flow.start(name, tensor)
        store = torch.zeros(2, 3)
        store[0].copy_(a[1])  # through a view
        flow.arrive("store", store)
        flow.arrive("product", b * 2 + store.shape[0])
        c.sum().item()
        flow.arrive(OUTPUT, torch.zeros(1) + 1)
    assert flow.reach == {"a": {"store"}, "b": {"product"}, "c": {OUTPUT}}


def test_apart_puts_what_clashes_into_different_lists() -> None:
    assert apart(range(6), lambda one, other: (one - other) % 3 == 0) == [[0, 1, 2], [3, 4, 5]]


def test_an_operation_that_cannot_be_followed_costs_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = FunctionalMLP(), torch.randn(3, 5)
    followed = find(model, x)

    def refuse(*_: object) -> None:
        raise NotImplementedError("no rule for this operation")

    monkeypatch.setattr(Flow, "arrive", refuse)
    alone = find(model, x)
    assert outline(alone) == outline(followed)
    assert alone.passes > followed.passes

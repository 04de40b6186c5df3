"""Stacks: a run inside a stack is the same run alone, whatever its neighbours are."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neoteny
from neoteny.methods import L2, SGD, Adam, ContinualBackprop, Method, ShrinkAndPerturb
from neoteny.nets import Dropout, OnlineNorm

pytestmark = pytest.mark.usefixtures("double_precision")


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 2))


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2),
    )  # fmt: skip


def norm_net() -> nn.Module:
    # no bias in front of the norm: its gradient would be rounding noise, which Adam blows up
    return nn.Sequential(
        nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)
    )


def dropout_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), Dropout(0.2), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))


class OwnForward(nn.Module):
    """Two hidden layers and a head, wired in a forward of its own, registered out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 2)
        self.second = nn.Linear(6, 5)
        self.first = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sigmoid(self.second(F.relu(self.first(x)))))


class OnlineNet(nn.Module):
    """Online normalisation in front of an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 5)
        self.norm = OnlineNorm(5, forward_decay=0.99, backward_decay=0.9)
        self.out = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.norm(self.second(F.relu(self.first(x))))))


SHAPES = {conv_net: (1, 4, 4)}
Make = Callable[[], nn.Module]


def shape_of(make: Make) -> tuple[int, ...]:
    return SHAPES.get(make, (4,))


def statistics_of(plastic: neoteny.Attachment | neoteny.Stack) -> dict[str, Any]:
    return plastic.state_dict()["states"][-1]


def pick(method: Method, run: int) -> Method:
    """The method of one run: every sequence of hyperparameters replaced by that run's number."""
    values = method.hyperparameters()
    chosen = {k: v[run] if isinstance(v, tuple) and k != "betas" else v for k, v in values.items()}
    return type(method)(**chosen)


def torch_optimizer(method: Method, net: nn.Module) -> torch.optim.Optimizer:
    if isinstance(method, Adam):
        return neoteny.optim.Adam(net.parameters(), lr=method.step_size, betas=method.betas, eps=method.eps)  # type: ignore[arg-type]
    assert isinstance(method, SGD)
    return torch.optim.SGD(net.parameters(), lr=method.step_size, momentum=method.momentum)  # type: ignore[arg-type]


def compare_with_runs_alone(
    make: Make,
    methods: Sequence[Method],
    steps: int,
    *,
    runs: int = 3,
    batch: int = 3,
    loss: str = "mse",
    seeds: Sequence[int] = (5, -6, 2**40),
    **options: Any,
) -> tuple[neoteny.Stack, list[nn.Module]]:
    """Train a stack, and each run alone through `attach`; losses and replacements must agree at every step."""
    nets = [make() for _ in range(runs)]
    shape = shape_of(make)
    example = torch.randn(3, *shape)
    stack = neoteny.stack(nets, *methods, loss=loss, example=example, seeds=seeds, **options)
    alone, optimizers, attachments = [copy.deepcopy(net) for net in nets], [], []
    for run, net in enumerate(alone):
        mine = [pick(method, run) for method in methods]
        optimizers.append(torch_optimizer(mine[0], net))
        attachments.append(neoteny.attach(net, optimizers[run], *mine[1:], example=example, seed=seeds[run], **options))
    data = torch.Generator().manual_seed(2)
    for step in range(steps):
        x = torch.randn(runs, batch, *shape, generator=data)
        if loss == "cross_entropy":
            y = torch.randint(2, (runs, batch), generator=data)
        else:
            y = torch.randn(runs, batch, 2, generator=data)
        losses = stack.step(x, y).losses
        for run, (net, optimizer, attachment) in enumerate(zip(alone, optimizers, attachments, strict=True)):
            output = net(x[run])
            value = F.cross_entropy(output, y[run]) if loss == "cross_entropy" else F.mse_loss(output, y[run])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            attachment.step()
            assert abs(value.item() - losses[run].item()) <= 1e-12, (step, run)
            assert {name: counts[run].item() for name, counts in stack.replaced.items()} == attachment.replaced
    ours = statistics_of(stack)
    for run, (net, attachment) in enumerate(zip(alone, attachments, strict=True)):
        for name, values in statistics_of(attachment).items():
            assert torch.equal(ours[name]["born"][run], values["born"])
        for name, value in stack.module(run).state_dict().items():
            torch.testing.assert_close(value, net.state_dict()[name], rtol=0, atol=1e-11)
    assert sum(int(counts.sum()) for counts in stack.replaced.values()) >= 20
    return stack, alone


@pytest.mark.parametrize(
    ("methods", "loss"),
    [
        ((SGD((0.01, 0.02)), L2((1e-4, 0.0)), ContinualBackprop((5e-3, 1e-2), (20, 30), (0.99, 0.9))), "mse"),
        ((Adam((1e-3, 2e-3)), ContinualBackprop((1e-2, 2e-2), (20, 10), (0.9, 0.99))), "cross_entropy"),
    ],
    ids=["sgd", "adam"],
)
def test_runs_in_a_stack_of_mlps_equal_runs_alone_over_2000_steps(methods: tuple[Method, ...], loss: str) -> None:
    compare_with_runs_alone(chain, methods, 2000, runs=2, seeds=(5, -6), loss=loss, batch=2)


@pytest.mark.parametrize("optimizer", [SGD((0.01, 0.02), (0.9, 0.5)), Adam((1e-3, 2e-3))], ids=["sgd", "adam"])
def test_shrink_and_perturb_in_a_stack_draws_the_noise_of_each_run_alone(optimizer: Method) -> None:
    methods = (optimizer, ShrinkAndPerturb((1e-3, 1e-4), (1e-4, 1e-3)), ContinualBackprop((0.05, 0.1), (5, 7)))
    compare_with_runs_alone(chain, methods, 60, runs=2, seeds=(5, -6))


@pytest.mark.parametrize(
    "utility", ["mean_corrected_contribution", "contribution", "adaptation", "weight_magnitude", "random"]
)
def test_every_utility_is_the_same_inside_a_stack(utility: str) -> None:
    cbp = ContinualBackprop((0.02, 0.05, 0.1), (10, 5, 0), 0.9, utility, count="layer")
    compare_with_runs_alone(chain, (SGD((0.01, 0.02, 0.03), (0.9, 0.0, 0.5)), L2((0.0, 1e-3, 1e-2)), cbp), 60)


@pytest.mark.parametrize("make", [conv_net, norm_net, OwnForward, dropout_net], ids=lambda make: make.__name__)
@pytest.mark.parametrize("optimizer", [SGD((0.01, 0.02, 0.03), 0.9), Adam((1e-3, 2e-3, 3e-3))], ids=["sgd", "adam"])
def test_runs_of_any_module_in_a_stack_equal_runs_alone(make: Make, optimizer: Method) -> None:
    compare_with_runs_alone(make, (optimizer, ContinualBackprop((0.02, 0.05, 0.1), (10, 5, 20))), 100)


def test_online_norm_in_a_stack_equals_online_norm_alone() -> None:
    # The units behind the norm are left out of the groups; those in front of it are still replaced.
    stack, _ = compare_with_runs_alone(
        OnlineNet, (SGD(0.005), ContinualBackprop((0.1, 0.05, 0.1), 5)), 80, leave_out=["second"]
    )
    assert stack.view.tensors["norm.e1"].abs().min() > 0  # the backward pass really kept each run's own errors


def test_a_deeper_tuple_of_axes_reaches_the_linear_layers_as_it_does_alone() -> None:
    nets = [chain() for _ in range(2)]
    stack = neoteny.stack(nets, SGD(0.01))
    x = torch.randn(2, 3, 5, 4)
    torch.testing.assert_close(stack.predict(x), torch.stack([net(one) for net, one in zip(nets, x, strict=True)]))


def test_an_activation_module_used_twice_acts_twice_in_a_stack() -> None:
    activation = nn.Tanh()
    nets = [nn.Sequential(nn.Linear(4, 5), activation, nn.Linear(5, 5), activation, nn.Linear(5, 2)) for _ in range(2)]
    stack = neoteny.stack(nets, SGD(0.01))
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(stack.predict(x), torch.stack([net(one) for net, one in zip(nets, x, strict=True)]))


# ------------------------------------------------------------------------------------------------------- neighbours


def train(stack: neoteny.Stack, data: Tensor, targets: Tensor) -> Tensor:
    """Losses (steps, n) over data (steps, n, B, ...)."""
    return torch.stack([stack.step(x, y).losses for x, y in zip(data, targets, strict=True)])


def select(methods: Sequence[Method], runs: Sequence[int]) -> list[Method]:
    """The methods with the hyperparameters of some runs, in that order."""
    chosen = []
    for method in methods:
        values = method.hyperparameters()
        picked = {
            k: tuple(v[run] for run in runs) if isinstance(v, tuple) and k != "betas" else v for k, v in values.items()
        }
        chosen.append(type(method)(**picked))
    return chosen


FIVE: list[list[Method]] = [
    [SGD((0.01, 0.02, 0.03, 0.01, 0.02), 0.9), ContinualBackprop((0.05, 0.02, 0.0, 0.1, 1.0), (5, 10, 0, 20, 7))],
    [
        Adam((1e-3, 2e-3, 3e-3, 1e-3, 2e-3)),
        ShrinkAndPerturb((1e-3, 0.0, 1e-4, 1e-2, 0.0), 1e-3),
        ContinualBackprop((0.05, 0.02, 0.0, 0.1, 1.0), (5, 10, 0, 20, 7), utility="random"),
    ],
]


@pytest.mark.parametrize("methods", FIVE, ids=["sgd", "adam"])
@pytest.mark.parametrize("make", [chain, conv_net, dropout_net], ids=lambda make: make.__name__)
def test_a_run_does_not_depend_on_what_else_is_in_the_stack(make: Make, methods: list[Method]) -> None:
    nets = [make() for _ in range(5)]
    seeds = [3, 1, 4, 1, 5]
    steps, shape = 40, shape_of(make)
    data, targets = torch.randn(steps, 5, 2, *shape), torch.randn(steps, 5, 2, 2)
    together = neoteny.stack(nets, *methods, example=data[0, 0], seeds=seeds)
    losses = train(together, data, targets)
    for runs in ([0], [3], [4, 2, 0, 1, 3]):
        some = neoteny.stack(
            [nets[run] for run in runs], *select(methods, runs), example=data[0, 0], seeds=[seeds[run] for run in runs]
        )
        torch.testing.assert_close(train(some, data[:, runs], targets[:, runs]), losses[:, runs], rtol=0, atol=1e-12)
        for name, counts in some.replaced.items():
            assert torch.equal(counts, together.replaced[name][runs])
        for name, values in statistics_of(some).items():
            assert torch.equal(values["born"], statistics_of(together)[name]["born"][runs])


@pytest.mark.parametrize("optimizer", [SGD(0.01, 0.9), Adam(1e-3)], ids=["sgd", "adam"])
@pytest.mark.parametrize("make", [chain, conv_net], ids=lambda make: make.__name__)
def test_a_diverging_run_does_not_disturb_its_neighbours(make: Make, optimizer: Method) -> None:
    nets = [make() for _ in range(3)]
    shape = shape_of(make)
    data, targets = torch.randn(40, 3, 2, *shape), torch.randn(40, 3, 2, 2)
    methods = (optimizer, ContinualBackprop(0.2, 3))
    calm = neoteny.stack(nets, *methods, example=data[0, 0])
    calm_losses = train(calm, data, targets)
    wild_targets = targets.clone()
    wild_targets[10, 1] = torch.nan
    wild = neoteny.stack(nets, *methods, example=data[0, 0])
    wild_losses = train(wild, data, wild_targets)
    assert wild_losses[11:, 1].isnan().all()
    assert torch.equal(wild_losses[:, [0, 2]], calm_losses[:, [0, 2]])
    for name, value in calm.state_dict()["tensors"].items():
        assert torch.equal(wild.state_dict()["tensors"][name][[0, 2]], value[[0, 2]])
    for name, counts in wild.replaced.items():
        assert torch.equal(counts, calm.replaced[name])


def test_a_stack_leaves_the_given_modules_alone() -> None:
    nets = [chain() for _ in range(2)]
    before = [{name: value.clone() for name, value in net.state_dict().items()} for net in nets]
    stack = neoteny.stack(nets, SGD(0.1), ContinualBackprop(0.5, 0), example=torch.zeros(1, 4))
    train(stack, torch.randn(5, 2, 3, 4), torch.randn(5, 2, 3, 2))
    for net, saved in zip(nets, before, strict=True):
        assert all(torch.equal(value, saved[name]) for name, value in net.state_dict().items())
        assert not any(module._forward_pre_hooks for module in net.modules())


def test_a_step_gives_losses_and_outputs_from_before_the_update() -> None:
    nets = [conv_net() for _ in range(2)]
    stack = neoteny.stack(nets, SGD(0.1), ContinualBackprop(0.5, 0), example=torch.zeros(1, 1, 4, 4))
    x, y = torch.randn(2, 3, 1, 4, 4), torch.randn(2, 3, 2)
    before = stack.predict(x)
    losses, outputs = stack.step(x, y)
    torch.testing.assert_close(outputs, before)
    torch.testing.assert_close(losses, (before - y).square().mean((1, 2)))
    assert not torch.allclose(stack.predict(x), before)


@pytest.mark.parametrize("make", [chain, conv_net, dropout_net], ids=lambda make: make.__name__)
def test_prediction_leaves_no_trace(make: Make) -> None:
    nets, shape = [make() for _ in range(2)], shape_of(make)
    stacks = [
        neoteny.stack(nets, SGD(0.1), ContinualBackprop(0.2, 1), example=torch.zeros(1, *shape)) for _ in range(2)
    ]
    data, targets = torch.randn(20, 2, 3, *shape), torch.randn(20, 2, 3, 2)
    for x, y in zip(data, targets, strict=True):
        stacks[1].predict(torch.randn(2, 7, *shape))
        assert torch.equal(stacks[0].step(x, y).losses, stacks[1].step(x, y).losses)


def test_a_loss_of_ones_own_is_mapped_over_the_runs() -> None:
    nets = [chain() for _ in range(3)]
    own = neoteny.stack(nets, SGD(0.1), loss=lambda output, target: (output - target).square().mean())
    named = neoteny.stack(nets, SGD(0.1), loss="mse")
    data, targets = torch.randn(10, 3, 2, 4), torch.randn(10, 3, 2, 2)
    torch.testing.assert_close(train(own, data, targets), train(named, data, targets), rtol=1e-13, atol=0)


# ------------------------------------------------------------------------------------------------------ checkpoints


def save_and_load(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("methods", FIVE, ids=["sgd", "adam"])
@pytest.mark.parametrize("make", [chain, norm_net, dropout_net], ids=lambda make: make.__name__)
def test_a_stack_resumed_from_a_file_continues_bit_identically(make: Make, methods: list[Method]) -> None:
    nets, shape = [make() for _ in range(5)], shape_of(make)
    data, targets = torch.randn(60, 5, 2, *shape), torch.randn(60, 5, 2, 2)
    stack = neoteny.stack(nets, *methods, example=data[0, 0], seeds=[9, 8, 7, 6, 5])
    train(stack, data[:30], targets[:30])
    saved = save_and_load(stack.state_dict())
    losses = train(stack, data[30:], targets[30:])

    fresh = neoteny.stack([make() for _ in range(5)], *methods, example=data[0, 0], seeds=[0] * 5)
    fresh.load_state_dict(saved)
    assert torch.equal(train(fresh, data[30:], targets[30:]), losses)
    for name, value in stack.state_dict()["tensors"].items():
        assert torch.equal(fresh.state_dict()["tensors"][name], value)
    for name, counts in stack.replaced.items():
        assert torch.equal(fresh.replaced[name], counts)


@pytest.mark.parametrize("methods", FIVE, ids=["sgd", "adam"])
@pytest.mark.parametrize("when", [0, 10], ids=["at-the-start", "after-some-steps"])
def test_a_running_stack_can_go_back_to_an_earlier_state(methods: list[Method], when: int) -> None:
    data, targets = torch.randn(30, 5, 2, 4), torch.randn(30, 5, 2, 2)
    stack = neoteny.stack([chain() for _ in range(5)], *methods, example=data[0, 0])
    for x, y in zip(data[:when], targets[:when], strict=True):
        stack.step(x, y)
    saved = save_and_load(stack.state_dict())
    losses = train(stack, data, targets)
    stack.load_state_dict(saved)
    assert torch.equal(train(stack, data, targets), losses)


# ------------------------------------------------------------------------------------------------------- bad input


def make_stack(*methods: Method | Any, runs: int = 3, **options: Any) -> neoteny.Stack:
    return neoteny.stack([chain() for _ in range(runs)], *methods, **{"example": torch.zeros(1, 4), **options})


def test_the_wrong_number_of_seeds_is_refused() -> None:
    with pytest.raises(ValueError, match="3 modules, but 2 seeds"):
        make_stack(SGD(0.1), seeds=[1, 2])


@pytest.mark.parametrize(
    "methods",
    [(), (ContinualBackprop(),), (ContinualBackprop(), SGD(0.1)), (SGD(0.1), Adam(0.1))],
    ids=["nothing", "none", "last", "two"],
)
def test_a_stack_needs_exactly_one_optimizer_first(methods: tuple[Method, ...]) -> None:
    with pytest.raises(ValueError, match="exactly one optimizer, as the first method"):
        make_stack(*methods)


def test_a_torch_optimizer_is_refused_as_a_method() -> None:
    with pytest.raises(TypeError, match="A torch optimizer cannot drive a stack"):
        make_stack(torch.optim.SGD(chain().parameters(), lr=0.1))


def test_torchs_dropout_is_refused_by_name() -> None:
    nets = [nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Dropout(0.1), nn.Linear(5, 2)) for _ in range(2)]
    with pytest.raises(ValueError, match=r"2 \(Dropout\).*neoteny\.nets\.Dropout"):
        neoteny.stack(nets, SGD(0.1))


@pytest.mark.parametrize("other", [lambda: nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 2)), OwnForward])
def test_mismatched_architectures_are_refused(other: Make) -> None:
    with pytest.raises(ValueError, match="one architecture; module 1 differs from module 0"):
        neoteny.stack([chain(), other()], SGD(0.1))


def test_architectures_that_differ_only_in_an_activation_are_refused() -> None:
    nets = [nn.Sequential(nn.Linear(4, 5), act, nn.Linear(5, 2)) for act in (nn.ReLU(), nn.Tanh())]
    with pytest.raises(ValueError, match="one architecture; module 1 differs from module 0"):
        neoteny.stack(nets, SGD(0.1))


def test_no_modules_at_all_are_refused() -> None:
    with pytest.raises(TypeError, match=r"at least one nn\.Module"):
        neoteny.stack([], SGD(0.1))


@pytest.mark.parametrize("shape", [(2, 3, 4), (4,), (3,)])
def test_inputs_without_one_batch_a_run_are_refused(shape: tuple[int, ...]) -> None:
    stack = make_stack(SGD(0.1))
    with pytest.raises(ValueError, match=r"Expected inputs of shape \(3, batch, \.\.\.\)"):
        stack.step(torch.zeros(shape), torch.zeros(3, 3, 2))
    with pytest.raises(ValueError, match=r"Expected inputs of shape \(3, batch, \.\.\.\)"):
        stack.predict(torch.zeros(shape))


def test_targets_that_would_broadcast_are_refused() -> None:
    nets = [nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1)) for _ in range(3)]
    stack = neoteny.stack(nets, SGD(0.1))
    with pytest.raises(ValueError, match="targets"):
        stack.step(torch.zeros(3, 3, 4), torch.zeros(3, 3))


def test_sequences_of_hyperparameters_need_one_value_a_run() -> None:
    with pytest.raises(ValueError, match=r"one value a run \(3\); got 2"):
        make_stack(SGD(0.1), ContinualBackprop((0.1, 0.2)))
    with pytest.raises(ValueError, match=r"one value a run \(3\); got 4"):
        make_stack(Adam((0.1, 0.2, 0.3, 0.4)))
    with pytest.raises(ValueError, match="must be of one length"):
        make_stack(SGD(0.1), ContinualBackprop((0.1, 0.2, 0.3), (1, 2)))


def test_methods_on_units_need_an_example() -> None:
    with pytest.raises(ValueError, match=r"needs example="):
        make_stack(SGD(0.1), ContinualBackprop(), example=None)


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="loss must be 'mse', 'cross_entropy' or a function"):
        make_stack(SGD(0.1), loss="huber")


def test_a_run_with_other_initial_weights_is_named() -> None:
    nets = [chain() for _ in range(3)]
    with torch.no_grad():
        nets[2].get_submodule("0").weight.mul_(10)
    with pytest.raises(ValueError, match="run 2, 0: the initial distribution"):
        neoteny.stack(nets, SGD(0.1), ContinualBackprop(), example=torch.zeros(1, 4))
    neoteny.stack(nets, SGD(0.1), ContinualBackprop(), example=torch.zeros(1, 4), trained=True)


@pytest.mark.parametrize("wrong", ["methods", "model", "runs", "something"])
def test_a_state_dict_of_another_stack_is_refused_and_changes_nothing(wrong: str) -> None:
    stack = make_stack(SGD(0.1), ContinualBackprop(0.1, 0))
    stack.step(torch.randn(3, 2, 4), torch.randn(3, 2, 2))
    before = copy.deepcopy(stack.state_dict())
    other: Any = {
        "methods": lambda: make_stack(SGD(0.2), ContinualBackprop(0.1, 0)).state_dict(),
        "model": lambda: neoteny.stack(
            [OwnForward() for _ in range(3)], SGD(0.1), ContinualBackprop(0.1, 0), example=torch.zeros(1, 4)
        ).state_dict(),
        "runs": lambda: make_stack(SGD(0.1), ContinualBackprop(0.1, 0), runs=2).state_dict(),
        "something": lambda: {"weights": torch.zeros(3)},
    }[wrong]()
    with pytest.raises(ValueError, match=r"[Ee]xpected"):
        stack.load_state_dict(other)
    after = stack.state_dict()
    for key in ("tensors", "states", "seeds"):
        torch.testing.assert_close(after[key], before[key], rtol=0, atol=0)

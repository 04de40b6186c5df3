"""What went wrong in other code of this field, each as a test that fails on it."""

from __future__ import annotations

import copy
import inspect
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neoteny

pytestmark = pytest.mark.usefixtures("double_precision")


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def conv_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 4, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3),
    )  # fmt: skip


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


Make = Callable[[], nn.Sequential]
ARCHITECTURES: list[tuple[Make, tuple[int, ...]]] = [(mlp, (4,)), (conv_net, (1, 3, 3)), (normed, (4,))]
IDS = [make.__name__ for make, _ in ARCHITECTURES]


def update(net: nn.Module, optimizer: torch.optim.Optimizer, plastic: Any, x: Tensor, y: Tensor) -> float:
    optimizer.zero_grad()
    loss = (net(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    if plastic is not None:
        plastic.step()
    return loss.item()


def statistics_of(plastic: neoteny.Attachment) -> dict[str, Any]:
    return plastic.state_dict()["states"][-1]


def chosen_units(plastic: neoteny.Attachment) -> dict[str, list[int]]:
    return {
        name: (values["born"] == values["schedule"]["step"]).nonzero().flatten().tolist()
        for name, values in statistics_of(plastic).items()
    }


# ------------------------------------------------------------------------------------ an algorithm per architecture


@pytest.mark.parametrize(("make", "shape"), ARCHITECTURES, ids=IDS)
def test_running_means_decay_in_every_architecture(make: Make, shape: tuple[int, ...]) -> None:
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    first, second = torch.randn(8, *shape), torch.randn(8, *shape)
    method = neoteny.ContinualBackprop(0.0, decay_rate=0.5)
    plastic = neoteny.attach(net, optimizer, method, example=first, seed=1)
    for x in [first] * 60:
        update(net, optimizer, plastic, x, torch.zeros(8, 3))
    at_first = copy.deepcopy(statistics_of(plastic))
    for x in [second] * 60:
        update(net, optimizer, plastic, x, torch.zeros(8, 3))
    at_second = statistics_of(plastic)
    assert plastic.wiring is not None
    for group in plastic.wiring.groups:
        for x, saved in ((first, at_first), (second, at_second)):
            seen: list[Tensor] = []
            handle = net.get_submodule(str(group.read)).register_forward_pre_hook(
                lambda _, args, seen=seen: seen.append(args[0].detach())
            )
            net(x)
            handle.remove()
            by_unit = seen[0].reshape(8, group.units, -1) if seen[0].dim() == 2 else seen[0].flatten(2)
            torch.testing.assert_close(
                saved[group.name]["mean_activation"], by_unit.mean((0, 2)), rtol=1e-12, atol=1e-12
            )


@pytest.mark.parametrize(("make", "shape"), ARCHITECTURES, ids=IDS)
@pytest.mark.parametrize("kind", [torch.optim.Adam, neoteny.optim.Adam], ids=["torch", "neoteny"])
def test_both_moments_of_reset_weights_are_cleared_in_every_architecture(
    make: Make, shape: tuple[int, ...], kind: Any
) -> None:
    net = make()
    optimizer = kind(net.parameters(), lr=0.01)
    plastic = neoteny.attach(net, optimizer, neoteny.ContinualBackprop(1.0, 3), example=torch.randn(4, *shape), seed=1)
    for _ in range(4):
        update(net, optimizer, plastic, torch.randn(4, *shape), torch.randn(4, 3))
    assert plastic.wiring is not None
    for group in plastic.wiring.groups:
        assert chosen_units(plastic)[group.name] == list(range(group.units))  # rate 1: all of them
        touched = [f"{port.module}.{part}" for port in (*group.producers, *group.norms) for part in ("weight", "bias")]
        for name in [*touched, *(f"{port.module}.weight" for port in group.consumers)]:
            state = optimizer.state[net.get_parameter(name)]
            assert not state["exp_avg"].any(), name
            assert not state["exp_avg_sq"].any(), name


# ------------------------------------- order: compensation reads means and outgoing weights before they are cleared


@pytest.mark.parametrize(("make", "shape"), ARCHITECTURES, ids=IDS)
def test_replacements_really_change_the_consumers_biases(make: Make, shape: tuple[int, ...]) -> None:
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    plastic = neoteny.attach(net, optimizer, neoteny.ContinualBackprop(0.5, 3), example=torch.randn(4, *shape), seed=1)
    before = copy.deepcopy(net)
    for _ in range(4):
        update(net, optimizer, plastic, torch.randn(4, *shape) + 1.0, torch.randn(4, 3))
    assert plastic.wiring is not None
    for group in plastic.wiring.groups:
        assert plastic.replaced[group.name] > 0
        for port in group.consumers:
            now, then = net.get_submodule(port.module).bias, before.get_submodule(port.module).bias
            assert (now - then).abs().max() > 1e-3, port.module


def test_the_bias_gains_the_old_mean_times_the_old_outgoing_weight() -> None:
    net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0], [2.0]]))
        net[0].bias.zero_()
        net[2].weight.copy_(torch.tensor([[0.5, -3.0]]))
        net[2].bias.fill_(10.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    method = neoteny.ContinualBackprop(0.5, 0, utility="weight_magnitude")
    plastic = neoteny.attach(net, optimizer, method, example=torch.ones(1, 1), seed=1, trained=True)
    update(net, optimizer, plastic, torch.full((1, 1), 4.0), torch.zeros(1, 1))
    assert chosen_units(plastic) == {"0": [0]}  # the smaller outgoing weight
    assert net[2].bias.item() == pytest.approx(10.0 + 0.5 * 4.0)
    assert net[2].weight.tolist() == [[0.0, -3.0]]


# ------------------------------------------------------------------------------- indexing that edits a copy


@pytest.mark.parametrize(("make", "shape"), ARCHITECTURES, ids=IDS)
def test_outgoing_weights_are_zeroed_in_the_parameter_itself(make: Make, shape: tuple[int, ...]) -> None:
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    plastic = neoteny.attach(net, optimizer, neoteny.ContinualBackprop(1.0, 3), example=torch.randn(4, *shape), seed=1)
    addresses = {name: (id(value), value.data_ptr()) for name, value in net.named_parameters()}
    for _ in range(4):
        update(net, optimizer, plastic, torch.randn(4, *shape), torch.randn(4, 3))
    assert {name: (id(value), value.data_ptr()) for name, value in net.named_parameters()} == addresses
    output_layer = net[-1]
    assert not output_layer.weight.any()
    assert not optimizer.state[output_layer.weight]["momentum_buffer"].any()


# ------------------------------------------------------------------------------------- rewriting inside backward


@pytest.mark.parametrize(("make", "shape"), ARCHITECTURES, ids=IDS)
@pytest.mark.parametrize("auto", [False, True], ids=["by hand", "auto"])
def test_gradients_with_replacements_going_on_are_those_of_the_plain_network(
    make: Make, shape: tuple[int, ...], auto: bool
) -> None:
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    plastic = neoteny.attach(
        net, optimizer, neoteny.ContinualBackprop(0.3, 2), example=torch.randn(4, *shape), seed=1, auto=auto
    )
    for _ in range(15):
        x, y = torch.randn(4, *shape), torch.randn(4, 3)
        plain = make()
        plain.load_state_dict(net.state_dict())
        (plain(x) - y).square().mean().backward()
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
            assert mine.grad is not None
            assert theirs.grad is not None
            assert torch.equal(mine.grad, theirs.grad)
        optimizer.step()
        if not auto:
            plastic.step()
    assert all(plastic.replaced.values())


# ----------------------------------------------------------------------------------------- ignored configuration keys


@pytest.mark.parametrize("key", ["mt", "rr", "maturity_treshold", "util_type"])
def test_an_unknown_setting_is_an_error(key: str) -> None:
    with pytest.raises(TypeError, match=key):
        neoteny.ContinualBackprop(**{key: 1})  # type: ignore[arg-type]


def test_unknown_arguments_of_attach_and_stack_are_errors() -> None:
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(TypeError, match="sede"):
        neoteny.attach(net, optimizer, neoteny.ContinualBackprop(), example=torch.zeros(1, 4), sede=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="sede"):
        neoteny.stack([net], neoteny.methods.SGD(0.1), sede=[1])  # type: ignore[call-arg]


def test_a_misspelt_value_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="Did you mean 'contribution'"):
        neoteny.ContinualBackprop(utility="contributions")
    with pytest.raises(ValueError, match="Did you mean 'layer'"):
        neoteny.ContinualBackprop(count="layers")


def test_an_initial_distribution_for_an_unknown_layer_is_an_error() -> None:
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="fc1"):
        neoteny.attach(
            net, optimizer, neoteny.ContinualBackprop(), example=torch.zeros(1, 4), init={"fc1": "kaiming_uniform"}
        )


@pytest.mark.parametrize("method", [neoteny.ContinualBackprop, neoteny.L2, neoteny.ShrinkAndPerturb])
def test_settings_have_their_full_names(method: Any) -> None:
    assert not {"rr", "mt", "lr", "std", "init"} & set(inspect.signature(method).parameters)


# ------------------------------------------------------------------------------------------------ partial checkpoints


def through_a_file(state: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


RESUMED: dict[str, list[neoteny.methods.Method]] = {
    "overall": [neoteny.ContinualBackprop(0.05, 7)],
    "random": [neoteny.ContinualBackprop(0.05, 7, utility="random", count="layer")],
    "with noise": [neoteny.ShrinkAndPerturb(1e-3, 1e-3), neoteny.ContinualBackprop(0.05, 7)],
}


@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.parametrize(
    "kind", [torch.optim.SGD, neoteny.optim.Adam, torch.optim.Adam], ids=["sgd", "neoteny adam", "adam"]
)
@pytest.mark.parametrize(("make", "shape"), ARCHITECTURES, ids=IDS)
def test_training_resumed_from_a_file_is_bit_identical(
    make: Make, shape: tuple[int, ...], kind: Any, name: str
) -> None:
    def start(seed: int) -> tuple[nn.Sequential, torch.optim.Optimizer, neoteny.Attachment]:
        torch.manual_seed(seed)
        net = make()
        optimizer = kind(net.parameters(), lr=0.01)
        return net, optimizer, neoteny.attach(net, optimizer, *RESUMED[name], example=torch.randn(4, *shape), seed=seed)

    data = [(torch.randn(4, *shape), torch.randn(4, 3)) for _ in range(24)]
    net, optimizer, plastic = start(1)
    for x, y in data[:12]:
        update(net, optimizer, plastic, x, y)
    saved = through_a_file([net.state_dict(), optimizer.state_dict(), plastic.state_dict()])
    losses = [update(net, optimizer, plastic, x, y) for x, y in data[12:]]

    again, fresh_optimizer, fresh_plastic = start(2)
    for one, state in zip((again, fresh_optimizer, fresh_plastic), saved, strict=True):
        one.load_state_dict(state)
    assert [update(again, fresh_optimizer, fresh_plastic, x, y) for x, y in data[12:]] == losses
    assert fresh_plastic.replaced == plastic.replaced
    assert fresh_plastic.seed == plastic.seed
    for mine, theirs in zip(again.state_dict().values(), net.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)
    for group, values in statistics_of(plastic).items():
        for key in ("born", "mean_activation", "utility", "decay_power"):
            assert torch.equal(statistics_of(fresh_plastic)[group][key], values[key]), key
        assert statistics_of(fresh_plastic)[group]["schedule"] == values["schedule"]


def test_weights_alone_do_not_make_a_checkpoint() -> None:
    # The check above would pass on a checkpoint without ages and utilities if these made no difference.
    data = [(torch.randn(4, 4), torch.randn(4, 3)) for _ in range(40)]
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    plastic = neoteny.attach(net, optimizer, *RESUMED["overall"], example=data[0][0], seed=1)
    for x, y in data[:20]:
        update(net, optimizer, plastic, x, y)
    twin = copy.deepcopy(net)
    losses = [update(net, optimizer, plastic, x, y) for x, y in data[20:]]
    plain = mlp()
    plain.load_state_dict(twin.state_dict())
    again = torch.optim.SGD(plain.parameters(), lr=0.01)
    restarted = neoteny.attach(plain, again, *RESUMED["overall"], example=data[0][0], seed=1, trained=True)
    assert [update(plain, again, restarted, x, y) for x, y in data[20:]] != losses


# ------------------------------------------------------------------ topology by index arithmetic, or by shape


class Shuffled(nn.Module):
    """Four layers of one shape, registered in an order that is not that of the forward pass."""

    def __init__(self, order: tuple[str, ...]) -> None:
        super().__init__()
        torch.manual_seed(5)
        layers = {name: nn.Linear(4, 4) for name in ("first", "second", "third", "out")}
        for name in order:
            self.add_module(name, layers[name])

    def forward(self, x: Tensor) -> Tensor:
        for name in ("first", "second", "third"):
            x = F.relu(self.get_submodule(name)(x))
        return self.get_submodule("out")(x)


def test_the_order_of_registration_makes_no_difference() -> None:
    results = []
    for order in (("first", "second", "third", "out"), ("third", "out", "first", "second")):
        net = Shuffled(order)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
        plastic = neoteny.attach(net, optimizer, neoteny.ContinualBackprop(0.1, 3), example=torch.randn(2, 4), seed=1)
        data = torch.Generator().manual_seed(9)
        for _ in range(40):
            x, y = torch.randn(4, 4, generator=data), torch.randn(4, 4, generator=data)
            update(net, optimizer, plastic, x, y)
        assert plastic.wiring is not None
        consumers = {group.name: [port.module for port in group.consumers] for group in plastic.wiring.groups}
        assert consumers == {"first": ["second"], "second": ["third"], "third": ["out"]}
        assert all(plastic.replaced.values())
        results.append({name: value.clone() for name, value in net.state_dict().items()})
    for name, value in results[0].items():
        assert torch.equal(results[1][name], value), name


# ------------------------------------------------------------------------------- combinations by name and composition


def test_methods_compose_instead_of_being_one_class_a_variant() -> None:
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    plastic = neoteny.attach(
        net,
        optimizer,
        neoteny.L2(1e-3),
        neoteny.ShrinkAndPerturb(0.0, 1e-4),
        neoteny.ContinualBackprop(0.05, 5),
        neoteny.ContinualBackprop(0.05, 10, utility="random"),
        example=torch.zeros(1, 4),
        seed=1,
    )
    for _ in range(40):
        update(net, optimizer, plastic, torch.randn(4, 4), torch.randn(4, 3))
    assert all(plastic.replaced.values())
    assert [type(method).__name__ for method in plastic.methods] == [
        "L2", "ShrinkAndPerturb", "ContinualBackprop", "ContinualBackprop",
    ]  # fmt: skip


# ------------------------------------------------------------------------- new parameters that never train


@pytest.mark.parametrize(("make", "shape"), ARCHITECTURES, ids=IDS)
def test_new_units_are_trained_by_the_users_optimizer(make: Make, shape: tuple[int, ...]) -> None:
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    plastic = neoteny.attach(net, optimizer, neoteny.ContinualBackprop(0.5, 3), example=torch.randn(16, *shape), seed=1)
    owned = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    for _ in range(4):
        update(net, optimizer, plastic, torch.randn(16, *shape), torch.randn(16, 3))
    reset = chosen_units(plastic)
    assert [id(parameter) for parameter in net.parameters()] == owned
    fresh = copy.deepcopy(net)
    for _ in range(3):  # the outgoing weights leave zero first, then gradients reach the incoming ones
        update(net, optimizer, None, torch.randn(16, *shape), torch.randn(16, 3))
    name, units = list(reset.items())[-1]
    assert units
    moved = (net.get_submodule(name).weight - fresh.get_submodule(name).weight)[units].flatten(1).abs().sum(1)
    assert (moved > 0).any()
    assert (net[-1].weight - fresh[-1].weight)[:, units].abs().max() > 0


# ----------------------------------------------------------------------------------------------- unseeded randomness


def final_weights(seed: int | None, torch_seed: int, utility: str = "random") -> Tensor:
    torch.manual_seed(0)
    net = mlp()
    data = [(torch.randn(4, 4), torch.randn(4, 3)) for _ in range(30)]
    torch.manual_seed(torch_seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    method = neoteny.ContinualBackprop(0.1, 3, utility=utility)
    plastic = neoteny.attach(net, optimizer, method, example=torch.zeros(1, 4), seed=seed)
    for x, y in data:
        update(net, optimizer, plastic, x, y)
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def test_a_seed_makes_every_draw_reproducible_whatever_torchs_generator_does() -> None:
    assert torch.equal(final_weights(seed=3, torch_seed=1), final_weights(seed=3, torch_seed=2))
    assert not torch.equal(final_weights(seed=3, torch_seed=1), final_weights(seed=4, torch_seed=1))


def test_without_a_seed_torchs_manual_seed_reproduces() -> None:
    assert torch.equal(final_weights(seed=None, torch_seed=1), final_weights(seed=None, torch_seed=1))
    assert not torch.equal(final_weights(seed=None, torch_seed=1), final_weights(seed=None, torch_seed=2))


def test_replacing_units_does_not_consume_torchs_random_numbers() -> None:
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    plastic = neoteny.attach(net, optimizer, neoteny.ContinualBackprop(0.5, 0), example=torch.zeros(1, 4), seed=1)
    x, y = torch.randn(4, 4), torch.randn(4, 3)
    before = torch.get_rng_state()
    for _ in range(10):
        update(net, optimizer, plastic, x, y)
    assert all(plastic.replaced.values())
    assert torch.equal(torch.get_rng_state(), before)


# -------------------------------------------------------------------------------------------------- loss terms


@pytest.mark.parametrize("closure", [False, True], ids=["loop", "closure"])
def test_a_loss_term_reaches_the_gradient_however_the_optimizer_is_called(closure: bool) -> None:
    nets = [mlp()]
    nets.append(copy.deepcopy(nets[0]))
    optimizers = [
        torch.optim.SGD(nets[0].parameters(), lr=0.1),
        torch.optim.SGD(nets[1].parameters(), lr=0.1, weight_decay=0.1),
    ]
    plastic = neoteny.attach(nets[0], optimizers[0], neoteny.L2(0.1), seed=1)
    for _ in range(5):
        x, y = torch.randn(4, 4), torch.randn(4, 3)
        for net, optimizer in zip(nets, optimizers, strict=True):

            def evaluate(net: nn.Module = net, optimizer: Any = optimizer, x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = (net(x) - y).square().mean()
                loss.backward()
                return loss

            if closure:
                optimizer.step(evaluate)
            else:
                evaluate()
                optimizer.step()
        plastic.step()
    for mine, theirs in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)

"""A method that is an optimizer, made into a torch optimizer: groups, schedulers, checkpoints, scalers and closures."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import neoteny
from support.method_cases import OPTIMIZERS, OTHERS, make, network, per_element, stream

pytestmark = pytest.mark.parametrize("name", OPTIMIZERS)


def optimizer_of(name: str, parameters: Any) -> Optimizer:
    return neoteny.optim.from_method(make(name), parameters, seed=3)


def update(model: nn.Module, optimizer: Optimizer, batch: tuple[Tensor, Tensor]) -> float:
    optimizer.zero_grad()
    x, y = batch[0][0], batch[1][0]
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def all_equal(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


def test_it_is_a_torch_optimizer_that_learns_and_prints(name: str) -> None:
    model = network()
    optimizer = optimizer_of(name, model.parameters())
    assert isinstance(optimizer, Optimizer)
    assert name in repr(optimizer)
    assert optimizer.param_groups[0]["lr"] == make(name).hyperparameters()["step_size"]
    losses = [update(model, optimizer, batch) for batch in stream(150)]
    assert sum(losses[-30:]) < sum(losses[:30])


def test_it_is_refused_without_parameters_and_for_methods_that_are_no_optimizers(name: str) -> None:
    with pytest.raises(ValueError, match="empty parameter list"):
        optimizer_of(name, [])
    for other in OTHERS:
        with pytest.raises((TypeError, ValueError), match=other):
            neoteny.optim.from_method(make(other), network().parameters())
    several = make(name, step_size=(0.1, 0.2))
    with pytest.raises(ValueError, match=f"{name}.*sequence"):
        neoteny.optim.from_method(several, network().parameters())


def test_parameter_groups_have_step_sizes_of_their_own(name: str) -> None:
    model, twin = network(), network()
    groups = [{"params": model[0].parameters(), "lr": 0.0}, {"params": [*model[2].parameters()]}]
    optimizer = optimizer_of(name, groups)
    optimizer.add_param_group({"params": list(model[4].parameters()), "lr": 0.0})
    batches = stream(5)
    for batch in batches:
        update(model, optimizer, batch)
    assert all_equal(weights(model[0]), weights(twin[0]))
    assert all_equal(weights(model[4]), weights(twin[4]))
    assert not all_equal(weights(model[2]), weights(twin[2]))


def test_a_scheduler_sets_the_step_size(name: str) -> None:
    model = network()
    optimizer = optimizer_of(name, model.parameters())
    start = optimizer.param_groups[0]["lr"]
    scheduler = torch.optim.lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.5 if epoch < 3 else 0.0)
    batches = stream(6)
    for expected in (1.0, 0.5, 0.25):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(start * expected)
        update(model, optimizer, batches[0])
        scheduler.step()
    before = weights(model)
    update(model, optimizer, batches[1])
    assert all_equal(weights(model), before)  # a step size of zero


def test_a_checkpoint_continues_bit_for_bit(name: str) -> None:
    batches = stream(30)
    model = network()
    optimizer = optimizer_of(name, model.parameters())
    for batch in batches[:13]:
        update(model, optimizer, batch)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    expected = [update(model, optimizer, batch) for batch in batches[13:]]
    other = network(5)
    again = optimizer_of(name, other.parameters())
    update(other, again, stream(1, seed=8)[0])
    saved = torch.load(file, weights_only=True)
    other.load_state_dict(saved["model"])
    again.load_state_dict(saved["optimizer"])
    assert [update(other, again, batch) for batch in batches[13:]] == expected
    assert all_equal(weights(other), weights(model))


def test_a_gradient_scaler_changes_nothing_and_skips_what_is_not_finite(name: str) -> None:
    model, twin = network(dtype=torch.float32), network(dtype=torch.float32)
    optimizer, plain = (optimizer_of(name, each.parameters()) for each in (model, twin))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, (x, y) in enumerate(stream(12)):
        optimizer.zero_grad()
        loss = (model(x[0].float()) - y[0].float()).square().mean()
        if number == 6:
            before = weights(model)
            scaler.scale(loss * float("inf")).backward()
            scaler.step(optimizer)
            scaler.update()
            assert all_equal(weights(model), before)
            continue
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        update(twin, plain, (x.float(), y.float()))
    for ours, theirs in zip(weights(model), weights(twin), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_closure_is_called_and_its_loss_returned(name: str) -> None:
    model, twin = network(), network()
    optimizer, plain = (optimizer_of(name, each.parameters()) for each in (model, twin))
    for batch in stream(5):
        x, y = batch[0][0], batch[1][0]

        def closure(x: Tensor = x, y: Tensor = y) -> Any:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss

        expected = update(twin, plain, batch)
        loss: Any = optimizer.step(closure)
        assert loss.item() == expected
    assert all_equal(weights(model), weights(twin))


def test_a_parameter_without_gradient_rests(name: str) -> None:
    model = network()
    optimizer = optimizer_of(name, model.parameters())
    x, y = stream(1)[0]
    start = weights(model)
    (model(x[0]) - y[0]).square().mean().backward()
    model.get_parameter("2.weight").grad = None
    optimizer.step()
    assert torch.equal(model.get_parameter("2.weight"), start[2])
    assert not torch.equal(model.get_parameter("0.weight"), start[0])


def test_continual_backprop_on_it_clears_its_state_of_new_weights(name: str) -> None:
    model = network()
    optimizer = optimizer_of(name, model.named_parameters())
    example = torch.zeros(2, 5, dtype=torch.float64)
    plastic = neoteny.attach(model, optimizer, make("ContinualBackprop"), example=example, seed=7)
    shapes = {key: value.shape for key, value in model.named_parameters()}
    cleared = 0
    for batch in stream(30):
        update(model, optimizer, batch)
        plastic.step()
        statistics = plastic.state_dict()["states"][0]["0"]
        new = statistics["born"] == statistics["schedule"]["step"]
        for parameter, kept in per_element(optimizer.state_dict()["state"], shapes):
            if parameter == "0.weight" and kept.is_floating_point():
                assert not bool(kept[new].any())
                assert bool(kept[~new].any())
                cleared += int(new.sum())
    assert cleared > 3

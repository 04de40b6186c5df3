"""attach(): training loops, checkpoints, hooks and what is printed."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny
from support.loops import FAST, batches, mlp, train
from support.snapshots import assert_same, snapshot

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, initial_accumulator_value=0.1),
    "neoteny adam": lambda p: neoteny.optim.Adam(p, lr=1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_resumed_from_a_checkpoint_is_bit_identical_to_one_that_never_stopped(name: str) -> None:
    methods = (neoteny.ShrinkAndPerturb(1e-4, 1e-4), FAST)
    data = batches(120)
    example = data[0][0]
    model = mlp()
    optimizer = OPTIMIZERS[name](model.parameters())
    plastic = neoteny.attach(model, optimizer, *methods, example=example, seed=11)
    train(model, optimizer, plastic, data[:60])
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), plastic.state_dict()], file)
    train(model, optimizer, plastic, data[60:])

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = mlp(seed=5)
    optimizer2 = OPTIMIZERS[name](resumed.parameters())
    plastic2 = neoteny.attach(resumed, optimizer2, *methods, example=example)
    resumed.load_state_dict(saved[0])
    optimizer2.load_state_dict(saved[1])
    plastic2.load_state_dict(saved[2])
    train(resumed, optimizer2, plastic2, data[60:])
    for ours, theirs in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert plastic.replaced == plastic2.replaced
    assert all(count > 5 for count in plastic.replaced.values())


def test_torch_manual_seed_reproduces_an_attachment_without_a_seed() -> None:
    ends = []
    for seed in (3, 3, 4):
        model = mlp()
        torch.manual_seed(seed)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6))
        train(model, optimizer, plastic, batches(40))
        ends.append(torch.cat([value.flatten() for value in model.parameters()]).detach())
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_evaluation_passes_leave_no_trace() -> None:
    def run(evaluate: bool) -> Tensor:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
        for pair in batches(40):
            if evaluate:
                with torch.no_grad():
                    model(torch.full((9, 6), 50.0))
                model.eval()
                model(torch.full((9, 6), -50.0))
                model.train()
            train(model, optimizer, plastic, [pair])
        return torch.cat([value.flatten() for value in model.parameters()])

    assert torch.equal(run(False), run(True))


def test_gradient_accumulation_ticks_once_over_all_examples() -> None:
    def run(parts: int) -> tuple[nn.Module, Any]:
        model = mlp(torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6, dtype=torch.float64), seed=1)
        for x, y in batches(60, torch.float64, size=6):
            optimizer.zero_grad()
            for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
                ((model(xs) - ys).square().mean() / parts).backward()
            optimizer.step()
            plastic.step()
        return model, plastic

    whole, plastic1 = run(1)
    split, plastic3 = run(3)
    assert plastic1.replaced == plastic3.replaced
    for ours, theirs in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    state = plastic3.state_dict()["states"][0]["0"]
    assert state["schedule"]["step"] == 60


def test_auto_ticks_from_the_optimizer() -> None:
    manual, auto = mlp(), mlp()
    for model, flag in ((manual, False), (auto, True)):
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1, auto=flag)
        train(model, optimizer, None if flag else plastic, batches(40))
        assert sum(plastic.replaced.values()) > 10
    for ours, theirs in zip(manual.parameters(), auto.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    with pytest.raises(RuntimeError, match="ticks by itself"):
        plastic.step()


@pytest.mark.parametrize(
    "held",
    [lambda optimizer: optimizer, lambda optimizer: SimpleNamespace(parameters=optimizer.param_groups[0]["params"])],
    ids=["optimizer", "parameters"],
)
def test_a_model_that_holds_its_optimizer_is_wired_like_any_other(held: Callable[[torch.optim.Optimizer], Any]) -> None:
    """Frameworks build the optimizer inside the network, or hang an object there that knows the parameters."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    train(model, optimizer, None, batches(2))
    wiring = str(neoteny.trace(model, torch.zeros(1, 6)))
    model.held = held(optimizer)
    before, moments = snapshot(model), str(optimizer.state_dict())
    assert str(neoteny.trace(model, torch.zeros(1, 6))) == wiring
    assert_same(before, snapshot(model))
    assert str(optimizer.state_dict()) == moments


def test_a_step_that_a_gradient_scaler_skips_does_not_tick() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    for number, (x, y) in enumerate(batches(12)):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        scaler.scale(loss * (float("inf") if number in (0, 7) else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        plastic.step()
    assert plastic.state_dict()["states"][0]["0"]["schedule"]["step"] == 10


def test_l2_joins_the_gradients_without_another_line_in_the_loop() -> None:
    ours, theirs = mlp(torch.float64), mlp(torch.float64)
    optimizer = torch.optim.SGD(ours.parameters(), 0.05, momentum=0.9)
    plastic = neoteny.attach(ours, optimizer, neoteny.L2(1e-2))  # no units, so no example
    train(ours, optimizer, plastic, batches(30, torch.float64))
    decay = torch.optim.SGD(theirs.parameters(), 0.05, momentum=0.9, weight_decay=1e-2)
    train(theirs, decay, None, batches(30, torch.float64))
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_detach_removes_every_hook() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    before = snapshot(model)
    plastic = neoteny.attach(model, optimizer, neoteny.L2(0.1), FAST, example=torch.zeros(1, 6), seed=1)
    plastic.detach()
    assert_same(before, snapshot(model))
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    twin = copy.deepcopy(model)
    train(model, optimizer, None, batches(10))
    train(twin, torch.optim.SGD(twin.parameters(), 0.05), None, batches(10))
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert not ours._post_accumulate_grad_hooks  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(RuntimeError, match=r"detached \(by plastic\.detach"):
        plastic.step()


def test_printing_shows_counts_ages_utilities_and_the_shared_step_count() -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    train(model, optimizer, plastic, batches(30))
    text = str(plastic)
    for word in ("replaced", "eligible", "age", "utility", "neoteny.optim.Adam", str(plastic.replaced["0"])):
        assert word in text
    model = mlp()
    plastic = neoteny.attach(model, neoteny.optim.Adam(model.parameters()), FAST, example=torch.zeros(1, 6))
    assert "one step count" not in str(plastic)


def test_state_dict_is_a_snapshot_not_a_window() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    train(model, optimizer, plastic, batches(20))
    state = plastic.state_dict()
    kept = state["states"][0]["0"]["utility"].clone()
    train(model, optimizer, plastic, batches(20, seed=2))
    assert torch.equal(kept, state["states"][0]["0"]["utility"])


def test_a_part_that_does_not_run_does_not_age() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = mlp(), mlp()

        def forward(self, x: Tensor, which: str = "both") -> Tensor:
            outputs = [net(x) for name, net in (("a", self.a), ("b", self.b)) if which in (name, "both")]
            return torch.stack(outputs).sum(0)

    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    for x, y in batches(30):
        optimizer.zero_grad()
        (model(x, "a") - y).square().mean().backward()
        optimizer.step()
        plastic.step()
    assert plastic.replaced["a.0"] > 5
    assert plastic.replaced["b.0"] == 0


def test_a_copied_or_pickled_model_keeps_no_activations() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    train(model, optimizer, plastic, batches(10))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        for x, _ in batches(3):
            twin(x).sum().backward()
        hooks = [hook for module in twin.modules() for hook in module._forward_pre_hooks.values()]
        assert all(not vars(hook) for hook in hooks)
    train(model, optimizer, plastic, batches(30))  # the original goes on
    assert sum(plastic.replaced.values()) > 5


def test_a_forgotten_step_is_warned_about_once() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    train(model, optimizer, None, batches(99))
    with pytest.warns(RuntimeWarning, match="100 updates without plastic.step"):
        train(model, optimizer, None, batches(1))
    train(model, optimizer, None, batches(50))
    train(model, optimizer, plastic, batches(1))
    assert plastic.state_dict()["states"][0]["0"]["schedule"]["step"] == 1

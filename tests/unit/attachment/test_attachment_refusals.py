"""attach(): clear errors that leave the model as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import neoteny
from neoteny import ContinualBackprop
from support.loops import FAST, batches, mlp, train
from support.snapshots import assert_same, snapshot

BAD_METHODS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"replacement_rate": -0.1}, ValueError, r"replacement_rate must be a number in \[0, 1\]; got -0.1"),
    ({"replacement_rate": 1.5}, ValueError, r"replacement_rate"),
    ({"replacement_rate": float("nan")}, ValueError, r"replacement_rate"),
    ({"replacement_rate": "high"}, TypeError, r"replacement_rate"),
    ({"maturity_threshold": -1}, ValueError, r"maturity_threshold must be an integer"),
    ({"maturity_threshold": 1.5}, TypeError, r"maturity_threshold must be an integer"),
    ({"decay_rate": 1.0}, ValueError, r"decay_rate must be a number in \[0, 1\); got 1.0"),
    ({"decay_rate": -0.5}, ValueError, r"decay_rate"),
    ({"utility": "overal"}, ValueError, r"Did you mean 'overall'"),
    ({"count": "all"}, ValueError, r"count must be one of"),
    ({"compensate": 1}, TypeError, r"compensate"),
    ({"mt": 100}, TypeError, r"has no parameter 'mt'"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD_METHODS)
def test_bad_hyperparameters_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ContinualBackprop(**arguments)


class OfBatch(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        return self.net(batch["x"])


def bad_attachments() -> dict[str, tuple[Callable[[nn.Module, Any], Any], type[Exception], str]]:
    x = torch.zeros(1, 6)

    return {
        "foreign optimizer": (
            lambda m, o: neoteny.attach(m, torch.optim.SGD(mlp().parameters(), 0.1), FAST, example=x),
            ValueError,
            "owns none of the model's parameters",
        ),
        "one of two optimizers is another model's": (
            lambda m, o: neoteny.attach(m, [o, torch.optim.Adam([nn.Parameter(torch.ones(3))])], FAST, example=x),
            ValueError,
            r"Optimizer 2 of the 2 given, Adam, owns none of the model's parameters.*with its own optimizer",
        ),
        "torch optimizer as method": (lambda m, o: neoteny.attach(m, o, o, example=x), TypeError, "not a method"),
        "method before the optimizer": (
            lambda m, o: neoteny.attach(m, FAST, o, example=x),  # pyright: ignore[reportArgumentType]
            TypeError,
            r"attach\(model, optimizer, method, example=\.\.\.\); got SGD, an optimizer and not a method",
        ),
        "list of methods": (
            lambda m, o: neoteny.attach(m, o, [FAST], example=x),  # pyright: ignore[reportArgumentType]
            TypeError,
            r"got list\. Pass methods one by one: attach\(model, optimizer, \*methods",
        ),
        "dict as the one argument": (
            lambda m, o: neoteny.attach(OfBatch(m), o, FAST, example={"x": x, "names": ["a"] * 9}),
            ValueError,
            r"'names': a list of 9, each str.*accepts the dict itself as its one argument: .* example=\(batch,\)",
        ),
        "inference mode": (
            lambda m, o: torch.inference_mode()(neoteny.attach)(m, o, FAST, example=x),
            RuntimeError,
            r"attach inside of torch\.inference_mode\(\)",
        ),
        "weights on meta": (
            lambda m, o: neoteny.attach(copy.deepcopy(m).to("meta"), o, FAST, example=x),
            ValueError,
            r"0\.weight is on the device 'meta'",
        ),
        "no forward": (
            lambda m, o: neoteny.attach(nn.ModuleDict({"actor": m}), o, FAST, example=x),
            ValueError,
            r"ModuleDict has none.* the parts that your loop calls, one by one",
        ),
        "no layer with units": (
            lambda m, o: neoteny.attach(m[0], o, FAST, example=x),  # pyright: ignore[reportIndexIssue]
            ValueError,
            r"Methods that act on weights need none: neoteny\.L2Init",
        ),
        "optimizer method": (
            lambda m, o: neoteny.attach(m, o, neoteny.methods.SGD(0.1), example=x),
            TypeError,
            "not a method",
        ),
        "class instead of instance": (
            lambda m, o: neoteny.attach(m, o, ContinualBackprop, example=x),  # pyright: ignore[reportArgumentType]
            TypeError,
            r"Did you mean ContinualBackprop\(\.\.\.\)",
        ),
        "no method": (lambda m, o: neoteny.attach(m, o, example=x), ValueError, "at least one method"),
        "no example": (lambda m, o: neoteny.attach(m, o, FAST), ValueError, "needs example"),
        "wrong shape": (
            lambda m, o: neoteny.attach(m, o, FAST, example=torch.zeros(1, 5)),
            ValueError,
            "example batch the model accepts",
        ),
        "not a module": (
            lambda m, o: neoteny.attach(3, o, FAST, example=x),  # pyright: ignore[reportArgumentType]
            TypeError,
            "nn.Module",
        ),
        "not an optimizer": (
            lambda m, o: neoteny.attach(m, FAST, FAST, example=x),  # pyright: ignore[reportArgumentType]
            TypeError,
            "torch.optim.Optimizer",
        ),
        "per-run values": (
            lambda m, o: neoteny.attach(m, o, ContinualBackprop((0.1, 0.2)), example=x),
            ValueError,
            "neoteny.stack",
        ),
        "unknown init": (lambda m, o: neoteny.attach(m, o, FAST, example=x, init="he"), ValueError, "init must be"),
        "init of an unknown layer": (
            lambda m, o: neoteny.attach(m, o, FAST, example=x, init={"fc1": "default"}),
            ValueError,
            "no such module",
        ),
        "lbfgs": (
            lambda m, o: neoteny.attach(m, torch.optim.LBFGS(m.parameters()), FAST, example=x),
            TypeError,
            "LBFGS",
        ),
        "data parallel": (
            lambda m, o: neoteny.attach(nn.DataParallel(mlp()), o, FAST, example=x),
            TypeError,
            "DataParallel, which is not supported.*Use DistributedDataParallel",
        ),
        "sums of a method that reads inputs": (
            lambda m, o: neoteny.attach(m, o, neoteny.ReDo(), example=x, accumulate="sums"),
            ValueError,
            "accumulate='sums' is not for ReDo",
        ),
        "unknown accumulation": (
            lambda m, o: neoteny.attach(m, o, FAST, example=x, accumulate="all"),  # pyright: ignore[reportArgumentType]
            ValueError,
            "'inputs' or 'sums'",
        ),
        "unknown ranks": (
            lambda m, o: neoteny.attach(m, o, FAST, example=x, ranks="last"),  # pyright: ignore[reportArgumentType]
            ValueError,
            "ranks must be one of 'all', 'first'",
        ),
        "no process group": (
            lambda m, o: neoteny.attach(m, o, FAST, example=x, process_group=3),
            TypeError,
            "must be a torch process group",
        ),
    }


@pytest.mark.parametrize("name", bad_attachments())
def test_bad_attachments_are_refused_and_leave_the_model_as_it_was(name: str) -> None:
    act, error, message = bad_attachments()[name]
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    before, random = snapshot(model), torch.get_rng_state()
    with pytest.raises(error, match=message):
        act(model, optimizer)
    assert_same(before, snapshot(model))
    assert not optimizer._optimizer_step_pre_hooks
    if name not in ("foreign optimizer", "data parallel"):  # these build another network in between
        assert torch.equal(random, torch.get_rng_state())


def test_a_tick_after_the_step_of_another_optimizer_names_the_one_that_is_attached() -> None:
    model = mlp()
    plastic = neoteny.attach(model, torch.optim.Adam(model.parameters()), FAST, example=torch.zeros(1, 6))
    newer = torch.optim.SGD(model.parameters(), 0.05)
    x, y = batches(1)[0]
    (model(x) - y).square().mean().backward()
    newer.step()
    with pytest.raises(ValueError, match=r"the Adam that was given to attach.*attach again with that one"):
        plastic.step()


def test_one_process_of_distributed_data_parallel_trains_as_a_plain_module(tmp_path: Any) -> None:
    import torch.distributed as dist

    x, y = batches(1)[0]
    results = []
    for wrap in (False, True):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        if wrap:
            dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
        try:
            called = nn.parallel.DistributedDataParallel(model) if wrap else model
            plastic = neoteny.attach(called, optimizer, FAST, example=x, seed=1)
            for _ in range(20):
                optimizer.zero_grad()
                (called(x) - y).square().mean().backward()
                optimizer.step()
                plastic.step()
        finally:
            if wrap:
                dist.destroy_process_group()
        assert plastic.view.ranks is None
        assert sum(plastic.replaced.values()) > 0
        results.append(snapshot(model))
    assert_same(*results)


def test_optimizers_that_keep_a_part_of_their_state_on_each_rank_are_refused(tmp_path: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        model = mlp()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
        with pytest.raises(TypeError, match="ZeroRedundancyOptimizer keeps the state of each parameter on one rank"):
            neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6))
    finally:
        dist.destroy_process_group()


def test_sharded_models_are_refused_with_what_to_do() -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # pyright: ignore[reportPrivateImportUsage]
    try:
        model = mlp()
        fully_shard(model)
        with pytest.raises(TypeError, match=r"is a DTensor \(fully_shard.*Use DistributedDataParallel"):
            neoteny.attach(model, torch.optim.SGD(model.parameters(), 0.1), FAST, example=torch.zeros(1, 6))
    finally:
        dist.destroy_process_group()


def test_no_hidden_units_is_an_error() -> None:
    model = nn.Linear(6, 3)
    with pytest.raises(ValueError, match="hidden units"):
        neoteny.attach(model, torch.optim.SGD(model.parameters(), 0.1), FAST, example=torch.zeros(1, 6))


def test_step_in_the_wrong_place_is_an_error() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    with pytest.raises(ValueError, match="before any backward pass"):
        plastic.step()
    x, y = batches(1)[0]
    loss = (model(x) - y).square().mean()
    with pytest.raises(ValueError, match="before any backward pass"):
        plastic.step()
    loss.backward()
    with pytest.raises(ValueError, match=r"after optimizer\.step"):
        plastic.step()
    optimizer.step()
    plastic.step()
    with pytest.raises(ValueError, match="before any backward pass"):
        plastic.step()


def test_training_in_eval_mode_is_an_error_that_says_so() -> None:
    model = mlp().eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    with pytest.raises(ValueError, match=r"eval mode \(call model.train\(\)\)"):
        train(model, optimizer, plastic, batches(1))


def wrong_states() -> dict[str, Callable[[dict[str, Any]], Any]]:
    def other_model(state: dict[str, Any]) -> Any:
        model = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))
        return neoteny.attach(
            model, torch.optim.SGD(model.parameters(), 0.1), FAST, example=torch.zeros(1, 6)
        ).state_dict()

    def other_method(state: dict[str, Any]) -> Any:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return neoteny.attach(model, optimizer, ContinualBackprop(0.5), example=torch.zeros(1, 6)).state_dict()

    def missing(state: dict[str, Any]) -> Any:
        del state["states"][0]["2"]["utility"]
        return state

    def misshapen(state: dict[str, Any]) -> Any:
        state["states"][0]["2"]["utility"] = torch.zeros(3)
        return state

    return {
        "of another model": other_model,
        "of other methods": other_method,
        "missing": missing,
        "expected a tensor of shape": misshapen,
        "got something else": lambda state: {"model": 1},
        "version": lambda state: {**state, "version": 99},
    }


@pytest.mark.parametrize("message", wrong_states())
def test_a_state_dict_that_does_not_fit_is_refused_and_nothing_changes(message: str) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    train(model, optimizer, plastic, batches(20))
    before = copy.deepcopy(plastic.state_dict())
    with pytest.raises(ValueError, match=message):
        plastic.load_state_dict(wrong_states()[message](copy.deepcopy(before)))
    after = plastic.state_dict()
    assert after["seed"] == before["seed"]
    assert torch.equal(after["states"][0]["2"]["utility"], before["states"][0]["2"]["utility"])

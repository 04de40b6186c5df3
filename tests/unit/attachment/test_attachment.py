"""attach(): any optimizer, any loop, checkpoints, hooks, and clear errors that leave the model as it was."""

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
from neoteny import ContinualBackprop
from support.loops import FAST, batches, mlp, train

torch.set_num_threads(1)


def snapshot(model: nn.Module) -> dict[str, Any]:
    hooks = [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return {"state": state, "hooks": hooks, "training": [module.training for module in model.modules()]}


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before["hooks"] == after["hooks"]
    assert before["training"] == after["training"]
    for name, value in before["state"].items():
        assert torch.equal(value, after["state"][name]), name


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


def test_several_parameter_groups_with_frozen_and_foreign_parameters() -> None:
    model = mlp()
    model[4].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.01}], 0.05
    )
    before = model[4].weight.clone()
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    assert list(plastic.replaced) == ["0"]  # units of layer 2 feed the frozen layer 4
    assert "4" in str(plastic)
    train(model, optimizer, plastic, batches(40))
    assert plastic.replaced["0"] > 5
    assert torch.equal(before, model[4].weight)


def test_a_layer_the_optimizer_does_not_own_is_left_out_by_name() -> None:
    model = mlp()
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[2].parameters()], 0.05)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    assert list(plastic.replaced) == ["0"]
    assert "does not own 4.weight" in str(plastic)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_parameter_dtypes(dtype: torch.dtype) -> None:
    model = mlp(dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6, dtype=dtype), seed=1)
    train(model, optimizer, plastic, batches(60, dtype))
    assert min(plastic.replaced.values()) > 5
    assert all(bool(torch.isfinite(value).all()) and value.dtype == dtype for value in model.parameters())
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    assert plastic.state_dict()["states"][0]["0"]["utility"].dtype == expected


def test_autocast_statistics_stay_in_full_precision() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
    for x, y in batches(60):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        plastic.step()
    assert min(plastic.replaced.values()) > 5
    assert plastic.state_dict()["states"][0]["0"]["mean_activation"].dtype == torch.float32


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 8)
        self.b = nn.Linear(6, 8)
        self.head = nn.Linear(16, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.head(torch.cat([torch.relu(self.a(left)), torch.tanh(self.b(right))], dim=-1))


@pytest.mark.parametrize("as_dict", [False, True])
def test_an_example_is_a_tuple_or_a_dict(as_dict: bool) -> None:
    torch.manual_seed(0)
    model = TwoInputs()
    x = torch.randn(2, 6)
    example = {"left": x, "right": x} if as_dict else (x, x)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    plastic = neoteny.attach(model, optimizer, FAST, example=example, seed=1)
    for left, _ in batches(40):
        optimizer.zero_grad()
        model(left, right=left * 2).square().mean().backward()
        optimizer.step()
        plastic.step()
    assert min(plastic.replaced.values()) > 5


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_is_counted_once(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()
            self.use = False

        def forward(self, x: Tensor) -> Tensor:
            if self.use:
                return checkpoint(self.body, x, use_reentrant=reentrant)
            return self.body(x)

    ends = []
    for use in (False, True):
        model = Checkpointed()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
        model.use = use
        train(model, optimizer, plastic, [(x.requires_grad_(), y) for x, y in batches(40)])
        assert sum(plastic.replaced.values()) > 10
        ends.append(torch.cat([value.flatten() for value in model.parameters()]).detach())
    assert torch.equal(ends[0], ends[1])


def test_a_compiled_model_attached_before_its_first_call_trains_like_an_eager_one() -> None:
    torch.compiler.reset()
    eager, inner = mlp(), mlp()
    compiled = torch.compile(inner, backend="aot_eager")
    for model, module in ((eager, eager), (compiled, inner)):
        optimizer = torch.optim.SGD(module.parameters(), 0.05)
        plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), seed=1)
        train(model, optimizer, plastic, batches(40))
    for ours, theirs in zip(eager.parameters(), inner.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(ValueError, match=r"before the first call, or put torch\.compiler\.reset\(\)"):
        neoteny.attach(compiled, optimizer, FAST, example=torch.zeros(1, 6), trained=True)
    torch.compiler.reset()


def test_attaching_to_a_trained_model_works_when_said() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with torch.no_grad():
        model[0].weight.mul_(3.0)
    before = snapshot(model)
    with pytest.raises(ValueError, match=r"0: the initial distribution .* trained=True"):
        neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6))
    assert_same(before, snapshot(model))
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), trained=True, seed=1)
    assert "already trained" in str(plastic)
    train(model, optimizer, plastic, batches(20))
    assert sum(plastic.replaced.values()) > 0


def test_a_declared_initial_distribution_is_drawn_from() -> None:
    model = mlp()
    for layer in (model[0], model[2], model[4]):
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with pytest.raises(ValueError, match="init='kaiming_uniform'"):
        neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6))
    plastic = neoteny.attach(model, optimizer, FAST, example=torch.zeros(1, 6), init="kaiming_uniform", seed=1)
    train(model, optimizer, plastic, batches(400))
    bound = 6**0.5 / 6**0.5  # sqrt(2) * sqrt(3 / fan in) with 6 inputs
    assert float(model[0].weight.detach().abs().max()) <= bound
    assert float(model[0].weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.2)


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
    with pytest.raises(RuntimeError, match=r"after plastic\.detach"):
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
    ({"mt": 100}, TypeError, r"unexpected keyword argument 'mt'"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD_METHODS)
def test_bad_hyperparameters_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ContinualBackprop(**arguments)


def bad_attachments() -> dict[str, tuple[Callable[[nn.Module, Any], Any], type[Exception], str]]:
    x = torch.zeros(1, 6)

    return {
        "foreign optimizer": (
            lambda m, o: neoteny.attach(m, torch.optim.SGD(mlp().parameters(), 0.1), FAST, example=x),
            ValueError,
            "owns none of the model's parameters",
        ),
        "torch optimizer as method": (lambda m, o: neoteny.attach(m, o, o, example=x), TypeError, "not a method"),
        "optimizer method": (
            lambda m, o: neoteny.attach(m, o, neoteny.methods.SGD(0.1), example=x),
            TypeError,
            "not a method",
        ),
        "class instead of instance": (
            lambda m, o: neoteny.attach(m, o, ContinualBackprop, example=x),
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
        "not a module": (lambda m, o: neoteny.attach(3, o, FAST, example=x), TypeError, "nn.Module"),
        "not an optimizer": (lambda m, o: neoteny.attach(m, FAST, FAST, example=x), TypeError, "torch.optim.Optimizer"),
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
            "not supported yet",
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


def test_distributed_data_parallel_is_refused_with_the_reason(tmp_path: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(mlp())
        with pytest.raises(TypeError, match="ranks would diverge"):
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


def orthogonal_net() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 2))
    for layer in (net[0], net[2]):
        nn.init.orthogonal_(layer.weight, 2**0.5)  # type: ignore[arg-type]
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return net


def test_orthogonal_weights_are_refused_with_the_line_that_mends_it() -> None:
    torch.manual_seed(0)
    net = orthogonal_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"It is orthogonal.*Initial\('orthogonal', scale=1.414\)"):
        neoteny.attach(net, optimizer, ContinualBackprop(), example=torch.zeros(2, 6))


def test_a_new_unit_of_an_orthogonal_network_is_as_long_as_the_others_were() -> None:
    torch.manual_seed(0)
    net = orthogonal_net()
    before = [layer.weight.detach().std() for layer in (net[0], net[2])]  # type: ignore[union-attr]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    method = ContinualBackprop(replacement_rate=1.0, maturity_threshold=0)
    init = neoteny.Initial("orthogonal", scale=2**0.5)
    neoteny.attach(net, optimizer, method, example=torch.zeros(2, 6), init=init, seed=0, auto=True)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(4, 6)).sum().backward()
        optimizer.step()
    for layer, spread in zip((net[0], net[2]), before, strict=True):
        drawn = layer.weight.detach()[:, layer.weight.abs().sum(0) > 0]  # type: ignore[union-attr]
        assert drawn.std() == pytest.approx(float(spread), rel=0.15)


def test_an_orthogonal_distribution_needs_its_gain() -> None:
    with pytest.raises(ValueError, match=r"Initial\('orthogonal'\) needs scale > 0"):
        neoteny.Initial("orthogonal")

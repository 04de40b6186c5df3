"""Tasks that grow: more images or more classes, a step size that follows a schedule, outputs that do not count yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neoteny
from neoteny.backends.graphs.backend import GraphBackend
from neoteny.backends.kernel.coverage import why_not_covered
from neoteny.backends.kernel.examples import SharedPlan
from neoteny.backends.library import LibraryBackend
from neoteny.methods import L2, SGD, UPGD, Adam, AdamW, ContinualBackprop, HardReset, Method
from neoteny.nets import ResNet
from neoteny.problems import ClassIncremental, PermutedMNIST, Plan, Problem, SampleIncremental, Stream, WarmStart
from neoteny.suite import training as training_module
from neoteny.suite.checked_stream import CheckedPlan, CheckedStream
from neoteny.suite.configuration import choose_backend
from neoteny.suite.stacks import runs_of, stacks_of
from neoteny.suite.sweep import Setting, network
from neoteny.suite.training import Training
from support.small_sweeps import CPU, make_sweep

CLASSES = ClassIncremental(
    tasks=2,
    source="synthetic",
    classes=5,
    classes_per_task=2,
    train_images=4,
    test_images=3,
    epochs=4,
    batch_size=4,
    decay_at=(0.25, 0.75),
    decay_factor=0.1,
)
WARM = WarmStart(source="synthetic", classes=3, train_images=6, test_images=2, first_epochs=2, epochs=1, batch_size=4)
SAMPLES = SampleIncremental(
    tasks=3, source="synthetic", classes=3, train_images=6, test_images=2, images_per_task=6, epochs=1, batch_size=4
)
NET = network(ResNet, widths=(3, 4), blocks=(1, 1))


def begin(*methods: Method, problem: Problem = CLASSES, runs: int = 2, net: Any = NET) -> Training:
    sweep = make_sweep(Setting("one", net, methods), problem=problem, runs=runs, dtype="float64")
    (one,) = stacks_of(sweep, runs_of(sweep, sweep.settings, "reference"), ())
    stream = problem.open()
    assert isinstance(stream, Stream)
    return Training(one, stream, CPU)


def factor(step: int, steps_of_a_pass: int) -> float:
    """The schedule of `CLASSES`: four passes, a tenth after the first and again after the third."""
    return (1.0, 0.1, 0.1, 0.01)[step // steps_of_a_pass]


def test_a_stack_learns_classes_as_single_networks_do_in_a_plain_torch_loop() -> None:
    """Statistics of batch norms, unseen outputs, weight decay, schedule, an output layer that is kept: all at once."""
    training = begin(SGD(0.1, momentum=0.9), L2(5e-2), runs=3)
    training.run(lambda: None)
    stream = CLASSES.open()
    for run in range(3):
        model = training.planned.runs[run].make_network(torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-2)
        for task, seen in enumerate((2, 4)):
            plan = stream.plan([run], task)
            model.train()
            for step in range(plan.steps):
                inputs, targets = plan.batches(step, step + 1, CPU)
                optimizer.param_groups[0]["lr"] = 0.1 * factor(step, plan.steps // 4)
                optimizer.zero_grad()
                F.cross_entropy(model(inputs[0, 0].double())[:, :seen], targets[0, 0]).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                images, labels = plan.test(CPU)
                right = model(images[0].double())[:, :seen].argmax(-1) == labels[0]
            assert training.rows["accuracy"][task][run] == right.double().mean()
        for name, value in model.state_dict().items():
            torch.testing.assert_close(training._stack.view.tensors[name][run], value, rtol=1e-9, atol=1e-9, msg=name)


def test_outputs_of_classes_not_seen_yet_do_not_learn() -> None:
    training = begin(SGD(0.1), runs=1)
    before = training._stack.view.tensors["out.weight"].detach().clone()
    plan = training._backend.plan(0)
    training._begin_task(plan)
    training._train_block(plan.steps)
    after = training._stack.view.tensors["out.weight"].detach()
    assert torch.equal(after[:, 2:], before[:, 2:])
    assert not torch.equal(after[:, :2], before[:, :2])
    outputs = training._stack.counted(torch.ones(1, 1, 5, dtype=torch.float64))
    assert outputs.tolist() == [[[1.0, 1.0, *[-torch.inf] * 3]]]
    training._stack.count_outputs(0, 5)
    assert training._stack.counted(torch.ones(1, 1, 5)).tolist() == [[[1.0] * 5]]


@pytest.mark.parametrize("problem", [CLASSES, WARM, SAMPLES], ids=lambda problem: type(problem).__name__)
def test_a_resumed_run_is_bit_identical_and_counts_its_updates(problem: Problem) -> None:
    methods = SGD(0.05, momentum=0.9), ContinualBackprop(0.2, maturity_threshold=2), HardReset.head()
    states: list[Any] = []
    whole = begin(*methods, problem=problem)
    whole._backend.block_updates = 3
    whole.run(lambda: states.append(whole.state_dict()))
    assert whole.updates == whole.planned.updates == problem.steps_before(problem.tasks)
    lengths = [problem.steps_before(task + 1) - problem.steps_before(task) for task in range(problem.tasks)]
    assert len(states) == sum(-(-length // 3) for length in lengths)
    assert int(whole._backend.replaced().sum()) > 0  # pyright: ignore[reportOptionalMemberAccess]
    resumed = begin(*methods, problem=problem)
    resumed.load_state_dict(states[len(states) // 2])
    resumed.run(lambda: None)
    assert torch.equal(resumed.table()["accuracy"], whole.table()["accuracy"])
    for name, value in whole._stack.view.tensors.items():
        assert torch.equal(value, resumed._stack.view.tensors[name]), name


def test_from_scratch_is_a_new_network_at_every_task() -> None:
    net = network(ResNet, widths=(16,), blocks=(1,))
    training = begin(SGD(0.1, momentum=0.9), HardReset.from_scratch(), problem=WARM, net=net)
    first = {name: value.detach().clone() for name, value in training._stack.view.tensors.items()}
    training._begin_task(training._backend.plan(0))
    for name, value in training._stack.view.tensors.items():
        assert torch.equal(value, first[name]), name  # before the first task nothing is drawn, and the output is kept
    training._train_block(WARM.steps_before(1))
    training._end_task(training._backend.plan(0))
    training._begin_task(training._backend.plan(1))
    for name, tensor in training._stack.view.tensors.items():
        value = tensor.detach()
        weight = name.endswith("weight") and value.dim() > 2
        assert torch.equal(value, first[name]) == (not weight), name  # norms, statistics and biases as at the start
        if weight:
            assert 0.6 < float(value.std() / first[name].std()) < 1.6, name
            assert not torch.equal(value[0], value[1]), name
    assert not any(velocity.any() for velocity in training._stack.chain.states[0].values())


def test_a_large_test_set_is_predicted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = begin(SGD(0.1)), begin(SGD(0.1))
    whole.run(lambda: None)
    monkeypatch.setattr(training_module, "_TEST_EXAMPLES", 5)
    parts.run(lambda: None)
    assert torch.equal(parts.table()["accuracy"], whole.table()["accuracy"])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Adam(0.1), lambda given: torch.optim.Adam(given, lr=0.1)),
        (AdamW(0.1, weight_decay=0.3), lambda given: torch.optim.AdamW(given, lr=0.1, weight_decay=0.3)),
        (SGD((0.1, 0.1)), lambda given: torch.optim.SGD(given, lr=0.1)),
    ],
    ids=lambda each: type(each).__name__,
)
def test_optimizers_that_follow_a_schedule_are_torchs(ours: Method, theirs: Any) -> None:
    torch.manual_seed(0)
    modules = [nn.Linear(3, 2).double() for _ in range(2)]
    runs = neoteny.stack(modules, ours)
    optimizers = [theirs(module.parameters()) for module in modules]
    for step in range(6):
        inputs, targets = torch.randn(2, 4, 3, dtype=torch.float64), torch.randn(2, 4, 2, dtype=torch.float64)
        runs.view.step_size_factor = 0.5**step
        runs.step(inputs, targets)
        for run, (module, optimizer) in enumerate(zip(modules, optimizers, strict=True)):
            optimizer.param_groups[0]["lr"] = 0.1 * 0.5**step
            optimizer.zero_grad()
            F.mse_loss(module(inputs[run]), targets[run]).backward()
            optimizer.step()
    for run, module in enumerate(modules):
        torch.testing.assert_close(runs.view.tensors["weight"][run], module.weight, rtol=1e-12, atol=1e-12)
    assert float(torch.as_tensor(runs.view.step_size("weight")).max()) == pytest.approx(0.1 * 0.5**5)


# Who cannot follow says so.


class OwnSGD(SGD):
    """A user's optimizer, which may compute something else."""


@pytest.mark.parametrize("optimizer", [UPGD(0.1), OwnSGD(0.1)], ids=lambda each: type(each).__name__)
def test_an_optimizer_without_a_schedule_is_refused_by_name(optimizer: Method) -> None:
    name = type(optimizer).__name__
    with pytest.raises(ValueError, match=f"ClassIncremental changes the step size .* {name} does not follow"):
        begin(optimizer, runs=1)
    begin(optimizer, runs=1, problem=WARM)


def test_graphs_count_the_same_outputs_and_refuse_a_schedule() -> None:
    problem = ClassIncremental(**{**vars(CLASSES), "decay_at": ()})
    ends = []
    for kind in (LibraryBackend, GraphBackend):
        torch.manual_seed(0)
        modules = [ResNet(5, widths=(3, 4), blocks=(1, 1)).double() for _ in range(2)]
        runs = neoteny.stack(modules, SGD(0.1, momentum=0.9), loss="cross_entropy")
        backend = kind(runs, problem.open(), [0, 1], problem, torch.float64)
        given: list[Tensor] = []
        for task in range(2):
            plan = backend.plan(task)
            given += [*backend.advance(0, 3), *backend.advance(3, plan.steps)]
        ends.append((given, runs.view.tensors))
        with pytest.raises(ValueError, match=r"GraphBackend records the step size .*ClassIncremental changes it"):
            GraphBackend(runs, CLASSES.open(), [0, 1], CLASSES, torch.float64)
    for theirs, ours in zip(ends[0][0], ends[1][0], strict=True):
        assert torch.equal(theirs, ours)
    for name, value in ends[0][1].items():
        torch.testing.assert_close(ends[1][1][name], value, rtol=1e-9, atol=1e-9, msg=name)


def test_backends_are_chosen_that_can_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neoteny.suite.configuration._missing", lambda kernel: "")
    setting = Setting("BP", NET, (SGD(0.1),))
    assert choose_backend("cuda", WARM, setting)[0] == "graphs"
    assert choose_backend("cuda", CLASSES, setting)[0] == "reference"
    assert choose_backend("cpu", CLASSES, setting)[0] == "reference"
    assert "ClassIncremental" in why_not_covered(CLASSES, ResNet, {}, (SGD(0.1),))


def test_kernels_refuse_plans_with_outputs_that_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = PermutedMNIST(tasks=1, examples_per_task=5, source="synthetic").open()
    plan = stream.plan([0], 0)
    plan.seen_classes = 4
    monkeypatch.setattr(stream, "plan", lambda seeds, task: plan)
    with pytest.raises(ValueError, match="Kernels count all outputs; PermutedPlan has some"):
        SharedPlan.of(stream, [0], 0)


# A user's own problem.


class OwnPlan(Plan):
    """One batch of two examples, of two classes; `seen_classes` and the schedule are what a test asks for."""

    steps = 1
    steps_of_a_pass = 1

    def __init__(self, seen: Any, label: int, factor: Any) -> None:
        self.seen_classes, self.label, self.factor = seen, label, factor

    def batches(self, start: int, stop: int, device: torch.device) -> tuple[Tensor, Tensor]:
        return torch.zeros(stop - start, 1, 2, 3), torch.full((stop - start, 1, 2), self.label)

    def probe(self, count: int, device: torch.device) -> Tensor:
        return torch.zeros(1, count, 3)

    def step_size_factor(self, step: int) -> float:
        return self.factor


@dataclass(frozen=True)
class OwnProblem(Problem):
    """A user's problem with three classes."""

    tasks: int = 1
    loss: ClassVar[str] = "cross_entropy"

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (3,)

    @property
    def outputs(self) -> int:
        return 3

    @property
    def steps_per_task(self) -> int:
        return 1

    def open(self, data: Any = None) -> Stream:
        raise NotImplementedError


def test_a_users_plan_is_looked_at() -> None:
    plan = CheckedPlan(OwnProblem(), OwnPlan(2, 1, 0.5), 1)
    assert (plan.seen_classes, plan.steps_of_a_pass, plan.step_size_factor(0)) == (2, 1, 0.5)
    plan.batches(0, 1, CPU)
    for seen in (4, -1, True, 1.5):
        with pytest.raises(ValueError, match=f"OwnPlan.seen_classes must be a whole number from 0 .all. to 3.*{seen}"):
            CheckedPlan(OwnProblem(), OwnPlan(seen, 0, 1.0), 1)
    with pytest.raises(ValueError, match="whole targets from 0 to 1"):
        CheckedPlan(OwnProblem(), OwnPlan(2, 2, 1.0), 1).batches(0, 1, CPU)
    for given in (-1.0, float("nan"), float("inf"), "1"):
        with pytest.raises(ValueError, match=r"OwnPlan.step_size_factor\(0\) must return a number of at least 0"):
            CheckedPlan(OwnProblem(), OwnPlan(2, 0, given), 1).step_size_factor(0)


def test_a_users_schedule_that_nobody_would_ask_for_is_refused() -> None:
    class OwnStream(Stream):
        def plan(self, seeds: Any, task: int) -> Plan:
            return OwnPlan(0, 0, 0.5)

    with pytest.raises(ValueError, match=r"OwnPlan.step_size_factor would not be asked: let OwnProblem\.schedules"):
        CheckedStream(OwnProblem(), OwnStream()).plan([0], 0)

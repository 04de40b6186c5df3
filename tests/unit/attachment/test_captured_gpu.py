"""A whole update captured in a CUDA graph or compiled, the tick inside, acts as the same updates do one by one."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neoteny
from neoteny.methods import ContinualBackprop
from support.device_ticks import NETS

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
UPDATES, WARM_UPS = 120, 3
METHOD = ContinualBackprop(0.011, maturity_threshold=7, decay_rate=0.9)
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.01),
    "momentum": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 1e-3, capturable=True),
    "neoteny adam": lambda p: neoteny.optim.Adam(p, 1e-3, capturable=True),
    "neoteny adamw": lambda p: neoteny.optim.AdamW(p, torch.tensor(1e-3, device="cuda"), capturable=True),
}


class Training:
    """One model, its optimizer and attachment, and an update on inputs that stay in one place."""

    def __init__(self, net: str, optimizer: str, *methods: neoteny.Method, capturable: bool) -> None:
        torch.manual_seed(1)
        build, shape = NETS[net]
        self.model = build().cuda()
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.inputs = torch.zeros(shape, device="cuda")
        self.plastic = neoteny.attach(
            self.model, self.optimizer, *methods, example=self.inputs, seed=5, capturable=capturable
        )
        self.generator = torch.Generator(device="cuda").manual_seed(3)
        self.graph = torch.cuda.CUDAGraph()

    def update(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()
        self.plastic.step()

    def fresh_inputs(self) -> None:
        self.inputs.normal_(generator=self.generator)

    def eagerly(self, updates: int) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(updates):
                self.fresh_inputs()
                self.update()
        torch.cuda.current_stream().wait_stream(side)

    def capture(self) -> None:
        with torch.cuda.graph(self.graph):
            self.update()

    def replay(self, updates: int) -> None:
        for _ in range(updates):
            self.fresh_inputs()
            self.graph.replay()

    def tensors(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}


def agree(one: Training, other: Training, exactly: bool = True) -> None:
    assert one.plastic.replaced == other.plastic.replaced
    assert min(one.plastic.replaced.values()) > 3
    mine, theirs = (each.plastic.state_dict()["states"][-1] for each in (one, other))
    for group, statistics in theirs.items():
        assert torch.equal(mine[group]["born"], statistics["born"]), group
        assert mine[group]["schedule"] == statistics["schedule"]
    for (name, value), expected in zip(one.tensors().items(), other.tensors().values(), strict=True):
        if exactly:
            assert torch.equal(value, expected), name
        else:
            torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("net", ["mlp", "mlp, batch 1", "conv", "transformer", "branches"])
def test_replays_are_the_updates_made_one_by_one(net: str, optimizer: str) -> None:
    torch.backends.cudnn.deterministic = True
    sides = [Training(net, optimizer, METHOD, capturable=capturable) for capturable in (True, False)]
    captured, plain = sides
    captured.eagerly(WARM_UPS)
    captured.capture()
    captured.replay(UPDATES)
    plain.eagerly(WARM_UPS + UPDATES)
    agree(captured, plain)


@pytest.mark.parametrize("count", ["eligible", "layer"])
@pytest.mark.parametrize("rate", [0.1, 0.37, 1.0])
def test_the_schedule_on_the_device_is_that_of_the_host(rate: float, count: str) -> None:
    method = ContinualBackprop(rate, maturity_threshold=3, decay_rate=0.9, count=count)  # type: ignore[arg-type]
    sides = [Training("mlp", "sgd", method, capturable=capturable) for capturable in (True, False)]
    one, other = sides
    one.eagerly(150)
    other.eagerly(150)
    agree(one, other)


def test_with_l2_and_updates_between_replays_and_a_saved_state() -> None:
    torch.backends.cudnn.deterministic = True
    methods = (neoteny.L2(1e-3), METHOD)
    captured, plain = (Training("mlp", "neoteny adam", *methods, capturable=each) for each in (True, False))
    captured.eagerly(WARM_UPS)
    captured.capture()
    for _ in range(4):
        captured.replay(20)
        captured.eagerly(3)
    plain.eagerly(WARM_UPS + 4 * 23)
    agree(captured, plain)

    resumed = Training("mlp", "neoteny adam", *methods, capturable=True)
    resumed.model.load_state_dict(captured.model.state_dict())
    resumed.optimizer.load_state_dict(copy.deepcopy(captured.optimizer.state_dict()))  # torch shares the tensors
    resumed.plastic.load_state_dict(captured.plastic.state_dict())
    resumed.generator.set_state(captured.generator.get_state())
    resumed.eagerly(WARM_UPS)
    resumed.capture()
    resumed.replay(40)
    captured.replay(WARM_UPS + 40)
    agree(resumed, captured)


def test_a_state_loaded_after_the_capture_is_followed_by_the_graph() -> None:
    captured = Training("mlp", "momentum", METHOD, capturable=True)
    captured.eagerly(WARM_UPS)
    captured.capture()
    kept = captured.plastic.state_dict()
    captured.replay(50)
    assert captured.plastic.state_dict()["states"][0]["0"]["schedule"]["step"] == WARM_UPS + 50
    captured.plastic.load_state_dict(kept)
    captured.replay(10)
    assert captured.plastic.state_dict()["states"][0]["0"]["schedule"]["step"] == WARM_UPS + 10


def test_a_capture_that_was_not_asked_for_is_refused() -> None:
    plain = Training("mlp", "sgd", METHOD, capturable=False)
    plain.eagerly(WARM_UPS)
    with pytest.raises(RuntimeError, match="capturable=True to neoteny"):
        plain.capture()


def test_a_capture_without_warm_up_is_refused() -> None:
    early = Training("mlp", "sgd", METHOD, capturable=True)
    early.model(early.inputs).square().mean().backward()  # torch itself needs one pass before a capture
    with pytest.raises(RuntimeError, match="three whole updates"):
        early.capture()


@pytest.mark.parametrize("optimizer", ["sgd", "neoteny adam"])
def test_a_capture_that_came_too_early_leaves_nothing_behind(optimizer: str) -> None:
    early, plain = (Training("mlp", optimizer, METHOD, capturable=each) for each in (True, False))
    with early.plastic._recorder.paused():
        early.model(early.inputs).square().mean().backward()  # torch itself needs one pass before a capture
    with pytest.raises(RuntimeError, match="three whole updates"):
        early.capture()
    assert not any(early.plastic.view.activations.values())
    assert not early.optimizer.state
    early.graph = torch.cuda.CUDAGraph()
    early.eagerly(WARM_UPS)
    early.capture()
    early.replay(UPDATES)
    plain.eagerly(WARM_UPS + UPDATES)
    agree(early, plain)


def test_an_optimizer_that_counts_on_the_host_is_refused() -> None:
    torch.manual_seed(0)
    model = NETS["mlp"][0]().cuda()
    optimizer = neoteny.optim.Adam(model.parameters(), 1e-3)
    x = torch.randn(16, 40, device="cuda")
    plastic = neoteny.attach(model, optimizer, METHOD, example=x, capturable=True)
    model(x).square().mean().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"capturable=True to neoteny.optim.Adam"):
        plastic.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1.0)  # torch warns of graphs that hold nothing
        with pytest.raises(RuntimeError, match="pass capturable=True"):
            optimizer.step()


def test_what_the_kernels_do_not_know_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).cuda().double()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    example = torch.randn(3, 4, device="cuda", dtype=torch.float64)
    plastic = neoteny.attach(model, optimizer, METHOD, example=example, capturable=True)
    model(example).sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="float64"):
        plastic.step()


# torch's compiler warns of its own choices (TensorFloat32, online softmax); only our own warnings are errors here.
@pytest.mark.filterwarnings("ignore", "error:::neoteny")
@pytest.mark.parametrize(
    ("what", "mode"), list(itertools.product(["model", "update"], ["default", "reduce-overhead"])), ids=str
)
def test_compiled_with_the_tick_inside(what: str, mode: str) -> None:
    torch.compiler.reset()
    sides = [Training("mlp", "momentum", METHOD, capturable=False) for _ in range(2)]
    for side in sides:  # the first update makes the optimizer's state, which torch does not keep if a graph makes it
        side.fresh_inputs()
        side.update()
    compiled, plain = sides
    update = compiled.update
    if what == "model":
        compiled.model = torch.compile(compiled.model, mode=mode)  # type: ignore[assignment]
    else:
        update = torch.compile(compiled.update, mode=mode)
    for _ in range(60):
        compiled.fresh_inputs()
        torch.compiler.cudagraph_mark_step_begin()
        update()
    for _ in range(60):
        plain.fresh_inputs()
        plain.update()
    compiled.model = getattr(compiled.model, "_orig_mod", compiled.model)
    agree(compiled, plain, exactly=False)

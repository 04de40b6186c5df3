"""Measures of whole stacks: the shorter way to the effective rank is proven equal, runs do not disturb each other."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from neoteny import metrics
from neoteny.methods import SGD
from neoteny.metrics.gram import GRAM_ERROR, effective_rank_by_gram, rank_from_eigenvalues
from neoteny.nets import MLP, ConvNet
from neoteny.stacking.stack import Stack, stack
from neoteny.suite.measures import MEASURES, measure

EPS = torch.finfo(torch.float64).eps
TOLERANCE = 1e-6


def spectrum(kind: str, size: int) -> Tensor:
    """Singular values, largest first."""
    values = torch.ones(size, dtype=torch.float64)
    if kind.startswith("geometric"):
        values = torch.logspace(0, -int(kind.split()[1]), size, dtype=torch.float64)
    elif kind.startswith("floor"):  # a few directions, the others all near what squares can tell from nothing
        values[size // 8 :] = 10.0 ** -int(kind.split()[1])
    elif kind == "dominated":
        values[1:] = 1e-4
    elif kind == "rank deficient":
        values[size // 2 :] = 0.0
    elif kind == "rank one":
        values[1:] = 0.0
    return values


SPECTRA = (
    "flat",
    "dominated",
    "rank deficient",
    "rank one",
    *(f"geometric {digits}" for digits in (2, 4, 6, 8, 10, 12)),
    *(f"floor {digits}" for digits in (5, 6, 7, 8, 9, 10, 11)),
)


def with_spectrum(values: Tensor, rows: int, columns: int, seed: int = 0) -> Tensor:
    """A dense matrix (rows, columns) with these singular values."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (
        torch.linalg.qr(torch.randn(side, len(values), dtype=torch.float64, generator=generator))[0]
        for side in (rows, columns)
    )
    return left * values @ right.T


def exact_rank(values: Tensor) -> float:
    share = values / values.sum()
    return float(torch.exp(-torch.xlogy(share, share).sum()))


def deviation(matrix: Tensor, expected: float, **options: Any) -> float:
    return abs(effective_rank_by_gram(matrix, **options).item() / expected - 1)


# The shorter way to the effective rank


@pytest.mark.parametrize("kind", SPECTRA)
def test_known_spectra_are_found_at_every_shape_and_scale(kind: str) -> None:
    for rows, columns in ((30, 30), (200, 40), (40, 200), (330, 300)):
        values = spectrum(kind, min(rows, columns))
        matrix = with_spectrum(values, rows, columns)
        for scale in (1.0, 1e-150, 1e150, 1e-30):
            assert deviation(matrix * scale, exact_rank(values)) < TOLERANCE
            assert deviation(matrix * scale, metrics.effective_rank(matrix).item()) < TOLERANCE


@pytest.mark.parametrize("kind", SPECTRA)
def test_the_bound_holds_and_eigenvalues_are_better_than_it_assumes(kind: str) -> None:
    for size, seed in ((5, 0), (30, 1), (100, 2), (300, 3)):
        values = spectrum(kind, size)
        matrix = with_spectrum(values, size + 7, size, seed)
        eigenvalues = torch.linalg.eigvalsh(matrix.T @ matrix).flip(0)
        off = (eigenvalues - values.square()).abs().max() / eigenvalues.norm()
        assert off < GRAM_ERROR / 2 * EPS
        rank, error = rank_from_eigenvalues(eigenvalues.unsqueeze(0), torch.tensor([len(values)]))
        assert abs(rank.item() / exact_rank(values) - 1) <= error.item() + 1e-12


def test_the_bound_notices_what_squares_cannot_tell() -> None:
    values = spectrum("floor 9", 200)
    matrix = with_spectrum(values, 200, 200)
    eigenvalues = torch.linalg.eigvalsh(matrix.T @ matrix).flip(0)
    rank, error = rank_from_eigenvalues(eigenvalues.unsqueeze(0), torch.tensor([len(values)]))
    assert abs(rank.item() / exact_rank(values) - 1) > 1e-7  # eigenvalues alone would be off
    assert error > TOLERANCE  # which is seen,
    assert deviation(matrix, exact_rank(values)) < 1e-9  # and singular values are computed


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    rank=st.integers(0, 12),
    digits=st.integers(0, 14),
    single=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_any_matrix_has_the_rank_of_its_singular_values(
    rows: int, columns: int, rank: int, digits: int, single: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    scales = torch.logspace(0, -digits, rank, dtype=torch.float64) if rank else torch.zeros(0, dtype=torch.float64)
    matrix = (torch.randn(rows, rank, dtype=torch.float64) * scales) @ torch.randn(rank, columns, dtype=torch.float64)
    matrix = torch.relu(matrix) if seed % 2 else matrix
    matrix = matrix.float() if single else matrix
    expected = metrics.effective_rank(matrix).item()
    assert effective_rank_by_gram(matrix).item() == pytest.approx(expected, rel=TOLERANCE)


def test_single_precision_noise_around_a_low_rank_is_measured_as_the_decomposition_does() -> None:
    torch.manual_seed(0)
    low = (torch.randn(400, 6, dtype=torch.float64) @ torch.randn(6, 300, dtype=torch.float64)).float()
    assert deviation(low, metrics.effective_rank(low).item()) < TOLERANCE
    assert torch.linalg.matrix_rank(low.double()) == 300  # all directions are there, most as rounding errors


def test_zeros_repeats_and_lone_entries_are_not_uncertain() -> None:
    torch.manual_seed(0)
    dense = torch.relu(torch.randn(60, 20))
    repeats = torch.ones(60)
    repeats[3], repeats[4], repeats[5] = 3, 0, 0
    full = dense.clone()
    full[4] = full[5] = full[3]
    full[:, 7] = dense[:, 7] = 0.0
    full[9] = dense[9] = 0.0
    assert deviation(dense, metrics.effective_rank(full).item(), repeats=repeats) < 1e-12
    lone = torch.zeros(60, 30)
    lone[:, :20] = full
    lone[11, 20:25], lone[12, 25:] = torch.arange(1.0, 6.0), torch.arange(2.0, 7.0)  # ten units, two directions
    assert deviation(lone, metrics.effective_rank(lone).item(), repeats=torch.ones(60)) < 1e-12
    assert effective_rank_by_gram(torch.zeros(3, 4, 5)).tolist() == [0.0, 0.0, 0.0]


def test_a_run_with_a_value_that_is_not_finite_is_nan_and_the_others_are_what_they_are_alone() -> None:
    torch.manual_seed(0)
    runs = torch.randn(4, 20, 9)
    alone = torch.stack([effective_rank_by_gram(run) for run in runs])
    runs[1, 3, 2], runs[2, 0, 0] = math.nan, math.inf
    together = effective_rank_by_gram(runs)
    assert together.isnan().tolist() == [False, True, True, False]
    assert torch.equal(together[[0, 3]], alone[[0, 3]])


def test_repeats_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"repeats must have shape \(2, 5\), one number per row; got \(5,\)"):
        effective_rank_by_gram(torch.ones(2, 5, 3), torch.ones(5))


# Stacks


def make_stack(*modules: nn.Module) -> Stack:
    return stack(modules, SGD(0.05), loss="cross_entropy")


def train(runs: Stack, steps: int = 60) -> None:
    torch.manual_seed(1)
    count = runs.view.runs[0]
    for _ in range(steps):
        runs.step(torch.rand(count, 4, 12), torch.randint(0, 3, (count, 4)))


def old_measures(runs: Stack, inputs: Tensor) -> dict[str, Tensor]:
    """Run by run, from a copy of its network and from singular values."""
    found: dict[str, list[Tensor]] = {name: [] for name in MEASURES}
    for run in range(len(inputs)):
        module = runs.module(run).eval()
        layers: list[Tensor] = []
        for layer in module.modules():
            if isinstance(layer, (nn.ReLU, nn.Tanh)):
                layer.register_forward_hook(lambda _layer, _inputs, output, layers=layers: layers.append(output))
        with torch.no_grad():
            module(inputs[run])
        units = [layer.movedim(1, -1).flatten(0, -2) for layer in layers]
        dead = sum(int(metrics.dead_units(layer).sum()) for layer in units)
        saturated = sum(int(metrics.saturated_units(layer).sum()) for layer in units)
        found["dead_units"].append(torch.tensor(dead / sum(layer.shape[-1] for layer in units)))
        found["saturated_units"].append(torch.tensor(saturated / sum(layer.shape[-1] for layer in units)))
        for name in ("linearised_units", "duplicate_units"):
            some = sum(int(getattr(metrics, name)(layer).sum()) for layer in units)
            found[name].append(torch.tensor(some / sum(layer.shape[-1] for layer in units)))
        ranks = [metrics.effective_rank(layer.flatten(1)) for layer in layers]
        found["effective_rank"].append(torch.stack(ranks).mean())
        found["distance_from_isometry"].append(metrics.distance_from_isometry(module.parameters()))
        found["weight_magnitude"].append(metrics.weight_magnitude(module.parameters()))
    return {name: torch.stack(each).double() for name, each in found.items()}


@pytest.mark.parametrize(
    "options", [{}, {"activation": "tanh"}, {"dropout": 0.3}, {"normalization": "online"}], ids=lambda o: str(o)
)
def test_measures_are_those_of_each_network_by_itself(options: dict[str, object]) -> None:
    torch.manual_seed(0)
    runs = make_stack(*(MLP(12, [30, 20, 10], 3, **options) for _ in range(3)))  # pyright: ignore[reportArgumentType]
    train(runs)
    inputs = torch.rand(3, 50, 12)
    inputs[:, 40:] = inputs[:, :10]  # probes are drawn with replacement
    expected = old_measures(runs, inputs)
    for name, values in measure(list(MEASURES), runs, inputs).items():
        torch.testing.assert_close(values, expected[name], rtol=TOLERANCE, atol=0.0, check_dtype=False)


def test_convolutions_are_read_where_the_next_layer_takes_them_a_unit_is_a_channel() -> None:
    torch.manual_seed(0)
    runs = make_stack(ConvNet(), ConvNet())
    inputs = torch.randn(2, 12, 3, 32, 32)
    found = measure(list(MEASURES), runs, inputs)
    for run in range(2):
        network = runs.module(run).eval()
        layers: list[Tensor] = []

        def keep(_layer: nn.Module, given: tuple[Tensor, ...], layers: list[Tensor] = layers) -> None:
            layers.append(given[0])

        for name in ("conv2", "conv3", "fc1", "fc2", "out"):
            network.get_submodule(name).register_forward_pre_hook(keep)
        with torch.no_grad():
            network(inputs[run])
        ranks = [metrics.effective_rank(layer.flatten(1)) for layer in layers]
        torch.testing.assert_close(found["effective_rank"][run], torch.stack(ranks).mean(), rtol=TOLERANCE, atol=0.0)
        layers[2] = layers[2].unflatten(1, (128, 4))  # the flattened third convolution
        units = [layer.movedim(1, -1).flatten(0, -2) for layer in layers]
        dead = sum(int(metrics.dead_units(layer).sum()) for layer in units)
        assert found["dead_units"][run].item() == pytest.approx(dead / (32 + 64 + 128 + 128 + 128))


def test_measures_do_not_depend_on_neighbours_and_leave_no_trace() -> None:
    torch.manual_seed(0)
    modules = [MLP(12, [40, 30], 3) for _ in range(5)]
    runs, inputs = make_stack(*modules), torch.rand(5, 300, 12)
    together = measure(list(MEASURES), runs, inputs)
    alone = [measure(list(MEASURES), make_stack(module), inputs[run : run + 1]) for run, module in enumerate(modules)]
    for name, values in together.items():
        assert torch.equal(values, torch.cat([each[name] for each in alone]))
    assert runs.template.training
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in runs.template.modules())


def test_a_run_that_diverged_measures_as_nan_beside_one_that_did_not() -> None:
    torch.manual_seed(0)
    good, bad = MLP(12, [8, 8], 3), MLP(12, [8, 8], 3)
    inputs = torch.rand(3, 20, 12)
    before = measure(list(MEASURES), make_stack(good, good, good), inputs)
    with torch.no_grad():
        bad.get_parameter("fc1.weight")[0, 0] = math.nan
    for name, values in measure(list(MEASURES), make_stack(good, bad, good), inputs).items():
        assert values.isnan().tolist() == [False, True, False]
        assert torch.equal(values[[0, 2]], before[name][[0, 2]])


def test_a_network_without_hidden_layers_has_no_activations_to_measure() -> None:
    values = measure(list(MEASURES), make_stack(MLP(12, [], 3)), torch.rand(1, 20, 12))
    assert values["dead_units"].isnan().all()
    assert values["effective_rank"].isnan().all()
    assert values["weight_magnitude"].isfinite().all()


class Functional(nn.Module):
    """A network whose activations are functions, not modules."""

    def __init__(self, double: bool = False) -> None:
        super().__init__()
        self.double_width = double
        self.fc1, self.fc2 = nn.Linear(12, 8), nn.Linear(16 if double else 8, 6)
        self.out = nn.Linear(12 if double else 6, 3)

    def activate(self, x: Tensor) -> Tensor:
        return torch.relu(torch.cat([x, -x], 1)) if self.double_width else torch.relu(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.activate(self.fc2(self.activate(self.fc1(x)))))


def test_activations_that_are_functions_measure_as_those_that_are_modules() -> None:
    torch.manual_seed(0)
    functional, plain = Functional(), MLP(12, [8, 6], 3)
    plain.load_state_dict(functional.state_dict())
    inputs = torch.rand(1, 20, 12)
    expected = measure(list(MEASURES), make_stack(plain), inputs)
    for name, values in measure(list(MEASURES), make_stack(functional), inputs).items():
        assert torch.equal(values, expected[name])


def test_a_unit_with_two_columns_is_dead_if_both_are_silent() -> None:
    """Concatenated ReLU: a unit passes on relu(x) and relu(-x), so that one of the two speaks unless x is zero."""
    torch.manual_seed(0)
    network = Functional(double=True)
    with torch.no_grad():
        for parameter in (network.fc1.weight, network.fc1.bias):
            parameter[:2] = 0.0
        network.fc1.bias[2] = -100.0
    values = measure(["dead_units", "effective_rank"], make_stack(network), torch.rand(1, 20, 12))
    assert values["dead_units"].item() == pytest.approx(2 / (8 + 6))
    assert values["effective_rank"].isfinite().all()


def test_a_network_whose_units_cannot_be_found_is_named() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.again, self.out = nn.Linear(12, 8), nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.relu(self.again(torch.relu(self.again(torch.relu(self.first(x)))))))

    runs, inputs = make_stack(Twice()), torch.rand(1, 20, 12)
    with pytest.raises(ValueError, match=r"Twice: cannot tell where[^\n]*\n  again: it is called 2 times"):
        measure(["dead_units"], runs, inputs)
    assert measure(["weight_magnitude"], runs, inputs)["weight_magnitude"].isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_wide_networks_measure_as_their_singular_values_do(activation: str) -> None:
    torch.manual_seed(0)
    module = MLP(784, [2000] * 3, 10, activation=activation)
    inputs = torch.rand(2000, 784) * (torch.rand(2000, 784) < 0.2)
    inputs[1960:] = inputs[:40]
    runs = make_stack(module)
    expected = old_measures(runs, inputs.unsqueeze(0))["effective_rank"]
    torch.testing.assert_close(
        measure(["effective_rank"], runs, inputs.unsqueeze(0))["effective_rank"], expected, rtol=1e-9, atol=0.0
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("width", [60, 700])
def test_measures_on_a_gpu_are_those_of_the_cpu(width: int) -> None:
    torch.manual_seed(0)
    modules = [MLP(12, [width, width // 2], 3) for _ in range(3)]
    inputs = torch.rand(3, 800, 12)
    expected = measure(list(MEASURES), make_stack(*modules), inputs)
    on_gpu = [module.to("cuda") for module in modules]
    found = measure(list(MEASURES), make_stack(*on_gpu), inputs.cuda())
    alone = measure(list(MEASURES), make_stack(on_gpu[1]), inputs[1:2].cuda())
    for name, values in found.items():
        torch.testing.assert_close(values, expected[name], rtol=1e-4, atol=1e-3)  # float32 forward passes differ
        assert torch.equal(values[1:2], alone[name])

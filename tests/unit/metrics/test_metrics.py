"""Metrics: hand-computed cases, properties, and one conformance suite that discovers every public metric."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from neoteny import metrics
from reference import metrics as reference

NAMES = sorted(metrics.__all__)
EARLIER = ("initial", "losses_after", "previous")  # the same tensors at another time
BATCH_SHAPES = [(), (2,), (2, 3)]
unhurried = settings(deadline=None, max_examples=60)  # no deadline: the machine may be busy
RANKS = [metrics.effective_rank, metrics.stable_rank, metrics.rank_99]


def draw(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Normal numbers, float64, with some units dead and some saturated."""
    values = torch.randn(*shape, 6, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values[..., 0] = 0.0
    values[..., 1] = values[..., 1].sign()
    return values


def arguments(metric: Callable[..., Tensor], value: Tensor, run_dims: int) -> tuple[list[Tensor], dict[str, int]]:
    """A call for any metric: every parameter without a default is data, and its name says of which kind."""
    parameters = inspect.signature(metric).parameters.values()
    data = [p.name for p in parameters if p.default is p.empty]
    unknown = set(data) - {"matrix", "activations", "weights", "grads", "gradients", "losses", "outputs", *EARLIER}
    assert not unknown, f"{metric.__name__}: teach this file how to draw {unknown}"
    values = [value if name not in EARLIER else value * 0.5 for name in data]  # exact in every type
    takes_run_dims = any(p.name == "run_dims" for p in parameters)
    return values, {"run_dims": run_dims} if takes_run_dims else {}


def call(name: str, value: Tensor, run_dims: int) -> Tensor:
    metric = getattr(metrics, name)
    values, options = arguments(metric, value, run_dims)
    return metric(*values, **options)


# Conformance: a new metric is tested by existing.


def test_every_public_function_is_listed_and_documented() -> None:
    public = [n for n, f in inspect.getmembers(metrics, inspect.isfunction) if not n.startswith("_")]
    assert sorted(public) == NAMES
    for name in NAMES:
        text = inspect.getdoc(getattr(metrics, name)) or ""
        assert all(part in text for part in ("Args:", "Returns:", "Example:", ">>>")), name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("runs", BATCH_SHAPES, ids=str)
def test_a_stack_equals_one_by_one(name: str, runs: tuple[int, ...]) -> None:
    value = draw(runs)
    stacked = call(name, value, len(runs))
    assert stacked.shape[: len(runs)] == runs
    assert stacked.dtype in (torch.float64, torch.bool)
    for index in itertools.product(*map(range, runs)):
        torch.testing.assert_close(stacked[index], call(name, value[index], 0), rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_run_that_is_not_finite_is_nan_and_its_neighbours_are_not(name: str, bad: float) -> None:
    value = draw((3,))
    clean = call(name, value, 1)
    value[1, 2, 3] = bad
    dirty = call(name, value, 1)
    torch.testing.assert_close(dirty[[0, 2]], clean[[0, 2]], rtol=1e-14, atol=0)
    if dirty.dtype == torch.float64:
        assert dirty[1].isnan()


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_left_alone_and_no_gradient_is_kept(name: str) -> None:
    value = draw(()).requires_grad_()
    before = value.detach().clone()
    assert not call(name, value, 0).requires_grad
    assert torch.equal(value.detach(), before)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_measured_in_float64(name: str, dtype: torch.dtype) -> None:
    value = draw((2,)).to(dtype)
    torch.testing.assert_close(call(name, value, 1), call(name, value.double(), 1), rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_zeros_are_measured_without_an_error(name: str) -> None:
    assert not call(name, torch.zeros(2, 3, 3), 1).isnan().any()


@pytest.mark.parametrize("name", NAMES)
def test_wrong_input_is_refused_by_name(name: str) -> None:
    metric = getattr(metrics, name)
    values, options = arguments(metric, draw(()), 0)
    with pytest.raises(TypeError, match=name.split("_")[0]):
        metric(*[v.tolist() for v in values], **options)
    with pytest.raises(TypeError, match="real"):
        metric(*[v.to(torch.complex128) for v in values], **options)
    if "run_dims" in options:
        with pytest.raises(ValueError, match="run_dims must be at least 0, got -1"):
            metric(*values, run_dims=-1)
        with pytest.raises(ValueError, match=r"with run_dims=5 .*got shapes \[\(6, 4\)\]"):
            metric(*values, run_dims=5)
        with pytest.raises(ValueError, match="holds no tensor"):
            metric(*[[] for _ in values])
        with pytest.raises(TypeError, match=r"got dict; pass its .values\(\)"):
            metric(*[{"a": v} for v in values])
    else:
        with pytest.raises(ValueError, match=rf"{name}.*got \(4,\)"):
            metric(torch.zeros(4))
        with pytest.raises(ValueError, match=r"must not be empty, got shape \(0, 4\)"):
            metric(torch.zeros(0, 4))


# Ranks.


def test_ranks_of_a_diagonal_matrix_by_hand() -> None:
    matrix = torch.tensor([[3.0, 0.0], [0.0, 1.0]])  # p = (3/4, 1/4)
    expected = math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))  # 4 / 3**0.75
    assert metrics.effective_rank(matrix).item() == pytest.approx(expected, rel=1e-14)
    assert metrics.effective_rank(matrix).item() == pytest.approx(4 / 3**0.75, rel=1e-14)
    assert metrics.stable_rank(matrix).item() == pytest.approx(10 / 9, rel=1e-14)
    assert metrics.rank_99(matrix).item() == 2


def test_ranks_of_a_singular_matrix_by_hand() -> None:
    matrix = torch.tensor([[1.0, 2.0], [2.0, 4.0]])  # singular values 5 and 0
    for rank in RANKS:
        assert rank(matrix).item() == pytest.approx(1.0, abs=1e-14)


def test_ranks_of_zeros_are_zero() -> None:
    for rank in RANKS:
        assert rank(torch.zeros(3, 2)).item() == 0.0


def test_rank_99_by_hand() -> None:
    for values, expected in [([99.0, 1.0], 1), ([98.0, 2.0], 2), ([98.0, 1.0, 1.0], 2), ([1.0] * 100, 99)]:
        assert metrics.rank_99(torch.diag(torch.tensor(values))).item() == expected


def test_rank_99_does_not_let_rounding_decide_a_tie() -> None:
    values = torch.diag(torch.tensor([90.0, 9.0, 1.0], dtype=torch.float64))  # two of them hold exactly 99%
    rotated = torch.stack([rotation(3, seed) @ values @ rotation(3, seed + 100) for seed in range(50)])
    assert metrics.rank_99(rotated).unique().tolist() == [2.0]


def test_zero_singular_values_do_not_count_in_single_precision() -> None:
    column = torch.rand(400, 1, generator=torch.Generator().manual_seed(1))
    matrix = torch.cat([column] * 300, dim=1)  # rank 1, exactly, in float32
    assert metrics.effective_rank(matrix).item() == pytest.approx(1.0, abs=1e-12)


def test_ranks_survive_extreme_scales() -> None:
    matrix = draw(())
    for rank, scale in itertools.product(RANKS, (1e-300, 1e300)):
        assert rank(matrix * scale).item() == pytest.approx(rank(matrix).item(), rel=1e-12)


matrices = st.tuples(st.integers(1, 7), st.integers(1, 7), st.integers(0, 7), st.integers(0, 2**31)).map(
    lambda t: low_rank(*t)
)


def low_rank(n: int, m: int, rank: int, seed: int) -> Tensor:
    """A random matrix (n, m) of rank at most `rank`."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(n, rank, generator=generator, dtype=torch.float64)
    right = torch.randn(rank, m, generator=generator, dtype=torch.float64)
    return left @ right


def rotation(n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))[0]


@unhurried
@given(matrices)
def test_ranks_lie_between_one_and_the_rank(matrix: Tensor) -> None:
    limit = torch.linalg.matrix_rank(matrix).item()
    for rank in RANKS:
        value = rank(matrix).item()
        assert min(1, limit) - 1e-9 <= value <= limit + 1e-9
    assert metrics.rank_99(matrix).item() == int(metrics.rank_99(matrix).item())


@unhurried
@given(matrices, st.floats(1e-6, 1e6), st.booleans())
def test_ranks_do_not_depend_on_scale_or_transpose(matrix: Tensor, scale: float, negate: bool) -> None:
    other = matrix.mT * (-scale if negate else scale)
    for rank in RANKS:
        assert rank(other).item() == pytest.approx(rank(matrix).item(), rel=1e-9)


@unhurried
@given(matrices, st.integers(0, 2**31))
def test_ranks_do_not_depend_on_rotations(matrix: Tensor, seed: int) -> None:
    n, m = matrix.shape
    rotated = rotation(n, seed) @ matrix @ rotation(m, seed + 1)
    for rank in RANKS:
        assert rank(rotated).item() == pytest.approx(rank(matrix).item(), rel=1e-9)


@unhurried
@given(matrices)
def test_metrics_match_the_numpy_reference(matrix: Tensor) -> None:
    array = matrix.numpy()
    if np.linalg.matrix_rank(array) == min(array.shape):  # the reference keeps rounding noise, the library does not
        assert metrics.effective_rank(matrix).item() == pytest.approx(reference.effective_rank(array), rel=1e-9)
        assert metrics.stable_rank(matrix).item() == pytest.approx(reference.stable_rank(array), rel=1e-9)
    active = matrix.relu()
    np.testing.assert_array_equal(metrics.dead_units(active).numpy(), reference.dead_units(active.numpy()))
    bounded = torch.tanh(3 * matrix)
    np.testing.assert_array_equal(
        metrics.saturated_units(bounded, epsilon=0.2).numpy(), reference.saturated_units(bounded.numpy(), -1, 1, 0.2)
    )
    both = [matrix, 2 * matrix.mT]
    expected = reference.weight_magnitude([w.numpy() for w in both])
    assert metrics.weight_magnitude(both).item() == pytest.approx(expected, rel=1e-12)


# Units.


def test_dead_units_by_hand() -> None:
    activations = torch.tensor([[0.0, 0.0, 1.0], [0.0, 2.0, 3.0]])
    assert metrics.dead_units(activations).tolist() == [True, False, False]
    assert metrics.dead_share(activations).item() == pytest.approx(1 / 3)
    assert metrics.dead_units(torch.tensor([[1e-30, math.nan]])).tolist() == [False, False]


def test_saturated_units_by_hand() -> None:
    activations = torch.tensor([[-1.0, 0.999, 0.5], [-0.995, -0.999, 1.0]])
    assert metrics.saturated_units(activations).tolist() == [True, True, False]
    assert metrics.saturated_share(activations).item() == pytest.approx(2 / 3)
    sigmoid = torch.tensor([[0.001, 0.5], [0.999, 0.0]])
    assert metrics.saturated_units(sigmoid, low=0.0, high=1.0, epsilon=0.01).tolist() == [True, False]


@pytest.mark.parametrize("options", [{"low": 1.0}, {"epsilon": -0.1}, {"epsilon": 1.0}, {"epsilon": math.nan}], ids=str)
def test_saturated_units_refuses_impossible_extremes(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=str(next(iter(options.values())))):
        metrics.saturated_units(torch.zeros(2, 2), **options)


# Weights and gradients.


def test_weight_magnitude_by_hand() -> None:
    assert metrics.weight_magnitude(torch.tensor([[1.0, -2.0], [3.0, -4.0]])).item() == 2.5
    pooled = metrics.weight_magnitude([torch.ones(1, 2), torch.full((2, 3), -5.0)])
    assert pooled.item() == 4.0  # 32 / 8: weights count, not layers


def test_biases_are_left_out_of_weights() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2), torch.nn.Linear(2, 1))
    weights = [net.get_parameter("0.weight"), net.get_parameter("2.weight")]
    assert metrics.weight_magnitude(net.parameters()) == metrics.weight_magnitude(weights)
    with pytest.raises(ValueError, match=r"biases do not count, got only shapes \[\(3,\)\]"):
        metrics.weight_magnitude(torch.ones(3))
    with pytest.raises(ValueError, match="at least two axes behind its 1 run axes"):
        metrics.weight_magnitude(torch.ones(5, 3), run_dims=1)


def test_weight_drift_by_hand() -> None:
    initial = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert metrics.weight_drift(initial, initial).item() == 0.0
    assert metrics.weight_drift(-initial, initial).item() == 2.0
    assert metrics.weight_drift([initial, initial + 3], [initial, initial]).item() == pytest.approx(6 / 50**0.5)
    zeros = torch.zeros(2, 2)
    assert metrics.weight_drift(zeros, zeros).item() == 0.0
    assert metrics.weight_drift(initial, zeros).item() == math.inf


def test_weight_drift_refuses_other_tensors() -> None:
    with pytest.raises(ValueError, match=r"got shapes \[\(2, 2\)\] and \[\(2, 3\)\]"):
        metrics.weight_drift(torch.ones(2, 2), torch.ones(2, 3))


def test_gradient_norm_by_hand() -> None:
    grads = [torch.tensor([[1.0, 2.0], [2.0, 0.0]]), None, torch.tensor([4.0])]
    assert metrics.gradient_norm(grads).item() == 5.0
    stacked = [torch.stack([g, 2 * g]) for g in grads if g is not None]
    assert metrics.gradient_norm(stacked, run_dims=1).tolist() == [5.0, 10.0]


def test_run_axes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"with run_dims=1 .*\(2, 3\), \(3, 3\)"):
        metrics.gradient_norm([torch.ones(2, 3), torch.ones(3, 3)], run_dims=1)

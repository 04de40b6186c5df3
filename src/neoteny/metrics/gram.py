"""The effective rank computed faster, for measuring it at every task of many runs.

Singular values are the square roots of the eigenvalues of a Gram matrix, which take a fifth of the time for 2,000 by
2,000. Squaring costs half of the digits, though: singular values below 1e-8 of the largest one are lost. The error
that this may cause is bounded for every matrix, and where the bound is not small the decomposition of `ranks` is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from neoteny.metrics.ranks import effective_rank
from neoteny.metrics.shapes import check_matrices

GRAM_ERROR = 16.0
"""Assumed error of the computed eigenvalues, in roundings of the Gram matrix's Frobenius norm. The worst error seen is
6, and 3.4 for small eigenvalues, the only ones that matter (a test measures this)."""
BATCHED_SIZE = 256
"""Up to this size, Gram matrices on a GPU are made in batches and decomposed by the processor; a larger one fills the
device alone."""
_BATCH = 32
_EPS = torch.finfo(torch.float64).eps
Submit = Callable[[Callable[[], Tensor], int], Callable[[], Tensor]]
"""Takes a function and the bytes of memory that it holds until it is called; returns a function that waits for its
result. `host_threads.HostThreads.submit` is one."""


def effective_rank_by_gram(matrix: Tensor, repeats: Tensor | None = None, tolerance: float = 1e-6) -> Tensor:
    r"""`effective_rank` within a relative tolerance, from eigenvalues of Gram matrices where they are good enough.

    The computed eigenvalues of :math:`A A^T` or :math:`A^T A`, whichever is smaller, are off by at most :math:`\delta`,
    a few roundings of its Frobenius norm. A singular value then lies between
    :math:`\sqrt{\max(\lambda_k - \delta, 0)}` and :math:`\sqrt{\lambda_k + \delta}`. Let :math:`d_k` be how far that is
    from the value taken, with values that add up to 1. The entropy H moves by at most

    .. math::
        \sum_k d_k (1 + H - \log d_k) \Bigm/ \Bigl(1 - \sum_k d_k\Bigr)

    and the effective rank, relatively, by as much. Directions that are known to be missing are not uncertain: rows and
    columns of zeros, repeated rows, and all but one of the columns whose only entry lies in the same row.

    Args:
        matrix: (*R, n, m), any real type.
        repeats: whole numbers (*R, n), how many equal rows row i stands for; 0 leaves it out. 1 by default.
        tolerance: above this bound on the error, singular values are computed.

    Returns:
        float64 (*R); nan for a run with a value that is not finite. A run's value does not depend on its neighbours.

    Example:
        >>> round(effective_rank_by_gram(torch.eye(3)).item(), 6)
        3.0
        >>> twice = torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 3.0]])
        >>> torch.allclose(effective_rank_by_gram(twice[1:], torch.tensor([2, 1])), effective_rank(twice))
        True
    """
    return effective_rank_later(matrix, repeats, tolerance)()


def effective_rank_later(
    matrix: Tensor, repeats: Tensor | None = None, tolerance: float = 1e-6, submit: Submit | None = None
) -> Callable[[], Tensor]:
    """Begin with `effective_rank_by_gram`: matrices are squared now and decomposed where `submit` has it done.

    Args:
        matrix, repeats, tolerance: see there; a matrix must not change until it is decomposed.
        submit: takes the decompositions, which are then all done by the processor; None: they are done now.

    Returns:
        A function that waits for the ranks and gives them, as `effective_rank_by_gram` does.
    """
    matrix = check_matrices(matrix, "effective_rank_by_gram", "matrix", "n, m")
    weight = _check_repeats(matrix, repeats)
    runs, device = matrix.shape[:-2], matrix.device
    matrix, weight = matrix.reshape(-1, *matrix.shape[-2:]), weight.reshape(-1, matrix.shape[-2])
    batch = _BATCH if matrix.is_cuda and min(matrix.shape[-2:]) <= BATCHED_SIZE else 1
    found: list[Callable[[], Tensor]] = []
    for start in range(0, len(matrix), batch):
        part = _Squared(matrix[start : start + batch], weight[start : start + batch], tolerance, batch)
        if submit is None:
            now = part.ranks(on_host=False)
            found.append(lambda now=now: now)
        else:
            found.append(submit(partial(part.ranks, on_host=True), part.bytes))
    return lambda: torch.cat([ranks() for ranks in found]).reshape(runs).to(device)


def ranks_by_gram(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The effective rank (to 1e-6) and the stable rank of each matrix (*R, n, m), from eigenvalues where it can be.

    Example:
        >>> [round(rank.item(), 6) for rank in ranks_by_gram(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))]
        [2.0, 2.0]
    """
    matrix = check_matrices(matrix, "ranks_by_gram", "matrix", "n, m").to(torch.float64)
    finite = torch.isfinite(matrix).flatten(-2).all(-1)
    largest = torch.where(finite[..., None, None], matrix, 0.0).abs().amax((-2, -1), keepdim=True)
    scaled = torch.where(finite[..., None, None], matrix, 0.0) / torch.where(largest > 0, largest, 1.0)
    small = scaled.mT if matrix.shape[-1] < matrix.shape[-2] else scaled
    top = torch.linalg.eigvalsh(small @ small.mT)[..., -1]
    stable = scaled.square().sum((-2, -1)) / torch.where(top > 0, top, 1.0)
    return effective_rank_by_gram(matrix), torch.where(finite, stable, torch.nan)


def rank_from_eigenvalues(values: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """Effective ranks (b,) and bounds on their relative errors (b,).

    Args:
        values: eigenvalues of Gram matrices (b, k), largest first; those within their error of zero count as zero.
        limit: (b,), how many eigenvalues may differ from zero.
    """
    possible = torch.arange(values.shape[-1]) < limit.unsqueeze(-1)
    delta = GRAM_ERROR * _EPS * torch.linalg.vector_norm(values, dim=-1, keepdim=True)
    taken = torch.where(possible & (values > delta), values, 0.0).sqrt()
    total = taken.sum(-1, keepdim=True)
    unit = torch.where(total > 0, total, 1.0)
    share = taken / unit
    entropy = -torch.xlogy(share, share).sum(-1, keepdim=True)
    above = (values.clamp_min(0.0) + delta).sqrt() - taken
    below = taken - (values - delta).clamp_min(0.0).sqrt()
    reach = torch.where(possible, torch.maximum(above, below) / unit, 0.0)
    summed = reach.sum(-1)
    error = (reach * (1.0 + entropy) - torch.xlogy(reach, reach)).sum(-1) / (1.0 - summed)
    rank = torch.where(total > 0, entropy.exp(), 0.0).squeeze(-1)
    return rank, torch.where(summed < 0.5, error, torch.inf)


def _check_repeats(matrix: Tensor, repeats: Tensor | None) -> Tensor:
    """The square roots of the repeats, float64 (*R, n)."""
    if repeats is None:
        return torch.ones(matrix.shape[:-1], dtype=torch.float64, device=matrix.device)
    if repeats.shape != matrix.shape[:-1]:
        raise ValueError(
            f"effective_rank_by_gram: repeats must have shape {tuple(matrix.shape[:-1])}, one number per row; "
            f"got {tuple(repeats.shape)}."
        )
    return repeats.to(matrix.device, torch.float64).sqrt()


def _scale(matrix: Tensor, weight: Tensor, compress: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Matrices (b, n, m) in float64 with weighted rows and entries of about 1 at most.

    With `compress`, rows and columns of one matrix that are zero or left out are cut away.

    Returns:
        the matrices; how many of their rows, or columns if fewer, are not zero (b,); which are finite (b,).
    """
    size = matrix.abs()
    rows = size.amax(-1)
    largest = rows.amax(-1)  # nan and inf come through
    finite = torch.isfinite(largest)
    if not finite.all():
        matrix = torch.where(finite[:, None, None], matrix, 0.0)
        size, rows, largest = matrix.abs(), matrix.abs().amax(-1), torch.where(finite, largest, 0.0)
    wanted, columns = (rows > 0) & (weight > 0), size.amax(-2) > 0
    limit = torch.minimum(wanted.sum(-1), columns.sum(-1))
    if compress:
        matrix, weight = _keep(matrix, wanted[0], 1), _keep(weight, wanted[0], 1)
        if columns.sum() < min(matrix.shape[1], 0.9 * matrix.shape[2]):  # else cutting costs more than it saves
            matrix = _keep(matrix, columns[0], 2)
    # A power of two changes no digit: products of float32 numbers stay exact.
    _, exponent = torch.frexp(largest.to(torch.float64))
    weight = weight * torch.exp2(-exponent.to(torch.float64).clamp(-1000, 1000)).unsqueeze(-1)
    return matrix * weight.unsqueeze(-1), limit, finite  # float64, as the weight is


def _keep(tensor: Tensor, mask: Tensor, dim: int) -> Tensor:
    """What the mask keeps along an axis, but at least one."""
    if mask.all():
        return tensor
    places = mask.nonzero().flatten()
    return tensor.index_select(dim, places if len(places) else torch.zeros_like(mask[:1], dtype=torch.int64))


class _Squared:
    """The Gram matrices of some matrices (b, n, m), of which `batch` are made at once."""

    def __init__(self, matrix: Tensor, weight: Tensor, tolerance: float, batch: int) -> None:
        self._matrix, self._weight, self._tolerance, self._batch = matrix, weight, tolerance, batch
        some, self._limit, self._finite = self._scaled()
        given = len(some)
        if given < batch:  # always the same batch size: which algorithm a library takes may depend on it
            some = torch.cat((some, some.new_zeros(batch - given, *some.shape[1:])))
        small = some.mT if some.shape[-1] < some.shape[-2] else some
        self._small = small.shape[-2] <= BATCHED_SIZE
        self._grams = (small @ small.mT)[:given] if self._small else torch.stack([_lower_gram(one) for one in small])
        self.bytes = self._grams.numel() * self._grams.element_size() + matrix.numel() * matrix.element_size()

    def ranks(self, on_host: bool) -> Tensor:
        """Effective ranks (b,), on the CPU; `on_host`: whether large matrices are decomposed there, too."""
        if self._small or on_host:  # a processor is 2 to 20 times as fast with small ones as a GPU
            values = torch.linalg.eigvalsh(self._grams.cpu()).flip(-1)
        else:
            values = torch.stack([torch.linalg.eigvalsh(gram).cpu() for gram in self._grams]).flip(-1)
        rank, error = rank_from_eigenvalues(values, self._limit.cpu())
        unsure = (error > self._tolerance).nonzero().flatten().tolist()
        some = self._scaled()[0] if unsure else self._grams
        for number in unsure:
            rank[number] = _look_closer(some[number], values[number], self._tolerance)
        return torch.where(self._finite.cpu(), rank, torch.nan)

    def _scaled(self) -> tuple[Tensor, Tensor, Tensor]:
        return _scale(self._matrix, self._weight, compress=self._batch == 1)


def _lower_gram(matrix: Tensor) -> Tensor:
    """The lower triangle of A A^T, which is all that is read of it, and some of the upper one."""
    size = len(matrix)
    gram = torch.zeros(size, size, dtype=matrix.dtype, device=matrix.device)
    step = -(-size // 4)
    for start in range(0, size, step):
        stop = min(start + step, size)
        torch.mm(matrix[start:stop], matrix[:stop].T, out=gram[start:stop, :stop])
    return gram


def _look_closer(matrix: Tensor, values: Tensor, tolerance: float) -> Tensor:
    """The effective rank of one matrix whose eigenvalues are not accurate enough."""
    rank, error = rank_from_eigenvalues(values.unsqueeze(0), _rank_limit(matrix != 0))
    return rank[0] if error[0] <= tolerance else effective_rank(matrix.cpu())


def _rank_limit(present: Tensor) -> Tensor:
    """An upper bound on the rank of one matrix (1,), from the places (n, m) that are not zero."""

    def count(present: Tensor) -> Tensor:
        """Columns, those with a single entry in the same row as one."""
        entries = present.sum(0)
        alone = present & (entries == 1)
        return (entries > 1).sum() + alone.any(1).sum()

    return torch.minimum(count(present), count(present.T)).reshape(1).cpu()

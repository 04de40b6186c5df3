"""TRAC: scales what the optimizer has learned since the start, by a rule without settings to tune."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from neoteny.layers.regions import Region
from neoteny.methods.card import Card
from neoteny.methods.method import Method, State, check_betas, check_number, slot
from neoteny.units.view import View

_STEP = 0.2
"""The step of the sum in `erfi`: its relative error is exp(-(pi / 2 step)^2), about 1e-27."""
_SMALLEST = 1e-30
"""Of settings that must be above zero."""
_LARGEST_FIRST_SCALE = 1000.0
"""Of S after the first update, where the optimizer's step alone counts."""
_LARGEST = 26.0
"""Where erfi is cut off, below the largest number of float64."""


@dataclass(frozen=True)
class TRAC(Method):
    r"""Parameter-free scaling of any optimizer's path (TRAC, NeurIPS 2024).

    Let \(\theta_0\) be the weights at the start, \(S = \sum_\beta s_\beta\), and \(g\) the gradient that the optimizer
    is given. At each update \(\Delta = (\theta - \theta_0) / (S + \epsilon)\) and \(h = \langle \Delta, g \rangle\)
    over the whole network; then the optimizer's step is added to \(\Delta\), and for each \(\beta\)
    \(v \leftarrow \beta^2 v + h^2\), \(\sigma \leftarrow \beta\sigma - h\),
    \(s_\beta = s_0\,\mathrm{erfi}(\sigma / (\sqrt{2 v} + \epsilon)) / \mathrm{erfi}(1/\sqrt 2)\). At last
    \(\theta = \theta_0 + \max(S, 0)\,\Delta\).

    Where \(S \le 0\), which gradients that point back to the start bring about, the weights are at the start again, and
    stay there until \(S\) is positive, which may be never. The authors' package does the same.

    It acts around the update of any optimizer; list it before the other methods. What others change afterwards (noise,
    projections, resets) is not learned, so it moves \(\theta_0\) too; for a reset weight also \(\Delta = 0\). The state
    holds \(\theta_0 + \Delta\), not \(\theta\) alone: early on \(S\Delta\) is so small that float32 would lose it.

    Args:
        initial_scale: \(s_0\), above 0; the authors use 1e-8.
        betas: the discount factors, each in [0, 1); the authors use 0.9, 0.99, ..., 0.999999.
        eps: \(\epsilon\), above 0; the authors use 1e-8.
        initial_sigma: \(\sigma\) before the first update, at least 0; the authors use 1e-8. A larger one is trust in
            the optimizer before anything is known. At the first update \(h = 0\), so
            \(s_\beta = s_0\,\mathrm{erfi}(\beta\sigma / \epsilon) / \mathrm{erfi}(1/\sqrt 2)\): more than some four
            \(\epsilon\) are too many.

    Example:
        >>> len(TRAC().betas)
        6
    """

    initial_scale: float | tuple[float, ...] = 1e-8
    betas: tuple[float, ...] = (0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999)
    eps: float = 1e-8
    initial_sigma: float | tuple[float, ...] = 1e-8

    wraps_optimizer: ClassVar[bool] = True
    shared_by_runs: ClassVar[tuple[str, ...]] = ("betas",)

    card: ClassVar[Card] = Card(
        "optimizers",
        "all weights and biases",
        "around every update",
        "two copies of the weights",
        "TRAC, NeurIPS 2024, Fast TRAC: a parameter-free optimizer for lifelong reinforcement learning",
    )

    def __post_init__(self) -> None:
        check_number(self, "initial_scale", _SMALLEST)
        check_number(self, "eps", _SMALLEST, single=True)
        check_number(self, "initial_sigma")
        check_betas(self, pair=False)
        self.runs()  # sequences of one length
        first = self._first_scales()
        if not bool((first <= _LARGEST_FIRST_SCALE).all()):
            raise ValueError(
                f"TRAC: initial_sigma must be at most some four eps, since h is 0 at the first update: S would be "
                f"{float(first.max()):.3g} there, and the step as many times as long as the optimizer's; got "
                f"initial_sigma={self.initial_sigma!r}, eps={self.eps!r}, initial_scale={self.initial_scale!r}."
            )

    def init(self, view: View) -> State:
        """The start of every weight, and sigma, v (*R, betas) and S (*R,) in float64."""
        shape = (*view.runs, len(self.betas))
        zeros = torch.zeros(shape, dtype=torch.float64, device=view.seeds.device)
        sigma = zeros + view.per_run(self.initial_sigma, zeros, axes=1)
        state: State = {"sigma": sigma, "variance": zeros, "total": zeros.sum(-1), "parameters": {}}
        for name, parameter in view.parameters.items():
            _kept(view, state, name, parameter)
        return state

    def transform_gradients(self, view: View, state: State) -> None:
        """Find h, and keep the weights from before the update."""
        inner = torch.zeros_like(state["total"])
        before: dict[str, Tensor] = {}
        for name, parameter in view.parameters.items():
            gradient = view.gradient(name)
            if gradient is None:
                continue
            kept = _kept(view, state, name, parameter)
            changed = parameter.detach() - _scaled(view, kept)
            for tensor in (kept["start"], kept["base"]):
                tensor.add_(changed)
            products = ((kept["base"] - kept["start"]) * gradient).flatten(len(view.runs))
            inner += products.sum(-1).to(torch.float64) * kept["scale"]
            before[name] = parameter.detach().clone()
        h = inner / (state["total"] + self.eps) / view.gradient_scale()
        state["pending"] = {"h": h, "before": before}

    def step(self, view: View, state: State) -> None:
        """Add the optimizer's step to the path, find the scales, and put the weights where they say."""
        pending: dict[str, Any] | None = state.pop("pending", None)
        if pending is None:
            return
        old = state["total"] + self.eps
        self._tune(view, state, pending["h"])
        for name, parameter in view.parameters.items():
            before = pending["before"].get(name)
            if before is None:
                continue
            kept = state["parameters"][name]
            start, base = kept["start"], kept["base"]
            shrunk = (base - start) * _like(view, kept["scale"] / old, base)
            base.copy_(start + (shrunk + (parameter.detach() - before)))
            kept["scale"].copy_(state["total"].clamp_min(0.0))
            parameter.copy_(_scaled(view, kept))

    def on_reset(self, view: View, state: State, region: Region) -> None:
        """A new element has learned nothing: it starts at its new value."""
        if region.name not in state["parameters"]:
            return
        kept, value = state["parameters"][region.name], view.tensor(region.name)
        before = state.get("pending", {}).get("before", {}).get(region.name)
        for tensor in (kept["start"], kept["base"], before):
            if tensor is not None:
                region.copy(value, tensor)

    def export(self, state: State) -> State:
        """Without what is kept between the two halves of an update."""
        return {key: value for key, value in state.items() if key != "pending"}

    def _first_scales(self) -> Tensor:
        """S after the first update of each run."""
        scale, sigma = (torch.tensor(each, dtype=torch.float64) for each in (self.initial_scale, self.initial_sigma))
        betas = torch.tensor(self.betas, dtype=torch.float64)
        return scale * erfi(sigma.unsqueeze(-1) * betas / self.eps).sum(-1) / _ERFI_OF_ROOT_HALF

    def _tune(self, view: View, state: State, h: Tensor) -> None:
        sigma, variance = state["sigma"], state["variance"]
        betas = torch.tensor(self.betas, dtype=torch.float64).to(sigma.device)
        variance.mul_(betas.square()).add_(h.square().unsqueeze(-1))
        sigma.mul_(betas).sub_(h.unsqueeze(-1))
        scales = erfi(sigma / ((2.0 * variance).sqrt() + self.eps)).sum(-1)
        first = view.per_run(self.initial_scale, scales, axes=0)
        state["total"].copy_(scales * first / _ERFI_OF_ROOT_HALF)


def erfi(x: Tensor) -> Tensor:
    r"""The imaginary error function \(\frac{2}{\sqrt\pi} \int_0^x e^{t^2} dt\), float64; beyond 26 as at 26.

    Rybicki's sum for Dawson's integral, times \(e^{x^2}\): with step \(\delta\),
    \(\frac{4}{\pi} \sum_{n\ \mathrm{odd}} e^{-n^2\delta^2} \sinh(2 n \delta x) / n\). All terms have one sign.
    """
    size = x.abs().clamp_max(_LARGEST).unsqueeze(-1)
    last = int((_LARGEST + 7.0) / _STEP)
    n = torch.arange(1, last, 2, dtype=torch.float64, device=x.device)
    place = n * _STEP
    terms = -torch.expm1(-4.0 * place * size) * torch.exp(place * (2.0 * size - place)) / n
    return x.sign() * (2.0 / math.pi) * terms.sum(-1)


_ERFI_OF_ROOT_HALF = float(erfi(torch.tensor(math.sqrt(0.5), dtype=torch.float64)))


def _kept(view: View, state: State, name: str, parameter: Tensor) -> dict[str, Tensor]:
    """Of one parameter: its start, the optimizer's path from there at full length, and S when it was last written."""

    def make() -> dict[str, Tensor]:
        start, scale = parameter.detach().clone(), torch.zeros_like(state["total"])
        return {"start": start, "base": start.clone(), "scale": scale}

    return slot(state, name, make)


def _scaled(view: View, kept: dict[str, Tensor]) -> Tensor:
    """The weights that the state says; the same bits each time, so that a change by others can be told."""
    return kept["start"] + (kept["base"] - kept["start"]) * _like(view, kept["scale"], kept["start"])


def _like(view: View, value: Tensor, parameter: Tensor) -> Tensor:
    """A number per run (*R,), to multiply a parameter with."""
    return value.to(parameter.dtype).reshape(view.runs + (1,) * view.axes(parameter))

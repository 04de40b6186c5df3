"""Naive continual backpropagation for chains with convolutions: conv -> (pool) -> conv or flatten -> linear -> out.

A unit of a convolution is an output channel. Its values h are read where the consumer reads them: after the activation
and the pooling. The equations are those of `cbp`, with these readings of h and of the weights:

- running mean of a unit (Eq. 3): mean over the batch and over the positions;
- incoming magnitude: mean |w| of the channel's whole filter;
- consumer linear behind a flatten: channel c owns the `positions` columns c * positions + p. The contribution is the
  mean over positions of (mean over the batch of |h_p - f-hat|) * (mean over outputs of |w_p|); f-hat is the channel's;
- consumer convolution: mean over batch and positions of |h - f-hat|, times the mean |w| over its outputs and taps;
- compensation: means are kept for every column that the consumer has: every position of a flattened channel, or every
  tap of a filter. A tap's mean is over the batch and the consumer's output positions of the zero-padded input under it,
  with the consumer's stride and padding. So the consumer's mean pre-activation stays as it was.

Nothing here runs a learner: `tick` takes activations and weights that another program computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from . import philox
from .cbp import Count, Distribution, Utility, choose_units, draw_incoming

Arrays = list[tuple[np.ndarray, np.ndarray]]  # a (weight, bias) pair for every layer


def conv2d(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, stride: int = 1, padding: int = 0) -> np.ndarray:
    """Cross-correlation: x (B, C, H, W), weight (K, C, kh, kw), bias (K,) to (B, K, H', W')."""
    windows = tap_inputs(x, weight.shape[2], weight.shape[3], stride, padding)  # (B, H', W', C, kh, kw)
    batch, height, width = windows.shape[:3]
    out = np.zeros((batch, len(weight), height, width))
    for k in range(len(weight)):
        for row in range(height):
            for column in range(width):
                out[:, k, row, column] = np.sum(windows[:, row, column] * weight[k], axis=(1, 2, 3)) + bias[k]
    return out


def pool2d(x: np.ndarray, kind: str, size: int, stride: int) -> np.ndarray:
    """Average or max pooling without padding: (B, C, H, W) to (B, C, H', W'); kind is "avg" or "max"."""
    reduce: Callable[..., np.ndarray] = {"avg": np.mean, "max": np.max}[kind]
    windows = tap_inputs(x, size, size, stride, 0)  # (B, H', W', C, size, size)
    return np.moveaxis(reduce(windows, axis=(4, 5)), 3, 1)


def tap_inputs(x: np.ndarray, kernel_height: int, kernel_width: int, stride: int, padding: int) -> np.ndarray:
    """The zero-padded input under every tap at every output position: (B, C, H, W) to (B, H', W', C, kh, kw)."""
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    height = (padded.shape[2] - kernel_height) // stride + 1
    width = (padded.shape[3] - kernel_width) // stride + 1
    windows = np.zeros((x.shape[0], height, width, x.shape[1], kernel_height, kernel_width))
    for row in range(height):
        for column in range(width):
            top, left = row * stride, column * stride
            windows[:, row, column] = padded[:, :, top : top + kernel_height, left : left + kernel_width]
    return windows


def values_by_position(h: np.ndarray) -> np.ndarray:
    """A layer's activations, (B, U) or (B, U, H, W), as (B, U, positions), positions in flatten's order."""
    return h.reshape(h.shape[0], h.shape[1], -1)


def consumed_columns(h: np.ndarray, consumer: np.ndarray, stride: int = 1, padding: int = 0) -> np.ndarray:
    """This batch's mean of every column that the consumer has for every unit: (U, columns).

    Columns are the positions for a linear consumer (one where nothing is flattened), the taps for a convolution.
    """
    if consumer.ndim == 2:
        return values_by_position(h).mean(axis=0)
    windows = tap_inputs(h, consumer.shape[2], consumer.shape[3], stride, padding)  # (B, H', W', U, kh, kw)
    return windows.mean(axis=(0, 1, 2)).reshape(h.shape[1], -1)


def outgoing_columns(consumer: np.ndarray, units: int) -> np.ndarray:
    """The consumer's weights, (K, U * columns) or (K, U, kh, kw), as (K, U, columns)."""
    return consumer.reshape(consumer.shape[0], units, -1)


def step_utilities(
    h: np.ndarray, mean_hat: np.ndarray, incoming: np.ndarray, consumer: np.ndarray, utility: Utility
) -> np.ndarray:
    """The utility of this step alone, for every unit of a layer: (U,)."""
    values = values_by_position(h)  # (B, U, positions)
    result = np.zeros(len(incoming))
    for c in range(len(incoming)):
        out_mag = np.mean(np.abs(outgoing_columns(consumer, len(incoming))[:, c]), axis=0)  # (columns,)
        if consumer.ndim == 4:
            out_mag = np.full(values.shape[2], np.mean(out_mag))  # every position meets every tap
        in_mag = float(np.mean(np.abs(incoming[c])))
        if in_mag == 0.0 and utility in ("overall", "adaptation"):
            continue  # a constant unit has no utility
        magnitude = np.mean(np.abs(values[:, c]), axis=0)  # (positions,)
        centred = np.mean(np.abs(values[:, c] - mean_hat[c]), axis=0)  # (positions,)
        if utility == "overall":
            result[c] = np.mean(centred * out_mag) / in_mag
        elif utility == "mean_corrected_contribution":
            result[c] = np.mean(centred * out_mag)
        elif utility == "contribution":
            result[c] = np.mean(magnitude * out_mag)
        elif utility == "adaptation":
            result[c] = 1.0 / in_mag
        elif utility == "weight_magnitude":
            result[c] = np.mean(out_mag)
        else:
            raise ValueError(f"expected a utility of the paper other than 'random', got {utility!r}")
    return result


@dataclass
class Statistics:
    """What is remembered of one hidden layer; `mean_hat`, `column_mean_hat` and `score` belong to the last measure."""

    age: np.ndarray  # (U,)
    mean: np.ndarray  # (U,) f
    mean_hat: np.ndarray  # (U,) f-hat
    column_mean: np.ndarray  # (U, columns) f of every consumed column
    column_mean_hat: np.ndarray  # (U, columns)
    utility: np.ndarray  # (U,) u
    score: np.ndarray  # (U,) what units are ranked by
    accumulator: float

    @classmethod
    def start(cls, units: int, columns: int) -> Statistics:
        """Statistics of a layer before its first step."""
        return cls(
            age=np.zeros(units, dtype=np.int64),
            mean=np.zeros(units),
            mean_hat=np.zeros(units),
            column_mean=np.zeros((units, columns)),
            column_mean_hat=np.zeros((units, columns)),
            utility=np.zeros(units),
            score=np.zeros(units),
            accumulator=0.0,
        )


def measure(
    statistics: Statistics,
    h: np.ndarray,
    incoming: np.ndarray,
    consumer: np.ndarray,
    *,
    decay_rate: float,
    utility: Utility,
    stride: int = 1,
    padding: int = 0,
    draws: np.ndarray | None = None,
) -> Statistics:
    """One step's statistics of a hidden layer.

    Args:
        statistics: those of the step before; not changed.
        h: activations as the consumer reads them, (B, U) or (B, U, H, W), from before the update.
        incoming: the layer's own weights after the update, (U, in) or (U, in, kh, kw).
        consumer: the next layer's weights after the update, (K, U * positions) or (K, U, kh, kw).
        decay_rate: eta.
        utility: which one; "random" ranks by `draws` (U,).
        stride: of the consumer, if it is a convolution.
        padding: of the consumer, if it is a convolution.
    """
    eta = decay_rate
    age = statistics.age + 1
    mean = np.zeros(len(age))
    mean_hat = np.zeros(len(age))
    column_mean = np.zeros_like(statistics.column_mean)
    column_mean_hat = np.zeros_like(statistics.column_mean)
    batch_columns = consumed_columns(h, consumer, stride, padding)
    for c in range(len(age)):
        correction = 1.0 - eta ** int(age[c])
        mean[c] = eta * statistics.mean[c] + (1 - eta) * np.mean(values_by_position(h)[:, c])  # Eq. 3
        mean_hat[c] = mean[c] / correction  # Eq. 4
        column_mean[c] = eta * statistics.column_mean[c] + (1 - eta) * batch_columns[c]
        column_mean_hat[c] = column_mean[c] / correction
    if utility == "random":
        if draws is None:
            raise ValueError("utility 'random' needs draws, one uniform number for every unit")
        running, score = statistics.utility.copy(), np.array(draws)
    else:
        y = step_utilities(h, mean_hat, incoming, consumer, utility)
        running = eta * statistics.utility + (1 - eta) * y  # Eqs. 2, 5, 7
        score = np.array([running[c] / (1.0 - eta ** int(age[c])) for c in range(len(age))])  # Eq. 8
    return Statistics(age, mean, mean_hat, column_mean, column_mean_hat, running, score, statistics.accumulator)


def compensation(statistics: Statistics, units: Sequence[int], consumer: np.ndarray) -> np.ndarray:
    """What the consumer's bias gains (K,) when the units' outgoing weights, still in place, become zero."""
    outgoing = outgoing_columns(consumer, len(statistics.age))
    gain = np.zeros(len(consumer))
    for c in units:
        for column in range(outgoing.shape[2]):
            gain += statistics.column_mean_hat[c, column] * outgoing[:, c, column]
    return gain


def clear_outgoing(consumer: np.ndarray, units: Sequence[int], layer_units: int) -> None:
    """Zero, in place, the columns (or filter slices) that the units own in a consumer's weight or moment array."""
    columns = consumer.size // (len(consumer) * layer_units)
    for c in units:
        if consumer.ndim == 2:
            consumer[:, c * columns : (c + 1) * columns] = 0.0
        else:
            consumer[:, c] = 0.0


def forget(statistics: Statistics, units: Sequence[int]) -> None:
    """Zero, in place, everything remembered of replaced units; the last measure's hats stay as a record."""
    for c in units:
        statistics.age[c] = 0
        statistics.mean[c] = 0.0
        statistics.column_mean[c] = 0.0
        statistics.utility[c] = 0.0


class NaiveConvCBP:
    """Selective reinitialization alone, for a chain whose learner lives elsewhere; one `tick` after every update.

    Attributes:
        ticks: how many ticks were taken; the first one's draws have step number 1.
        statistics: one `Statistics` for each hidden layer, None before the first tick.
        replaced: for each tick the list of (layer name, unit), layers forward, lowest score first.
    """

    def __init__(
        self,
        *,
        layer_names: Sequence[str],
        scales: Sequence[float],
        strides: Sequence[int] | None = None,
        paddings: Sequence[int] | None = None,
        distribution: Distribution = "uniform",
        seed: int = 0,
        replacement_rate: float = 1e-4,
        decay_rate: float = 0.99,
        maturity_threshold: int = 100,
        utility: Utility = "overall",
        count: Count = "eligible",
        compensate: bool = True,
    ) -> None:
        """
        Args:
            layer_names: a name for every layer, the output layer included.
            scales: for each hidden layer the bound (uniform) or the standard deviation (normal) of new weights.
            strides: for each layer its convolution's stride; 1 everywhere if left out, unused by linear layers.
            paddings: for each layer its convolution's zero padding; 0 everywhere if left out.
        """
        self.layer_names = list(layer_names)
        self.scales = list(scales)
        self.strides = list(strides) if strides is not None else [1] * len(layer_names)
        self.paddings = list(paddings) if paddings is not None else [0] * len(layer_names)
        self.distribution: Distribution = distribution
        self.seed = seed
        self.replacement_rate = replacement_rate
        self.decay_rate = decay_rate
        self.maturity_threshold = maturity_threshold
        self.utility_name: Utility = utility
        self.count: Count = count
        self.compensate = compensate
        self.ticks = 0
        self.statistics: list[Statistics] | None = None
        self.replaced: list[list[tuple[str, int]]] = []

    def tick(
        self, hidden: Sequence[np.ndarray], layers: Arrays, moments: Sequence[Arrays] = ()
    ) -> list[tuple[str, int]]:
        """Measure every hidden layer, then reset in forward order; changes `layers` and `moments` in place.

        Args:
            hidden: for each hidden layer its activations as its consumer reads them, (B, U) or (B, U, H, W).
            layers: every layer's (weight, bias) after the update, the output layer's included.
            moments: any number of optimizer states, each shaped like `layers`, whose initial value is zero.

        Returns:
            This tick's replaced (layer name, unit).
        """
        self.ticks += 1
        if self.statistics is None:
            self.statistics = [
                Statistics.start(len(layers[i][0]), outgoing_columns(layers[i + 1][0], len(layers[i][0])).shape[2])
                for i in range(len(hidden))
            ]
        for i, h in enumerate(hidden):
            units = len(layers[i][0])
            self.statistics[i] = measure(
                self.statistics[i],
                h,
                layers[i][0],
                layers[i + 1][0],
                decay_rate=self.decay_rate,
                utility=self.utility_name,
                stride=self.strides[i + 1],
                padding=self.paddings[i + 1],
                draws=philox.uniform(self.seed, self.ticks, f"{self.layer_names[i]}/utility", 0, units),
            )
        replaced: list[tuple[str, int]] = []
        for i in range(len(hidden)):
            units = self._reset(i, self.statistics[i], layers, moments)
            replaced.extend((self.layer_names[i], unit) for unit in units)
        self.replaced.append(replaced)
        return replaced

    def _reset(self, layer: int, statistics: Statistics, layers: Arrays, moments: Sequence[Arrays]) -> list[int]:
        weight, bias = layers[layer]
        next_weight, next_bias = layers[layer + 1]
        units, statistics.accumulator = choose_units(
            statistics.score,
            statistics.age,
            statistics.accumulator,
            replacement_rate=self.replacement_rate,
            maturity_threshold=self.maturity_threshold,
            count=self.count,
        )
        if self.compensate:
            next_bias += compensation(statistics, units, next_weight)
        clear_outgoing(next_weight, units, len(weight))
        for c in units:
            fresh = draw_incoming(
                self.seed,
                self.ticks,
                self.layer_names[layer],
                c,
                weight[c].size,
                self.scales[layer],
                self.distribution,
            )
            weight[c] = fresh.reshape(weight[c].shape)
            bias[c] = 0.0
        for moment in moments:
            moment[layer][0][units] = 0.0
            moment[layer][1][units] = 0.0
            clear_outgoing(moment[layer + 1][0], units, len(weight))
        forget(statistics, units)
        return units

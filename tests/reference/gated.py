"""Naive continual backpropagation on an LSTM or GRU layer with a linear head on the last step.

A unit is a hidden feature over all gates (torch's order: i, f, g, o of an LSTM; r, z, n of a GRU). Equations 3 to 8 of
`cbp.py`, with

- h of (3), (5), (6): the unit's hidden states at all steps of all examples;
- outgoing weights: column i of the recurrent weight and of the head; incoming: its rows of both weights, all gates;
- compensation: the head's bias gets the mean of h at the last step times the head's column, the recurrent bias the mean
  of h one step before (the initial state included) times the recurrent column.

A replaced unit has new rows, zero biases in all gates, and zero columns; where its row meets its column, zero.
"""

from __future__ import annotations

import math

import numpy as np

from . import cbp, philox


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


class NaiveGatedCBP:
    """A learner on sequences x (T, B, inputs) with initial hidden states (B, H); cell states start at zero.

    Attributes:
        weights: parameters by torch's names, changed in place.
        momentum: of SGD, by the same names.
        replaced: for each tick the units replaced, lowest score first.
    """

    def __init__(
        self,
        kind: str,
        weights: dict[str, np.ndarray],
        *,
        seed: int,
        step_size: float,
        momentum: float,
        replacement_rate: float,
        maturity_threshold: int,
        decay_rate: float,
    ) -> None:
        self.kind = kind
        self.weights = {name: np.array(value, dtype=np.float64) for name, value in weights.items()}
        self.momentum = {name: np.zeros_like(value) for name, value in self.weights.items()}
        self.units = self.weights["rnn.weight_hh_l0"].shape[1]
        self.gates = {"LSTM": 4, "GRU": 3}[kind]
        self.seed, self.step_size, self.momentum_rate = seed, step_size, momentum
        self.replacement_rate, self.maturity_threshold = replacement_rate, maturity_threshold
        self.decay_rate = decay_rate
        self.ticks = 0
        self.accumulator = 0.0
        self.age = np.zeros(self.units, dtype=np.int64)
        self.mean = np.zeros(self.units)  # of h
        self.mean_before = np.zeros(self.units)  # of what the recurrent weight sees
        self.mean_last = np.zeros(self.units)  # of what the head sees
        self.utility = np.zeros(self.units)
        self.score = np.zeros(self.units)
        self.replaced: list[list[int]] = []

    def step(self, x: np.ndarray, start: np.ndarray, target: np.ndarray) -> float:
        """One update and one pass of the inner loop; returns the loss from before the update."""
        self.ticks += 1
        states = [start]
        cells = [np.zeros_like(start)]
        caches: list[tuple[np.ndarray, ...]] = []
        for at_t in x:
            h, c, cache = self._forward(at_t, states[-1], cells[-1])
            states.append(h)
            cells.append(c)
            caches.append(cache)
        output = states[-1] @ self.weights["head.weight"].T + self.weights["head.bias"]
        loss = float(np.mean((output - target) ** 2))
        gradients = self._backward(x, states, cells, caches, 2.0 * (output - target) / output.size)
        for name, gradient in gradients.items():
            self.momentum[name] = self.momentum_rate * self.momentum[name] + gradient
            self.weights[name] -= self.step_size * self.momentum[name]
        self._measure(states)
        units, self.accumulator = cbp.choose_units(
            self.score,
            self.age,
            self.accumulator,
            replacement_rate=self.replacement_rate,
            maturity_threshold=self.maturity_threshold,
            count="eligible",
        )
        self._reset(units)
        self.replaced.append(units)
        return loss

    def _forward(
        self, x: np.ndarray, h: np.ndarray, c: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...]]:
        w = self.weights
        from_x = np.split(x @ w["rnn.weight_ih_l0"].T + w["rnn.bias_ih_l0"], self.gates, axis=1)
        from_h = np.split(h @ w["rnn.weight_hh_l0"].T + w["rnn.bias_hh_l0"], self.gates, axis=1)
        if self.kind == "LSTM":
            i, f, o = (sigmoid(from_x[k] + from_h[k]) for k in (0, 1, 3))
            g = np.tanh(from_x[2] + from_h[2])
            c = f * c + i * g
            return o * np.tanh(c), c, (i, f, g, o)
        r, z = (sigmoid(from_x[k] + from_h[k]) for k in (0, 1))
        n = np.tanh(from_x[2] + r * from_h[2])
        return (1.0 - z) * n + z * h, c, (r, z, n, from_h[2])

    def _backward(
        self,
        x: np.ndarray,
        states: list[np.ndarray],
        cells: list[np.ndarray],
        caches: list[tuple[np.ndarray, ...]],
        by_output: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Backpropagation through time, gate by gate."""
        w = self.weights
        gradients = {name: np.zeros_like(value) for name, value in w.items()}
        gradients["head.weight"] += by_output.T @ states[-1]
        gradients["head.bias"] += by_output.sum(0)
        by_h = by_output @ w["head.weight"]
        by_c = np.zeros_like(by_h)
        for t in range(len(x) - 1, -1, -1):
            before = states[t]
            if self.kind == "LSTM":
                i, f, g, o = caches[t]
                squashed = np.tanh(cells[t + 1])
                by_c = by_c + by_h * o * (1.0 - squashed**2)
                parts = [
                    by_c * g * i * (1.0 - i),
                    by_c * cells[t] * f * (1.0 - f),
                    by_c * i * (1.0 - g**2),
                    by_h * squashed * o * (1.0 - o),
                ]
                by_x_side = by_h_side = np.concatenate(parts, axis=1)
                by_c = by_c * f
                carried = np.zeros_like(by_h)
            else:
                r, z, n, recurrent = caches[t]
                by_n = by_h * (1.0 - z) * (1.0 - n**2)
                by_r = by_n * recurrent * r * (1.0 - r)
                by_z = by_h * (before - n) * z * (1.0 - z)
                by_x_side = np.concatenate([by_r, by_z, by_n], axis=1)
                by_h_side = np.concatenate([by_r, by_z, by_n * r], axis=1)
                carried = by_h * z
            gradients["rnn.weight_ih_l0"] += by_x_side.T @ x[t]
            gradients["rnn.bias_ih_l0"] += by_x_side.sum(0)
            gradients["rnn.weight_hh_l0"] += by_h_side.T @ before
            gradients["rnn.bias_hh_l0"] += by_h_side.sum(0)
            by_h = carried + by_h_side @ w["rnn.weight_hh_l0"]
        return gradients

    def _rows(self, unit: int) -> list[int]:
        return [unit + gate * self.units for gate in range(self.gates)]

    def _measure(self, states: list[np.ndarray]) -> None:
        eta, w = self.decay_rate, self.weights
        after, before = np.concatenate(states[1:]), np.concatenate(states[:-1])
        for i in range(self.units):
            self.age[i] += 1
            correction = 1.0 - eta ** int(self.age[i])
            self.mean[i] = eta * self.mean[i] + (1 - eta) * np.mean(after[:, i])
            self.mean_before[i] = eta * self.mean_before[i] + (1 - eta) * np.mean(before[:, i])
            self.mean_last[i] = eta * self.mean_last[i] + (1 - eta) * np.mean(states[-1][:, i])
            outgoing = np.concatenate([w["head.weight"][:, i], w["rnn.weight_hh_l0"][:, i]])
            rows = self._rows(i)
            incoming = np.concatenate([w["rnn.weight_ih_l0"][rows].ravel(), w["rnn.weight_hh_l0"][rows].ravel()])
            y = cbp.step_utility(
                "overall",
                magnitude=0.0,
                centred=float(np.mean(np.abs(after[:, i] - self.mean[i] / correction))),
                out_mag=float(np.mean(np.abs(outgoing))),
                in_mag=float(np.mean(np.abs(incoming))),
            )
            self.utility[i] = eta * self.utility[i] + (1 - eta) * y
            self.score[i] = self.utility[i] / correction

    def _reset(self, units: list[int]) -> None:
        w = self.weights
        for i in units:
            correction = 1.0 - self.decay_rate ** int(self.age[i])
            w["head.bias"] += self.mean_last[i] / correction * w["head.weight"][:, i]
            w["rnn.bias_hh_l0"] += self.mean_before[i] / correction * w["rnn.weight_hh_l0"][:, i]
        scale = 1.0 / math.sqrt(self.units)
        for i in units:
            for row in self._rows(i):
                for kind in ("ih", "hh"):
                    name = f"rnn.weight_{kind}_l0"
                    numbers = philox.uniform(self.seed, self.ticks, name, row, w[name].shape[1])
                    w[name][row] = scale * (2.0 * numbers - 1.0)
                    w[f"rnn.bias_{kind}_l0"][row] = 0.0
                    self.momentum[name][row] = 0.0
                    self.momentum[f"rnn.bias_{kind}_l0"][row] = 0.0
            self.age[i] = 0
            self.mean[i] = self.mean_before[i] = self.mean_last[i] = self.utility[i] = 0.0
        for i in units:  # after all rows: outgoing weights of a new unit are zero, also to itself
            for name in ("head.weight", "rnn.weight_hh_l0"):
                w[name][:, i] = 0.0
                self.momentum[name][:, i] = 0.0

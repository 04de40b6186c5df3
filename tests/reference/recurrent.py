"""Naive continual backpropagation on a recurrence that is written with linear layers, each called once per time step.

    h_t = tanh(ih(x_t) + hh(h_(t-1))),  h_0 = 0,  y = out(h_T)

Unit i is row i of `ih` and row i of `hh`; column i of `hh` and column i of `out` read it. The equations are those of
`cbp`, with these readings:

- f (Eq. 3) and |h - f-hat| are means over the batch and over all calls of `hh`: h_0 (which is 0) to h_(T-1);
- outgoing weights are those of both columns together, incoming weights those of both rows together, each as a mean;
- compensation: `hh` reads f-hat, and its bias gets the share once; `out` reads h_T, of which it has its own mean;
- a weight of `hh` from one replaced unit to another, or to itself, is an outgoing weight of that unit: it is 0.
"""

from __future__ import annotations

import numpy as np

from .cbp import choose_units, draw_incoming

Pair = list[np.ndarray]  # weight, bias


class NaiveRecurrentCBP:
    """A learner: `step` is one update on a batch of sequences, with SGD and momentum, then the replacement of units.

    Attributes:
        layers: "ih", "hh" and "out", each a weight and a bias, changed in place.
        buffers: the momentum of each, in the same shapes.
        age, mean, out_mean, utility: arrays (U,) of the equations.
        replaced: for each tick the list of units, lowest score first.
    """

    def __init__(
        self,
        layers: dict[str, Pair],
        *,
        seed: int,
        step_size: float,
        momentum: float,
        replacement_rate: float,
        maturity_threshold: int,
        decay_rate: float,
    ) -> None:
        self.layers = {name: [np.array(part, dtype=np.float64) for part in pair] for name, pair in layers.items()}
        self.buffers = {name: [np.zeros_like(part) for part in pair] for name, pair in self.layers.items()}
        self.seed, self.step_size, self.momentum = seed, step_size, momentum
        self.replacement_rate, self.maturity_threshold = replacement_rate, maturity_threshold
        self.decay_rate = decay_rate
        units = len(self.layers["ih"][1])
        self.age = np.zeros(units, dtype=np.int64)
        self.mean, self.out_mean, self.utility = np.zeros(units), np.zeros(units), np.zeros(units)
        self.ticks, self.accumulator = 0, 0.0
        self.replaced: list[list[int]] = []

    def step(self, x: np.ndarray, target: np.ndarray) -> None:
        """Learn from sequences x (B, T, in) and targets (B, out), then replace units."""
        self.ticks += 1
        states = self._learn(x, target)
        self._replace(states)

    def _learn(self, x: np.ndarray, target: np.ndarray) -> list[np.ndarray]:
        """Backpropagation through time of 0.5 * |y - target|^2, mean over the batch; returns h_0 .. h_T."""
        (ih, ih_bias), (hh, hh_bias), (out, out_bias) = (self.layers[name] for name in ("ih", "hh", "out"))
        states = [np.zeros((len(x), len(ih)))]
        for t in range(x.shape[1]):
            states.append(np.tanh(x[:, t] @ ih.T + ih_bias + states[-1] @ hh.T + hh_bias))
        error = (states[-1] @ out.T + out_bias - target) / len(x)
        gradients = {name: [np.zeros_like(part) for part in pair] for name, pair in self.layers.items()}
        gradients["out"] = [error.T @ states[-1], error.sum(0)]
        back = error @ out
        for t in reversed(range(x.shape[1])):
            back = back * (1.0 - states[t + 1] ** 2)  # with respect to the pre-activation
            for name, given in (("ih", x[:, t]), ("hh", states[t])):
                gradients[name][0] += back.T @ given
                gradients[name][1] += back.sum(0)
            back = back @ hh
        for name, pair in gradients.items():
            for part in (0, 1):
                buffer = self.buffers[name][part]
                buffer[...] = self.momentum * buffer + pair[part]
                self.layers[name][part] -= self.step_size * buffer
        return states

    def _replace(self, states: list[np.ndarray]) -> None:
        ih, hh, out = (self.layers[name][0] for name in ("ih", "hh", "out"))
        eta, read = self.decay_rate, np.concatenate(states[:-1])  # all that `hh` was given, (T * B, U)
        units = len(ih)
        correction, score = np.zeros(units), np.zeros(units)
        for i in range(units):
            self.age[i] += 1
            correction[i] = 1.0 - eta ** int(self.age[i])
            self.mean[i] = eta * self.mean[i] + (1 - eta) * read[:, i].mean()
            self.out_mean[i] = eta * self.out_mean[i] + (1 - eta) * states[-1][:, i].mean()
            centred = np.abs(read[:, i] - self.mean[i] / correction[i]).mean()
            outgoing = np.abs(np.concatenate([hh[:, i], out[:, i]])).mean()
            incoming = np.abs(np.concatenate([ih[i], hh[i]])).mean()
            self.utility[i] = eta * self.utility[i] + (1 - eta) * centred * outgoing / incoming
            score[i] = self.utility[i] / correction[i]
        chosen, self.accumulator = choose_units(
            score,
            self.age,
            self.accumulator,
            replacement_rate=self.replacement_rate,
            maturity_threshold=self.maturity_threshold,
            count="eligible",
        )
        for i in chosen:
            self.layers["hh"][1] += self.mean[i] / correction[i] * hh[:, i]
            self.layers["out"][1] += self.out_mean[i] / correction[i] * out[:, i]
        for i in chosen:
            for name, weight in (("ih", ih), ("hh", hh)):
                columns = weight.shape[1]
                bound = 1.0 / np.sqrt(columns)
                weight[i] = draw_incoming(self.seed, self.ticks, name, i, columns, bound, "uniform")
                self.layers[name][1][i] = 0.0
                self.buffers[name][0][i], self.buffers[name][1][i] = 0.0, 0.0
            for statistic in (self.age, self.mean, self.out_mean, self.utility):
                statistic[i] = 0
        for name in ("hh", "out"):
            self.layers[name][0][:, chosen] = 0.0
            self.buffers[name][0][:, chosen] = 0.0
        self.replaced.append(chosen)

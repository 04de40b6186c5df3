"""Models around LSTM, GRU, RNN and their cells."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence


class Tagger(nn.Module):
    """A linear layer, a recurrent one (2 features in, batch first), a hidden and an output layer on every step.

    Args:
        kind: "LSTM", "GRU" or "RNN".
        options: of that class.
    """

    def __init__(self, kind: str = "LSTM", **options: Any) -> None:
        super().__init__()
        self.before = nn.Linear(2, 5)
        self.rnn = getattr(nn, kind)(5, 4, batch_first=True, **options)
        self.hidden = nn.Linear(8 if options.get("bidirectional") else 4, 3)
        self.head = nn.Linear(3, 2)

    def after(self, states: Tensor) -> Tensor:
        return self.head(F.relu(self.hidden(states)))

    def forward(self, x: Tensor) -> Any:
        states, _ = self.rnn(F.relu(self.before(x)))
        return self.after(states)


class Classifier(Tagger):
    """The final state of sequences of different lengths."""

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        assert lengths is not None
        packed = pack_padded_sequence(F.relu(self.before(x)), lengths, batch_first=True, enforce_sorted=False)
        final = self.rnn(packed)[1]
        final = final[0] if isinstance(final, tuple) else final
        return self.after(torch.cat([final[-2], final[-1]], -1) if self.rnn.bidirectional else final[-1])


class Carrying(Tagger):
    """Takes and returns the state."""

    def forward(self, x: Tensor, state: Any = None) -> Any:
        states, state = self.rnn(F.relu(self.before(x)), state)
        return self.after(states), state


class AllStates(Tagger):
    """The final states of all layers."""

    def forward(self, x: Tensor) -> Tensor:
        final = self.rnn(F.relu(self.before(x)))[1]
        return self.after(final.sum(0))


class Mixed(Tagger):
    """Hidden features meet after the layer."""

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(F.relu(self.before(x)))
        return self.after(states.cumsum(-1))


class Translator(nn.Module):
    """The encoder's final state starts the decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.GRU(2, 4, batch_first=True), nn.GRU(2, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.decoder(x, self.encoder(x)[1])[0])


class Cells(nn.Module):
    """A cell in a loop over time; with `rolled`, its state moves to the next feature between two steps."""

    def __init__(self, kind: str, rolled: bool = False) -> None:
        super().__init__()
        self.before, self.rolled = nn.Linear(2, 5), rolled
        self.cell, self.head = getattr(nn, kind)(5, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        inputs = F.relu(self.before(x))
        state: Any = None
        for t in range(x.shape[1]):
            state = self.cell(inputs[:, t], state)
            if self.rolled:
                state = state.roll(1, -1)
        return self.head(state[0] if isinstance(state, tuple) else state)

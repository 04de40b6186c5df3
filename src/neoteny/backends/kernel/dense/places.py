"""Rows of the array that says where everything lies, (rows, layers), uint64; the compiled functions look them up.

Reading an array out of a tuple counts references, which costs time in a loop and when it is compiled: so it is one.
"""

from __future__ import annotations

INPUTS, OUTPUTS, STRIDE, WEIGHT, BIAS, GAIN, OFFSET, UNIT, PURPOSES = range(9)
"""Of every linear layer: its inputs (features) and outputs (units), the latter padded, the offsets in a run's
parameters of the matrix (inputs, stride), of the bias and of the layer norm's gain and offset (0 without), the offset
of its units in a run's statistics, and the codes of draws.

There are twelve of the last: new units, random utility, redrawn weights, their number, then four of noise after the
update and four of noise within it (weight, bias, gain, offset)."""

"""The working memory of a block of threads: every array's place, in shared memory as far as it goes.

Before this: `dense.terms` and `dense.pack`; after it: `source`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from neoteny.backends.kernel.dense.pack import DensePacked
from neoteny.backends.kernel.dense.places import INPUTS, OUTPUTS, STRIDE
from neoteny.backends.kernel.dense.terms import ADAM, REINIT, REPLACE, UPGD

_ALIGNED = 16
_SCRATCH = 1024  # of sums over a block: a number and an index for each of 32 warps


@dataclass
class Memory:
    """Where arrays lie, in bytes: from 0 on in shared memory, -1 - place in memory of the run outside.

    Attributes:
        room: bytes of shared memory that may be used.
        places: of every array by name; a list has one per layer.
        inside, outside: bytes used.
    """

    room: int
    places: dict[str, int | list[int]] = field(default_factory=dict)
    inside: int = 0
    outside: int = 0

    def add(self, name: str, size: int) -> None:
        """Find a place for an array of `size` bytes."""
        self.places[name] = self._place(size)

    def add_layers(self, name: str, sizes: Sequence[int]) -> None:
        """Find places for one array per layer; a layer of size 0 has none."""
        self.places[name] = [self._place(size) if size else 0 for size in sizes]

    def _place(self, size: int) -> int:
        size = -(-size // _ALIGNED) * _ALIGNED
        if self.inside + size <= self.room:
            self.inside += size
            return self.inside - size
        self.outside += size
        return -1 - (self.outside - size)


def tile_of(batch: int) -> int:
    """Examples that a thread sums up at once."""
    return 1 if batch == 1 else 4 if batch <= 4 else 8


def padded(batch: int) -> int:
    """A batch as whole tiles."""
    return -(-batch // tile_of(batch)) * tile_of(batch)


def plan_memory(packed: DensePacked, room: int) -> Memory:
    """The places of all arrays of a learner; what is used most comes first."""
    options, item = packed.options, packed.dtype.itemsize
    layers = range(options.hidden + 1)
    inputs, outputs, strides = (packed.shape[row].tolist() for row in (INPUTS, OUTPUTS, STRIDE))
    batch, wide, units = options.batch, padded(options.batch), packed.tensors.since.shape[1]
    features = [count * wide * item for count in inputs]
    rows = [wide * (stride * item + _ALIGNED) for stride in strides]  # a row apart by one vector: other banks
    hidden_rows = [rows[layer] if options.norm and layer < options.hidden else 0 for layer in layers]
    memory = Memory(room)
    memory.add("SCRATCH", _SCRATCH)
    memory.add("PLACE", 2 * inputs[0])
    memory.add("LEVELS", 256 * item)
    memory.add("EXAMPLE", 4 * batch)
    memory.add("LOSS", 2 * 8 * batch)
    memory.add("PLACES", 4 * (options.hidden + 1))
    memory.add("DUE", 4)
    corrected = options.optimizer >= ADAM
    for name, size in (("POWER1", 8), ("POWER2", 8), ("SCALE1", item), ("SCALE2", item)):
        memory.add(name, size * (units + 1) if corrected else 0)
    memory.add_layers("VECTORS", [3 * stride * item for stride in strides])
    memory.add_layers("X", features)
    memory.add_layers("Z", rows)
    memory.add_layers("SLOPE", [0, *features[1:]])
    memory.add_layers("ROOT", [batch * item if size else 0 for size in hidden_rows])
    memory.add_layers("NORMED", hidden_rows)
    renews = options.rewrites_units
    scaled = options.optimizer == UPGD
    memory.add_layers("LENGTH", [(stride + 4) * item if scaled else 0 for stride in strides])
    memory.add_layers("IN", [stride * item if renews else 0 for stride in strides])
    memory.add_layers("OUT", [0, *(count * item if REPLACE in options.after else 0 for count in inputs[1:])])
    most = max(outputs)
    memory.add("SCORE", most * item if renews else 0)
    memory.add("ACTIVITY", 8 * most if renews else 0)
    memory.add("MARK", 4 * units if renews else 0)
    memory.add("CHOSEN", 4 * units if renews else 0)
    memory.add("TIES", 4 * most if REINIT in options.after else 0)
    return memory

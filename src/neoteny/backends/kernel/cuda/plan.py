"""The plan of the CUDA kernel for one learner: threads and blocks of a run, and where everything lies in memory.

A team of threads trains a run: a warp for tiny networks, one block, or a cluster of blocks for large ones. All of it
follows from the network, its options and the type of its numbers, never from the number of runs.

Before this: `kernel.options` and `kernel.pack`; after it: `source`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from neoteny.backends.kernel.options import Options, weight_count
from neoteny.backends.kernel.pack import Layout

_RESERVED = 1024  # bytes of shared memory that the driver takes from each block
_TINY_WEIGHTS = 2048
_MEDIUM_WEIGHTS, _LARGE_WEIGHTS, _HUGE_WEIGHTS = 50_000, 250_000, 1_000_000
_MOST_BLOCKS = 8  # of a cluster, on every device that has them


@dataclass(frozen=True)
class Device:
    """What a GPU has room for.

    Attributes:
        block_bytes: shared memory of one block at most.
        multiprocessor_bytes: shared memory of all blocks on a multiprocessor.
        clusters: whether blocks can form clusters (compute capability 9 and up).
    """

    block_bytes: int = 227 * 1024
    multiprocessor_bytes: int = 228 * 1024
    clusters: bool = True


HOPPER = Device()


@dataclass(frozen=True)
class Team:
    """The threads of a run.

    Attributes:
        threads: of each block that belong to the run.
        blocks: of a run's cluster.
        teams: runs in one block.
        in_flight: 16-byte reads that each thread has under way in registers.
        stages: rows that each group of threads has under way to shared memory instead; 0: none.
        blocks_per_multiprocessor: for the compiler's choice of registers.
        keeps: whether a cluster's blocks keep their matrices in shared memory where they fit, as a block alone does.
    """

    threads: int
    blocks: int = 1
    teams: int = 1
    in_flight: int = 8
    blocks_per_multiprocessor: int = 1
    stages: int = 0
    keeps: bool = False

    def vector(self, item: int) -> int:
        """Numbers that a thread reads at once."""
        return 1 if self.threads == 32 else 16 // item

    @staticmethod
    def of(options: Options, device: Device = HOPPER) -> Team:
        """The team for a network."""
        weights, widths = weight_count(options.widths), options.widths
        if weights <= _TINY_WEIGHTS and max(widths) <= 128:
            return Team(32, teams=4, blocks_per_multiprocessor=8)
        if device.clusters and weights > _LARGE_WEIGHTS and options.hidden > 0 and min(widths[1:-1]) > 16:
            # The sums of |w| take registers: rows under way wait in shared memory instead.
            stages = 3 if options.replaces and options.optimizer == 0 else 0
            return Team(512, blocks=4 if weights > _HUGE_WEIGHTS else 2, stages=stages)
        if device.clusters and weights > _MEDIUM_WEIGHTS and options.dense and options.hidden > 0:
            # All weights and moments change at every update: together, the blocks have room for them.
            side_by_side = 1 if options.optimizer else 2
            blocks = _most_blocks(options)
            return Team(256, blocks=blocks, blocks_per_multiprocessor=side_by_side, keeps=True)
        return Team(256, blocks_per_multiprocessor=2)


@dataclass
class Memory:
    """A stretch of bytes that is handed out piece by piece, each aligned for vector operations."""

    size: int = 0
    offsets: dict[str, list[int]] = field(default_factory=dict)

    def take(self, name: str, sizes: Sequence[int]) -> None:
        """Room for one array per layer; no bytes: offset -1."""
        places = self.offsets.setdefault(name, [])
        for size in sizes:
            places.append(self.size if size > 0 else -1)
            self.size += -(-size // 16) * 16


@dataclass(frozen=True)
class Plan:
    """The plan of the kernel for one learner.

    Attributes:
        own: columns of each layer that a block owns.
        workspace: working memory of a block, `exchange`: what the blocks of a run share.
        workspace_inside: whether the workspace is in shared memory.
    """

    team: Team
    own: tuple[int, ...]
    workspace: Memory
    exchange: Memory
    workspace_inside: bool

    @property
    def shared_bytes(self) -> int:
        """Shared memory of one block."""
        return self.workspace.size * self.team.teams if self.workspace_inside else 0

    @staticmethod
    def of(options: Options, item: int, dense: bool, team: Team, device: Device = HOPPER) -> Plan:
        """The plan for numbers of `item` bytes; `dense`: whether every weight changes at every update."""
        layout = Layout.of(options)
        vector, last = team.vector(item), options.layers - 1
        narrow = tuple(-(-outputs // vector) * vector for outputs in layout.outputs)
        own = narrow
        if team.blocks > 1:
            own = (*(stride // team.blocks for stride in layout.stride[:last]), narrow[last])
            if not options.hidden or any(stride % (team.blocks * 4) for stride in layout.stride[:last]):
                raise ValueError(f"{team.blocks} blocks cannot share hidden layers of {layout.outputs[:last]} units.")
        workspace = _workspace(options, layout, team, own, item, dense)
        inside = workspace.size * team.teams <= device.block_bytes
        if team.stages and not inside:
            return Plan.of(options, item, dense, replace(team, stages=0), device)
        moments = options.optimizer
        limit = min(device.block_bytes, device.multiprocessor_bytes // team.blocks_per_multiprocessor - _RESERVED)
        places = [-1] * options.layers
        for layer in reversed(range(options.layers)):
            size = (1 + moments) * layout.inputs[layer] * own[layer] * item
            shared = team.blocks > 1 and not (team.keeps and layer < last)
            if inside and not shared and (workspace.size + size) * team.teams <= limit:
                places[layer] = workspace.size
                workspace.size += -(-size // 16) * 16
        workspace.offsets["MATRIX"] = places
        return Plan(team, own, workspace, _exchange(options, layout, team, item), inside)


def _workspace(s: Options, layout: Layout, team: Team, own: tuple[int, ...], item: int, dense: bool) -> Memory:
    """Working memory of one block, in bytes."""
    workspace, hidden, last = Memory(), s.hidden, s.layers - 1
    kinds, index = 1 + s.optimizer, 2 if max(s.widths) < 2**16 else 4
    inputs = list(layout.inputs)
    if team.blocks > 1:
        inputs[last] = own[last - 1]

    def units(each: int, wanted: bool = True) -> list[int]:
        return [each * own[layer] if wanted and layer < hidden else 0 for layer in range(s.layers)]

    twice = [2, *([1] * last)]  # the list of the first layer is written one example ahead
    workspace.take("ROW", [index * times * count for times, count in zip(twice, inputs, strict=True)])
    workspace.take("VALUE", [item * times * count for times, count in zip(twice, inputs, strict=True)])
    workspace.take("X", [item * count if dense else 0 for count in inputs])
    workspace.take("H", units(item))
    workspace.take("SLOPE", units(item))
    workspace.take("G", [item * count for count in own])
    workspace.take("BIAS", [item * kinds * count for count in own])
    workspace.take("NORM", units(8 * item, s.norm))  # y, root, gradients of gain and shift, mu, var, ey, e1
    workspace.take("GAIN", units(kinds * item, s.norm))
    workspace.take("MOVE", units(kinds * item, s.norm))
    workspace.take("SCALING", [16 if s.norm and layer < hidden else 0 for layer in range(s.layers)])
    for name in ("MEAN", "UTILITY", "DECAY_POWER", "IN", "OUT"):
        workspace.take(name, units(item, s.replaces))
    workspace.take("BORN", units(4, s.replaces))
    aged = s.replaces and s.optimizer == 2
    stride = [count if aged and layer < hidden else 0 for layer, count in enumerate(layout.stride)]
    workspace.take("AGE", [16 * count for count in stride])
    workspace.take("STEP_SCALE", [item * count for count in stride])
    workspace.take("ROOT_SCALE", [item * count for count in stride])
    workspace.take("Z", [item * own[last]])
    vector = team.vector(item)
    partial = item * team.threads // 32 * max(_tile(count, vector) for count in own)
    if team.stages and s.optimizer == 0:  # the ring of rows; sums over groups of threads come after it
        partial = max(partial, team.stages * team.threads * 16 * max(_deep(count, vector) for count in own))
    most = -(-max(layout.outputs[:hidden], default=0) // 4) * 4 if s.replaces else 0
    workspace.take("PARTIAL", [max(partial, (2 * item + 4) * most)])
    # The choice of units and the sums over groups of threads are never under way at the same time.
    for number, name in enumerate(("SCORE", "CENTRE", "CHOSEN")):
        workspace.offsets[name] = [workspace.offsets["PARTIAL"][0] + number * item * most]
    for name, size in (("SCRATCH", 512), ("COUNTS", 128), ("RESULT", 16), ("LEVELS", 256 * item)):
        workspace.take(name, [size])
    workspace.take("PLACE", [index * s.widths[0]])
    return workspace


def _most_blocks(s: Options) -> int:
    """Into how many equal parts the units of every hidden layer can be cut.

    Example:
        >>> _most_blocks(Options((784, 100, 100, 10), 0, 1, 2))
        8
    """
    strides = Layout.of(s).stride[: s.hidden]
    return max(n for n in range(1, _MOST_BLOCKS + 1) if all(stride % (4 * n) == 0 for stride in strides))


def _lanes(columns: int, vector: int) -> int:
    """Threads that read one row; see `Matrix` in matrix.cu."""
    return next(lanes for lanes in (1, 2, 4, 8, 16, 32) if lanes >= min(columns // vector, 32))


def _deep(columns: int, vector: int) -> int:
    """How many vectors of a row each of them reads at a time."""
    return min(-(-(columns // vector) // _lanes(columns, vector)), 4)


def _tile(columns: int, vector: int) -> int:
    """Columns of one pass."""
    return vector * _lanes(columns, vector) * _deep(columns, vector)


def _exchange(s: Options, layout: Layout, team: Team, item: int) -> Memory:
    """What the blocks of a run exchange, in bytes; nothing for one block."""
    exchange, hidden, blocks = Memory(), s.hidden, team.blocks if team.blocks > 1 else 0
    stride = [count if blocks and layer < hidden else 0 for layer, count in enumerate(layout.stride)]
    above = [0, *stride[: s.layers - 1]]
    exchange.take("SIGNAL", [2 * item * count for count in stride])
    exchange.take("SHARE", [2 * item * blocks * count for count in above])
    exchange.take("OUTPUTS", [2 * item * blocks * layout.stride[-1]])
    exchange.take("SCORES", [2 * item * max(stride)])
    exchange.take("CHANGE", [item * blocks * max(s.widths)])
    exchange.take("TEAM_SUM", [2 * item * blocks])
    exchange.take("AGES", [8 * blocks * s.layers])
    return exchange

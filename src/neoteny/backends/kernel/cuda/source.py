"""The source of the CUDA kernel for one learner: a few lines of numbers, then the text of the .cu files.

Before this: `plan`; after it: `kernel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from neoteny.backends.kernel.cuda.plan import Plan
from neoteny.backends.kernel.options import FOLD, Options
from neoteny.backends.kernel.pack import Layout, draw_purposes
from neoteny.draws.rng import CUDA_ROUNDS, purpose_code
from neoteny.units.utilities import ACTIVITY, CENTRED, INCOMING, OUTGOING, RANDOM

FILES = ("numbers", "team", "matrix", "layers", "signals", "units", "steps")
"""In this order, each as NAME.cu; online.cu, the kernel itself, comes last."""


def source(s: Options, plan: Plan, item: int, dense: bool, bounds: Sequence[float]) -> str:
    """The whole source for numbers of `item` bytes; `bounds`: of new weights, for each hidden layer."""
    folder = Path(__file__).parent
    names = (*(f"{name}.cu" for name in FILES), "online.cu")
    text = "".join((folder / name).read_text() for name in names)
    return prelude(s, plan, item, dense, bounds) + text.replace("PHILOX_ROUNDS", CUDA_ROUNDS)


def prelude(s: Options, plan: Plan, item: int, dense: bool, bounds: Sequence[float]) -> str:
    """The first lines of the source: everything that is known before the kernel is compiled."""
    layout, team = Layout.of(s), plan.team
    numbers: dict[str, object] = {
        "LAYERS": s.layers, "HIDDEN": s.hidden, "PARAMETERS": layout.parameters, "UNITS": layout.units,
        "THREADS": team.threads, "BLOCKS": team.blocks, "TEAMS": team.teams, "IN_FLIGHT": team.in_flight,
        "BLOCKS_AN_SM": team.blocks_per_multiprocessor, "ACTIVATION": s.activation, "LOSS": s.loss,
        "OPTIMIZER": s.optimizer, "NORM": s.norm, "SHRINK": s.shrink, "NOISE": s.noise, "NOISE_FIRST": s.noise_first,
        "DENSE": dense, "REPLACES": s.replaces, "COMPENSATE": s.compensate, "COUNT_LAYER": s.count_layer,
        "WORKSPACE_INSIDE": plan.workspace_inside, "WORKSPACE_BYTES": plan.workspace.size,
        "EXCHANGE_BYTES": plan.exchange.size,
        "INPUTS_MOST": max(s.widths), "STAGES": team.stages,
    }  # fmt: skip
    # The terms of the utility; the last three say what else they ask for: sums of |w|, and a draw.
    terms = {
        "ACTIVITY": ACTIVITY, "CENTRED": CENTRED, "SUMS_OUT": OUTGOING, "SUMS_IN": INCOMING, "RANDOM_CHOICE": RANDOM,
    }  # fmt: skip
    numbers |= {name: bool(s.utility & term) for name, term in terms.items()}
    reals = {
        "FORWARD_DECAY": s.forward_decay, "BACKWARD_DECAY": s.backward_decay, "NORM_EPS": s.norm_eps,
        "DROPOUT": s.dropout, "BETA1": s.beta1, "BETA2": s.beta2, "EPS": s.eps, "FOLD": FOLD,
    }  # fmt: skip
    lists: dict[str, Sequence[int]] = {
        "INPUTS": layout.inputs, "OUTPUTS": layout.outputs, "STRIDE": layout.stride, "WEIGHT": layout.weight,
        "BIAS": layout.bias, "SCALE": layout.scale, "SHIFT": layout.shift, "UNIT": layout.unit, "OWN": plan.own,
    }  # fmt: skip
    lines = [f"typedef {'double' if item == 8 else 'float'} real;"]
    lines.append(f"typedef unsigned {'short' if max(s.widths) < 2**16 else 'int'} row_index;")
    lines.append(f"#define CLUSTER {f'__cluster_dims__({team.blocks}, 1, 1)' if team.blocks > 1 else ''}")
    lines += [f"constexpr int {name} = {int(value)};" for name, value in numbers.items()]  # pyright: ignore
    lines += [f"constexpr double {name} = {float(value)!r};" for name, value in reals.items()]
    lines.append(f"constexpr unsigned PURPOSE_DROPOUT = {purpose_code('dropout')}u;")
    lines += [f"__device__ constexpr int {name}[] = {{{_joined(values)}}};" for name, values in lists.items()]
    for name, texts in draw_purposes(s).items():
        codes = ", ".join(f"{purpose_code(text)}u" for text in texts)
        lines.append(f"__device__ constexpr unsigned PURPOSE_{name.upper()}[] = {{{codes}}};")
    lines.append(
        f"__device__ constexpr double BOUND[] = {{{', '.join(repr(float(bound)) for bound in (*bounds, 0.0))}}};"
    )
    for memory in (plan.workspace, plan.exchange):
        for name, places in memory.offsets.items():
            if name in _PER_LAYER:
                lines.append(f"__device__ constexpr int {name}_AT[] = {{{_joined(places)}}};")
            else:
                lines.append(f"constexpr int {name}_AT = {places[0]};")
    return "\n".join(lines) + "\n"


_PER_LAYER = {
    "ROW", "VALUE", "X", "H", "SLOPE", "G", "BIAS", "NORM", "GAIN", "MOVE", "SCALING", "MEAN", "UTILITY", "DECAY_POWER",
    "IN", "OUT", "BORN", "AGE", "STEP_SCALE", "ROOT_SCALE", "MATRIX", "SIGNAL", "SHARE",
}  # fmt: skip


def _joined(values: Sequence[int]) -> str:
    return ", ".join(str(value) for value in values)

"""The source of the dense CUDA kernel for one learner: its numbers, what it is given, then the text of the .cu files.

Before this: `memory`; after it: `kernel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from neoteny.backends.kernel.cuda import source as sparse
from neoteny.backends.kernel.dense import terms
from neoteny.backends.kernel.dense.pack import DensePacked
from neoteny.backends.kernel.dense.places import BIAS, GAIN, INPUTS, OFFSET, OUTPUTS, PURPOSES, STRIDE, UNIT, WEIGHT
from neoteny.backends.kernel.dense.terms import NOISE, REINIT, REPLACE, RESET, DenseNumbers
from neoteny.backends.kernel.dense_cuda.memory import Memory, padded, tile_of
from neoteny.draws.rng import CUDA_ROUNDS
from neoteny.units.utilities import ACTIVITY, CENTRED, INCOMING, OUTGOING, RANDOM

FILES = ("block", "network", "weights", "units", "reinit", "train")
"""In this order, each as NAME.cu, after device.cu, and numbers.cu of the kernel for one example at a time."""

GIVEN = {
    "runs": "i64", "step": "i64", "start": "i64", "stop": "i64", "order_columns": "i64", "ages": "i64",
    "parameters": "real *", "first": "real *", "second": "real *", "anchor": "real *", "slow": "real *",
    "mean_activation": "real *", "utility": "real *", "decay_power": "real *", "born": "i64 *",
    "column_means": "real *", "since": "i64 *", "accumulator": "double *", "replaced": "i64 *", "reset": "i64 *",
    "worth": "real *", "redrawn": "i64 *", "drawn": "i64 *", "score": "double *", "age": "i64 *",
    "threshold": "i64 *", "histogram": "int *", "seeds": "const i64 *", "total": "double *", "broken": "i64 *",
    "numbers": "const double *", "by_age1": "const real *", "by_age2": "const real *", "outside": "unsigned char *",
    "entry": "const int *", "feature": "const unsigned short *", "level": "const unsigned char *",
    "values": "const float *", "target": "const float *", "order": "const int *", "place": "const unsigned short *",
    "stream": "const int *",
}  # fmt: skip
"""What the kernel is given: eight bytes each, numbers and addresses, in this order."""

_FIXED = {
    **{name: getattr(terms, name) for name in ("LEAKY", "SGD", "MOMENTUM", "ADAM", "UPGD")},
    **{name: getattr(terms, name) for name in ("UPDATE", "NOISE", "REPLACE", "RESET", "REINIT", "CLIP", "SLOW")},
    "RAW": terms.SCALES.index("raw"),
    "LOCAL": terms.SCALES.index("local"),
    "BY_SCORE": terms.GRADIENT,
    "BY_SILENCE": terms.SILENCE,
    **{f"RATE_{name.upper()}": number for number, name in enumerate(DenseNumbers._fields)},
}


@dataclass(frozen=True)
class Constants:
    """What is known of a learner before its kernel is compiled, by name: numbers and lists of numbers."""

    ints: Mapping[str, int]
    reals: Mapping[str, float]
    lists: Mapping[str, Sequence[int]]
    bounds: Sequence[float]


def constants_of(packed: DensePacked, memory: Memory, threads: int) -> Constants:
    """The constants of a learner."""
    s, tensors = packed.options, packed.tensors
    acts, passes = passes_of(s.acts)
    terms_of_utility = {
        "ACTIVITY": ACTIVITY, "CENTRED": CENTRED, "SUMS_OUT": OUTGOING, "SUMS_IN": INCOMING, "RANDOM_CHOICE": RANDOM,
    }  # fmt: skip
    ints = {
        "THREADS": threads, "LAYERS": s.hidden + 1, "HIDDEN": s.hidden, "BATCH": s.batch,
        "BATCH_PAD": padded(s.batch), "BATCH_TILE": tile_of(s.batch), "COPIES": s.copies,
        "PARAMETERS": tensors.parameters.shape[1], "UNITS": tensors.since.shape[1], "LONGEST": s.longest,
        "ACTIVATION": s.activation, "NORM": s.norm, "LOSS": s.loss, "OPTIMIZER": s.optimizer,
        "MOMENTS": bool(tensors.first.numel()) + bool(tensors.second.numel()), "SCALE": s.scale,
        "PROTECT": s.protect, "COMPENSATE": s.compensate, "COUNT_LAYER": s.count_layer, "RESET_BY": s.reset_by,
        "RESET_PERIOD": s.reset_period, "FIRST_THRESHOLD": s.first_threshold, "REINIT_PERIOD": s.reinit_period,
        "BY_GRADIENT": s.by_gradient, "PROPORTIONAL": s.proportional, "AVERAGES": s.averages,
        "SPARE_OUTPUT": s.spare_output, "SLOW_PERIOD": s.slow_period, "ANCHORED": s.anchored, "SLOWS": s.slow,
        "REWRITES": s.rewrites_units, "REPLACES": REPLACE in s.after, "REINITS": REINIT in s.after,
        "SCORES": bool(tensors.score.numel()), "AGES": bool(tensors.age.numel()),
        "COLUMN_MEANS": bool(tensors.column_means.numel()), "COUNTS_WEIGHTS": s.counts_weights,
        "ACT_COUNT": len(acts), "PASSES": len(passes), "INSIDE_BYTES": memory.inside,
        "OUTSIDE_BYTES": memory.outside,
    }  # fmt: skip
    ints |= {name: bool(s.utility & term) for name, term in terms_of_utility.items()}
    ints |= {f"{name}_AT": place for name, place in memory.places.items() if isinstance(place, int)}
    rows = {
        "INPUTS": INPUTS, "OUTPUTS": OUTPUTS, "STRIDE": STRIDE, "WEIGHT": WEIGHT, "BIAS": BIAS, "GAIN": GAIN,
        "OFFSET": OFFSET, "UNIT": UNIT,
    }  # fmt: skip
    lists = {name: packed.shape[row].tolist() for name, row in rows.items()}
    lists |= {f"{name}_AT": places for name, places in memory.places.items() if isinstance(places, list)}
    lists |= {"ACTS": acts, "PASS_FROM": [first for first, _ in passes], "PASS_TO": [stop for _, stop in passes]}
    lists["PURPOSE"] = packed.shape[PURPOSES:].ravel().tolist()
    reals = {
        "SLOPE": s.slope, "SHARPNESS": s.sharpness, "NORM_EPS": s.norm_eps, "BETA1": s.beta1, "BETA2": s.beta2,
        "EPS": s.eps, "FACTOR": s.factor,
    }  # fmt: skip
    return Constants({name: int(value) for name, value in ints.items()}, reals, lists, tensors.bounds.tolist())


def passes_of(acts: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
    """What happens at an update, UPGD's own noise left out, and the parts of it that one pass over the weights does.

    Example:
        >>> from neoteny.backends.kernel.dense.terms import CLIP, SLOW, UPDATE
        >>> passes_of((UPDATE, CLIP, REPLACE, SLOW))
        ([0, 5, 2, 6], [(0, 2), (2, 3), (3, 4)])
        >>> passes_of((NOISE, UPDATE, NOISE))
        ([0, 1], [(0, 2)])
    """
    acts = list(acts[acts[0] == NOISE :])
    alone, passes = (REPLACE, RESET, REINIT), []
    for number, what in enumerate(acts):
        if passes and what not in alone and acts[number - 1] not in alone:
            passes[-1] = (passes[-1][0], number + 1)
        else:
            passes.append((number, number + 1))
    return acts, passes


def source(constants: Constants, item: int) -> str:
    """The whole source for numbers of `item` bytes."""
    lines = [f"typedef {'double' if item == 8 else 'float'} real;", (Path(__file__).parent / "device.cu").read_text()]
    lines.append(f"constexpr int TILE_ROOM = {constants.ints['BATCH_TILE']};")
    lines += [f"constexpr int {name} = {value};" for name, value in constants.ints.items()]
    lines += [f"constexpr double {name} = {value!r};" for name, value in constants.reals.items()]
    for name, values in constants.lists.items():
        kind = "unsigned" if name == "PURPOSE" else "int"
        where = "__device__" if name in ("ACTS", "PASS_FROM", "PASS_TO") else "__constant__"  # the first: folded away
        lines.append(f"{where} constexpr {kind} {name}[] = {{{', '.join(f'{value}' for value in values)}}};")
    bounds = ", ".join(repr(float(bound)) for bound in constants.bounds)
    lines.append(f"__constant__ constexpr double BOUND[] = {{{bounds}}};")
    return "\n".join(lines) + "\n" + body()


def body() -> str:
    """What is the same for all learners."""
    lines = [f"constexpr int {name} = {value};" for name, value in _FIXED.items()]
    fields = "".join(f"    {kind} {name};\n" for name, kind in GIVEN.items())
    given = "// What the kernel is given.\nstruct Given {\n" + fields + "};\n\n"
    own, theirs = Path(__file__).parent, Path(sparse.__file__).parent
    text = "".join((own / f"{name}.cu").read_text() + "\n" for name in FILES)
    numbers = (theirs / "numbers.cu").read_text().replace("PHILOX_ROUNDS", CUDA_ROUNDS)
    return "\n".join(lines) + "\n" + numbers + "\n" + given + text

"""Whether `diagnose` finds damage in published models and gives no false alarm: a table, one line per model.

    python benchmarks/diagnose_zoo.py [--only NAME ...]

Each model is built from its configuration at a small size (nothing is downloaded), diagnosed when it is fresh, and
diagnosed again after each of three damages: all weights four times as large, half of the units of one layer dead, and
one layer whose units are all the same function. A damage counts as found if a sentence names it, and the layer. The
exit status is 1 if anything is missed or a fresh model raises an alarm. Needs transformers, torchvision and timm; a
model whose library is not installed is left out. One thread; minutes.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import neoteny
from neoteny.text import render
from support.damage import alarmed, collapse_rank, groups_of, grow, kill_units
from support.published_models import PUBLISHED

HEADER = ["model", "layers", "fresh", "weights x4", "half dead", "rank collapsed", "seconds"]


def check(name: str) -> list[str]:
    """One line of the table; "yes" where the damage was named, "no alarm" where a fresh model raised none."""
    begun = time.perf_counter()
    torch.manual_seed(0)
    model, inputs = PUBLISHED[name]()
    fresh = neoteny.diagnose(model, inputs)
    # A depthwise unit reads one channel: equal weights are no collapse. In few units chance alone kills half.
    wide = [group for group in groups_of(model, inputs) if not _depthwise(model, group)]
    group = max(wide, key=lambda each: each.units)
    grown, dead, collapsed = (copy.deepcopy(model) for _ in range(3))
    grow(grown)
    kill_units(dead, group)
    collapse_rank(collapsed, group)
    found = {
        "grown": _named(grown, inputs, "times as large as a fresh copy's", ""),
        "dead": _named(dead, inputs, "% of {}'s units", group.name),
        "rank": _named(collapsed, inputs, "{}'s effective rank", group.name),
    }
    return [
        name,
        str(len(fresh.layers)),
        "ALARM" if alarmed(fresh) else "no alarm",
        *("yes" if each else "MISSED" for each in found.values()),
        f"{time.perf_counter() - begun:.1f}",
    ]


def _named(model: nn.Module, inputs: Any, words: str, layer: str) -> bool:
    """Whether a diagnosis raises an alarm and has these words on this layer."""
    found = neoteny.diagnose(model, inputs)
    return alarmed(found) and any(words.format(layer) in sentence for sentence in found.verdict)


def _depthwise(model: nn.Module, group: neoteny.UnitGroup) -> bool:
    return any(getattr(model.get_submodule(port.module), "groups", 1) > 1 for port in group.producers)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(PUBLISHED), metavar="NAME", choices=list(PUBLISHED))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows: list[list[str]] = []
    left_out: list[str] = []
    for name in parser.parse_args().only:
        try:
            rows.append(check(name))
        except ImportError as error:
            left_out.append(f"{name}: {str(error).splitlines()[0]}")
            continue
        print(*rows[-1], file=sys.stderr, flush=True)
    print(render(HEADER, rows))
    print("".join(f"\nleft out  {each}" for each in left_out))
    return int(any({"ALARM", "MISSED"} & set(row) for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())

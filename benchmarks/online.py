"""One update of the paper's online problems: the compiled engines over a loop written by hand, and over the memory.

The baseline is what a competent user writes: `nn.Sequential`, autograd, `torch.optim`, one example at a time, one run,
float32. For continual backpropagation (CBP) it is that loop's plain time times 1.6 (1.4 at 2,000 units), which is what
a good implementation costs (`overhead.py`), so that a slow library does not flatter the kernel. All sides run in one
process under the same allocator settings, in alternating blocks, past compilation and past the maturity threshold.
Numbers are medians over blocks; "best" is the fastest block. "at least" is the number of bytes that an update has to
read and write with the zeros that were found (`online_parts/traffic.py`). "memory" is the share of the measured
bandwidth that these take; it can exceed 100% of it where a cache holds the data.

    python benchmarks/online.py [--device cpu|cuda] [--quick] [--only TEXT]
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from overhead import with_allocator_settings


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="fewer blocks, widths and numbers of runs")
    parser.add_argument("--only", default="", help="only parts whose name contains this")
    return parser.parse_args()


def main() -> None:
    """Print one table."""
    arguments = parse()
    with_allocator_settings()
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as the engine does
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("--device cuda: torch finds no CUDA device here.")
    from online_parts.table import Table

    if arguments.device == "cuda":
        from online_parts.gpu import gpu_parts as parts
    else:
        from online_parts.cpu import cpu_parts as parts

    where = torch.cuda.get_device_name() if arguments.device == "cuda" else f"{os.cpu_count()} cores"
    print(f"torch {torch.__version__}, {where}, float32; us per run-update", flush=True)
    table = Table()
    start = time.perf_counter()
    every = parts(arguments.quick)
    if not any(arguments.only in name for name, _ in every):
        names = ", ".join(f'"{name}"' for name, _ in every)
        sys.exit(f'--only "{arguments.only}": no part has that in its name. Parts are {names}.')
    for name, part in every:
        if arguments.only not in name:
            continue
        table.title(name)
        try:
            part(table)
        except Exception as error:  # one part's failure must not cost the others' numbers
            table.note(f"{name}: not measured: {type(error).__name__}: {error}")
    table.note(f"took {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()

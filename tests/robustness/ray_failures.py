"""A sweep on a Ray cluster of several nodes while workers, nodes and drivers are killed, and while the storage fails.

    python tests/robustness/ray_failures.py              a shared folder, then a bucket: some minutes on two cores
    python tests/robustness/ray_failures.py --only folder

The final table must be bit-identical to that of a local run, no part may be written twice, and none may be lost. The
bucket is moto's S3 server, which fails one write in twenty; half of those are carried out all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from neoteny.suite.store.results import Results
from support.object_store import BUCKET, serving
from support.ray_clusters import cluster
from support.ray_sweeps import Disturbed, write_sweep


def main() -> int:
    """Run the sweeps and print one line for each; returns 1 if any went wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stacks", type=int, default=64, metavar="N")
    parser.add_argument("--tasks", type=int, default=150, metavar="N", help="tasks of 50 updates per stack")
    parser.add_argument("--kills", type=int, default=30, metavar="N", help="of workers and nodes, one node in five")
    parser.add_argument("--drivers", type=int, default=3, metavar="N", help="kills of the driver")
    parser.add_argument("--only", choices=("folder", "bucket"))
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        root = Path(folder)
        os.environ["XDG_CACHE_HOME"] = str(root / "cache")
        experiment = write_sweep(root / "many.py", options.stacks, options.tasks)
        began = time.monotonic()
        command = [sys.executable, "-P", "-m", "neoteny", "run", str(experiment), "--kernel", "reference"]
        subprocess.run([*command, "--jobs", "2", "--out", str(root / "local")], check=True, capture_output=True)
        local = time.monotonic() - began
        for where in ("folder", "bucket"):
            if options.only not in (None, where):
                continue
            environment = stack.enter_context(serving(failures=20)) if where == "bucket" else {}
            os.environ.update(environment)  # nodes get it from here
            out = str(root / "shared") if where == "folder" else f"s3://{BUCKET}/sweep"
            good &= check(root, where, experiment, out, environment, options, local)
    return 0 if good else 1


def check(
    root: Path,
    where: str,
    experiment: Path,
    out: str,
    environment: dict[str, str],
    options: argparse.Namespace,
    local: float,
) -> bool:
    """One disturbed sweep; prints its line and returns whether all is well."""
    with cluster([1, 1, 1]) as nodes:
        sweep = Disturbed(nodes, experiment, out, environment, root / f"{where}.txt")
        began = time.monotonic()
        kills = options.kills // 5
        status = sweep.run(options.stacks, options.kills - kills, kills, options.drivers, (0.2, 1.0), seconds=3600)
        took = time.monotonic() - began
    results, expected = sweep.results(), Results.open(root / "local")
    identical = results.frame().equals(expected.frame())
    parts = results.parts()
    resumed, claims = sum(part["resumed"] for part in parts), sum(part["lease"] for part in parts)
    lost = len(expected.finished_runs() - results.finished_runs())
    good = status == 0 and identical and not lost and not sweep.rewritten and len(parts) == options.stacks
    happened = sweep.happened
    print(
        f"{where}: {len(parts)} stacks; killed {happened['worker']} workers, {happened['node']} nodes and "
        f"{happened['driver']} drivers, {happened['node added']} nodes added; {claims - len(parts)} claims again, "
        f"{resumed} times resumed from a checkpoint; finished twice {len(sweep.rewritten)}, lost {lost}; table "
        f"identical to the local one: {'yes' if identical else 'NO'}; {took:.0f} s (local, undisturbed, two "
        f"processes: {local:.0f} s)",
        flush=True,
    )
    if not good:
        print((root / f"{where}.txt").read_text()[-4000:], file=sys.stderr)
    return good


if __name__ == "__main__":
    raise SystemExit(main())

"""All GPU tests in several processes on one GPU: most of their time is compiling on the processor.

    python tests/support/gpu_shards.py [--processes 12] [further arguments of pytest]

Prints what failed, the slowest tests, and one closing line with the whole count.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]


def collect(arguments: list[str]) -> list[str]:
    """The ids of every GPU test."""
    command = [*PYTEST, "--collect-only", "-m", "gpu and not slow", "tests", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return [line for line in done.stdout.splitlines() if "::" in line]


def main() -> int:
    """Run the shards; 1 if any test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=12)
    options, arguments = parser.parse_known_args()
    begun = time.monotonic()
    found = collect(arguments)
    with tempfile.TemporaryDirectory() as folder:
        running: list[tuple[subprocess.Popen[bytes], Path]] = []
        for shard in range(options.processes):
            names, log = Path(folder, f"{shard}.txt"), Path(folder, f"{shard}.log")
            names.write_text("\n".join(found[shard :: options.processes]))
            command = [*PYTEST, "-rf", "--durations=3", f"@{names}", *arguments]
            with log.open("wb") as out:
                running.append((subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT), log))
        total: dict[str, int] = {}
        failed = False
        for process, log in running:
            failed = bool(process.wait()) or failed
            text = log.read_text()
            if process.returncode:
                print(text[-6000:])
            slow = re.findall(r"^\d+\.\d+s call .*$", text, re.MULTILINE)
            print("\n".join(slow[:1]))
            for number, what in re.findall(r"(\d+) (passed|failed|error|skipped)", text.splitlines()[-1]):
                total[what] = total.get(what, 0) + int(number)
    counts = ", ".join(f"{number} {what}" for what, number in total.items())
    print(f"{len(found)} GPU tests collected; {counts} in {time.monotonic() - begun:.0f} s")
    return 1 if failed or sum(total.values()) != len(found) else 0


if __name__ == "__main__":
    raise SystemExit(main())

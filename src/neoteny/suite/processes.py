"""Several worker processes in one results folder: started, watched and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence

from neoteny.suite.stopping import StopFlag
from neoteny.suite.store.errors import Stopped


def run_workers(arguments: Sequence[str], jobs: int, stop: StopFlag) -> tuple[list[str], str]:
    """Start `jobs` processes `python -m neoteny ARGUMENTS` and wait for them.

    A worker's standard input is a pipe that nobody writes to: when this process ends, however it ends, the pipe closes
    and the worker stops at its next checkpoint.

    Returns:
        What failed, and their other messages.

    Raises:
        Stopped: asked to stop; the workers have stopped too.
    """
    command = [sys.executable, "-P", "-m", "neoteny", *arguments]  # -P: as the console script, not from this folder
    with tempfile.TemporaryFile() as complaints:
        workers = [
            # A session of their own keeps a Ctrl-C in the terminal from reaching them twice.
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=complaints, start_new_session=True
            )
            for _ in range(jobs)
        ]
        try:
            while any(worker.poll() is None for worker in workers):
                if stop.wait(0.2):
                    break
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.send_signal(signal.SIGTERM)
            for worker in workers:
                worker.wait()
                if worker.stdin is not None:
                    worker.stdin.close()
        complaints.seek(0)
        lines = complaints.read().decode(errors="replace").splitlines()
        said = "\n".join(dict.fromkeys(lines))  # each worker tries a stack that fails, once is enough to read
        if stop:
            raise Stopped(said)
    codes = [worker.returncode for worker in workers if worker.returncode != 0]
    if not codes:
        return [], said
    killed = [code for code in codes if code < 0]
    problems = [said] if said else []
    if killed:
        problems.append(
            f"{len(killed)} worker(s) were ended by signal {-killed[0]}"
            + (" (out of memory?)" if -killed[0] == signal.SIGKILL else "")
            + ". Repeat the command; it continues from the last checkpoints."
        )
    return problems or [f"{len(codes)} worker(s) ended with status {codes[0]}."], ""


def stop_with_parent(stop: StopFlag) -> None:
    """In a worker: ask to stop when the process that started it is gone."""

    def watch() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock a thread must not hold when the interpreter ends
            pass
        stop.set()

    threading.Thread(target=watch, daemon=True).start()

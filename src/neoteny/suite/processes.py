"""Several worker processes in one results folder: started, watched and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import IO

from neoteny.suite.stopping import StopFlag
from neoteny.suite.store.errors import Stopped
from neoteny.text import say_count

MOST_IN_A_ROW = 5
"""After this number of killed processes that said nothing new, a command gives up."""


def run_workers(
    arguments: Sequence[str], jobs: int, stop: StopFlag, notify: Callable[[str], None]
) -> tuple[list[str], str]:
    """Start `jobs` processes `python -m neoteny ARGUMENTS COMMAND` and wait for them.

    A worker's standard input is a pipe that nobody writes to: when this process ends, however it ends, the pipe closes
    and the worker stops at its next checkpoint. Where all workers were killed, which the system does when memory runs
    out, one goes on alone. COMMAND tells workers which stacks others of this call were killed with.

    Returns:
        What failed, and their other messages.

    Raises:
        Stopped: asked to stop; the workers have stopped too.
    """
    # -P: as the console script, not from this folder
    command = [sys.executable, "-P", "-m", "neoteny", *arguments, uuid.uuid4().hex]
    with tempfile.TemporaryFile() as complaints:
        lines: list[str] = []
        in_a_row = 0
        while True:
            codes, before = _run_round(command, jobs, complaints, stop), len(lines)
            complaints.seek(0)
            # Each worker tries a stack that fails: once is enough to read.
            lines = list(dict.fromkeys(complaints.read().decode(errors="replace").splitlines()))
            in_a_row = in_a_row + 1 if len(lines) == before else 1  # they say what they split or give up
            jobs = 1
            if stop or any(code != -signal.SIGKILL for code in codes) or in_a_row > MOST_IN_A_ROW:
                break
            who = say_count(len(codes), "worker was", "workers were")
            notify(f"{who} killed, which happens when memory runs out; one process goes on from the last checkpoints.")
        said = "\n".join(lines)
        if stop:
            raise Stopped(said)
    if not any(codes):
        return [], said
    killed = [code for code in codes if code < 0]
    problems = [said] if said else []
    if killed:
        problems.append(
            f"{say_count(len(killed), 'worker was', 'workers were')} ended by signal {-killed[0]}"
            + (" (out of memory?)" if -killed[0] == signal.SIGKILL else "")
            + ". Repeat the command; it continues from the last checkpoints."
        )
    return problems or [f"{say_count(sum(map(bool, codes)), 'worker')} ended with status {max(codes)}."], ""


def _run_round(command: Sequence[str], jobs: int, complaints: IO[bytes], stop: StopFlag) -> list[int]:
    """Start processes, wait for them, and end them if asked to stop; returns their exit statuses."""
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
    return [worker.returncode for worker in workers]


def stop_with_parent(stop: StopFlag) -> None:
    """In a worker: ask to stop when the process that started it is gone."""

    def watch() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock a thread must not hold when the interpreter ends
            pass
        stop.set()

    threading.Thread(target=watch, daemon=True).start()

"""Threads of the host that work on what a GPU has made, while the GPU goes on.

Decompositions of matrices are the processor's work: LAPACK takes one matrix per thread, and the interpreter is free
meanwhile. Each thread has a stream of its own, so that its copies wait for what was made before, not for what the
device was given since.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch
from torch import Tensor

from neoteny.processors import processors

_SHARE = 16
"""What waits for a thread may hold this part of the device's memory."""


class HostThreads:
    """A thread for each of the host's processors.

    Args:
        device: whose tensors they read.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own = threading.local()
        self._pool = ThreadPoolExecutor(processors(), "neoteny-host", initializer=_work_alone)
        self._waiting: deque[tuple[Future[Tensor], int]] = deque()
        self._most = torch.cuda.get_device_properties(device).total_memory // _SHARE

    def submit(self, function: Callable[[], Tensor], held: int) -> Callable[[], Tensor]:
        """Have a function called in a thread; `held`: bytes of the device's memory that it holds until then.

        Returns:
            What waits for the result, and raises what the function raised.
        """
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        future = self._pool.submit(self._call, function, event)
        self._waiting.append((future, held))
        while self._waiting and (self._waiting[0][0].done() or sum(size for _, size in self._waiting) > self._most):
            wait([self._waiting.popleft()[0]])
        return future.result

    @torch.no_grad()
    def _call(self, function: Callable[[], Tensor], event: torch.cuda.Event) -> Tensor:
        if not hasattr(self._own, "stream"):
            self._own.stream = torch.cuda.Stream(self._device)
        with torch.cuda.device(self._device), torch.cuda.stream(self._own.stream):
            self._own.stream.wait_event(event)
            return function()


def _work_alone() -> None:
    """One thread per decomposition: the last bits of a shared one depend on how many threads were free to help."""
    torch.set_num_threads(1)


@functools.cache
def host_threads(device: torch.device) -> HostThreads:
    """The threads for a device, made at the first use."""
    return HostThreads(device)

"""A Ray cluster of several nodes on this machine, whose workers and nodes can be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from collections.abc import Iterator
from typing import Any

import psutil

_STORE = 80 * 2**20
_QUICK = {
    "health_check_period_ms": 1000,
    "health_check_failure_threshold": 15,
    "health_check_initial_delay_ms": 5000,
    "worker_niceness": 0,
}
"""Dead nodes are noticed within seconds. Nodes of a machine that is busy are not taken for dead, and their workers get
their share of it."""


class Nodes:
    """The cluster: a head without processors of its own, and nodes of one or more."""

    def __init__(self, cpus: list[int], client_port: int | None = None, **config: Any) -> None:
        from ray.cluster_utils import Cluster

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Ray about itself
            options: dict[str, Any] = {"num_cpus": 0, "include_dashboard": False, "_system_config": _QUICK | config}
            options |= {"ray_client_server_port": client_port} if client_port else {}
            self.cluster = Cluster(initialize_head=True, head_node_args={"object_store_memory": _STORE, **options})
        self.client = f"ray://127.0.0.1:{client_port}" if client_port else ""
        self.nodes: list[Any] = []
        for each in cpus:
            self.add(each)

    @property
    def environment(self) -> dict[str, str]:
        """By which `neoteny run --on ray` finds it."""
        return {"RAY_ADDRESS": str(self.cluster.address)}

    def add(self, cpus: int = 1, gpus: int = 0, **more: Any) -> None:
        """Let a node join; `more` are arguments of Ray's."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            node = self.cluster.add_node(num_cpus=cpus, num_gpus=gpus, object_store_memory=_STORE, **more)
        self.nodes.append(node)

    def kill_node(self, number: int) -> None:
        """Kill all processes of a node at once."""
        node = self.nodes.pop(number)
        busy = _family(node)
        for process in busy:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        with contextlib.suppress(Exception):  # its processes are gone already
            self.cluster.remove_node(node, allow_graceful=False)

    def replace_dead(self) -> int:
        """Put new nodes in the place of those that have ended by themselves; returns how many."""
        dead = [node for node in self.nodes if not _family(node)]
        for node in dead:
            self.nodes.remove(node)
            self.add()
        return len(dead)

    def busy_workers(self) -> list[int]:
        """The processes that train a stack now."""
        found = []
        for node in self.nodes:
            for process in _family(node):
                with contextlib.suppress(psutil.Error, IndexError):
                    title = process.cmdline()[0]
                    if title.startswith("ray::") and not title.startswith("ray::IDLE"):
                        found.append(process.pid)
        return found

    def close(self) -> None:
        """End it."""
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")
            self.cluster.shutdown()


def _family(node: Any) -> list[psutil.Process]:
    """The processes of a node: Ray's own and the workers."""
    found: list[psutil.Process] = []
    for kind in node.all_processes.values():
        for each in kind:
            with contextlib.suppress(psutil.Error):
                root = psutil.Process(each.process.pid)
                if root.status() != psutil.STATUS_ZOMBIE:
                    found += [root, *root.children(recursive=True)]
    return found


@contextlib.contextmanager
def cluster(cpus: list[int], client_port: int | None = None, **config: Any) -> Iterator[Nodes]:
    """A cluster for a while; `config` is Ray's own."""
    nodes = Nodes(cpus, client_port, **config)
    try:
        yield nodes
    finally:
        nodes.close()


def kill(pid: int) -> bool:
    """Kill a process; False where it is gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True

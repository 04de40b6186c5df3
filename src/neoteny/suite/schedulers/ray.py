"""A Ray cluster: one task per stack, a bounded number in flight, retries when workers or nodes are lost.

Ray places tasks and tells when a process or a machine has died. Everything else is as on one machine: a task claims its
stack by a lease, continues from its checkpoint, and writes its results itself. The driver holds nothing that could be
lost with it. Two drivers in one folder share the stacks, since a task whose stack is held by another ends at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

from neoteny.suite.environment import set_deterministic
from neoteny.suite.schedulers.memory import estimate_bytes
from neoteny.suite.schedulers.scheduler import Orders, Work, describe_stack, find_stack
from neoteny.suite.stacks import PlannedStack, Run
from neoteny.suite.stopping import StopFlag
from neoteny.suite.store.errors import Stopped, StoreError
from neoteny.suite.worker import Outcome, Worker, halve
from neoteny.text import say_count

MOST_DEATHS = 10
"""After so many ends of its process without progress between them, a stack has failed."""
MOST_STORAGE_FAILURES = 20
_MOST_IN_FLIGHT, _FEWEST_IN_FLIGHT = 512, 4
_LOOK_SECONDS = 0.2
_SURVEY_SECONDS = 3.0
_HELD_SECONDS = 2.0
_DEATH_SECONDS = 0.5
_STOP_SECONDS = 120.0
_AVOID_SECONDS = 60.0
"""A node that could not begin with a stack gets no other for so long."""
_ANSWER_SECONDS = 10.0
_NODE = "ray.io/node-id"
"""The label that Ray gives every node."""


def run(work: Work) -> list[str]:
    """Train every stack on the cluster; returns what failed."""
    with _connected(work.address):
        return work.worker.run_stages(lambda runs: Driver(work).run(runs))


@contextlib.contextmanager
def _connected(address: str) -> Iterator[None]:
    """A connection to the cluster at the address, to the one that runs here, or to one of this machine alone."""
    import ray

    if ray.is_initialized():
        yield
        return
    _check_address(address or os.environ.get("RAY_ADDRESS", ""))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that we start tells nobody of itself
    # Its workers get the processors like any process: Ray's niceness of 15 costs a sixth. An argument of `ray.init`
    # would be refused where a cluster runs here already.
    os.environ.setdefault("RAY_worker_niceness", "0")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(address or None, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
        raise StoreError(f"--on {address or 'ray'}: no connection to a Ray cluster ({error!s:.300}).") from error
    for number, handler in handlers.items():  # Ray has put its own in their place
        signal.signal(number, handler)
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Refuse an address at which nobody listens, which Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").partition("/")[0].rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto" and such, which Ray knows
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        where = address if address.startswith("ray://") else f"RAY_ADDRESS={address}"
        raise StoreError(
            f"--on ray: nothing answers at {where} ({error}). Expected the address of a Ray cluster that runs: see "
            "`ray status` on its head."
        ) from error


@dataclasses.dataclass
class _Flight:
    """A task that was given to Ray."""

    stack: PlannedStack
    memory: int


class Driver:
    """The stacks of one stage on their way through the cluster."""

    def __init__(self, work: Work) -> None:
        import ray

        self._ray, self._work, self._job = ray, work, work.worker.job
        self._waiting: deque[PlannedStack] = deque()
        self._flights: dict[Any, _Flight] = {}
        self._held: dict[str, tuple[PlannedStack, float]] = {}
        self._failures: dict[str, str] = {}
        self._deaths: Counter[str] = Counter()
        self._reached: dict[str, int] = {}
        self._storage_failures: Counter[str] = Counter()
        self._memory: dict[str, int] = {}
        self._unfit: dict[str, float] = {}
        self._refusals: Counter[str] = Counter()
        self._told: set[str] = set()
        self._started = False
        self._limit, self._surveyed = 0, -_SURVEY_SECONDS
        self.retries = 0
        self._task = ray.remote(max_retries=0)(train_stack)

    def run(self, runs: list[Run]) -> list[str]:
        """Train what is left of these runs; returns what failed."""
        self._waiting.extend(self._work.worker.remaining(runs))
        try:
            while self._waiting or self._flights or self._held:
                self._survey()
                self._launch()
                self._land()
                if self._job.stop:
                    raise Stopped
        except BaseException:
            self._cancel()
            raise
        if self.retries:
            times = say_count(self.retries, "time")
            self._job.notify(f"A worker or a node was lost {times}, and its stack was given to another.")
        self._job.results.refresh()
        return [f"neoteny: {text}" for text in self._failures.values()]

    def _launch(self) -> None:
        """Give stacks to Ray up to the bound."""
        now = time.monotonic()
        for stack_id, (stack, again) in list(self._held.items()):
            if now >= again:
                del self._held[stack_id]
                if not self._job.results.is_finished(stack_id):
                    self._waiting.append(stack)
        while self._waiting and len(self._flights) < self._limit:
            stack = self._waiting.popleft()
            resources = self._work.resources
            memory = self._memory.get(stack.stack_id) or estimate_bytes(stack)
            options = {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "memory": memory}
            if unfit := self._avoided():
                options["label_selector"] = {_NODE: f"!in({','.join(unfit)})"}
            task = self._task.options(**options, name=f"{stack.name[:60]}")
            # Orders go with every task: an object that was put into the store would be lost with its node.
            reference = task.remote(self._work.join, self._work.orders, describe_stack(stack), stack.stack_id)
            self._flights[reference] = _Flight(stack, memory)

    def _land(self) -> None:
        """Wait a moment for tasks to end, and see what became of them."""
        if not self._flights:
            self._job.stop.wait(_LOOK_SECONDS)
            return
        references = list(self._flights)
        ended, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        if not ended:
            ended, _ = self._ray.wait(references, num_returns=1, timeout=_LOOK_SECONDS)
        for reference in ended:
            flight = self._flights.pop(reference)
            try:
                outcome: Outcome = self._ray.get(reference)
            except self._ray.exceptions.OutOfMemoryError:
                self._divide(flight)
            except self._ray.exceptions.TaskCancelledError:
                self._waiting.append(flight.stack)
            except self._ray.exceptions.RayTaskError as error:  # not of the stack: the task could not even begin
                nodes = [node["NodeID"] for node in self._nodes() if node["NodeManagerAddress"] == error.ip]
                self._refuse(flight.stack, f"{error.ip}: a task could not begin: {_last_line(error)}", nodes)
            except self._ray.exceptions.RayError as error:
                self._try_again(flight.stack, error)
            else:
                self._take(flight.stack, outcome)

    def _take(self, stack: PlannedStack, outcome: Outcome) -> None:
        for note in outcome.notes:
            self._tell(note)
        self._started |= outcome.state != "unfit"
        if outcome.state == "held":
            self._tell("Other processes are training some of these stacks; this command waits for them.")
            self._held[stack.stack_id] = (stack, time.monotonic() + _HELD_SECONDS)
        elif outcome.state == "split":
            self._waiting.extend(halve(stack))
        elif outcome.state == "stopped":
            self._waiting.append(stack)
        elif outcome.state == "unfit":
            self._refuse(stack, outcome.text, [outcome.node])
        elif outcome.state == "failed":
            self._storage_failures[stack.stack_id] += 1
            if outcome.storage and self._storage_failures[stack.stack_id] < MOST_STORAGE_FAILURES:
                self.retries += 1
                self._waiting.append(stack)
            else:
                self._failures[stack.stack_id] = outcome.text

    def _try_again(self, stack: PlannedStack, error: Exception) -> None:
        """After the end of a worker or a node: continue from the checkpoint, unless the stack is what ends them."""
        reached = (self._job.results.progress_of(stack.stack_id) or {}).get("updates", 0)
        if reached > self._reached.get(stack.stack_id, -1):
            self._reached[stack.stack_id] = reached
            self._deaths[stack.stack_id] = 0
        self._deaths[stack.stack_id] += 1
        if self._deaths[stack.stack_id] >= MOST_DEATHS:
            reason = " ".join(str(error).split())
            text = f"{stack.name}: its process ended {MOST_DEATHS} times without progress ({reason:.200})"
            self._give_up(stack, text)
            return
        self.retries += 1
        pause = _DEATH_SECONDS * (self._deaths[stack.stack_id] - 1)  # the first time at once
        self._held[stack.stack_id] = (stack, time.monotonic() + pause)

    def _refuse(self, stack: PlannedStack, text: str, nodes: list[str]) -> None:
        """After a node could not begin with a stack: leave it out for a while; an error where no other is left."""
        self._refusals[stack.stack_id] += 1
        self._unfit.update(dict.fromkeys(nodes, time.monotonic() + _AVOID_SECONDS))
        others = [node for node in self._fitting() if node["NodeID"] not in self._avoided()]
        if self._refusals[stack.stack_id] > MOST_DEATHS or not (others or self._started):
            raise StoreError(text)
        self._tell(f"A node cannot train stacks of this sweep and is left out. {text}")
        self._held[stack.stack_id] = (stack, time.monotonic() + (0.0 if others else _HELD_SECONDS))

    def _avoided(self) -> list[str]:
        """The nodes that could not begin with a stack, for a while."""
        now = time.monotonic()
        return sorted(node for node, until in self._unfit.items() if node and now < until)

    def _divide(self, flight: _Flight) -> None:
        """After Ray ended a worker because its machine ran out of memory: ask for more, or halve the stack.

        It need not have been this stack that took it. So a single run fails only when it had the largest node alone.
        """
        stack, first = flight.stack, flight.stack.stack_id not in self._memory
        self.retries += 1
        most = int(max((node["Resources"].get("memory", 0.0) for node in self._fitting()), default=0.0))
        if flight.memory < most and (first or len(stack.runs) == 1):
            self._memory[stack.stack_id] = min(2 * flight.memory, most)
            self._tell(f"{stack.name}: a machine ran out of memory; it is tried again with more.")
            self._waiting.append(stack)
        elif len(stack.runs) > 1:
            with self._job.results.lock(stack.stack_id) as mine:
                if mine:
                    self._waiting.extend(self._work.worker.split(stack).halves)
                else:
                    self._held[stack.stack_id] = (stack, time.monotonic() + _HELD_SECONDS)
        else:
            self._give_up(stack, f"{stack.name}: it does not fit into the memory of any machine it was given to")

    def _give_up(self, stack: PlannedStack, text: str) -> None:
        with self._job.results.lock(stack.stack_id) as mine:
            if mine:
                self._work.worker.fail(stack, text)
        self._failures[stack.stack_id] = text

    def _nodes(self) -> list[dict[str, Any]]:
        """The nodes of the cluster that are alive."""
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _wanted(self) -> dict[str, float]:
        """What a stack needs, besides memory."""
        wanted = {"CPU": float(self._work.resources.cpus), "GPU": float(self._work.resources.gpus)}
        return {name: amount for name, amount in wanted.items() if amount > 0}

    def _fitting(self) -> list[dict[str, Any]]:
        """The nodes that have what a stack needs, besides memory."""
        wanted = self._wanted()
        return [n for n in self._nodes() if all(n["Resources"].get(name, 0.0) >= wanted[name] for name in wanted)]

    def _survey(self) -> None:
        """Look at the cluster: how many stacks to have in flight, and whether any machine can take one."""
        now = time.monotonic()
        if now - self._surveyed < _SURVEY_SECONDS:
            return
        self._surveyed = now
        wanted, fitting = self._wanted(), [node["Resources"] for node in self._fitting()]
        slots = sum(int(min(node[name] / amount for name, amount in wanted.items())) for node in fitting)
        self._limit = self._work.resources.workers or min(max(2 * slots, _FEWEST_IN_FLIGHT), _MOST_IN_FLIGHT)
        memory = min((flight.memory for flight in self._flights.values()), default=0)
        if not fitting:
            nodes = [node["Resources"] for node in self._nodes()]
            needs = ", ".join(f"{amount:g} {name}" for name, amount in wanted.items())
            most = ", ".join(f"{max((node.get(name, 0.0) for node in nodes), default=0):g} {name}" for name in wanted)
            self._tell(
                f"Waiting for a machine: a stack needs {needs}, and no node of the cluster has that (at most {most}). "
                "Training begins when one joins; Ctrl-C stops."
            )
        elif memory and not any(node.get("memory", 0.0) >= memory for node in fitting):
            self._tell(
                f"Waiting for a machine: the smallest stack needs about {memory / 2**30:.1f} GiB, and no node has that."
            )

    def _tell(self, line: str) -> None:
        """Tell the person, once."""
        if line not in self._told:
            self._told.add(line)
            self._job.notify(line)

    def _cancel(self) -> None:
        """Ask the tasks to stop, which write a checkpoint, and wait for them."""
        left = list(self._flights)
        for reference in left:
            with contextlib.suppress(Exception):
                self._ray.cancel(reference)
        end = time.monotonic() + _STOP_SECONDS
        while left and time.monotonic() < end:
            with contextlib.suppress(self._ray.exceptions.RayError):
                _, left = self._ray.wait(left, num_returns=len(left), timeout=1.0)


def _last_line(error: Exception) -> str:
    """What a traceback ends with."""
    return str(error).strip().rpartition("\n")[2][:400]


_JOINED: dict[str, Worker] = {}
"""In a process of Ray's: the sweeps it has opened, by command."""


def train_stack(join: Any, orders: Orders, described: Sequence[tuple[str, int]], stack_id: str) -> Outcome:
    """In a process of Ray's: train one stack, or continue it."""
    notes: list[str] = []
    stop = StopFlag()
    try:
        set_deterministic()  # some of it belongs to the thread, which may be another one each time
        worker = _JOINED.get(orders.command)
        if worker is None:
            worker = _JOINED[orders.command] = join(orders)
        stack = find_stack(worker, described, stack_id)
    except Exception as error:
        import ray

        text = f"{socket.gethostname()}: {type(error).__name__}: {error}"
        return Outcome("unfit", text, notes=tuple(notes), node=ray.get_runtime_context().get_node_id())
    worker = dataclasses.replace(worker, job=dataclasses.replace(worker.job, stop=stop, notify=notes.append))
    with stop.listening():  # `ray.cancel` interrupts as Ctrl-C does
        try:
            outcome = worker.attempt(stack)
        except (Stopped, KeyboardInterrupt):
            outcome = Outcome("stopped")
        except StoreError as error:
            outcome = Outcome("failed", f"{stack.name}: {error}", storage=True)
    return dataclasses.replace(outcome, halves=(), notes=tuple(notes))

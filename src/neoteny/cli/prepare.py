"""From the options of `neoteny run` to everything that it needs: the experiment, its data, its folder; all checked."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from neoteny import experiments
from neoteny.cli.parser import RunOptions
from neoteny.cli.trust import DIGEST
from neoteny.experiments import Experiment, UserCode
from neoteny.problems.problem import Problem, Source
from neoteny.suite.configuration import describe
from neoteny.suite.environment import check_matmul, choose_device, choose_kernel, open_problems, versions
from neoteny.suite.schedulers.scheduler import Orders, check_folder, parse_pairs, split_name
from neoteny.suite.shards import Shard
from neoteny.suite.stacks import Run, runs_of
from neoteny.suite.store.errors import StoreError
from neoteny.suite.store.remote import RemoteResults, copy_folder, fetch_results
from neoteny.suite.store.results import Results
from neoteny.suite.sweep import Sweep
from neoteny.suite.trackers.tracking import find_tracker
from neoteny.text import nearest


@dataclass(frozen=True)
class Prepared:
    """Everything that a run needs, checked: the data is there, the folder is ours.

    `every` has one run per setting, with the settings that --methods leaves for later. `command` is the id of this
    command among those that work in the folder.
    """

    options: RunOptions
    experiment: Experiment
    sweep: Sweep
    results: Results
    streams: dict[Problem, Source]
    device: torch.device
    kernel: str
    wanted: list[Run]
    every: list[Run]
    command: str = ""


def prepare(
    options: RunOptions,
    orders: Orders | None = None,
    is_child: bool = False,
    digest: str = "",
    kept: Path | None = None,
) -> Prepared:
    """Load the experiment, find its data and open its folder; validates everything before writing.

    Args:
        options: what was asked for.
        orders: on another machine, which joins a command that has begun.
        is_child: whether this is a process of `--jobs`, or of a job of a batch system.
        digest: of the experiment file that the parent has read; "": of none, or not known.
        kept: a copy of that file, which is used where the file is another one now.
    """
    name, _ = split_name(options.on)
    if options.dry_run and name != "slurm":
        raise ValueError("--dry-run prints the sbatch file of --on slurm; with other schedulers it does nothing.")
    if options.shard is not None:
        if name != "local":
            raise ValueError(f"--shard is for commands that are started one by one; --on {name} shares by itself.")
        try:
            Shard.parse(options.shard)
        except ValueError as error:
            raise ValueError(f"--shard: {error}.") from None
    parse_pairs(options.slurm)
    if orders is None and not is_child:
        _refuse_unused(options, name)
    if options.track is not None:
        find_tracker(options.track)
    experiment = _load(options, orders, kept)
    if digest and (experiment.code is None or experiment.code.digest != digest):
        raise experiments.ExperimentError(
            f"{options.experiment} was changed after this command had read it, before all its processes had. Repeat "
            "the command: it runs the file as it is now."
        )
    if experiment.code is not None and experiment.name in experiments.EVERY:
        raise experiments.ExperimentError(
            f"{experiment.path} would be called {experiment.name}, as an experiment of the package is; rename the file."
        )
    sweep = experiment.make_sweep(options.scale)
    if options.runs is not None:
        settings = tuple(dataclasses.replace(setting, runs=None) for setting in sweep.settings)
        sweep = dataclasses.replace(sweep, runs=options.runs, settings=settings)
    device = choose_device(options.device, sweep) if name == "local" else _choose_there(options, sweep)
    kernel = choose_kernel(options.kernel, device)
    check_matmul(sweep, device, kernel)
    every = runs_of(sweep, sweep.settings, kernel, range(1))
    streams = open_problems(sweep, options.data)
    about = {
        "experiment": experiment.name,
        "scale": options.scale,
        "data": ", ".join(sorted({stream.fingerprint for stream in streams.values() if stream.fingerprint})),
        "configuration": describe(sweep),
        "versions": versions(),
        **({DIGEST: experiment.code.digest} if experiment.code else {}),
    }
    root = options.out or Path("results") / f"{experiment.name}-{options.scale}"
    sweep = _keep_methods(sweep, options.methods)
    source = experiment.code.source if experiment.code else None
    command = orders.command if orders else "" if name == "local" else uuid.uuid4().hex
    shared = name != "local" or options.shard is not None or orders is not None
    if options.dry_run:
        results = _look(root, about)
    elif isinstance(root, str):
        joins = orders is not None or is_child
        results = RemoteResults.join(root) if joins else RemoteResults.begin(root, about, source, options.repair)
        results.claims.share(options.lease_seconds, command)
    elif orders is not None:
        results = Results.open(root)
        check_folder(root, results.claims.folder_id(make=False), orders.folder_id)
    elif is_child:  # its parent has made the folder; a later command may have recorded a newer experiment file in it
        results = Results.look(root, about)
    else:
        results = Results.create(root, about, source, options.repair, shared)
    if shared and not options.dry_run:
        results.claims.share(options.lease_seconds, command)
    wanted = [] if orders else runs_of(sweep, sweep.settings, kernel)
    return Prepared(options, experiment, sweep, results, streams, device, kernel, wanted, every, command)


def _refuse_unused(options: RunOptions, name: str) -> None:
    """Refuse options that this scheduler would ignore."""
    gpus = options.gpus_per_stack or 0.0
    if gpus > 1 and gpus != int(gpus):
        raise ValueError(f"--gpus-per-stack: expected a part of one GPU, or a whole number of them; got {gpus:g}.")
    if options.slurm is not None and name != "slurm":
        raise ValueError(f"--slurm is for --on slurm; with --on {name} it does nothing.")
    if options.jobs is not None and name != "local":
        raise ValueError(f"--jobs is for processes of this machine; with --on {name} use --workers.")
    if name == "local":
        for flag, given in (("cpus", options.cpus_per_stack != 1), ("gpus", options.gpus_per_stack is not None)):
            if given:
                raise ValueError(f"--{flag}-per-stack is for --on ray and --on slurm; on one machine it does nothing.")


def _look(root: Path | str, about: Mapping[str, Any]) -> Results:
    """The results folder of a command that only shows what it would do; nothing is written."""
    if isinstance(root, str):
        with contextlib.suppress(StoreError):  # it need not be there yet
            fetch_results(root)
        return Results.look(copy_folder(root), about)
    return Results.look(root, about)


def _load(options: RunOptions, orders: Orders | None, kept: Path | None) -> Experiment:
    """The experiment; its file comes with the orders, or was kept, where this machine has none, or another one."""
    path = Path(options.experiment)
    source = UserCode.read(kept).source if kept is not None else orders.source if orders is not None else None
    if source is None or (path.is_file() and path.read_bytes() == source):
        return experiments.load(options.experiment)
    if kept is None:
        kept = Path(tempfile.mkdtemp(prefix="neoteny-")) / path.name
        kept.write_bytes(source)
    return experiments.load_file(UserCode.read(kept, str(path.parent)))


def _choose_there(options: RunOptions, sweep: Sweep) -> torch.device:
    """The device of a cluster's workers, which this machine need not have."""
    wants = options.device == "cuda" or (options.device == "auto" and bool(options.gpus_per_stack))
    if not wants or any(setting.agent is not None for setting in sweep.settings):
        return choose_device("cpu" if options.device == "auto" else options.device, sweep)
    return torch.device("cuda")


def _keep_methods(sweep: Sweep, names: str | None) -> Sweep:
    """The sweep with the settings of these methods only; None: all."""
    if names is None:
        return sweep
    known = list(dict.fromkeys(setting.method for setting in sweep.settings))
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in known:
            raise ValueError(
                f"--methods: this experiment has no method {name!r}.{nearest(name, known)} It has {', '.join(known)}."
            )
    settings = tuple(setting for setting in sweep.settings if setting.method in wanted)
    return dataclasses.replace(sweep, settings=settings)

"""The options of `neoteny run` as one plain value, which reaches worker processes whole."""

from __future__ import annotations

import dataclasses
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunOptions:
    """What a person asked `neoteny run` to do. Each field but the first is a flag of the same name.

    Args:
        experiment: a name, or the path of a Python file.
        scale: how large.
        methods: names of methods, separated by commas; None: all.
        runs: runs per setting instead of the experiment's number.
        out: the results folder; None: results/EXPERIMENT-SCALE.
        device: auto, cpu or cuda.
        kernel: auto or reference.
        jobs: processes; None: one per core on a CPU, one on a GPU.
        data: where data is; None: $NEOTENY_DATA, then the cache.
        checkpoint_seconds: time between checkpoints of a stack.
    """

    experiment: str
    scale: str = "laptop"
    methods: str | None = None
    runs: int | None = None
    out: Path | None = None
    device: str = "auto"
    kernel: str = "auto"
    jobs: int | None = None
    data: Path | None = None
    checkpoint_seconds: float = 60.0

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Every flag's default, by name."""
        return {field.name: field.default for field in dataclasses.fields(cls) if field.name != "experiment"}

    def command(self, root: Path) -> str:
        """The command that continues this one in the folder `root`; --jobs is left to whoever continues."""
        words = ["neoteny", "run", self.experiment, "--scale", self.scale, "--out", str(root)]
        for name, default in self.defaults().items():
            if name not in ("scale", "out", "jobs") and getattr(self, name) != default:
                words += [f"--{name.replace('_', '-')}", str(getattr(self, name))]
        return shlex.join(words)

    def to_json(self) -> str:
        """All options, for `from_json` in another process."""
        return json.dumps(dataclasses.asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> RunOptions:
        """The options that `to_json` wrote."""
        values = json.loads(text)
        paths = {name: Path(values[name]) for name in ("out", "data") if values[name] is not None}
        return cls(**{**values, **paths})

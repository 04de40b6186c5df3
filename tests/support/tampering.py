"""Changes to the JSON files of a results folder, made so that the folder still takes them for its own."""

from __future__ import annotations

import json
from pathlib import Path

from neoteny.suite.store.documents import write_document


def tamper(path: Path, **changes: object) -> None:
    """Change some fields of a JSON file, as somebody would who knows how its checksum is made."""
    write_document(path, {**json.loads(path.read_text()), **changes})


def rename_experiment(folder: Path, name: str) -> None:
    """Let a folder and its parts say that they are of another experiment."""
    tamper(folder / "experiment.json", experiment=name)
    for part in folder.glob("parts/*.json"):
        tamper(part, belongs_to={**json.loads(part.read_text())["belongs_to"], "experiment": name})

"""Changes to the JSON files of a results folder, made so that the folder still takes them for its own."""

from __future__ import annotations

import json
from pathlib import Path

from neoteny.suite.store.files import write_json


def tamper(path: Path, **changes: object) -> None:
    """Change some fields of a JSON file, as somebody would who knows how its checksum is made."""
    write_json(path, {**json.loads(path.read_text()), **changes})

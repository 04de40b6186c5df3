"""Whether a report is up to date: what it was made from, and what it made, as `make` looks at files.

Reading 20,000 runs and drawing them takes many seconds; a page of the same runs, made by the same code, stays as it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import neoteny
from neoteny.suite.store.files import read_file
from neoteny.suite.store.folder import ResultsFolder
from neoteny.suite.store.index import FOLDER, is_settled, is_worthwhile, read_sealed, save_sealed, sign

_FILE = "report.json"
_PACKAGES = ("numpy", "pandas", "pyarrow", "scipy", "matplotlib", "plotly", "jinja2", "torch")
_READ = ("experiment.json", "plan.json", "analysis.json")
_CODE = (".py", ".html", ".css", ".js")


class Made:
    """What a report of a folder would be made from now.

    Args:
        results: the folder.
        width: of the terminal that the table is printed for.
    """

    def __init__(self, results: ResultsFolder, width: int) -> None:
        self._root, parts = results.root, results.signatures()
        self._settled = is_settled(*(one for pair in parts.values() for one in pair)) if parts else False
        texts = [json.dumps([width, neoteny.__version__, _versions(), _sources(), parts]).encode()]
        for name in _READ:
            with contextlib.suppress(OSError):
                texts.append(read_file(self._root / name))
        self._digest = hashlib.sha256(b"\0".join(texts)).hexdigest()

    def recall(self) -> str | None:
        """What was said of the report where it is up to date; None where it must be made."""
        with contextlib.suppress(ValueError, TypeError, KeyError, OSError):
            found = json.loads(read_sealed(self._root / FOLDER / _FILE) or b"{}")
            if found["from"] == self._digest:
                for name, signature in found["files"].items():
                    if sign(os.stat(self._root / name)) != signature:
                        return None
                return found["said"]
        return None

    def keep(self, said: str, files: Sequence[Path], runs: int) -> None:
        """Remember what was made; not where parts have just been written, nor for small folders."""
        if self._settled and is_worthwhile(runs):
            signatures = {str(path.relative_to(self._root)): sign(path.stat()) for path in files}
            content = {"from": self._digest, "files": signatures, "said": said}
            save_sealed(self._root / FOLDER / _FILE, json.dumps(content).encode())


def _versions() -> list[str]:
    found = []
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return found


def _sources() -> list[tuple[str, int, int]]:
    """The package's own files, with their sizes and times: code that was edited makes another report."""
    found = []
    for folder, _, names in os.walk(Path(neoteny.__file__).parent):
        for name in names:
            if name.endswith(_CODE):
                about = os.stat(os.path.join(folder, name))
                found.append((os.path.join(folder, name), about.st_size, about.st_mtime_ns))
    return sorted(found)

"""Errors in words: what the command line prints instead of a traceback."""

from __future__ import annotations

import inspect
import re
import sysconfig
import traceback
from pathlib import Path

import neoteny
from neoteny.text import nearest

SUITE = ("pandas", "pyarrow", "scipy", "plotly", "matplotlib", "jinja2", "rich", "PIL", "numba")


def explain(error: Exception) -> str | None:
    """The text for an error that the user can fix; None for a fault of ours, which keeps its traceback."""
    if isinstance(error, ModuleNotFoundError) and error.name in SUITE:
        return f"This needs {error.name}, which is not installed: pip install 'neoteny[suite]'."
    from neoteny.experiments import ExperimentError
    from neoteny.suite.store.errors import StoreError

    if isinstance(error, (StoreError, ExperimentError)):
        return str(error)
    from neoteny.problems.data.files import DataError  # imports torch

    if isinstance(error, DataError):
        return str(error)
    if isinstance(error, (ValueError, TypeError)):
        return f"{_place(error)}{_unknown_parameter(str(error)) or error}"
    return None


def _place(error: Exception) -> str:
    """The line of the user's experiment file that raised the error, if one did."""
    libraries = [str(Path(neoteny.__file__).parent), *sysconfig.get_paths().values()]
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.endswith(".py") and not frame.filename.startswith(tuple(libraries))
    ]
    return f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""


def _unknown_parameter(text: str) -> str | None:
    """Python's own message about an unexpected argument, with the nearest known one."""
    found = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", text)
    if found is None:
        return None
    from neoteny import methods, nets, problems
    from neoteny.suite import sweep

    name, argument = found.groups()
    for home in (methods, nets, problems, sweep):
        thing = getattr(home, name, None)
        if thing is not None:
            known = list(inspect.signature(thing).parameters)
            return f"{name} has no parameter {argument!r}.{nearest(argument, known)} It takes {', '.join(known)}."
    return None

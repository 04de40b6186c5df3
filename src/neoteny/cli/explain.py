"""Errors in words: what the command line prints instead of a traceback."""

from __future__ import annotations

SUITE = ("pandas", "pyarrow", "scipy", "plotly", "matplotlib", "jinja2", "rich", "PIL", "numba")


def explain(error: BaseException) -> str | None:
    """The text for an error that the user can fix; None for a fault of ours, which keeps its traceback."""
    from neoteny.experiments.user_code import ExperimentError, describe, explain_parameter
    from neoteny.suite.store.errors import StoreError

    cause = error.__cause__ if isinstance(error, ExperimentError) else error
    if isinstance(cause, ModuleNotFoundError) and cause.name in SUITE:
        return f"This needs {cause.name}, which is not installed: pip install 'neoteny[suite]'."
    if isinstance(error, (StoreError, ExperimentError)):
        return str(error)
    from neoteny.problems.data.files import DataError  # imports torch

    if isinstance(error, DataError):
        return str(error)
    if (text := describe(error)) is not None:
        return text
    if isinstance(error, (ValueError, TypeError)):
        return explain_parameter(str(error)) or str(error)
    if isinstance(error, OSError) and error.filename is not None:  # a path that was given
        return f"{error.filename}: {error.strerror}."
    if isinstance(error, MemoryError):
        return f"There is not enough memory for this. {error}".strip()
    if isinstance(error, SystemExit):
        return f"something that was called ended the program (sys.exit({error.code!r}))."
    return None

"""The code of a user's experiment file: how it is run, and how its errors are told from ours.

The file's own functions are called through `UserCode.call`. What they raise, an exit of the program included,
becomes an `ExperimentError` that names the line of the file. An error that did not pass through the file is ours, and
keeps its traceback.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import inspect
import os
import re
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

import neoteny
from neoteny.experiments import old_names
from neoteny.text import nearest

T = TypeVar("T")
_PREFIX = "neoteny_experiment_"
"""How the modules of users' files are named."""


class ExperimentError(ValueError):
    """Unknown experiment, a file that does not define one, or an error in such a file."""


@dataclass
class UserCode:
    """An experiment file as it was when it was read: what is checked is what runs.

    Args:
        path: where it is.
        source: its text.
        folder: where it came from, if it is a copy; what it imports from there is found.
    """

    path: Path
    source: bytes
    folder: str = ""
    _search: list[str] = field(default_factory=list)
    _current: str | None = None

    @classmethod
    def read(cls, path: Path, folder: str = "") -> UserCode:
        """Read the file; nothing of it is run."""
        if not path.is_file():
            what = "is not a file" if path.exists() else "does not exist"
            raise ExperimentError(f"There is no file {path} (it {what}). An experiment is one Python file.")
        try:
            return cls(path, path.read_bytes(), folder)
        except OSError as error:
            raise ExperimentError(f"{path} cannot be read ({error.strerror}).") from error

    @property
    def digest(self) -> str:
        """Its SHA-256."""
        return hashlib.sha256(self.source).hexdigest()

    def place(self, function: Callable[..., Any]) -> str:
        """The file, with the line where the function begins if it stands in it."""
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType) and code.co_filename == os.path.abspath(self.path):
            return f"{self.path}, line {code.co_firstlineno}"
        return str(self.path)

    def load(self) -> ModuleType:
        """The module that the file defines."""
        old_names.install()
        name = _PREFIX + self.path.stem
        loader = _Loader(name, self)
        spec = importlib.util.spec_from_file_location(name, loader.path, loader=loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # frozen dataclasses and pickles look their module up
        self._search = [str(self.path.resolve().parent), *([self.folder] if self.folder else []), *sys.path]
        self._current = _current_folder()
        try:
            self.call(loader.exec_module, module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
        return module

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function of the file.

        Raises:
            ExperimentError: it raised something; the line of the file is named.
        """
        with self._surroundings(), _watch_interrupts() as interrupts:
            try:
                return function(*arguments)
            except ExperimentError:
                raise
            except BaseException as error:
                text = None if isinstance(error, KeyboardInterrupt) and interrupts else describe(error)
                if text is None:
                    raise
                raise ExperimentError(text) from error

    @contextlib.contextmanager
    def _surroundings(self) -> Iterator[None]:
        """The import path and the current folder of the file: what it changes there holds while it runs, no longer."""
        search, current = list(sys.path), _current_folder()
        sys.path[:] = self._search
        _enter(self._current)
        try:
            yield
        finally:
            self._search, self._current = list(sys.path), _current_folder()
            sys.path[:] = search
            _enter(current)


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs the text that was read, never a compiled file that lies beside it, and leaves none there."""

    def __init__(self, name: str, code: UserCode) -> None:
        super().__init__(name, os.path.abspath(code.path))
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        try:
            return compile(self._code.source, self.path, "exec", dont_inherit=True)
        except (ValueError, SyntaxError) as error:
            if isinstance(error, SyntaxError) and error.filename:
                raise
            # Null bytes, which belong to no line; which error it is depends on the version of Python.
            raise ExperimentError(f"{self.path} is not a Python file ({error}).") from error


def describe(error: BaseException) -> str | None:
    """An error with the last line of a user's experiment file that it came through; None if it came through none.

    Our own refusals (ValueError, TypeError) are sentences and stand alone. Of other errors from beyond the file it is
    said where they were raised, because the fault may be there.
    """
    files = {str(module.__file__) for name, module in list(sys.modules.items()) if name.startswith(_PREFIX)}
    steps = [
        (frame.f_code.co_filename, line, str(frame.f_globals.get("__name__")))
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        steps.append((error.filename, error.lineno or 0, Path(error.filename).name))
    own = [step for step in steps if step[0] in files] or [step for step in steps if _is_beside(step[0], files)]
    if not own:
        return None
    file, line, _ = own[-1]
    _, raised_line, raised_in = steps[-1]
    refused = isinstance(error, (ValueError, TypeError)) and raised_in.split(".")[0] == "neoteny"
    message = _message(error)
    if isinstance(error, TypeError):
        message = explain_parameter(message) or message
        refused = refused or message != _message(error)
    text = message if refused else ": ".join(filter(None, [type(error).__name__, message]))
    if isinstance(error, (SystemExit, GeneratorExit, KeyboardInterrupt)):
        text += " (an experiment file must not end the program)"
    elif steps[-1] is not own[-1] and not refused:
        text += f" (raised in {raised_in}, line {raised_line}; NEOTENY_TRACEBACK=1 shows the whole traceback)"
    return f"{file}, line {line}: {text}"


def explain_parameter(text: str) -> str | None:
    """Python's own message about an unexpected argument, with the nearest known one."""
    found = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", text)
    if found is None:
        return None
    from neoteny import nets, problems
    from neoteny.suite import sweep

    name, argument = found.groups()
    for home in (nets, problems, sweep):  # methods say it themselves
        thing = getattr(home, name, None)
        if thing is not None:
            known = list(inspect.signature(thing).parameters)
            return f"{name} has no parameter {argument!r}.{nearest(argument, known)} It takes {', '.join(known)}."
    return None


def _is_beside(file: str, files: Iterable[str]) -> bool:
    """Whether a file lies in the folder of an experiment file, and is of no library."""
    libraries = (os.path.dirname(neoteny.__file__), *sysconfig.get_paths().values())
    folders = tuple(os.path.dirname(each) + os.sep for each in files)
    return bool(folders) and file.startswith(folders) and not file.startswith(libraries)


def _message(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return error.msg
    try:
        return str(error)
    except Exception:
        return "(its message cannot be shown)"


@contextlib.contextmanager
def _watch_interrupts() -> Iterator[list[int]]:
    """A list of the Ctrl-C that came, to tell one from a file that raises KeyboardInterrupt itself."""
    came: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield came
        return

    def handle(number: int, frame: Any) -> None:
        came.append(number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield came
    finally:
        if signal.getsignal(signal.SIGINT) is handle:
            signal.signal(signal.SIGINT, before)


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


def _enter(folder: str | None) -> None:
    if folder is not None:
        with contextlib.suppress(OSError):
            os.chdir(folder)

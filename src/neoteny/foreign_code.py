"""Code that is not the package's own: which classes are a user's, where it failed, and which generators it drew from.

Before this: nothing; after it: `methods.chain`, `stacking` and `suite`, which run methods, networks and problems of
users.
"""

from __future__ import annotations

import functools
import random
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch


@functools.cache
def _libraries() -> tuple[str, ...]:
    """The folders of the package, of Python and of what is installed."""
    import sysconfig

    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return (str(Path(__file__).parent), *(sysconfig.get_paths()[name] for name in names))


def is_users(thing: object) -> bool:
    """Whether an object's class (or a class itself) is defined outside the package."""
    kind = thing if isinstance(thing, type) else type(thing)
    return kind.__module__.split(".")[0] != "neoteny"


def failing_line(error: BaseException) -> str:
    """The last line of the user's own files on the way to an error: "my.py, line 12"; "" if there is none."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        for frame in reversed(traceback.extract_tb(each.__traceback__)):
            if frame.filename.endswith(".py") and not frame.filename.startswith(_libraries()):
                return f"{frame.filename}, line {frame.lineno}"
        each = each.__cause__ or each.__context__
    return ""


@contextmanager
def called(what: str) -> Iterator[None]:
    """Errors from in here get the note that they came from `what`, "in Noisy.step" for example."""
    try:
        yield
    except Exception as error:
        error.add_note(what)
        raise


def generator_states(*devices: torch.device) -> dict[str, object]:
    """The states of all global generators, by their names in words; `devices`: those of CUDA to look at."""
    found: dict[str, object] = {"torch's global generator": torch_state(*devices)}
    kind, keys, position, *rest = np.random.get_state()
    found["NumPy's global generator"] = (kind, np.asarray(keys).tobytes(), position, *rest)
    found["Python's global generator"] = random.getstate()
    return found


def torch_state(*devices: torch.device) -> bytes:
    """The state of torch's global generators."""
    states = [torch.default_generator.get_state()]
    states += [torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"]
    return b"".join(state.numpy().tobytes() for state in states)


def refuse_draws(what: str, before: Mapping[str, object], after: Mapping[str, object]) -> None:
    """Refuse code that drew from a global generator.

    Raises:
        ValueError: names it, and says what to draw with instead.
    """
    for name, state in before.items():
        if after[name] != state:
            raise ValueError(
                f"{what} drew from {name}, so that a run would depend on its neighbours in the stack and on where it "
                "was interrupted. Draw with neoteny.draws.rng, by (seed, step), or from a generator of your own."
            )

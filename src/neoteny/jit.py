"""numba's compiler, where it is installed: the compiled passes are optional and everything works without them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


@functools.cache
def compiler(cache: bool = True, exact: bool = False) -> Callable[..., Any] | None:
    """A decorator that compiles a function, or None where numba is not installed.

    "reassoc" lets sums use vector registers; NaN and infinity keep their meaning, and a division by zero gives one of
    them: the check that Python makes instead would keep loops from being vectorised.

    Args:
        cache: keep the machine code on disk. It is looked up by the function's own file, so not for functions that are
            called from other files: those would go on with the old code after a change. It is looked up by what the
            function closes over, too, so a compiled function must be a global: closed over, it is another each time.
        exact: round as Python does, where the last bit decides: no sums in another order, no product and sum in one.
    """
    try:
        import numba  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return numba.njit(
        fastmath=set() if exact else {"reassoc", "contract"}, error_model="numpy", cache=cache, nogil=True
    )

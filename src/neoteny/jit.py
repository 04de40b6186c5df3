"""numba's compiler, where it is installed: the compiled passes are optional and everything works without them."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any


@functools.cache
def compiler(cache: bool = True, exact: bool = False, inline: bool = False) -> Callable[..., Any] | None:
    """A decorator that compiles a function, or None where numba is not installed.

    "reassoc" lets sums use vector registers; NaN and infinity keep their meaning, and a division by zero gives one of
    them: the check that Python makes instead would keep loops from being vectorised.

    Args:
        cache: keep the machine code on disk, for functions that are called from Python. numba finds it by the
            function's own file, so it serves only functions that are not called from other files: after a change those
            callers would keep the old code. numba finds it by what the function closes over, too: refer to compiled
            functions as globals, because closing over one defeats the cache. Without it, for functions that compiled
            functions call, the machine code is copied into the caller's. A call would reach one of two versions, whose
            sums differ in their last bits: the function compiled by itself in the process that compiles the caller, the
            version kept with the caller in those that load it from disk.
        exact: round as Python does, where the last bit decides: no sums in another order, no product and sum in one.
        inline: copy the function's text into its callers, which then know its constants; it is not compiled by itself.
    """
    try:
        import numba  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    compile_ = numba.njit(
        fastmath=set() if exact else {"reassoc", "contract"},
        error_model="numpy",
        cache=cache and not inline,
        nogil=True,
        inline="always" if inline else "never",
        forceinline=not cache and not inline,
    )

    def decorate(function: Callable[..., Any]) -> Any:
        compiled: Any = compile_(function)
        if cache and not inline:
            compiled._cache = _OptionalCache(compiled._cache)
        return compiled

    return decorate


class _OptionalCache:
    """A cache of numba's that may fail: on a full disk, or where a crash has left half a file, functions are compiled.

    numba itself would raise the error where the function is called.
    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def load_overload(self, *arguments: Any) -> Any:
        """The machine code, or None where it has to be compiled."""
        try:
            return self._cache.load_overload(*arguments)
        except Exception:  # an index that is not whole raises errors of any kind
            with contextlib.suppress(Exception):
                self._cache.flush()
            return None

    def save_overload(self, *arguments: Any) -> None:
        """Keep the machine code, if that is possible."""
        try:
            self._cache.save_overload(*arguments)
        except OSError as error:
            warnings.warn(
                f"The code of compiled functions cannot be kept in {self._cache.cache_path} ({error.strerror}); every "
                "process will compile them again. NUMBA_CACHE_DIR chooses another folder.",
                RuntimeWarning,
                stacklevel=2,
            )

"""Triton functions that read and write tensors of several types, given by their addresses.

Also the one place that imports Triton, which machines without a GPU do not have: there `jit` returns the function as it
is, so that files with kernels can be read.
"""

# pyright: reportInvalidTypeForm=false

from __future__ import annotations

from typing import Any

try:
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]
    from triton.language.extra import libdevice as libdevice  # pyright: ignore[reportMissingImports]
except ImportError:
    triton: Any = None
    tl: Any = None
    libdevice: Any = None

jit: Any = (lambda function: function) if triton is None else triton.jit
constant: Any = int if triton is None else tl.constexpr
ADDRESSES = 16
"""Addresses that one launch of `store_addresses` writes."""


@jit
def pointer(address, kind: tl.constexpr, ALIGNED: tl.constexpr):
    """An address as a pointer; ALIGNED says that it is a multiple of 16, so that wide loads can be used."""
    found = address.to(tl.pointer_type(kind))
    if ALIGNED:
        found = tl.multiple_of(found, 16)
    return found


@jit
def load_any(address, offsets, kind, mask, ALIGNED: tl.constexpr = False):
    """Numbers of a tensor as float32; kind 0 is float32, 1 bfloat16, 2 float16."""
    if kind == 0:
        x = tl.load(pointer(address, tl.float32, ALIGNED) + offsets, mask=mask, other=0.0)
    elif kind == 1:
        x = tl.load(pointer(address, tl.bfloat16, ALIGNED) + offsets, mask=mask, other=0.0).to(tl.float32)
    else:
        x = tl.load(pointer(address, tl.float16, ALIGNED) + offsets, mask=mask, other=0.0).to(tl.float32)
    return x


def _plain(function: Any) -> Any:
    """A kernel that is compiled once for all values of its address arguments."""
    return function if triton is None else triton.jit(function, do_not_specialize=[f"a{k}" for k in range(ADDRESSES)])


@_plain
def store_addresses(table, stride, first, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15):
    """Write addresses into a table, `stride` numbers apart: arguments that a CUDA graph keeps, unlike a copy."""
    t = table + first * stride
    tl.store(t, a0)
    tl.store(t + stride, a1)
    tl.store(t + 2 * stride, a2)
    tl.store(t + 3 * stride, a3)
    tl.store(t + 4 * stride, a4)
    tl.store(t + 5 * stride, a5)
    tl.store(t + 6 * stride, a6)
    tl.store(t + 7 * stride, a7)
    tl.store(t + 8 * stride, a8)
    tl.store(t + 9 * stride, a9)
    tl.store(t + 10 * stride, a10)
    tl.store(t + 11 * stride, a11)
    tl.store(t + 12 * stride, a12)
    tl.store(t + 13 * stride, a13)
    tl.store(t + 14 * stride, a14)
    tl.store(t + 15 * stride, a15)


@jit
def store_any(address, offsets, value, kind, mask, ALIGNED: tl.constexpr = False):
    """Write float32 numbers to a tensor; kinds as for `load_any`."""
    if kind == 0:
        tl.store(pointer(address, tl.float32, ALIGNED) + offsets, value, mask=mask)
    elif kind == 1:
        tl.store(pointer(address, tl.bfloat16, ALIGNED) + offsets, value.to(tl.bfloat16), mask=mask)
    else:
        tl.store(pointer(address, tl.float16, ALIGNED) + offsets, value.to(tl.float16), mask=mask)


def record_addresses(known: Any, addresses: tuple[int, ...]) -> Any:
    """A copy of a table with other addresses in its first column, made by launches that a CUDA graph can repeat.

    Args:
        known: int64 (n, columns).
        addresses: n of them, of tensors that live as long as the graph.

    Returns:
        int64, with some more rows.
    """
    count, columns = known.shape
    table = known.new_empty(-(-count // ADDRESSES) * ADDRESSES, columns)
    table[:count].copy_(known)
    for first in range(0, count, ADDRESSES):
        some = addresses[first : first + ADDRESSES]
        store_addresses[(1,)](table, columns, first, *some, *some[-1:] * (ADDRESSES - len(some)))
    return table


def compile_recording(known: Any) -> None:
    """Compile what `record_addresses` launches for such a table: nothing can be compiled during a capture."""
    record_addresses(known, (known.data_ptr(),) * len(known))

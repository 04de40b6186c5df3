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


@jit
def store_any(address, offsets, value, kind, mask, ALIGNED: tl.constexpr = False):
    """Write float32 numbers to a tensor; kinds as for `load_any`."""
    if kind == 0:
        tl.store(pointer(address, tl.float32, ALIGNED) + offsets, value, mask=mask)
    elif kind == 1:
        tl.store(pointer(address, tl.bfloat16, ALIGNED) + offsets, value.to(tl.bfloat16), mask=mask)
    else:
        tl.store(pointer(address, tl.float16, ALIGNED) + offsets, value.to(tl.float16), mask=mask)

"""ReLU and 2x2 max-pooling of a convolution's outputs in one kernel, there and back (Triton, on a CUDA device).

As four layers (bias, ReLU, pooling and their gradients) this moves the largest tensors of a small conv net through the
device's memory ten times, which costs more than the convolutions. Here they are read once and written once, and all
that is kept for the way back is which of four numbers was the largest.

The same numbers as the layers give: ties go to the first, NaN is larger than all, no gradient where nothing is above
zero. Used by `conv_streams`.
"""

# pyright: reportInvalidTypeForm=false
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]
except ImportError:  # it comes with torch where torch has CUDA
    triton: Any = None
    tl: Any = None

Geometry = tuple[Any, Any, Any, int]
"""Stride, padding, dilation and groups of a convolution."""
_BLOCK = 1024
_NONE = 4  # the choice where nothing is above zero
_MOST = 2**31 - 1  # the kernels count in 32 bits


@functools.cache
def available(device: torch.device) -> bool:
    """Whether the kernels can be compiled for a device (Triton is there, and the compiler that it needs)."""
    if triton is None or device.type != "cuda":
        return False
    try:
        relu_pool(torch.zeros(1, 1, 2, 2, device=device), torch.zeros(1, device=device))
    except Exception:  # anything: Triton raises many kinds where it does not work
        return False
    return True


class ConvolutionReluPool(torch.autograd.Function):
    """max_pool2d(relu(conv2d(x, weight, bias)), 2)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, geometry: Geometry) -> Tensor:
        """Pooled outputs."""
        convolved = F.conv2d(x, weight, None, *geometry)
        pooled, choice = relu_pool(convolved, bias)
        ctx.save_for_backward(x, weight, choice)
        ctx.geometry, ctx.like = geometry, convolved.shape
        return pooled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of x, weight and bias."""
        (gradient,), (x, weight, choice) = gradients, ctx.saved_tensors
        stride, padding, dilation, groups = ctx.geometry
        convolved = spread(gradient, choice, ctx.like)
        wanted = (ctx.needs_input_grad[0], ctx.needs_input_grad[1], False)
        for_x, for_weight, _ = torch.ops.aten.convolution_backward(
            convolved, x, weight, None, stride, padding, dilation, False, (0, 0), groups, wanted
        )
        for_bias = gradient.masked_fill(choice == _NONE, 0.0).sum((0, 2, 3))
        return for_x, for_weight, for_bias, None


def relu_pool(inputs: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """max_pool2d(relu(inputs + bias), 2), inputs (B, C, H, W), and which of each four it was: 0 to 3, or 4 for none."""
    batch, channels, height, width = inputs.shape
    if inputs.numel() > _MOST:
        raise ValueError(f"Expected at most {_MOST:,} outputs of a convolution; got {inputs.numel():,}.")
    last = inputs.stride(1) == 1 and channels > 1
    shape = (batch, channels, height // 2, width // 2)
    layout = torch.channels_last if last else torch.contiguous_format
    outputs = torch.empty(shape, dtype=inputs.dtype, device=inputs.device, memory_format=layout)
    choice = torch.empty(shape, dtype=torch.int8, device=inputs.device, memory_format=layout)
    total = outputs.numel()
    _pool[(triton.cdiv(total, _BLOCK),)](
        inputs, bias, outputs, choice, total, *shape[1:], *inputs.stride(), *outputs.stride(), _NONE, last, _BLOCK
    )
    return outputs, choice


def spread(gradient: Tensor, choice: Tensor, shape: torch.Size) -> Tensor:
    """The gradient (B, C, H, W) of `relu_pool`'s inputs."""
    last = choice.stride(1) == 1 and choice.shape[1] > 1
    layout = torch.channels_last if last else torch.contiguous_format
    whole = shape[2] % 2 == 0 and shape[3] % 2 == 0  # else a last row or column is in no square
    make = torch.empty if whole else torch.zeros
    outputs = make(shape, dtype=gradient.dtype, device=gradient.device).contiguous(memory_format=layout)
    total = gradient.numel()
    _spread[(triton.cdiv(total, _BLOCK),)](
        gradient,
        choice,
        outputs,
        total,
        *choice.shape[1:],
        *gradient.stride(),
        *choice.stride(),
        *outputs.stride(),
        last,
        _BLOCK,
    )
    return outputs


def _jit(kernel: Callable[..., Any]) -> Any:
    return kernel if triton is None else triton.jit(kernel)


@_jit
def _place(at, channels, height, width, LAST: tl.constexpr):
    """Example, channel, row and column of pooled number `at`, counted in the order of the memory."""
    if LAST:
        channel = at % channels
        rest = at // channels
        column = rest % width
        rest = rest // width
        row = rest % height
        example = rest // height
    else:
        column = at % width
        rest = at // width
        row = rest % height
        rest = rest // height
        channel = rest % channels
        example = rest // channels
    return example, channel, row, column


@_jit
def _larger(value, best, choice, number: tl.constexpr):
    taken = (value > best) | (value != value)
    return tl.where(taken, value, best), tl.where(taken, number, choice)


@_jit
def _pool(
    inputs, bias, outputs, choices, total, channels, height, width,
    ib, ic, ih, iw, ob, oc, oh, ow,
    NONE: tl.constexpr, LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    example, channel, row, column = _place(at, channels, height, width, LAST)
    first = inputs + example * ib + channel * ic + 2 * row * ih + 2 * column * iw
    shift = tl.load(bias + channel, inside)
    best = tl.load(first, inside) + shift
    choice = tl.zeros((BLOCK,), tl.int32)
    best, choice = _larger(tl.load(first + iw, inside) + shift, best, choice, 1)
    best, choice = _larger(tl.load(first + ih, inside) + shift, best, choice, 2)
    best, choice = _larger(tl.load(first + ih + iw, inside) + shift, best, choice, 3)
    choice = tl.where(best <= 0, NONE, choice)
    place = example * ob + channel * oc + row * oh + column * ow
    tl.store(outputs + place, tl.where(best <= 0, 0.0, best), inside)
    tl.store(choices + place, choice.to(tl.int8), inside)


@_jit
def _spread(
    gradient, choices, outputs, total, channels, height, width,
    gb, gc, gh, gw, cb, cc, ch, cw, ob, oc, oh, ow,
    LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    example, channel, row, column = _place(at, channels, height, width, LAST)
    value = tl.load(gradient + example * gb + channel * gc + row * gh + column * gw, inside)
    choice = tl.load(choices + example * cb + channel * cc + row * ch + column * cw, inside)
    first = outputs + example * ob + channel * oc + 2 * row * oh + 2 * column * ow
    nothing = tl.zeros_like(value)
    tl.store(first, tl.where(choice == 0, value, nothing), inside)
    tl.store(first + ow, tl.where(choice == 1, value, nothing), inside)
    tl.store(first + oh, tl.where(choice == 2, value, nothing), inside)
    tl.store(first + oh + ow, tl.where(choice == 3, value, nothing), inside)

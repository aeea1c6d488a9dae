"""`random.py` in Triton: the same bits for the same (seed, stream, index); dropout of single entries."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from magna.ops.random import DENSE_STREAM
from magna.ops.triton_launch import bound
from magna.ops.triton_sizes import accumulator, ceil_div

_BLOCK = 1024  # entries of a program


@triton.jit
def _mix(h):
    h = h ^ (h >> 16)
    h = h * 0x7FEB352D
    h = h ^ (h >> 15)
    h = h * 0x846CA68B
    return h ^ (h >> 16)


@triton.jit
def bits(seed_ptr, stream, index):
    """32 random bits for each int64 index, and for each seed where `seed_ptr` points to several."""
    seed = tl.load(seed_ptr)
    low = (seed & 0xFFFFFFFF).to(tl.uint32)
    high = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    key0 = _mix(low + (stream + 1).to(tl.uint32) * 0x9E3779B9)
    key1 = _mix(high + (key0 ^ 0x5BF03635))
    h = _mix((index & 0xFFFFFFFF).to(tl.uint32) ^ key0)
    return _mix(h ^ key1 ^ ((index >> 32).to(tl.uint32) * 0x85EBCA6B))


@triton.jit
def factor(drawn, rate, ACC: tl.constexpr):
    """0 where dropped, 1 / (1 - rate) where kept."""
    kept = drawn.to(tl.int64) >= (rate * 4294967296.0).to(tl.int64)
    return tl.where(kept, 1.0 / (1.0 - rate.to(ACC)), 0.0)


@triton.jit
def _dropout_kernel(
    x_ptr, out_ptr, seed_ptr, rate_ptr, block,
    SHARED: tl.constexpr, STREAM: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    # A program stays inside one block of elements with the same rate.
    own, j = tl.program_id(1).to(tl.int64), tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live, i = j < block, own * block + j
    x = tl.load(x_ptr + (j if SHARED else i), mask=live, other=0.0).to(ACC)
    stream = tl.full([], STREAM, tl.int32)
    kept = x * factor(bits(seed_ptr, stream, i), tl.load(rate_ptr + own), ACC)
    tl.store(out_ptr + i, kept.to(out_ptr.dtype.element_ty), mask=live)


def dropout(x: Tensor, rate: Tensor, seed: Tensor, shared: bool) -> Tensor:
    out = x.new_empty((*rate.shape, *x.shape) if shared else x.shape)
    if out.numel():
        block = out.numel() // rate.numel()
        kernel = bound(_dropout_kernel, SHARED=shared, STREAM=DENSE_STREAM, BLOCK=_BLOCK, ACC=accumulator(x.dtype))
        kernel[(ceil_div(block, _BLOCK), rate.numel())](x, out, seed, rate, block)
    return out

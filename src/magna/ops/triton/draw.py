"""`random.py` in Triton: the same bits for the same (seed, stream, index); dropout of entries and of attention."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from magna.graph import Segments
from magna.ops.backend.registry import Draw
from magna.ops.random import DENSE_STREAM
from magna.ops.triton.launch import accumulator, bound, ceil_div, index_type

_BLOCK = 2048  # entries of a program; each of its threads computes the keys of the seed
_KEPT_BLOCK = 1024  # the same where each entry is drawn for several hops


@triton.jit
def _fold(h):
    return h ^ (h >> 16)


@triton.jit
def _stir(h):
    h = h * 0x7FEB352D
    h = h ^ (h >> 15)
    return h * 0x846CA68B


@triton.jit
def _mix(h):
    return _fold(_stir(_fold(h)))


@triton.jit
def keys(seed_ptr, stream):
    """Both keys of the draws from a seed, or from each seed where `seed_ptr` points to several."""
    seed = tl.load(seed_ptr)
    low = (seed & 0xFFFFFFFF).to(tl.uint32)
    high = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    key0 = _mix(low + (stream + 1).to(tl.uint32) * 0x9E3779B9)
    return key0, _mix(high + (key0 ^ 0x5BF03635))


@triton.jit
def bits(key0, key1, index):
    """32 random bits for each index, int64 or int32.

    mix(mix(index ^ key0) ^ key1) with fewer instructions: fold(a ^ b) is fold(a) ^ fold(b), so those of the keys are
    done once, and fold(fold(a)) is a.
    """
    if index.dtype.primitive_bitwidth == 64:
        key1 = key1 ^ ((index >> 32).to(tl.uint32) * 0x85EBCA6B)
        index = index & 0xFFFFFFFF
    h = _stir(_fold(index.to(tl.uint32)) ^ _fold(key0))
    return _fold(_stir(h ^ _fold(key1)))


@triton.jit
def is_kept(drawn, rate):
    return drawn >= (rate * 4294967296.0).to(tl.uint32)


@triton.jit
def factor(drawn, rate, ACC: tl.constexpr):
    """0 where dropped, 1 / (1 - rate) where kept."""
    return tl.where(is_kept(drawn, rate), 1.0 / (1.0 - rate.to(ACC)), 0.0)


@triton.jit
def _dropout_kernel(
    x_ptr, out_ptr, seed_ptr, rate_ptr, block,
    SHARED: tl.constexpr, STREAM: tl.constexpr, BLOCK: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    # A program stays inside one block of elements with the same rate.
    number, j = tl.program_id(1).to(INDEX), tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    live, i = j < block, number * block + j
    x = tl.load(x_ptr + (j if SHARED else i), mask=live, other=0.0).to(ACC)
    stream = tl.full([], STREAM, tl.int32)
    key0, key1 = keys(seed_ptr, stream)
    value = x * factor(bits(key0, key1, i), tl.load(rate_ptr + number), ACC)
    tl.store(out_ptr + i, value.to(out_ptr.dtype.element_ty), mask=live)


def dropout(x: Tensor, rate: Tensor, seed: Tensor, shared: bool) -> Tensor:
    out = x.new_empty((*rate.shape, *x.shape) if shared else x.shape)
    if out.numel():
        block = out.numel() // rate.numel()
        kinds = {"INDEX": index_type(out.numel()), "ACC": accumulator(x.dtype)}
        kernel = bound(_dropout_kernel, SHARED=shared, STREAM=DENSE_STREAM, BLOCK=_BLOCK, **kinds)
        kernel[(ceil_div(block, _BLOCK), rate.numel())](x, out, seed, rate, block)
    return out


@triton.jit(do_not_specialize=["size", "hops", "all_heads", "first_head"])
def _attention_kept_kernel(
    kept_ptr, order_ptr, seed_ptr, rate_ptr, size, hops, all_heads, first_head,
    H: tl.constexpr, BITS: tl.constexpr, WORDS: tl.constexpr, BLOCK: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    head, first = i % H, tl.program_id(1) * BITS
    edge = tl.load(order_ptr + i // H, mask=i < size, other=0).to(INDEX)
    rate = tl.load(rate_ptr + head, mask=i < size, other=0.0)
    word = tl.zeros([BLOCK], dtype=tl.int32)
    for hop in range(first, tl.minimum(first + BITS, hops)):
        stream = tl.zeros([], dtype=tl.int32) + 2 * hop  # the interpreter's hop is a Python int
        key0, key1 = keys(seed_ptr, stream)
        stays = is_kept(bits(key0, key1, edge * all_heads + first_head + head), rate)
        word |= stays.to(tl.int32) << (hop - first)
    tl.store(kept_ptr + i * WORDS + tl.program_id(1), word.to(kept_ptr.dtype.element_ty), mask=i < size)


def attention_kept(draw: Draw, hops: int, segments: Segments) -> Tensor:
    """The attention that each hop keeps, a bit a hop: words [E, H, ...] in the order of the walk.

    Drawn in the walk, each thread of a row would draw the same bits again.
    """
    assert draw.attention_rate is not None
    edges, heads = segments.order.numel(), draw.attention_rate.numel()
    dtype = torch.uint8 if hops <= 8 else torch.int32
    words = segments.order.new_empty((edges, heads, ceil_div(hops, 8 * dtype.itemsize)), dtype=dtype)
    if words.numel():
        sizes = {"H": heads, "BITS": 8 * dtype.itemsize, "WORDS": words.size(2), "BLOCK": _KEPT_BLOCK}
        index = index_type(max(words.numel(), edges * draw.heads))
        kernel = bound(_attention_kept_kernel, INDEX=index, **sizes)
        kernel[(ceil_div(edges * heads, _KEPT_BLOCK), words.size(2))](
            words, segments.order, draw.seed, draw.attention_rate, edges * heads, hops, draw.heads, draw.first_head
        )
    return words

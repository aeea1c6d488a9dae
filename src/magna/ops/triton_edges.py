"""Edges on the GPU: values per edge in another order, and their sums for each node, cut into pieces as the hops are.

All per-edge tensors are in the caller's order and reached through `Segments.order`.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from magna.graph import Segments
from magna.ops.triton_launch import bound
from magna.ops.triton_sizes import accumulator, ceil_div, power_of_2

_EDGES = 32  # edges that a program looks at in one step
_HEADS = 32  # heads of a program at most
_MOVED = 128  # edges of a program that moves them


@triton.jit
def callers(order_ptr, p, live, IN_ORDER: tl.constexpr):
    """The caller's edges at positions of the walk."""
    return (p if IN_ORDER else tl.load(order_ptr + p, mask=live, other=0)).to(tl.int64)


@triton.jit
def edge_entries(order_ptr, start, end, h, H: tl.constexpr, BE: tl.constexpr, IN_ORDER: tl.constexpr = False):
    """Where the scores of the next BE edges lie in the caller's order, and which of them there are."""
    p = start + tl.arange(0, BE)
    edge = callers(order_ptr, p, p < end, IN_ORDER)
    return edge[:, None] * H + h[None, :], (p < end)[:, None] & (h < H)[None, :]


@triton.jit
def _segment_sum_kernel(
    grad_ptr, scores_ptr, out_ptr, partial_ptr, pieces_ptr, order_ptr,
    SLOPE: tl.constexpr, H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    group = tl.load(pieces_ptr + piece * 4)
    begin = tl.load(pieces_ptr + piece * 4 + 1)
    end = tl.load(pieces_ptr + piece * 4 + 2)
    slot = tl.load(pieces_ptr + piece * 4 + 3)
    if group < 0:
        return
    acc = tl.zeros([HB], dtype=ACC)
    for start in range(begin, end, BE):
        where, live = edge_entries(order_ptr, start, end, h, H, BE)
        grad = tl.load(grad_ptr + where, mask=live, other=0.0)
        score = tl.load(scores_ptr + where, mask=live, other=0.0)
        acc += tl.sum(tl.where(score > 0, grad, grad * SLOPE), axis=0)
    if slot < 0:
        tl.store(out_ptr + group.to(tl.int64) * H + h, acc, mask=h < H)
    else:
        tl.store(partial_ptr + slot.to(tl.int64) * H + h, acc, mask=h < H)


@triton.jit
def _segment_sum_hubs_kernel(
    out_ptr, partial_ptr, hubs_ptr, H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr, ACC: tl.constexpr
):
    hub = tl.program_id(0)
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    group = tl.load(hubs_ptr + hub * 3)
    first = tl.load(hubs_ptr + hub * 3 + 1)
    last = tl.load(hubs_ptr + hub * 3 + 2)
    if group < 0:
        return
    acc = tl.zeros([HB], dtype=ACC)
    for start in range(first, last, BE):
        s = start + tl.arange(0, BE)
        live = (s < last)[:, None] & (h < H)[None, :]
        acc += tl.sum(tl.load(partial_ptr + s.to(tl.int64)[:, None] * H + h[None, :], mask=live, other=0.0), axis=0)
    tl.store(out_ptr + group.to(tl.int64) * H + h, acc, mask=h < H)


@triton.jit
def _take_rows_kernel(values_ptr, order_ptr, out_ptr, num_rows, H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr):
    e = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    live = (e < num_rows)[:, None] & (h < H)[None, :]
    row = tl.load(order_ptr + e, mask=e < num_rows, other=0).to(tl.int64)
    value = tl.load(values_ptr + row[:, None] * H + h[None, :], mask=live, other=0.0)
    tl.store(out_ptr + e[:, None] * H + h[None, :], value, mask=live)


@cache
def blocks(heads: int, edges: int = _EDGES, num_warps: int = 1) -> tuple[dict[str, int], int]:
    """How a program covers edges and heads, and how many programs share the heads."""
    group = min(_HEADS, power_of_2(heads))
    return {"H": heads, "HB": group, "BE": edges, "num_warps": num_warps}, ceil_div(heads, group)


def empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return like.new_empty(shape)


def take_rows(values: Tensor, order: Tensor) -> Tensor:
    out = torch.empty_like(values)
    if out.numel():
        options, groups = blocks(values.size(1), _MOVED, num_warps=4)
        kernel = bound(_take_rows_kernel, **options)
        kernel[(ceil_div(out.size(0), _MOVED), groups)](values, order, out, out.size(0))
    return out


def segment_sum(grad: Tensor, scores: Tensor, negative_slope: float, segments: Segments) -> Tensor:
    out = grad.new_empty(segments.ptr.numel() - 1, grad.size(1))
    partial = grad.new_empty(segments.num_slots, grad.size(1))
    options, groups = blocks(grad.size(1))
    if out.numel():
        kernel = bound(_segment_sum_kernel, SLOPE=negative_slope, ACC=accumulator(grad.dtype), **options)
        kernel[(segments.pieces.size(0), groups)](grad, scores, out, partial, segments.pieces, segments.order)
    if segments.hubs.size(0):
        sum_hubs(partial, segments, out)
    return out


def sum_hubs(partial: Tensor, segments: Segments, out: Tensor) -> None:
    """Into the rows of hubs, the sum of what their pieces left."""
    options, groups = blocks(out.size(1))
    kernel = bound(_segment_sum_hubs_kernel, ACC=accumulator(out.dtype), **options)
    kernel[(segments.hubs.size(0), groups)](out, partial, segments.hubs)

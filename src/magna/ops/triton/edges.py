"""Values per edge on the GPU: their reordering, and their sums for each node, in the same pieces as the hops.

All per-edge tensors are in the caller's order; `Segments.order` leads to them.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from magna.graph import Segments
from magna.ops.triton.launch import accumulator, bound, ceil_div, power_of_2

_EDGES = 32  # edges of a step of a program
_HEADS = 32  # heads of a program at most
_MOVED = 128  # edges of a program that moves them
_PIECE = 64  # edges of a hub that a program adds up in one step
_ROWS, _ROW_EDGES = 8, 8  # short rows of a program, and edges of each in one step
_SUMS = 64  # rows times heads of a program, at most
_SLOTS = 256  # slots of a hub in one step; a relation may have thousands


@triton.jit
def callers(order_ptr, p, live, IN_ORDER: tl.constexpr):
    """The caller's edges at positions of the walk."""
    return (p if IN_ORDER else tl.load(order_ptr + p, mask=live, other=0)).to(tl.int64)


@triton.jit
def edge_entries(order_ptr, start, end, h, H: tl.constexpr, BE: tl.constexpr, IN_ORDER: tl.constexpr = False):
    """The places of the next BE edges' scores in the caller's order, and a mask of those that exist."""
    p = start + tl.arange(0, BE)
    edge = callers(order_ptr, p, p < end, IN_ORDER)
    return edge[:, None] * H + h[None, :], (p < end)[:, None] & (h < H)[None, :]


@triton.jit
def next_rows(pieces_ptr, first, num_pieces, R: tl.constexpr):
    """R pieces: their groups (-1 for no piece), begins, ends and slots, and the length of the longest."""
    piece = first + tl.arange(0, R)
    at, exists = pieces_ptr + piece * 4, piece < num_pieces
    group = tl.load(at, mask=exists, other=-1)
    begin = tl.load(at + 1, mask=exists, other=0)
    end = tl.load(at + 2, mask=exists, other=0)
    slot = tl.load(at + 3, mask=exists, other=-1)
    return group, begin, end, slot, tl.max(end - begin, axis=0)


@triton.jit
def row_entries(order_ptr, start, end, h, H: tl.constexpr, BE: tl.constexpr, IN_ORDER: tl.constexpr = False):
    """As `edge_entries`, for one row of starts and ends: [R, BE, HB]."""
    p = start[:, None] + tl.arange(0, BE)[None, :]
    live = p < end[:, None]
    edge = callers(order_ptr, p, live, IN_ORDER)
    return edge[:, :, None] * H + h[None, None, :], live[:, :, None] & (h < H)[None, None, :]


@triton.jit
def _before_bend(grad_ptr, scores_ptr, where, live, SLOPE: tl.constexpr):
    """The gradient before LeakyReLU, which does not change the sign of a score."""
    grad = tl.load(grad_ptr + where, mask=live, other=0.0)
    score = tl.load(scores_ptr + where, mask=live, other=0.0)
    return tl.where(score > 0, grad, grad * SLOPE)


@triton.jit
def _sum_piece(
    grad_ptr, scores_ptr, out_ptr, partial_ptr, pieces_ptr, order_ptr, h,
    SLOPE: tl.constexpr, H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    at = pieces_ptr + tl.program_id(0) * 4
    group, begin, end, slot = tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)
    acc = tl.zeros([HB], dtype=ACC)
    for start in range(begin, end, BE):
        where, live = edge_entries(order_ptr, start, end, h, H, BE)
        acc += tl.sum(_before_bend(grad_ptr, scores_ptr, where, live, SLOPE), axis=0)
    if slot >= 0:
        tl.store(partial_ptr + slot.to(tl.int64) * H + h, acc, mask=h < H)
    elif group >= 0:
        tl.store(out_ptr + group.to(tl.int64) * H + h, acc, mask=h < H)


@triton.jit
def _sum_rows(
    grad_ptr, scores_ptr, out_ptr, pieces_ptr, order_ptr, num_pieces, num_slots, h,
    SLOPE: tl.constexpr, R: tl.constexpr, H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    first = num_slots + (tl.program_id(0) - num_slots) * R
    group, begin, end, _, longest = next_rows(pieces_ptr, first, num_pieces, R)
    acc = tl.zeros([R, HB], dtype=ACC)
    for step in range(0, longest, BE):
        where, live = row_entries(order_ptr, begin + step, end, h, H, BE)
        acc += tl.sum(_before_bend(grad_ptr, scores_ptr, where, live, SLOPE), axis=1)
    live = (group >= 0)[:, None] & (h < H)[None, :]
    tl.store(out_ptr + group.to(tl.int64)[:, None] * H + h[None, :], acc, mask=live)


@triton.jit
def _segment_sum_kernel(
    grad_ptr, scores_ptr, out_ptr, partial_ptr, pieces_ptr, order_ptr, num_pieces, num_slots,
    SLOPE: tl.constexpr, R: tl.constexpr, RE: tl.constexpr,
    H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The first programs take a piece of a hub each, BE edges at a time; the others R rows, RE edges of each at a time.

    A short row is little but a chain of loads, so a program takes several at once.
    """
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    if tl.program_id(0) < num_slots:
        _sum_piece(grad_ptr, scores_ptr, out_ptr, partial_ptr, pieces_ptr, order_ptr, h, SLOPE, H, HB, BE, ACC)
    else:
        _sum_rows(
            grad_ptr, scores_ptr, out_ptr, pieces_ptr, order_ptr, num_pieces, num_slots, h, SLOPE, R, H, HB, RE, ACC
        )


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
    """The edges and heads of a program, and the number of programs that share the heads."""
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
    options, groups = blocks(grad.size(1), _PIECE, num_warps=4)
    if out.numel():
        pieces, slots = segments.pieces.size(0), segments.num_slots
        rows = min(_ROWS, _SUMS // options["HB"])
        sizes = {"R": rows, "RE": _ROW_EDGES, "ACC": accumulator(grad.dtype)}
        kernel = bound(_segment_sum_kernel, SLOPE=negative_slope, **sizes, **options)
        kernel[(slots + ceil_div(pieces - slots, rows), groups)](
            grad, scores, out, partial, segments.pieces, segments.order, pieces, slots
        )
    if segments.hubs.size(0):
        sum_hubs(partial, segments, out)
    return out


def sum_hubs(partial: Tensor, segments: Segments, out: Tensor) -> None:
    """Write the sums of the pieces of each hub to its row."""
    options, groups = blocks(out.size(1), _SLOTS, num_warps=4)
    kernel = bound(_segment_sum_hubs_kernel, ACC=accumulator(out.dtype), **options)
    kernel[(segments.hubs.size(0), groups)](out, partial, segments.hubs)

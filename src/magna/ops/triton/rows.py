"""Rows of a graph on the GPU: the parts that the hops forward and backward share.

A program walks pieces of rows (at most `graph.piece_edges` edges each) for a group of heads. Where a row is one piece,
the program finishes it; the pieces of a hub write partial sums, and a second kernel adds those in order. Nothing is
atomic, so the same inputs give the same bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from magna.graph import Segments
from magna.ops.backend.registry import Draw
from magna.ops.triton.draw import bits, factor, keys
from magna.ops.triton.launch import accumulator, ceil_div, power_of_2

# The arguments that change from graph to graph, hop to hop or slice to slice must not compile a kernel anew.
FREE = ["number", "all_heads", "all_width", "first_head", "first_column"]
FREE_OF_ROWS = ["num_pieces", "num_slots", *FREE]
_HUB_WARPS = 4  # that add up the partial sums of a hub, 16 bytes a thread and step


@triton.jit
def lanes_inside(h, d, H: tl.constexpr, D: tl.constexpr, HB: tl.constexpr, DB: tl.constexpr):
    """A mask of the lanes that exist, [1, HB, DB]; where all do, the compiler sees a constant."""
    if H % HB == 0 and D == DB:
        return tl.full([1, HB, DB], True, tl.int1)
    return ((h < H)[:, None] & (d < D)[None, :])[None, :, :]


@triton.jit
def heads_inside(h, H: tl.constexpr, HB: tl.constexpr):
    """A mask of the heads that exist, [1, HB]."""
    if H % HB == 0:
        return tl.full([1, HB], True, tl.int1)
    return (h < H)[None, :]


@triton.jit
def next_pieces(pieces_ptr, num_pieces, R: tl.constexpr, J: tl.constexpr):
    """The next R pieces, each J times: node (-1 for no piece), begin, end and slot."""
    piece = tl.program_id(0) * R + tl.arange(0, R * J) // J
    exists = piece < num_pieces
    at = pieces_ptr + piece * 4
    node = tl.load(at, mask=exists, other=-1)
    begin = tl.load(at + 1, mask=exists, other=0)
    end = tl.load(at + 2, mask=exists, other=0)
    slot = tl.load(at + 3, mask=exists, other=-1)
    return node, begin, end, slot


@triton.jit
def longest_piece(pieces_ptr, num_pieces, R: tl.constexpr):
    """Edges of the longest of the next R pieces; a scalar, so that the compiler knows that all threads walk as far."""
    longest = 0
    for r in tl.static_range(R):
        piece = tl.program_id(0) * R + r
        begin = tl.load(pieces_ptr + piece * 4 + 1, mask=piece < num_pieces, other=0)
        end = tl.load(pieces_ptr + piece * 4 + 2, mask=piece < num_pieces, other=0)
        longest = tl.maximum(longest, end - begin)
    return longest


@triton.jit
def per_head(ptr, h, H: tl.constexpr):
    return tl.load(ptr + h, mask=h < H, other=0.0)[None, :, None]


@triton.jit
def feature_factor(
    seed_ptr, rate_ptr, stream, node, h, d, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    row = node.to(tl.int64)[:, None, None] * all_heads + first_head + h[None, :, None]
    key0, key1 = keys(seed_ptr, stream)
    drawn = bits(key0, key1, row * all_width + first_column + d[None, None, :])
    return factor(drawn, per_head(rate_ptr, h, H), ACC)


@triton.jit
def neighbours(
    rows, col, attention, left, step: tl.constexpr, inside, heads, H: tl.constexpr, D: tl.constexpr, ACC: tl.constexpr
):
    """The rows at the other ends of the edges `step` ahead, [S, HB, DB], and the attention on them, [S, HB].

    Zeros where fewer edges are left. `rows`, `col` and `attention` are pointers: a step needs hardly any arithmetic.
    """
    on_edge = (left > step)[:, None]
    neighbour = tl.load(col + step, mask=left > step, other=0).to(tl.int64)[:, None, None]
    a = tl.load(attention + step * H, mask=on_edge & heads, other=0.0)
    return tl.load(rows + neighbour * (H * D), mask=on_edge[:, :, None] & inside, other=0.0).to(ACC), a


@triton.jit
def callers_edge(order, left, step: tl.constexpr):
    """The caller's numbers of the edges `step` ahead."""
    return tl.load(order + step, mask=left > step, other=0)


@triton.jit
def first_kept(
    kept_ptr, rate_ptr, first, h, number, H: tl.constexpr, BITS: tl.constexpr, WORDS: tl.constexpr, ACC: tl.constexpr
):
    """The places of the first edges' words of this hop, and the factor of attention that is kept."""
    rate = tl.load(rate_ptr + h, mask=h < H, other=0.0).to(ACC)
    word = kept_ptr + (first.to(tl.int64)[:, None] * H + h[None, :]) * WORDS + number // BITS
    return word, (1.0 / (1.0 - rate))[None, :]


@triton.jit
def attention_factor(
    word, growth, left, step: tl.constexpr, number, heads, H: tl.constexpr, BITS: tl.constexpr, WORDS: tl.constexpr
):
    """0 where the attention on the edges `step` ahead is dropped in this hop, [S, HB]."""
    word_of_hop = tl.load(word + step * (H * WORDS), mask=(left > step)[:, None] & heads, other=0).to(tl.int32)
    return tl.where((word_of_hop >> (number % BITS)) & 1 != 0, growth, 0.0)


@triton.jit
def sum_over_edges(acc, R: tl.constexpr, J: tl.constexpr):
    """The sum over the J parts of each row: [R * J, HB, DB] → [R, HB, DB]."""
    if J == 1:
        return acc
    return tl.sum(tl.reshape(acc, [R, J, acc.shape[1], acc.shape[2]]), axis=1)


@triton.jit
def leave_partial(partial_ptr, pieces_ptr, num_pieces, lane, row, inside, SIZE: tl.constexpr, R: tl.constexpr):
    """Write the sums of the pieces of hubs. They are the first pieces, so few programs get here."""
    _, _, _, slot = next_pieces(pieces_ptr, num_pieces, R, 1)
    where = slot.to(tl.int64)[:, None, None] * SIZE + lane
    tl.store(partial_ptr + where, row, mask=(slot >= 0)[:, None, None] & inside)


@triton.jit
def _slots(partial_ptr, slot, last, lane, inside, SIZE: tl.constexpr):
    return tl.load(partial_ptr + slot.to(tl.int64) * SIZE + lane, mask=(slot < last) & inside, other=0.0)


@triton.jit
def sum_partial(partial_ptr, hubs_ptr, lane, inside, SIZE: tl.constexpr, SLOTS: tl.constexpr):
    """The sum of the pieces of a hub, [1, HB, DB], always in the same order."""
    first = tl.load(hubs_ptr + tl.program_id(0) * 3 + 1)
    last = tl.load(hubs_ptr + tl.program_id(0) * 3 + 2)
    acc = tl.zeros([SLOTS, lane.shape[1], lane.shape[2]], dtype=partial_ptr.dtype.element_ty)
    for start in range(first, last, 8 * SLOTS):
        # Eight steps unrolled by hand: of one large tile the assembler would load and add two parts at a time.
        slot = (start + tl.arange(0, SLOTS))[:, None, None]
        sum0 = _slots(partial_ptr, slot, last, lane, inside, SIZE)
        sum1 = _slots(partial_ptr, slot + SLOTS, last, lane, inside, SIZE)
        sum2 = _slots(partial_ptr, slot + 2 * SLOTS, last, lane, inside, SIZE)
        sum3 = _slots(partial_ptr, slot + 3 * SLOTS, last, lane, inside, SIZE)
        sum4 = _slots(partial_ptr, slot + 4 * SLOTS, last, lane, inside, SIZE)
        sum5 = _slots(partial_ptr, slot + 5 * SLOTS, last, lane, inside, SIZE)
        sum6 = _slots(partial_ptr, slot + 6 * SLOTS, last, lane, inside, SIZE)
        sum7 = _slots(partial_ptr, slot + 7 * SLOTS, last, lane, inside, SIZE)
        acc += ((sum0 + sum1) + (sum2 + sum3)) + ((sum4 + sum5) + (sum6 + sum7))
    return tl.sum(acc, axis=0)[None, :, :]


class Walk(NamedTuple):
    """The sizes of a walk over the rows of tensors of one shape and type."""

    rows: int  # of a program
    groups: int  # of heads
    steps: int  # of the forward walk that are loaded at once
    options: dict[str, Any]  # of the kernels over pieces
    hub_options: dict[str, Any]


@cache
def walk_over(heads: int, width: int, dtype: torch.dtype) -> Walk:
    """A step is 512 bytes in one warp, 16 a thread: part of the heads of a neighbour, or narrow neighbours of two rows.

    A group of heads covers all nodes before the next does, so that the rows of a group tend to stay in the L2 cache.
    """
    lanes, columns = 512 // dtype.itemsize, power_of_2(width)
    group = min(power_of_2(heads), max(1, lanes // columns))
    neighbours = max(1, lanes // (group * columns))
    rows = min(2, neighbours)
    edges = neighbours // rows
    # The loads and sums of the steps fill the registers.
    steps = max(2, min(8, 2 * dtype.itemsize) // edges)
    shared = {"H": heads, "D": width, "HB": group, "DB": columns, "ACC": accumulator(dtype)}
    options = {"R": rows, "J": edges, "num_warps": max(1, min(8, columns // lanes))}
    hub_options = {"SLOTS": max(1, 128 * _HUB_WARPS // (group * columns)), "num_warps": _HUB_WARPS}
    return Walk(rows, ceil_div(heads, group), steps, shared | options, shared | hub_options)


def place_of_draw(draw: Draw, number: int) -> tuple[int, ...]:
    """The arguments of `FREE`."""
    return number, draw.heads, draw.width, draw.first_head, draw.first_column


def kept_words(draw: Draw) -> dict[str, int]:
    """The number of hops in a word of `Draw.drawn`, 0 where no attention is dropped, and the number of words."""
    hops, words = (0, 0) if draw.drawn is None else (8 * draw.drawn.itemsize, draw.drawn.size(2))
    return {"BITS": hops, "WORDS": words}


def empty_partial(z: Tensor, attention: Tensor, segments: Segments) -> Tensor:
    return attention.new_empty(segments.num_slots, z.size(1), z.size(2))

"""One hop of the diffusion and its backward walk on the GPU.

A program walks pieces of rows (at most `graph.piece_edges` edges each) for a group of heads. Where a row is one piece,
the program finishes it; the pieces of a hub write partial sums, and a second kernel adds those in order. Nothing is
atomic, so the same inputs give the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from magna.graph import Segments
from magna.ops.backends import Draw
from magna.ops.random import DENSE_STREAM
from magna.ops.triton_draw import bits, factor

# The arguments that change from graph to graph, hop to hop or slice to slice must not compile a kernel anew.
_FREE = ["number", "all_heads", "all_width", "first_head", "first_column"]
_FREE_OF_ROWS = ["num_pieces", "num_slots", *_FREE]
_BLOCK = 1024
_HUB_WARPS = 4  # that add up the partial sums of a hub, 16 bytes a thread and step


@triton.jit
def _inside(h, d, H: tl.constexpr, D: tl.constexpr, HB: tl.constexpr, DB: tl.constexpr):
    """The lanes that exist, [1, HB, DB]; where all do, the compiler sees a constant."""
    if H % HB == 0 and D == DB:
        return tl.full([1, HB, DB], True, tl.int1)
    else:
        return ((h < H)[:, None] & (d < D)[None, :])[None, :, :]


@triton.jit
def _heads(h, H: tl.constexpr, HB: tl.constexpr):
    """The heads that exist, [1, HB]."""
    if H % HB == 0:
        return tl.full([1, HB], True, tl.int1)
    else:
        return (h < H)[None, :]


@triton.jit
def _pieces(pieces_ptr, num_pieces, R: tl.constexpr, J: tl.constexpr):
    """The next R pieces, each J times: node (-1 where there is none), begin, end and slot."""
    piece = tl.program_id(0) * R + tl.arange(0, R * J) // J
    there = piece < num_pieces
    at = pieces_ptr + piece * 4
    node = tl.load(at, mask=there, other=-1)
    begin = tl.load(at + 1, mask=there, other=0)
    end = tl.load(at + 2, mask=there, other=0)
    slot = tl.load(at + 3, mask=there, other=-1)
    return node, begin, end, slot


@triton.jit
def _longest(pieces_ptr, num_pieces, R: tl.constexpr):
    """Edges of the longest of the next R pieces; scalars, so that the compiler knows that all threads walk as far."""
    longest = 0
    for r in tl.static_range(R):
        piece = tl.program_id(0) * R + r
        begin = tl.load(pieces_ptr + piece * 4 + 1, mask=piece < num_pieces, other=0)
        end = tl.load(pieces_ptr + piece * 4 + 2, mask=piece < num_pieces, other=0)
        longest = tl.maximum(longest, end - begin)
    return longest


@triton.jit
def _per_head(ptr, h, H: tl.constexpr):
    return tl.load(ptr + h, mask=h < H, other=0.0)[None, :, None]


@triton.jit
def _feature_factor(
    seed_ptr, rate_ptr, stream, node, h, d, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    row = node.to(tl.int64)[:, None, None] * all_heads + first_head + h[None, :, None]
    drawn = bits(seed_ptr, stream, row * all_width + first_column + d[None, None, :])
    return factor(drawn, _per_head(rate_ptr, h, H), ACC)


@triton.jit
def _hop_row(
    acc, x, node, h, d, z_scale_ptr, x_scale_ptr, seed_ptr, feature_rate_ptr,
    number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, Z_SCALED: tl.constexpr, FEATURE_DROP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """From the sums over the edges of rows to their next states."""
    if Z_SCALED:
        acc *= _per_head(z_scale_ptr, h, H)
    acc += _per_head(x_scale_ptr, h, H) * x
    if FEATURE_DROP:
        acc *= _feature_factor(
            seed_ptr, feature_rate_ptr, 2 * number + 1, node, h, d,
            all_heads, all_width, first_head, first_column, H, ACC,
        )  # fmt: skip
    return acc


@triton.jit
def _neighbours(
    rows, col, attention, left, step: tl.constexpr, inside, heads, H: tl.constexpr, D: tl.constexpr, ACC: tl.constexpr
):
    """The rows at the other ends of the edges `step` ahead, [S, HB, DB], and the attention on them, [S, HB].

    Zeros where fewer edges are left. `rows`, `col` and `attention` are pointers: a step needs hardly any arithmetic.
    """
    on_edge = (left > step)[:, None]
    there = tl.load(col + step, mask=left > step, other=0).to(tl.int64)[:, None, None]
    a = tl.load(attention + step * H, mask=on_edge & heads, other=0.0)
    return tl.load(rows + there * (H * D), mask=on_edge[:, :, None] & inside, other=0.0).to(ACC), a


@triton.jit
def _callers_edge(order, left, step: tl.constexpr):
    """The caller's numbers of the edges `step` ahead."""
    return tl.load(order + step, mask=left > step, other=0)


@triton.jit
def _attention_factor(
    order, left, step: tl.constexpr, seed_ptr, rate_ptr, number, h, all_heads, first_head,
    H: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    edge = _callers_edge(order, left, step).to(tl.int64)
    rate = tl.load(rate_ptr + h, mask=h < H, other=0.0)
    drawn = bits(seed_ptr, 2 * number, edge[:, None] * all_heads + first_head + h[None, :])
    return factor(drawn, rate[None, :], ACC)


@triton.jit(do_not_specialize=_FREE_OF_ROWS)
def _hop_kernel(
    z_ptr, x_ptr, attention_ptr, out_ptr, partial_ptr, pieces_ptr, col_ptr, order_ptr, z_scale_ptr, x_scale_ptr,
    seed_ptr, attention_rate_ptr, feature_rate_ptr, num_pieces, num_slots,
    number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, D: tl.constexpr, HB: tl.constexpr, DB: tl.constexpr, R: tl.constexpr, J: tl.constexpr,
    UNROLL: tl.constexpr, Z_SCALED: tl.constexpr, ATTENTION_DROP: tl.constexpr, FEATURE_DROP: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    node, begin, end, slot = _pieces(pieces_ptr, num_pieces, R, J)
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    d = tl.arange(0, DB)
    lane = (h[:, None] * D + d[None, :])[None, :, :]
    inside, heads = _inside(h, d, H, D, HB, DB), _heads(h, H, HB)
    longest = _longest(pieces_ptr, num_pieces, R)
    first = begin + tl.arange(0, R * J) % J
    count = end - first
    if J > 1:
        node, begin, end, slot = _pieces(pieces_ptr, num_pieces, R, 1)
    # What the rows need at the end is on its way while their neighbours are gathered.
    own = node.to(tl.int64)[:, None, None] * (H * D) + lane
    x = tl.load(x_ptr + own, mask=(node >= 0)[:, None, None] & inside, other=0.0).to(ACC)
    first_col, first_order = col_ptr + first, order_ptr + first
    first_attention = attention_ptr + first.to(tl.int64)[:, None] * H + h[None, :]
    acc = tl.zeros([R * J, HB, DB], dtype=ACC)
    for start in range(0, longest, UNROLL * J):
        col, order, attention, left = first_col + start, first_order + start, first_attention + start * H, count - start
        for i in tl.static_range(UNROLL):
            z, a = _neighbours(z_ptr + lane, col, attention, left, i * J, inside, heads, H, D, ACC)
            if ATTENTION_DROP:
                a *= _attention_factor(
                    order, left, i * J, seed_ptr, attention_rate_ptr, number, h, all_heads, first_head, H, ACC
                )
            acc += a[:, :, None] * z
    row = _over_edges(acc, R, J)
    if tl.program_id(0) * R < num_slots:
        _leave(partial_ptr, pieces_ptr, num_pieces, lane, row, inside, H * D, R)
    row = _hop_row(
        row, x, node, h, d, z_scale_ptr, x_scale_ptr, seed_ptr, feature_rate_ptr,
        number, all_heads, all_width, first_head, first_column, H, Z_SCALED, FEATURE_DROP, ACC,
    )  # fmt: skip
    tl.store(out_ptr + own, row.to(out_ptr.dtype.element_ty), mask=((node >= 0) & (slot < 0))[:, None, None] & inside)


@triton.jit
def _over_edges(acc, R: tl.constexpr, J: tl.constexpr):
    """[R * J, HB, DB] → [R, HB, DB]"""
    if J == 1:
        return acc
    else:
        return tl.sum(tl.reshape(acc, [R, J, acc.shape[1], acc.shape[2]]), axis=1)


@triton.jit
def _leave(partial_ptr, pieces_ptr, num_pieces, lane, row, inside, SIZE: tl.constexpr, R: tl.constexpr):
    """What pieces of hubs add to their hub's sum. They come first of all pieces, so few programs get here."""
    _, _, _, slot = _pieces(pieces_ptr, num_pieces, R, 1)
    where = slot.to(tl.int64)[:, None, None] * SIZE + lane
    tl.store(partial_ptr + where, row, mask=(slot >= 0)[:, None, None] & inside)


@triton.jit
def _slots(partial_ptr, slot, last, lane, inside, SIZE: tl.constexpr):
    return tl.load(partial_ptr + slot.to(tl.int64) * SIZE + lane, mask=(slot < last) & inside, other=0.0)


@triton.jit
def _sum_slots(partial_ptr, hubs_ptr, lane, inside, SIZE: tl.constexpr, SLOTS: tl.constexpr):
    """The sum of what the pieces of a hub left, [1, HB, DB], always in the same order."""
    first = tl.load(hubs_ptr + tl.program_id(0) * 3 + 1)
    last = tl.load(hubs_ptr + tl.program_id(0) * 3 + 2)
    acc = tl.zeros([SLOTS, lane.shape[1], lane.shape[2]], dtype=partial_ptr.dtype.element_ty)
    for start in range(first, last, 8 * SLOTS):
        # Eight steps by hand: of one large tile the assembler would load two parts, add them, and load the next.
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


@triton.jit(do_not_specialize=_FREE)
def _hop_hubs_kernel(
    x_ptr, out_ptr, partial_ptr, hubs_ptr, z_scale_ptr, x_scale_ptr, seed_ptr, feature_rate_ptr,
    number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, D: tl.constexpr, HB: tl.constexpr, DB: tl.constexpr,
    Z_SCALED: tl.constexpr, FEATURE_DROP: tl.constexpr, SLOTS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    d = tl.arange(0, DB)
    lane = (h[:, None] * D + d[None, :])[None, :, :]
    inside = _inside(h, d, H, D, HB, DB)
    node = tl.load(hubs_ptr + tl.program_id(0) * 3 + tl.zeros([1], dtype=tl.int32))
    live = (node >= 0)[:, None, None] & inside
    own = node.to(tl.int64)[:, None, None] * (H * D) + lane
    x = tl.load(x_ptr + own, mask=live, other=0.0).to(ACC)
    acc = _sum_slots(partial_ptr, hubs_ptr, lane, inside, H * D, SLOTS)
    acc = _hop_row(
        acc, x, node, h, d, z_scale_ptr, x_scale_ptr, seed_ptr, feature_rate_ptr,
        number, all_heads, all_width, first_head, first_column, H, Z_SCALED, FEATURE_DROP, ACC,
    )  # fmt: skip
    tl.store(out_ptr + own, acc.to(out_ptr.dtype.element_ty), mask=live)


@triton.jit
def _backward_row(
    acc, before, node, h, d, first_scale_ptr, scale_ptr, seed_ptr, feature_rate_ptr,
    number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, FIRST: tl.constexpr, FEATURE_DROP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """From the sums over the out-edges of nodes to their T, and to their gradients so far."""
    if FEATURE_DROP:
        acc *= _feature_factor(
            seed_ptr, feature_rate_ptr, 2 * number - 1, node, h, d,
            all_heads, all_width, first_head, first_column, H, ACC,
        )  # fmt: skip
    if FIRST:
        before *= _per_head(first_scale_ptr, h, H)
    return acc, before + _per_head(scale_ptr, h, H) * acc


@triton.jit
def _back_edge(acc, total, g, a, z, kept):
    """Over an edge of each row: more to the sum of the row, and to the gradient of the edge's attention."""
    return acc + (a * kept)[:, :, None] * g, total + kept * tl.sum(g * z, axis=2)


@triton.jit(do_not_specialize=_FREE_OF_ROWS)
def _hop_backward_kernel(
    grad_ptr, z_ptr, attention_ptr, grad_attention_ptr, finished_ptr, grad_x_ptr, out_ptr, partial_ptr,
    pieces_ptr, col_ptr, order_ptr, z_scale_ptr, first_scale_ptr, scale_ptr,
    seed_ptr, attention_rate_ptr, feature_rate_ptr, num_pieces, num_slots,
    number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, D: tl.constexpr, HB: tl.constexpr, DB: tl.constexpr, R: tl.constexpr, J: tl.constexpr,
    Z_SCALED: tl.constexpr, FIRST: tl.constexpr, ADD: tl.constexpr, FINISH: tl.constexpr, WRITE: tl.constexpr,
    LATE: tl.constexpr, ATTENTION_DROP: tl.constexpr, FEATURE_DROP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    node, begin, end, slot = _pieces(pieces_ptr, num_pieces, R, J)
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    d = tl.arange(0, DB)
    lane = (h[:, None] * D + d[None, :])[None, :, :]
    inside, heads = _inside(h, d, H, D, HB, DB), _heads(h, H, HB)
    longest = _longest(pieces_ptr, num_pieces, R)
    first = begin + tl.arange(0, R * J) % J
    count = end - first
    own = node.to(tl.int64)[:, None, None] * (H * D) + lane
    z = tl.load(z_ptr + own, mask=(node >= 0)[:, None, None] & inside, other=0.0).to(ACC)
    if J > 1:
        node, begin, end, slot = _pieces(pieces_ptr, num_pieces, R, 1)
        own = node.to(tl.int64)[:, None, None] * (H * D) + lane
    before_ptr = grad_ptr if FIRST else grad_x_ptr
    if not LATE:
        before = tl.load(before_ptr + own, mask=(node >= 0)[:, None, None] & inside, other=0.0).to(ACC)
    if Z_SCALED:
        z *= _per_head(z_scale_ptr, h, H)
    first_col, first_order = col_ptr + first, order_ptr + first
    entry = first.to(tl.int64)[:, None] * H + h[None, :]
    first_attention, first_grad = attention_ptr + entry, grad_attention_ptr + entry
    rows = grad_ptr + lane
    acc = tl.zeros([R * J, HB, DB], dtype=ACC)
    for start in range(0, longest, 4 * J):
        col, order, left = first_col + start, first_order + start, count - start
        attention, grad_attention = first_attention + start * H, first_grad + start * H
        # Four steps by hand: all loads stand before the first store, which they could not overtake.
        g0, a0 = _neighbours(rows, col, attention, left, 0, inside, heads, H, D, ACC)
        g1, a1 = _neighbours(rows, col, attention, left, J, inside, heads, H, D, ACC)
        g2, a2 = _neighbours(rows, col, attention, left, 2 * J, inside, heads, H, D, ACC)
        g3, a3 = _neighbours(rows, col, attention, left, 3 * J, inside, heads, H, D, ACC)
        live0, live1 = (left > 0)[:, None] & heads, (left > J)[:, None] & heads
        live2, live3 = (left > 2 * J)[:, None] & heads, (left > 3 * J)[:, None] & heads
        sum0 = tl.zeros([R * J, HB], dtype=ACC)
        sum1, sum2, sum3 = sum0, sum0, sum0
        if ADD:
            sum0 = tl.load(grad_attention, mask=live0, other=0.0)
            sum1 = tl.load(grad_attention + J * H, mask=live1, other=0.0)
            sum2 = tl.load(grad_attention + 2 * J * H, mask=live2, other=0.0)
            sum3 = tl.load(grad_attention + 3 * J * H, mask=live3, other=0.0)
        if FINISH:
            edge0, edge1 = _callers_edge(order, left, 0), _callers_edge(order, left, J)
            edge2, edge3 = _callers_edge(order, left, 2 * J), _callers_edge(order, left, 3 * J)
        if ATTENTION_DROP:
            kept0 = _attention_factor(
                order, left, 0, seed_ptr, attention_rate_ptr, number, h, all_heads, first_head, H, ACC
            )
            kept1 = _attention_factor(
                order, left, J, seed_ptr, attention_rate_ptr, number, h, all_heads, first_head, H, ACC
            )
            kept2 = _attention_factor(
                order, left, 2 * J, seed_ptr, attention_rate_ptr, number, h, all_heads, first_head, H, ACC
            )
            kept3 = _attention_factor(
                order, left, 3 * J, seed_ptr, attention_rate_ptr, number, h, all_heads, first_head, H, ACC
            )
        else:
            kept0, kept1, kept2, kept3 = 1.0, 1.0, 1.0, 1.0
        acc, sum0 = _back_edge(acc, sum0, g0, a0, z, kept0)
        acc, sum1 = _back_edge(acc, sum1, g1, a1, z, kept1)
        acc, sum2 = _back_edge(acc, sum2, g2, a2, z, kept2)
        acc, sum3 = _back_edge(acc, sum3, g3, a3, z, kept3)
        if FINISH:
            finished = finished_ptr + h[None, :]
            tl.store(finished + edge0.to(tl.int64)[:, None] * H, sum0, mask=live0)
            tl.store(finished + edge1.to(tl.int64)[:, None] * H, sum1, mask=live1)
            tl.store(finished + edge2.to(tl.int64)[:, None] * H, sum2, mask=live2)
            tl.store(finished + edge3.to(tl.int64)[:, None] * H, sum3, mask=live3)
        else:
            tl.store(grad_attention, sum0, mask=live0)
            tl.store(grad_attention + J * H, sum1, mask=live1)
            tl.store(grad_attention + 2 * J * H, sum2, mask=live2)
            tl.store(grad_attention + 3 * J * H, sum3, mask=live3)
    if LATE:
        # In the loop, registers for it would cost one of the four neighbours that are on their way.
        before = tl.load(before_ptr + own, mask=(node >= 0)[:, None, None] & inside, other=0.0).to(ACC)
    row = _over_edges(acc, R, J)
    if tl.program_id(0) * R < num_slots:
        _leave(partial_ptr, pieces_ptr, num_pieces, lane, row, inside, H * D, R)
    row, total = _backward_row(
        row, before, node, h, d, first_scale_ptr, scale_ptr, seed_ptr, feature_rate_ptr,
        number, all_heads, all_width, first_head, first_column, H, FIRST, FEATURE_DROP, ACC,
    )  # fmt: skip
    whole = ((node >= 0) & (slot < 0))[:, None, None] & inside
    tl.store(grad_x_ptr + own, total.to(grad_x_ptr.dtype.element_ty), mask=whole)
    if WRITE:
        tl.store(out_ptr + own, row.to(out_ptr.dtype.element_ty), mask=whole)


@triton.jit(do_not_specialize=_FREE)
def _hop_backward_hubs_kernel(
    grad_ptr, grad_x_ptr, out_ptr, partial_ptr, hubs_ptr, first_scale_ptr, scale_ptr, seed_ptr, feature_rate_ptr,
    number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, D: tl.constexpr, HB: tl.constexpr, DB: tl.constexpr,
    FIRST: tl.constexpr, WRITE: tl.constexpr, FEATURE_DROP: tl.constexpr, SLOTS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    d = tl.arange(0, DB)
    lane = (h[:, None] * D + d[None, :])[None, :, :]
    inside = _inside(h, d, H, D, HB, DB)
    node = tl.load(hubs_ptr + tl.program_id(0) * 3 + tl.zeros([1], dtype=tl.int32))
    live = (node >= 0)[:, None, None] & inside
    own = node.to(tl.int64)[:, None, None] * (H * D) + lane
    before_ptr = grad_ptr if FIRST else grad_x_ptr
    before = tl.load(before_ptr + own, mask=live, other=0.0).to(ACC)
    acc = _sum_slots(partial_ptr, hubs_ptr, lane, inside, H * D, SLOTS)
    acc, total = _backward_row(
        acc, before, node, h, d, first_scale_ptr, scale_ptr, seed_ptr, feature_rate_ptr,
        number, all_heads, all_width, first_head, first_column, H, FIRST, FEATURE_DROP, ACC,
    )  # fmt: skip
    tl.store(grad_x_ptr + own, total.to(grad_x_ptr.dtype.element_ty), mask=live)
    if WRITE:
        tl.store(out_ptr + own, acc.to(out_ptr.dtype.element_ty), mask=live)


@triton.jit
def _take_rows_kernel(values_ptr, order_ptr, out_ptr, num_rows, H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr):
    e = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    live = (e < num_rows)[:, None] & (h < H)[None, :]
    row = tl.load(order_ptr + e, mask=e < num_rows, other=0).to(tl.int64)
    value = tl.load(values_ptr + row[:, None] * H + h[None, :], mask=live, other=0.0)
    tl.store(out_ptr + e[:, None] * H + h[None, :], value, mask=live)


@triton.jit(do_not_specialize=_FREE)
def _hop_dropout_kernel(
    grad_ptr, out_ptr, seed_ptr, rate_ptr, size, number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = i < size
    head = (i // D) % H
    entry = ((i // (H * D)) * all_heads + first_head + head) * all_width + first_column + i % D
    rate = tl.load(rate_ptr + head, mask=live, other=0.0)
    grad = tl.load(grad_ptr + i, mask=live, other=0.0).to(ACC)
    kept = grad * factor(bits(seed_ptr, 2 * number + 1, entry), rate, ACC)
    tl.store(out_ptr + i, kept.to(out_ptr.dtype.element_ty), mask=live)


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


def accumulator(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32


class Tile(NamedTuple):
    """How one step of a program covers [rows, edges of each, heads, width]."""

    rows: int
    edges: int
    heads: int
    width: int
    warps: int


def tile(heads: int, width: int, itemsize: int) -> Tile:
    """512 bytes in one warp, 16 a thread: part of the heads of a neighbour, or narrow neighbours of two rows.

    A group of heads goes over all nodes before the next does, so that the rows of a group tend to stay in the L2 cache.
    """
    lanes, width = 512 // itemsize, triton.next_power_of_2(width)
    group = min(triton.next_power_of_2(heads), max(1, lanes // width))
    neighbours = max(1, lanes // (group * width))
    rows = min(2, neighbours)
    return Tile(rows, neighbours // rows, group, width, max(1, min(8, width // lanes)))


def _steps(t: Tile, itemsize: int) -> int:
    """Steps of the forward walk that are on their way at once; their loads and sums fill the registers."""
    return max(2, min(8, 2 * itemsize) // t.edges)


def _blocks(z: Tensor) -> tuple[Tile, dict, dict, int]:
    """The tile over these tensors, the options of the kernels and of the hubs' kernels, and the groups of heads."""
    t = tile(z.size(1), z.size(2), z.element_size())
    shared = {"H": z.size(1), "D": z.size(2), "HB": t.heads, "DB": t.width, "ACC": accumulator(z.dtype)}
    walk = shared | {"R": t.rows, "J": t.edges, "num_warps": t.warps}
    hubs = shared | {"SLOTS": max(1, 128 * _HUB_WARPS // (t.heads * t.width)), "num_warps": _HUB_WARPS}
    return t, walk, hubs, triton.cdiv(z.size(1), t.heads)


def _slice(draw: Draw, number: int) -> tuple[int, ...]:
    return number, draw.heads, draw.width, draw.first_head, draw.first_column


def _partial(z: Tensor, attention: Tensor, segments: Segments) -> Tensor:
    return attention.new_empty(segments.num_slots, z.size(1), z.size(2))


def hop(
    z: Tensor,
    x: Tensor,
    attention: Tensor,
    segments: Segments,
    col: Tensor,
    *,
    z_scale: Tensor | None,
    x_scale: Tensor,
    draw: Draw,
    number: int,
    out: Tensor,
) -> None:
    if out.numel() == 0:
        return
    t, options, hubs, groups = _blocks(z)
    flags = {"Z_SCALED": z_scale is not None, "FEATURE_DROP": draw.feature_rate is not None}
    partial = _partial(z, attention, segments)
    position = _slice(draw, number)
    count = segments.pieces.size(0)
    _hop_kernel[(triton.cdiv(count, t.rows), groups)](
        z, x, attention, out, partial, segments.pieces, col, segments.order, z_scale, x_scale,
        draw.seed, draw.attention_rate, draw.feature_rate, count, segments.num_slots, *position,
        UNROLL=_steps(t, z.element_size()), ATTENTION_DROP=draw.attention_rate is not None, **flags, **options,
    )  # fmt: skip
    if segments.hubs.size(0):
        _hop_hubs_kernel[(segments.hubs.size(0), groups)](
            x, out, partial, segments.hubs, z_scale, x_scale, draw.seed, draw.feature_rate, *position, **flags, **hubs
        )


def hop_backward(
    grad: Tensor,
    z: Tensor,
    attention: Tensor,
    segments: Segments,
    col: Tensor,
    *,
    z_scale: Tensor | None,
    first_scale: Tensor | None,
    scale: Tensor,
    draw: Draw,
    number: int,
    grad_attention: Tensor,
    add: bool,
    rank: Tensor | None,
    grad_x: Tensor,
    out: Tensor | None,
) -> Tensor | None:
    if grad.numel() == 0:
        return None if rank is None else torch.zeros_like(grad_attention)
    t, options, hubs, groups = _blocks(z)
    flags = {"FIRST": first_scale is not None, "WRITE": out is not None}
    flags["FEATURE_DROP"] = draw.feature_rate is not None and number > 0
    # The walk itself writes in the caller's order, unless groups of heads, one after the other, would scatter parts of
    # sectors, each of which costs a whole one.
    finished = torch.empty_like(grad_attention) if rank is not None and groups == 1 else None
    partial = _partial(z, attention, segments)
    position = _slice(draw, number)
    count = segments.pieces.size(0)
    _hop_backward_kernel[(triton.cdiv(count, t.rows), groups)](
        grad, z, attention, grad_attention, finished, grad_x, out, partial, segments.pieces, col, segments.order,
        z_scale, first_scale, scale, draw.seed, draw.attention_rate, draw.feature_rate,
        count, segments.num_slots, *position, Z_SCALED=z_scale is not None, ADD=add, FINISH=finished is not None,
        LATE=z.element_size() < 4, ATTENTION_DROP=draw.attention_rate is not None, **flags, **options,
    )  # fmt: skip
    if segments.hubs.size(0):
        _hop_backward_hubs_kernel[(segments.hubs.size(0), groups)](
            grad, grad_x, out, partial, segments.hubs, first_scale, scale, draw.seed, draw.feature_rate,
            *position, **flags, **hubs,
        )  # fmt: skip
    return take_rows(grad_attention, rank) if rank is not None and groups > 1 else finished


def take_rows(values: Tensor, order: Tensor) -> Tensor:
    out = torch.empty_like(values)
    heads = min(32, triton.next_power_of_2(values.size(1)))
    if out.numel():
        _take_rows_kernel[(triton.cdiv(out.size(0), 128), triton.cdiv(values.size(1), heads))](
            values, order, out, out.size(0), H=values.size(1), HB=heads, BE=128, num_warps=4
        )
    return out


def hop_dropout(grad: Tensor, draw: Draw, number: int) -> Tensor:
    out = torch.empty_like(grad)
    if grad.numel():
        _hop_dropout_kernel[(triton.cdiv(grad.numel(), _BLOCK),)](
            grad, out, draw.seed, draw.feature_rate, grad.numel(), *_slice(draw, number),
            H=grad.size(1), D=grad.size(2), BLOCK=_BLOCK, ACC=accumulator(grad.dtype),
        )  # fmt: skip
    return out


def dropout(x: Tensor, rate: Tensor, seed: Tensor, shared: bool) -> Tensor:
    out = x.new_empty((*rate.shape, *x.shape) if shared else x.shape)
    if out.numel():
        block = out.numel() // rate.numel()
        _dropout_kernel[(triton.cdiv(block, _BLOCK), rate.numel())](
            x, out, seed, rate, block,
            SHARED=shared, STREAM=DENSE_STREAM, BLOCK=_BLOCK, ACC=accumulator(x.dtype),
        )  # fmt: skip
    return out

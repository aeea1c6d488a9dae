"""One hop of the diffusion on the GPU: every node gathers its neighbours.

Back, it gathers the gradients of its out-edges' targets, which give its own and those of the edges' attention.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from magna.ops.backend.registry import Draw, Hop, HopBack
from magna.ops.triton.draw import bits, factor, keys
from magna.ops.triton.edges import take_rows
from magna.ops.triton.launch import Bound, accumulator, bound, ceil_div
from magna.ops.triton.rows import (
    FREE,
    FREE_OF_ROWS,
    attention_factor,
    callers_edge,
    empty_partial,
    feature_factor,
    first_kept,
    heads_inside,
    kept_words,
    lanes_inside,
    leave_partial,
    longest_piece,
    neighbours,
    next_pieces,
    per_head,
    place_of_draw,
    sum_over_edges,
    sum_partial,
    walk_over,
)

_BLOCK = 1024  # entries of a program of `hop_dropout`


@triton.jit
def _hop_row(
    acc, x, node, h, d, z_scale_ptr, x_scale_ptr, seed_ptr, feature_rate_ptr,
    number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, Z_SCALED: tl.constexpr, FEATURE_DROP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The next states of rows from the sums over their edges."""
    if Z_SCALED:
        acc *= per_head(z_scale_ptr, h, H)
    acc += per_head(x_scale_ptr, h, H) * x
    if FEATURE_DROP:
        acc *= feature_factor(
            seed_ptr, feature_rate_ptr, 2 * number + 1, node, h, d,
            all_heads, all_width, first_head, first_column, H, ACC,
        )  # fmt: skip
    return acc


@triton.jit(do_not_specialize=FREE_OF_ROWS)
def _hop_kernel(
    z_ptr, x_ptr, attention_ptr, out_ptr, partial_ptr, pieces_ptr, col_ptr, kept_ptr, z_scale_ptr, x_scale_ptr,
    seed_ptr, attention_rate_ptr, feature_rate_ptr, num_pieces, num_slots,
    number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, D: tl.constexpr, HB: tl.constexpr, DB: tl.constexpr, R: tl.constexpr, J: tl.constexpr,
    UNROLL: tl.constexpr, Z_SCALED: tl.constexpr, BITS: tl.constexpr, WORDS: tl.constexpr,
    FEATURE_DROP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    node, begin, end, slot = next_pieces(pieces_ptr, num_pieces, R, J)
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    d = tl.arange(0, DB)
    lane = (h[:, None] * D + d[None, :])[None, :, :]
    inside, heads = lanes_inside(h, d, H, D, HB, DB), heads_inside(h, H, HB)
    longest = longest_piece(pieces_ptr, num_pieces, R)
    first = begin + tl.arange(0, R * J) % J
    count = end - first
    if J > 1:
        node, begin, end, slot = next_pieces(pieces_ptr, num_pieces, R, 1)
    # Loaded here, x arrives while the neighbours are gathered.
    place = node.to(tl.int64)[:, None, None] * (H * D) + lane
    x = tl.load(x_ptr + place, mask=(node >= 0)[:, None, None] & inside, other=0.0).to(ACC)
    first_col = col_ptr + first
    first_attention = attention_ptr + first.to(tl.int64)[:, None] * H + h[None, :]
    if BITS > 0:
        first_word, growth = first_kept(kept_ptr, attention_rate_ptr, first, h, number, H, BITS, WORDS, ACC)
    acc = tl.zeros([R * J, HB, DB], dtype=ACC)
    for start in range(0, longest, UNROLL * J):
        col, attention, left = first_col + start, first_attention + start * H, count - start
        for i in tl.static_range(UNROLL):
            z, a = neighbours(z_ptr + lane, col, attention, left, i * J, inside, heads, H, D, ACC)
            if BITS > 0:
                word = first_word + start * (H * WORDS)
                a *= attention_factor(word, growth, left, i * J, number, heads, H, BITS, WORDS)
            acc += a[:, :, None] * z
    row = sum_over_edges(acc, R, J)
    if tl.program_id(0) * R < num_slots:
        leave_partial(partial_ptr, pieces_ptr, num_pieces, lane, row, inside, H * D, R)
    row = _hop_row(
        row, x, node, h, d, z_scale_ptr, x_scale_ptr, seed_ptr, feature_rate_ptr,
        number, all_heads, all_width, first_head, first_column, H, Z_SCALED, FEATURE_DROP, ACC,
    )  # fmt: skip
    tl.store(out_ptr + place, row.to(out_ptr.dtype.element_ty), mask=((node >= 0) & (slot < 0))[:, None, None] & inside)


@triton.jit(do_not_specialize=FREE)
def _hop_hubs_kernel(
    x_ptr, out_ptr, partial_ptr, hubs_ptr, z_scale_ptr, x_scale_ptr, seed_ptr, feature_rate_ptr,
    number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, D: tl.constexpr, HB: tl.constexpr, DB: tl.constexpr,
    Z_SCALED: tl.constexpr, FEATURE_DROP: tl.constexpr, SLOTS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    d = tl.arange(0, DB)
    lane = (h[:, None] * D + d[None, :])[None, :, :]
    inside = lanes_inside(h, d, H, D, HB, DB)
    node = tl.load(hubs_ptr + tl.program_id(0) * 3 + tl.zeros([1], dtype=tl.int32))
    live = (node >= 0)[:, None, None] & inside
    place = node.to(tl.int64)[:, None, None] * (H * D) + lane
    x = tl.load(x_ptr + place, mask=live, other=0.0).to(ACC)
    acc = sum_partial(partial_ptr, hubs_ptr, lane, inside, H * D, SLOTS)
    acc = _hop_row(
        acc, x, node, h, d, z_scale_ptr, x_scale_ptr, seed_ptr, feature_rate_ptr,
        number, all_heads, all_width, first_head, first_column, H, Z_SCALED, FEATURE_DROP, ACC,
    )  # fmt: skip
    tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=live)


@cache
def _kernels(
    heads: int, width: int, dtype: torch.dtype, z_scaled: bool, feature_drop: bool, BITS: int, WORDS: int
) -> tuple[Bound, Bound]:
    """The kernels over the pieces of rows and over hubs."""
    walk = walk_over(heads, width, dtype)
    flags = {"Z_SCALED": z_scaled, "FEATURE_DROP": feature_drop}
    pieces = Bound(_hop_kernel, UNROLL=walk.steps, BITS=BITS, WORDS=WORDS, **flags, **walk.options)
    return pieces, Bound(_hop_hubs_kernel, **flags, **walk.hub_options)


def hop(step: Hop) -> None:
    z, x, attention, segments, col, z_scale, x_scale, out, draw, number = step
    if out.numel() == 0:
        return
    shape = z.size(1), z.size(2), z.dtype
    walk = walk_over(*shape)
    pieces, hubs = _kernels(*shape, z_scale is not None, draw.feature_rate is not None, **kept_words(draw))
    partial = empty_partial(z, attention, segments)
    position = place_of_draw(draw, number)
    count = segments.pieces.size(0)
    pieces[(ceil_div(count, walk.rows), walk.groups)](
        z, x, attention, out, partial, segments.pieces, col, draw.drawn, z_scale, x_scale,
        draw.seed, draw.attention_rate, draw.feature_rate, count, segments.num_slots, *position,
    )  # fmt: skip
    if segments.hubs.size(0):
        hubs[(segments.hubs.size(0), walk.groups)](
            x, out, partial, segments.hubs, z_scale, x_scale, draw.seed, draw.feature_rate, *position
        )


@triton.jit
def _backward_row(
    acc, before, node, h, d, first_scale_ptr, scale_ptr, seed_ptr, feature_rate_ptr,
    number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, FIRST: tl.constexpr, FEATURE_DROP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """T of nodes from the sums over their out-edges, and the sums of their gradients up to this hop."""
    if FEATURE_DROP:
        acc *= feature_factor(
            seed_ptr, feature_rate_ptr, 2 * number - 1, node, h, d,
            all_heads, all_width, first_head, first_column, H, ACC,
        )  # fmt: skip
    if FIRST:
        before *= per_head(first_scale_ptr, h, H)
    return acc, before + per_head(scale_ptr, h, H) * acc


@triton.jit
def _back_edge(acc, total, g, a, z, dropout):
    """Add an edge of each row to the sum of the row and to the gradient of the edge's attention."""
    return acc + (a * dropout)[:, :, None] * g, total + dropout * tl.sum(g * z, axis=2)


@triton.jit(do_not_specialize=FREE_OF_ROWS)
def _hop_backward_kernel(
    grad_ptr, z_ptr, attention_ptr, grad_attention_ptr, finished_ptr, grad_x_ptr, out_ptr, partial_ptr,
    pieces_ptr, col_ptr, order_ptr, kept_ptr, z_scale_ptr, first_scale_ptr, scale_ptr,
    seed_ptr, attention_rate_ptr, feature_rate_ptr, num_pieces, num_slots,
    number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, D: tl.constexpr, HB: tl.constexpr, DB: tl.constexpr, R: tl.constexpr, J: tl.constexpr,
    Z_SCALED: tl.constexpr, FIRST: tl.constexpr, ADD: tl.constexpr, FINISH: tl.constexpr, WRITE: tl.constexpr,
    LATE: tl.constexpr, BITS: tl.constexpr, WORDS: tl.constexpr, FEATURE_DROP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    node, begin, end, slot = next_pieces(pieces_ptr, num_pieces, R, J)
    h, d = tl.program_id(1) * HB + tl.arange(0, HB), tl.arange(0, DB)
    lane = (h[:, None] * D + d[None, :])[None, :, :]
    inside, heads = lanes_inside(h, d, H, D, HB, DB), heads_inside(h, H, HB)
    longest = longest_piece(pieces_ptr, num_pieces, R)
    first = begin + tl.arange(0, R * J) % J
    count = end - first
    place = node.to(tl.int64)[:, None, None] * (H * D) + lane
    z = tl.load(z_ptr + place, mask=(node >= 0)[:, None, None] & inside, other=0.0).to(ACC)
    if J > 1:
        node, begin, end, slot = next_pieces(pieces_ptr, num_pieces, R, 1)
        place = node.to(tl.int64)[:, None, None] * (H * D) + lane
    before_ptr = grad_ptr if FIRST else grad_x_ptr
    if not LATE:
        before = tl.load(before_ptr + place, mask=(node >= 0)[:, None, None] & inside, other=0.0).to(ACC)
    if Z_SCALED:
        z *= per_head(z_scale_ptr, h, H)
    first_col, first_order = col_ptr + first, order_ptr + first
    entry = first.to(tl.int64)[:, None] * H + h[None, :]
    first_attention, first_grad = attention_ptr + entry, grad_attention_ptr + entry
    if BITS > 0:
        first_word, growth = first_kept(kept_ptr, attention_rate_ptr, first, h, number, H, BITS, WORDS, ACC)
    rows = grad_ptr + lane
    acc = tl.zeros([R * J, HB, DB], dtype=ACC)
    for start in range(0, longest, 4 * J):
        col, order, left = first_col + start, first_order + start, count - start
        attention, grad_attention = first_attention + start * H, first_grad + start * H
        # Four steps unrolled by hand: loads cannot overtake a store, so all of them come first.
        g0, a0 = neighbours(rows, col, attention, left, 0, inside, heads, H, D, ACC)
        g1, a1 = neighbours(rows, col, attention, left, J, inside, heads, H, D, ACC)
        g2, a2 = neighbours(rows, col, attention, left, 2 * J, inside, heads, H, D, ACC)
        g3, a3 = neighbours(rows, col, attention, left, 3 * J, inside, heads, H, D, ACC)
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
            edge0, edge1 = callers_edge(order, left, 0), callers_edge(order, left, J)
            edge2, edge3 = callers_edge(order, left, 2 * J), callers_edge(order, left, 3 * J)
        if BITS > 0:
            word = first_word + start * (H * WORDS)
            dropout0 = attention_factor(word, growth, left, 0, number, heads, H, BITS, WORDS)
            dropout1 = attention_factor(word, growth, left, J, number, heads, H, BITS, WORDS)
            dropout2 = attention_factor(word, growth, left, 2 * J, number, heads, H, BITS, WORDS)
            dropout3 = attention_factor(word, growth, left, 3 * J, number, heads, H, BITS, WORDS)
        else:
            dropout0, dropout1, dropout2, dropout3 = 1.0, 1.0, 1.0, 1.0
        acc, sum0 = _back_edge(acc, sum0, g0, a0, z, dropout0)
        acc, sum1 = _back_edge(acc, sum1, g1, a1, z, dropout1)
        acc, sum2 = _back_edge(acc, sum2, g2, a2, z, dropout2)
        acc, sum3 = _back_edge(acc, sum3, g3, a3, z, dropout3)
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
        # Loaded earlier, its registers would leave room for three neighbours in flight instead of four.
        before = tl.load(before_ptr + place, mask=(node >= 0)[:, None, None] & inside, other=0.0).to(ACC)
    row = sum_over_edges(acc, R, J)
    if tl.program_id(0) * R < num_slots:
        leave_partial(partial_ptr, pieces_ptr, num_pieces, lane, row, inside, H * D, R)
    row, total = _backward_row(
        row, before, node, h, d, first_scale_ptr, scale_ptr, seed_ptr, feature_rate_ptr,
        number, all_heads, all_width, first_head, first_column, H, FIRST, FEATURE_DROP, ACC,
    )  # fmt: skip
    whole = ((node >= 0) & (slot < 0))[:, None, None] & inside
    tl.store(grad_x_ptr + place, total.to(grad_x_ptr.dtype.element_ty), mask=whole)
    if WRITE:
        tl.store(out_ptr + place, row.to(out_ptr.dtype.element_ty), mask=whole)


@triton.jit(do_not_specialize=FREE)
def _hop_backward_hubs_kernel(
    grad_ptr, grad_x_ptr, out_ptr, partial_ptr, hubs_ptr, first_scale_ptr, scale_ptr, seed_ptr, feature_rate_ptr,
    number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, D: tl.constexpr, HB: tl.constexpr, DB: tl.constexpr,
    FIRST: tl.constexpr, WRITE: tl.constexpr, FEATURE_DROP: tl.constexpr, SLOTS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    d = tl.arange(0, DB)
    lane = (h[:, None] * D + d[None, :])[None, :, :]
    inside = lanes_inside(h, d, H, D, HB, DB)
    node = tl.load(hubs_ptr + tl.program_id(0) * 3 + tl.zeros([1], dtype=tl.int32))
    live = (node >= 0)[:, None, None] & inside
    place = node.to(tl.int64)[:, None, None] * (H * D) + lane
    before_ptr = grad_ptr if FIRST else grad_x_ptr
    before = tl.load(before_ptr + place, mask=live, other=0.0).to(ACC)
    acc = sum_partial(partial_ptr, hubs_ptr, lane, inside, H * D, SLOTS)
    acc, total = _backward_row(
        acc, before, node, h, d, first_scale_ptr, scale_ptr, seed_ptr, feature_rate_ptr,
        number, all_heads, all_width, first_head, first_column, H, FIRST, FEATURE_DROP, ACC,
    )  # fmt: skip
    tl.store(grad_x_ptr + place, total.to(grad_x_ptr.dtype.element_ty), mask=live)
    if WRITE:
        tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=FREE)
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
    key0, key1 = keys(seed_ptr, 2 * number + 1)
    value = grad * factor(bits(key0, key1, entry), rate, ACC)
    tl.store(out_ptr + i, value.to(out_ptr.dtype.element_ty), mask=live)


@cache
def _back_kernels(
    heads: int, width: int, dtype: torch.dtype, switches: tuple[bool, ...], BITS: int, WORDS: int
) -> tuple[Bound, Bound]:
    z_scaled, first, write, add, finish, feature_drop = switches
    walk = walk_over(heads, width, dtype)
    flags = {"FIRST": first, "WRITE": write, "FEATURE_DROP": feature_drop}
    of_pieces = {"Z_SCALED": z_scaled, "ADD": add, "FINISH": finish, "BITS": BITS, "WORDS": WORDS}
    pieces = Bound(_hop_backward_kernel, LATE=dtype.itemsize < 4, **of_pieces, **flags, **walk.options)
    return pieces, Bound(_hop_backward_hubs_kernel, **flags, **walk.hub_options)


def hop_backward(step: HopBack) -> Tensor | None:
    grad, z, attention, segments, col = step[:5]
    z_scale, first_scale, scale, grad_attention, add, rank, grad_x, out, draw, number = step[5:]
    if grad.numel() == 0:
        return None if rank is None else torch.zeros_like(grad_attention)
    shape = z.size(1), z.size(2), z.dtype
    walk = walk_over(*shape)
    # The walk writes in the caller's order, unless several groups of heads would each write a part of a sector, which
    # costs as much as a whole one.
    finish = rank is not None and walk.groups == 1
    finished = torch.empty_like(grad_attention) if finish else None
    feature_drop = draw.feature_rate is not None and number > 0
    switches = z_scale is not None, first_scale is not None, out is not None, add, finish, feature_drop
    pieces, hubs = _back_kernels(*shape, switches, **kept_words(draw))
    partial = empty_partial(z, attention, segments)
    position = place_of_draw(draw, number)
    count = segments.pieces.size(0)
    pieces[(ceil_div(count, walk.rows), walk.groups)](
        grad, z, attention, grad_attention, finished, grad_x, out, partial, segments.pieces, col, segments.order,
        draw.drawn, z_scale, first_scale, scale, draw.seed, draw.attention_rate, draw.feature_rate,
        count, segments.num_slots, *position,
    )  # fmt: skip
    if segments.hubs.size(0):
        hubs[(segments.hubs.size(0), walk.groups)](
            grad, grad_x, out, partial, segments.hubs, first_scale, scale, draw.seed, draw.feature_rate, *position
        )
    return take_rows(grad_attention, rank) if rank is not None and walk.groups > 1 else finished


def hop_dropout(grad: Tensor, draw: Draw, number: int) -> Tensor:
    out = torch.empty_like(grad)
    if grad.numel():
        sizes = {"H": grad.size(1), "D": grad.size(2), "BLOCK": _BLOCK}
        kernel = bound(_hop_dropout_kernel, ACC=accumulator(grad.dtype), **sizes)
        kernel[(ceil_div(grad.numel(), _BLOCK),)](
            grad, out, draw.seed, draw.feature_rate, grad.numel(), *place_of_draw(draw, number)
        )
    return out

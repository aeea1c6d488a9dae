"""The softmax over the in-edges of each node on the GPU and the k best of them: short rows together, hubs in pieces.

Edges that are sorted by target already are read without `Segments.order`.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from magna.graph import Graph, piece_edges
from magna.ops.triton.edges import blocks, edge_entries, next_rows, row_entries, sum_hubs
from magna.ops.triton.launch import Bound, accumulator, bound, ceil_div, power_of_2

_ROWS = 4  # short rows of a program
_ROW_EDGES = 8  # edges of each in one step
_HEADS = 8  # of a row of one piece that a program keeps in registers
_PROGRAMS = 4096  # that share such rows
# For hubs up to a length: the edges and heads that a program keeps in registers, and its warps.
_HUBS = ((512, 512, 1, 1), (2**31 - 1, 4096, 2, 8))


@triton.jit
def _add_scores(top, total, score):
    above = tl.maximum(top, tl.max(score, axis=1))
    shift = tl.where(above == float("-inf"), 0.0, above)
    return above, total * tl.exp(top - shift) + tl.sum(tl.exp(score - shift[:, None, :]), axis=1)


@triton.jit
def _divide(score, top, total):
    # A row of -inf alone has top -inf and total 0; shifted by 0 and divided by 1, its attention is 0.
    shift = tl.where(top == float("-inf"), 0.0, top)
    return tl.exp(score - shift[:, None, :]) / tl.where(total > 0, total, 1.0)[:, None, :]


@triton.jit
def _softmax_kernel(
    scores_ptr, out_ptr, partial_ptr, pieces_ptr, order_ptr, num_pieces,
    R: tl.constexpr, H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr, IN_ORDER: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    _, begin, end, slot, longest = next_rows(pieces_ptr, tl.program_id(0) * R, num_pieces, R)
    # Most rows fit into the first block, which stays in registers.
    where, live = row_entries(order_ptr, begin, end, h, H, BE, IN_ORDER)
    score = tl.load(scores_ptr + where, mask=live, other=float("-inf"))
    top, total = _add_scores(tl.full([R, HB], float("-inf"), dtype=ACC), tl.zeros([R, HB], dtype=ACC), score)
    for step in range(BE, longest, BE):
        later, later_live = row_entries(order_ptr, begin + step, end, h, H, BE, IN_ORDER)
        top, total = _add_scores(top, total, tl.load(scores_ptr + later, mask=later_live, other=float("-inf")))
    alone = (slot < 0)[:, None, None]
    tl.store(out_ptr + where, _divide(score, top, total), mask=live & alone)
    for step in range(BE, longest, BE):
        later, later_live = row_entries(order_ptr, begin + step, end, h, H, BE, IN_ORDER)
        score = tl.load(scores_ptr + later, mask=later_live & alone, other=float("-inf"))
        tl.store(out_ptr + later, _divide(score, top, total), mask=later_live & alone)
    place = slot.to(tl.int64)[:, None] * (2 * H) + h[None, :]
    of_hub = (slot >= 0)[:, None] & (h < H)[None, :]
    tl.store(partial_ptr + place, top, mask=of_hub)
    tl.store(partial_ptr + place + H, total, mask=of_hub)


@triton.jit
def _softmax_hubs_kernel(partial_ptr, hubs_ptr, H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr, ACC: tl.constexpr):
    """Replace the top and the total of each piece of a hub by those of the whole hub."""
    hub = tl.program_id(0)
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    group = tl.load(hubs_ptr + hub * 3)
    first = tl.load(hubs_ptr + hub * 3 + 1)
    last = tl.load(hubs_ptr + hub * 3 + 2)
    if group < 0:
        return
    top = tl.full([HB], float("-inf"), dtype=ACC)
    total = tl.zeros([HB], dtype=ACC)
    for start in range(first, last, BE):
        s = start + tl.arange(0, BE)
        live = (s < last)[:, None] & (h < H)[None, :]
        where = s.to(tl.int64)[:, None] * (2 * H) + h[None, :]
        tops = tl.load(partial_ptr + where, mask=live, other=float("-inf"))
        totals = tl.load(partial_ptr + where + H, mask=live, other=0.0)
        above = tl.maximum(top, tl.max(tops, axis=0))
        shift = tl.where(above == float("-inf"), 0.0, above)
        total = total * tl.exp(top - shift) + tl.sum(totals * tl.exp(tops - shift[None, :]), axis=0)
        top = above
    # All slots are read before any is overwritten.
    tl.debug_barrier()
    for start in range(first, last, BE):
        s = start + tl.arange(0, BE)
        live = (s < last)[:, None] & (h < H)[None, :]
        where = s.to(tl.int64)[:, None] * (2 * H) + h[None, :]
        tl.store(partial_ptr + where, tl.broadcast_to(top[None, :], [BE, HB]), mask=live)
        tl.store(partial_ptr + where + H, tl.broadcast_to(total[None, :], [BE, HB]), mask=live)


@triton.jit
def _softmax_finish_kernel(
    scores_ptr, out_ptr, partial_ptr, pieces_ptr, order_ptr,
    H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr, IN_ORDER: tl.constexpr,
):  # fmt: skip
    """Normalise one piece of a hub; slot i is piece i."""
    piece = tl.program_id(0)
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    begin = tl.load(pieces_ptr + piece * 4 + 1)
    end = tl.load(pieces_ptr + piece * 4 + 2)
    if tl.load(pieces_ptr + piece * 4 + 3) < 0:
        return
    where = piece.to(tl.int64) * (2 * H) + h
    top = tl.load(partial_ptr + where, mask=h < H, other=float("-inf"))
    total = tl.load(partial_ptr + where + H, mask=h < H, other=0.0)
    for start in range(begin, end, BE):
        entry, live = edge_entries(order_ptr, start, end, h, H, BE, IN_ORDER)
        score = tl.load(scores_ptr + entry, mask=live, other=float("-inf"))
        shift = tl.where(top == float("-inf"), 0.0, top)
        tl.store(out_ptr + entry, tl.exp(score - shift[None, :]) / tl.where(total > 0, total, 1.0)[None, :], mask=live)


@triton.jit
def _softmax_backward_kernel(
    grad_ptr, attention_ptr, out_ptr, partial_ptr, pieces_ptr, order_ptr, num_pieces,
    R: tl.constexpr, H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr, IN_ORDER: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    _, begin, end, slot, longest = next_rows(pieces_ptr, tl.program_id(0) * R, num_pieces, R)
    where, live = row_entries(order_ptr, begin, end, h, H, BE, IN_ORDER)
    grad = tl.load(grad_ptr + where, mask=live, other=0.0)
    attention = tl.load(attention_ptr + where, mask=live, other=0.0)
    mean = tl.sum(grad * attention, axis=1)
    for step in range(BE, longest, BE):
        later, later_live = row_entries(order_ptr, begin + step, end, h, H, BE, IN_ORDER)
        later_grad = tl.load(grad_ptr + later, mask=later_live, other=0.0)
        mean += tl.sum(later_grad * tl.load(attention_ptr + later, mask=later_live, other=0.0), axis=1)
    alone = (slot < 0)[:, None, None]
    tl.store(out_ptr + where, attention * (grad - mean[:, None, :]), mask=live & alone)
    for step in range(BE, longest, BE):
        later, later_live = row_entries(order_ptr, begin + step, end, h, H, BE, IN_ORDER)
        grad = tl.load(grad_ptr + later, mask=later_live & alone, other=0.0)
        attention = tl.load(attention_ptr + later, mask=later_live & alone, other=0.0)
        tl.store(out_ptr + later, attention * (grad - mean[:, None, :]), mask=later_live & alone)
    place = slot.to(tl.int64)[:, None] * H + h[None, :]
    tl.store(partial_ptr + place, mean, mask=(slot >= 0)[:, None] & (h < H)[None, :])


@triton.jit
def _softmax_backward_finish_kernel(
    grad_ptr, attention_ptr, out_ptr, mean_ptr, pieces_ptr, order_ptr,
    H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr, IN_ORDER: tl.constexpr,
):  # fmt: skip
    """Subtract the mean of its hub from one piece; slot i is piece i."""
    piece = tl.program_id(0)
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    group = tl.load(pieces_ptr + piece * 4)
    begin = tl.load(pieces_ptr + piece * 4 + 1)
    end = tl.load(pieces_ptr + piece * 4 + 2)
    if tl.load(pieces_ptr + piece * 4 + 3) < 0:
        return
    mean = tl.load(mean_ptr + group.to(tl.int64) * H + h, mask=h < H, other=0.0)
    for start in range(begin, end, BE):
        entry, live = edge_entries(order_ptr, start, end, h, H, BE, IN_ORDER)
        grad = tl.load(grad_ptr + entry, mask=live, other=0.0)
        attention = tl.load(attention_ptr + entry, mask=live, other=0.0)
        tl.store(out_ptr + entry, attention * (grad - mean[None, :]), mask=live)


class _Kernels(NamedTuple):
    groups: int  # of heads
    rows: Bound
    hubs: Bound
    finish: Bound
    rows_back: Bound
    finish_back: Bound


@cache
def _kernels(heads: int, dtype: torch.dtype, in_order: bool) -> _Kernels:
    short, groups = blocks(heads, _ROW_EDGES)
    options, _ = blocks(heads)
    acc, same = accumulator(dtype), {"IN_ORDER": in_order}
    return _Kernels(
        groups,
        rows=Bound(_softmax_kernel, R=_ROWS, ACC=acc, **same, **short),
        hubs=Bound(_softmax_hubs_kernel, ACC=acc, **options),
        finish=Bound(_softmax_finish_kernel, **same, **options),
        rows_back=Bound(_softmax_backward_kernel, R=_ROWS, **same, **short),
        finish_back=Bound(_softmax_backward_finish_kernel, **same, **options),
    )


def edge_softmax(scores: Tensor, graph: Graph) -> Tensor:
    out, rows = torch.empty_like(scores), graph.by_target
    if out.numel() == 0:
        return out
    partial = scores.new_empty(rows.num_slots, 2, scores.size(1))
    kernels = _kernels(scores.size(1), scores.dtype, graph.in_order)
    count, groups = rows.pieces.size(0), kernels.groups
    kernels.rows[(ceil_div(count, _ROWS), groups)](scores, out, partial, rows.pieces, rows.order, count)
    if rows.hubs.size(0):
        kernels.hubs[(rows.hubs.size(0), groups)](partial, rows.hubs)
        kernels.finish[(rows.num_slots, groups)](scores, out, partial, rows.pieces, rows.order)
    return out


def edge_softmax_backward(grad: Tensor, attention: Tensor, graph: Graph) -> Tensor:
    out, rows = torch.empty_like(attention), graph.by_target
    if out.numel() == 0:
        return out
    partial = grad.new_empty(rows.num_slots, grad.size(1))
    kernels = _kernels(grad.size(1), grad.dtype, graph.in_order)
    count, groups = rows.pieces.size(0), kernels.groups
    kernels.rows_back[(ceil_div(count, _ROWS), groups)](grad, attention, out, partial, rows.pieces, rows.order, count)
    if rows.hubs.size(0):
        mean = grad.new_empty(graph.num_nodes, grad.size(1))
        sum_hubs(partial, rows, mean)
        kernels.finish_back[(rows.num_slots, groups)](grad, attention, out, mean, rows.pieces, rows.order)
    return out


@triton.jit
def _keys(scores_ptr, where, live, KEY: tl.constexpr, LEAST: tl.constexpr):
    """Integers in the order of the scores; the least one where there is no edge."""
    score = tl.load(scores_ptr + where, mask=live, other=0.0)
    bits = tl.where(score == 0.0, 0.0, score).to(KEY, bitcast=True)  # -0 is no less than 0
    return tl.where(live, tl.where(bits < 0, bits ^ ~LEAST, bits), LEAST)


@triton.jit
def _row(
    scores_ptr, out_ptr, order_ptr, begin, end, k,
    KEY: tl.constexpr, BITS: tl.constexpr,
    H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr, IN_ORDER: tl.constexpr,
):  # fmt: skip
    """Raise the bar bit by bit while k edges or more reach it; stop once exactly k do."""
    LEAST: tl.constexpr = -(1 << (BITS - 1))
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    # The first block, for most rows the only one, stays in registers.
    where, live = edge_entries(order_ptr, begin, end, h, H, BE, IN_ORDER)
    key = _keys(scores_ptr, where, live, KEY, LEAST)
    bar = tl.full([HB], LEAST, dtype=KEY)
    reach = tl.where(h < H, end - begin, 0)
    bit = BITS - 1
    while (bit >= 0) & (tl.max(reach, axis=0) > k):
        higher = bar + (tl.full([HB], 1, dtype=KEY) << bit)
        count = tl.sum((key >= higher[None, :]).to(tl.int32), axis=0)
        for start in range(begin + BE, end, BE):
            later, later_live = edge_entries(order_ptr, start, end, h, H, BE, IN_ORDER)
            later_key = _keys(scores_ptr, later, later_live, KEY, LEAST)
            count += tl.sum((later_key >= higher[None, :]).to(tl.int32), axis=0)
        bar = tl.where(count >= k, higher, bar)
        reach = tl.where(count >= k, count, reach)
        bit -= 1
    tl.store(out_ptr + where, (key >= bar[None, :]).to(tl.int8), mask=live)
    for start in range(begin + BE, end, BE):
        later, later_live = edge_entries(order_ptr, start, end, h, H, BE, IN_ORDER)
        later_key = _keys(scores_ptr, later, later_live, KEY, LEAST)
        tl.store(out_ptr + later, (later_key >= bar[None, :]).to(tl.int8), mask=later_live)


@triton.jit
def _piece(pieces_ptr, piece, num_pieces):
    at, exists = pieces_ptr + piece * 4, piece < num_pieces
    begin = tl.load(at + 1, mask=exists, other=0)
    end = tl.load(at + 2, mask=exists, other=0)
    return begin, end, tl.load(at + 3, mask=exists, other=-1)


@triton.jit
def _top_k_kernel(
    scores_ptr, out_ptr, pieces_ptr, order_ptr, num_pieces, k,
    KEY: tl.constexpr, BITS: tl.constexpr,
    H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr, IN_ORDER: tl.constexpr,
):  # fmt: skip
    """The rows of one piece. They come after the hubs, from long to short, so the first of k edges ends the walk."""
    piece = tl.program_id(0)
    begin, end, slot = _piece(pieces_ptr, piece, num_pieces)
    while (slot >= 0) | (end - begin > k):
        if slot < 0:
            _row(scores_ptr, out_ptr, order_ptr, begin, end, k, KEY, BITS, H, HB, BE, IN_ORDER)
        piece += tl.num_programs(0)
        begin, end, slot = _piece(pieces_ptr, piece, num_pieces)


@triton.jit
def _top_k_hubs_kernel(
    scores_ptr, out_ptr, ptr_ptr, order_ptr, hubs_ptr, k,
    SHORTER: tl.constexpr, LONGEST: tl.constexpr, KEY: tl.constexpr, BITS: tl.constexpr,
    H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr, IN_ORDER: tl.constexpr,
):  # fmt: skip
    """The hubs longer than SHORTER and no longer than LONGEST."""
    row = tl.load(hubs_ptr + tl.program_id(0) * 3)
    if row < 0:
        return
    begin = tl.load(ptr_ptr + row)
    end = tl.load(ptr_ptr + row + 1)
    if (end - begin > SHORTER) & (end - begin <= LONGEST):
        _row(scores_ptr, out_ptr, order_ptr, begin, end, k, KEY, BITS, H, HB, BE, IN_ORDER)


def top_k_mask(scores: Tensor, k: int, graph: Graph) -> Tensor:
    # Rows of k edges and fewer, most of a graph, need not be looked at.
    out, rows = torch.ones_like(scores, dtype=torch.bool), graph.by_target
    if out.numel() == 0:
        return out
    heads, key, flags = scores.size(1), tl.int64 if scores.dtype == torch.float64 else tl.int32, out.view(torch.int8)
    same = {"H": heads, "KEY": key, "BITS": key.primitive_bitwidth, "IN_ORDER": graph.in_order}
    piece = shorter = piece_edges(scores.size(0))
    if k < piece:
        group, count = min(_HEADS, power_of_2(heads)), rows.pieces.size(0)
        kernel = bound(_top_k_kernel, HB=group, BE=piece, num_warps=piece // 64, **same)
        kernel[(min(_PROGRAMS, count), ceil_div(heads, group))](scores, flags, rows.pieces, rows.order, count, k)
    for longest, edges, most_heads, warps in _HUBS if rows.hubs.size(0) else ():
        group = min(most_heads, power_of_2(heads))
        lengths = {"SHORTER": shorter, "LONGEST": longest}
        kernel = bound(_top_k_hubs_kernel, HB=group, BE=edges, num_warps=warps, **lengths, **same)
        kernel[(rows.hubs.size(0), ceil_div(heads, group))](scores, flags, rows.ptr, rows.order, rows.hubs, k)
        shorter = longest
    return out

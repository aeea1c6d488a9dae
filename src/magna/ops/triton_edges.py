"""Sums, softmax and top-k over the edges of each node on the GPU, cut into pieces as the hops are.

All per-edge tensors are in the caller's order and reached through `Segments.order`; the softmax does without where the
edges are sorted by target already.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from magna.graph import Graph, Segments, piece_edges
from magna.ops.triton_hops import accumulator

_EDGES = 32  # edges that a program looks at in one step
_HEADS = 32  # heads of a program at most
_ROWS = 4  # short rows that a program of the softmax takes at once
_ROW_EDGES = 8  # edges of each in one step
# Top-k of hubs up to a length: the edges and heads that a program keeps in registers, and its warps.
_TOP_K_HUBS = ((512, 512, 8, 4), (2**31 - 1, 4096, 2, 8))


@triton.jit
def _callers(order_ptr, p, live, IN_ORDER: tl.constexpr):
    """The caller's edges at positions of the walk."""
    return (p if IN_ORDER else tl.load(order_ptr + p, mask=live, other=0)).to(tl.int64)


@triton.jit
def _edge_entries(order_ptr, start, end, h, H: tl.constexpr, BE: tl.constexpr, IN_ORDER: tl.constexpr = False):
    """Where the scores of the next BE edges lie in the caller's order, and which of them there are."""
    p = start + tl.arange(0, BE)
    edge = _callers(order_ptr, p, p < end, IN_ORDER)
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
        where, live = _edge_entries(order_ptr, start, end, h, H, BE)
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
def _rows(pieces_ptr, num_pieces, R: tl.constexpr):
    """The next R pieces: their begins, ends and slots, and the length of the longest."""
    piece = tl.program_id(0) * R + tl.arange(0, R)
    there = piece < num_pieces
    begin = tl.load(pieces_ptr + piece * 4 + 1, mask=there, other=0)
    end = tl.load(pieces_ptr + piece * 4 + 2, mask=there, other=0)
    slot = tl.load(pieces_ptr + piece * 4 + 3, mask=there, other=-1)
    return begin, end, slot, tl.max(end - begin, axis=0)


@triton.jit
def _row_entries(order_ptr, start, end, h, H: tl.constexpr, BE: tl.constexpr, IN_ORDER: tl.constexpr):
    """As `_edge_entries`, for one row of starts and ends: [R, BE, HB]."""
    p = start[:, None] + tl.arange(0, BE)[None, :]
    live = p < end[:, None]
    edge = _callers(order_ptr, p, live, IN_ORDER)
    return edge[:, :, None] * H + h[None, None, :], live[:, :, None] & (h < H)[None, None, :]


@triton.jit
def _add_scores(top, total, score):
    above = tl.maximum(top, tl.max(score, axis=1))
    shift = tl.where(above == float("-inf"), 0.0, above)
    return above, total * tl.exp(top - shift) + tl.sum(tl.exp(score - shift[:, None, :]), axis=1)


@triton.jit
def _divide(score, top, total):
    # A row of -inf alone has top -inf and total 0: shift by 0 and divide by 1, and its attention is 0.
    shift = tl.where(top == float("-inf"), 0.0, top)
    return tl.exp(score - shift[:, None, :]) / tl.where(total > 0, total, 1.0)[:, None, :]


@triton.jit
def _softmax_kernel(
    scores_ptr, out_ptr, partial_ptr, pieces_ptr, order_ptr, num_pieces,
    R: tl.constexpr, H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr, IN_ORDER: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    begin, end, slot, longest = _rows(pieces_ptr, num_pieces, R)
    # Most rows fit into the first block, which stays in registers.
    where, live = _row_entries(order_ptr, begin, end, h, H, BE, IN_ORDER)
    score = tl.load(scores_ptr + where, mask=live, other=float("-inf"))
    top, total = _add_scores(tl.full([R, HB], float("-inf"), dtype=ACC), tl.zeros([R, HB], dtype=ACC), score)
    for step in range(BE, longest, BE):
        later, later_live = _row_entries(order_ptr, begin + step, end, h, H, BE, IN_ORDER)
        top, total = _add_scores(top, total, tl.load(scores_ptr + later, mask=later_live, other=float("-inf")))
    alone = (slot < 0)[:, None, None]
    tl.store(out_ptr + where, _divide(score, top, total), mask=live & alone)
    for step in range(BE, longest, BE):
        later, later_live = _row_entries(order_ptr, begin + step, end, h, H, BE, IN_ORDER)
        score = tl.load(scores_ptr + later, mask=later_live & alone, other=float("-inf"))
        tl.store(out_ptr + later, _divide(score, top, total), mask=later_live & alone)
    there = slot.to(tl.int64)[:, None] * (2 * H) + h[None, :]
    of_hub = (slot >= 0)[:, None] & (h < H)[None, :]
    tl.store(partial_ptr + there, top, mask=of_hub)
    tl.store(partial_ptr + there + H, total, mask=of_hub)


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
    # Every thread must have read its slots before any is overwritten.
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
        entry, live = _edge_entries(order_ptr, start, end, h, H, BE, IN_ORDER)
        score = tl.load(scores_ptr + entry, mask=live, other=float("-inf"))
        shift = tl.where(top == float("-inf"), 0.0, top)
        tl.store(out_ptr + entry, tl.exp(score - shift[None, :]) / tl.where(total > 0, total, 1.0)[None, :], mask=live)


@triton.jit
def _softmax_backward_kernel(
    grad_ptr, attention_ptr, out_ptr, partial_ptr, pieces_ptr, order_ptr, num_pieces,
    R: tl.constexpr, H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr, IN_ORDER: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    begin, end, slot, longest = _rows(pieces_ptr, num_pieces, R)
    where, live = _row_entries(order_ptr, begin, end, h, H, BE, IN_ORDER)
    grad = tl.load(grad_ptr + where, mask=live, other=0.0)
    attention = tl.load(attention_ptr + where, mask=live, other=0.0)
    mean = tl.sum(grad * attention, axis=1)
    for step in range(BE, longest, BE):
        later, later_live = _row_entries(order_ptr, begin + step, end, h, H, BE, IN_ORDER)
        later_grad = tl.load(grad_ptr + later, mask=later_live, other=0.0)
        mean += tl.sum(later_grad * tl.load(attention_ptr + later, mask=later_live, other=0.0), axis=1)
    alone = (slot < 0)[:, None, None]
    tl.store(out_ptr + where, attention * (grad - mean[:, None, :]), mask=live & alone)
    for step in range(BE, longest, BE):
        later, later_live = _row_entries(order_ptr, begin + step, end, h, H, BE, IN_ORDER)
        grad = tl.load(grad_ptr + later, mask=later_live & alone, other=0.0)
        attention = tl.load(attention_ptr + later, mask=later_live & alone, other=0.0)
        tl.store(out_ptr + later, attention * (grad - mean[:, None, :]), mask=later_live & alone)
    there = slot.to(tl.int64)[:, None] * H + h[None, :]
    tl.store(partial_ptr + there, mean, mask=(slot >= 0)[:, None] & (h < H)[None, :])


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
        entry, live = _edge_entries(order_ptr, start, end, h, H, BE, IN_ORDER)
        grad = tl.load(grad_ptr + entry, mask=live, other=0.0)
        attention = tl.load(attention_ptr + entry, mask=live, other=0.0)
        tl.store(out_ptr + entry, attention * (grad - mean[None, :]), mask=live)


@triton.jit
def _keys(scores_ptr, where, live, KEY: tl.constexpr, LEAST: tl.constexpr):
    """Integers in the order of the scores; the least there is where there is no edge."""
    score = tl.load(scores_ptr + where, mask=live, other=0.0)
    bits = tl.where(score == 0.0, 0.0, score).to(KEY, bitcast=True)  # -0 is no less than 0
    return tl.where(live, tl.where(bits < 0, bits ^ ~LEAST, bits), LEAST)


@triton.jit
def _top_k_kernel(
    scores_ptr, out_ptr, ptr_ptr, order_ptr, hubs_ptr, k,
    HUBS: tl.constexpr, SHORTER: tl.constexpr, LONGEST: tl.constexpr, KEY: tl.constexpr, BITS: tl.constexpr,
    H: tl.constexpr, HB: tl.constexpr, BE: tl.constexpr, IN_ORDER: tl.constexpr,
):  # fmt: skip
    """Raise the bar bit by bit as long as k edges reach it; no bit is needed any more once k alone do.

    Of all rows, or of the hubs, those longer than SHORTER and no longer than LONGEST.
    """
    row = tl.program_id(0)
    if HUBS:
        row = tl.load(hubs_ptr + row * 3)
        if row < 0:
            return
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    begin = tl.load(ptr_ptr + row)
    end = tl.load(ptr_ptr + row + 1)
    if (end - begin <= SHORTER) | (end - begin > LONGEST):
        return
    LEAST: tl.constexpr = -(1 << (BITS - 1))
    # The first block, for most rows the only one, stays in registers.
    where, live = _edge_entries(order_ptr, begin, end, h, H, BE, IN_ORDER)
    key = _keys(scores_ptr, where, live, KEY, LEAST)
    bar = tl.full([HB], LEAST, dtype=KEY)
    reach = tl.where(h < H, end - begin, 0)
    bit = BITS - 1
    while (bit >= 0) & (tl.max(reach, axis=0) > k):
        higher = bar + (tl.full([HB], 1, dtype=KEY) << bit)
        count = tl.sum((key >= higher[None, :]).to(tl.int32), axis=0)
        for start in range(begin + BE, end, BE):
            later, later_live = _edge_entries(order_ptr, start, end, h, H, BE, IN_ORDER)
            later_key = _keys(scores_ptr, later, later_live, KEY, LEAST)
            count += tl.sum((later_key >= higher[None, :]).to(tl.int32), axis=0)
        bar = tl.where(count >= k, higher, bar)
        reach = tl.where(count >= k, count, reach)
        bit -= 1
    tl.store(out_ptr + where, (key >= bar[None, :]).to(tl.int8), mask=live)
    for start in range(begin + BE, end, BE):
        later, later_live = _edge_entries(order_ptr, start, end, h, H, BE, IN_ORDER)
        later_key = _keys(scores_ptr, later, later_live, KEY, LEAST)
        tl.store(out_ptr + later, (later_key >= bar[None, :]).to(tl.int8), mask=later_live)


def blocks(heads: int, edges: int = _EDGES, num_warps: int = 1) -> tuple[dict, int]:
    """How a program covers edges and heads, and how many programs share the heads."""
    group = min(_HEADS, triton.next_power_of_2(heads))
    return {"H": heads, "HB": group, "BE": edges, "num_warps": num_warps}, triton.cdiv(heads, group)


def empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return like.new_empty(shape)


def segment_sum(grad: Tensor, scores: Tensor, negative_slope: float, segments: Segments) -> Tensor:
    out = grad.new_empty(segments.ptr.numel() - 1, grad.size(1))
    partial = grad.new_empty(segments.num_slots, grad.size(1))
    options, groups = blocks(grad.size(1))
    options["ACC"] = accumulator(grad.dtype)
    if out.numel():
        _segment_sum_kernel[(segments.pieces.size(0), groups)](
            grad, scores, out, partial, segments.pieces, segments.order, SLOPE=negative_slope, **options
        )
    if segments.hubs.size(0):
        _segment_sum_hubs_kernel[(segments.hubs.size(0), groups)](out, partial, segments.hubs, **options)
    return out


def edge_softmax(scores: Tensor, graph: Graph) -> Tensor:
    out, rows = torch.empty_like(scores), graph.by_target
    if out.numel() == 0:
        return out
    partial = scores.new_empty(rows.num_slots, 2, scores.size(1))
    options, groups = blocks(scores.size(1))
    acc = accumulator(scores.dtype)
    count = rows.pieces.size(0)
    _softmax_kernel[(triton.cdiv(count, _ROWS), groups)](
        scores, out, partial, rows.pieces, rows.order, count,
        R=_ROWS, ACC=acc, IN_ORDER=graph.in_order, **(options | {"BE": _ROW_EDGES}),
    )  # fmt: skip
    if rows.hubs.size(0):
        _softmax_hubs_kernel[(rows.hubs.size(0), groups)](partial, rows.hubs, ACC=acc, **options)
        _softmax_finish_kernel[(rows.num_slots, groups)](
            scores, out, partial, rows.pieces, rows.order, IN_ORDER=graph.in_order, **options
        )
    return out


def edge_softmax_backward(grad: Tensor, attention: Tensor, graph: Graph) -> Tensor:
    out, rows = torch.empty_like(attention), graph.by_target
    if out.numel() == 0:
        return out
    partial = grad.new_empty(rows.num_slots, grad.size(1))
    options, groups = blocks(grad.size(1))
    acc = accumulator(grad.dtype)
    count = rows.pieces.size(0)
    _softmax_backward_kernel[(triton.cdiv(count, _ROWS), groups)](
        grad, attention, out, partial, rows.pieces, rows.order, count,
        R=_ROWS, IN_ORDER=graph.in_order, **(options | {"BE": _ROW_EDGES}),
    )  # fmt: skip
    if rows.hubs.size(0):
        mean = grad.new_empty(graph.num_nodes, grad.size(1))
        _segment_sum_hubs_kernel[(rows.hubs.size(0), groups)](mean, partial, rows.hubs, ACC=acc, **options)
        _softmax_backward_finish_kernel[(rows.num_slots, groups)](
            grad, attention, out, mean, rows.pieces, rows.order, IN_ORDER=graph.in_order, **options
        )
    return out


def top_k_mask(scores: Tensor, k: int, graph: Graph) -> Tensor:
    out, rows = torch.empty_like(scores, dtype=torch.bool), graph.by_target
    if out.numel() == 0:
        return out
    heads, key = scores.size(1), tl.int64 if scores.dtype == torch.float64 else tl.int32
    same = {"H": heads, "KEY": key, "BITS": key.primitive_bitwidth, "IN_ORDER": graph.in_order}
    piece, shorter = piece_edges(scores.size(0)), 0
    for longest, edges, most_heads, warps in ((piece, piece, 8, piece // 64), *_TOP_K_HUBS):
        group = min(most_heads, triton.next_power_of_2(heads))
        hubs = shorter > 0
        number = rows.hubs.size(0) if hubs else graph.num_nodes
        if number:
            _top_k_kernel[(number, triton.cdiv(heads, group))](
                scores, out.view(torch.int8), rows.ptr, rows.order, rows.hubs, k,
                HUBS=hubs, SHORTER=shorter, LONGEST=longest, HB=group, BE=edges, num_warps=warps, **same,
            )  # fmt: skip
        shorter = longest
    return out

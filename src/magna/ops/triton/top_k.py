"""The k best in-edges of each node on the GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from magna.graph import Graph, piece_edges
from magna.ops.triton.edges import edge_entries
from magna.ops.triton.launch import bound
from magna.ops.triton.sizes import ceil_div, power_of_2

_HEADS = 8  # of a row of one piece that a program keeps in registers
_PROGRAMS = 4096  # that share such rows
# For hubs up to a length: the edges and heads that a program keeps in registers, and its warps.
_HUBS = ((512, 512, 1, 1), (2**31 - 1, 4096, 2, 8))


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

"""One hop of the diffusion and its backward walk on the GPU.

A program walks pieces of rows (at most `graph.PIECE_EDGES` edges each) for a group of heads. Where a row is one piece,
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

# The arguments that change from hop to hop or slice to slice must not compile a kernel anew.
_FREE = ["number", "all_heads", "all_width", "first_head", "first_column"]


@triton.jit
def _inside(h, d, H: tl.constexpr, D: tl.constexpr, HB: tl.constexpr, DB: tl.constexpr):
    """The lanes that exist; where all do, the compiler sees a constant."""
    if H % HB == 0 and D == DB:
        return tl.full([HB, DB], True, tl.int1)
    else:
        return (h < H)[:, None] & (d < D)[None, :]


@triton.jit
def _feature_factor(
    seed_ptr, rate_ptr, stream, node, h, d, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    entry = (node.to(tl.int64) * all_heads + first_head + h[:, None]) * all_width + first_column + d[None, :]
    rate = tl.load(rate_ptr + h, mask=h < H, other=0.0)
    return factor(bits(seed_ptr, stream, entry), rate[:, None], ACC)


@triton.jit
def _hop_row(
    acc, x, node, h, d, z_scale_ptr, x_scale_ptr, seed_ptr, feature_rate_ptr,
    number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, Z_SCALED: tl.constexpr, FEATURE_DROP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """From the sum over the edges of a row to its next state."""
    if Z_SCALED:
        acc *= tl.load(z_scale_ptr + h, mask=h < H, other=0.0)[:, None]
    acc += tl.load(x_scale_ptr + h, mask=h < H, other=0.0)[:, None] * x
    if FEATURE_DROP:
        acc *= _feature_factor(
            seed_ptr, feature_rate_ptr, 2 * number + 1, node, h, d,
            all_heads, all_width, first_head, first_column, H, ACC,
        )  # fmt: skip
    return acc


@triton.jit
def _neighbours(
    ptr, col_ptr, attention_ptr, e, end, h, lane, inside,
    H: tl.constexpr, D: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The rows at the other ends of J edges, [J, HB, DB], and the attention on them, [J, HB]; zeros past the end."""
    there = tl.load(col_ptr + e, mask=e < end, other=0)
    a = tl.load(attention_ptr + e.to(INDEX)[:, None] * H + h[None, :], mask=_on_edge(e, end, h, H), other=0.0)
    where = there.to(INDEX)[:, None, None] * (H * D) + lane[None, :, :]
    rows = tl.load(ptr + where, mask=(e < end)[:, None, None] & inside[None, :, :], other=0.0)
    return rows.to(ACC), a


@triton.jit
def _on_edge(e, end, h, H: tl.constexpr):
    return (e < end)[:, None] & (h < H)[None, :]


@triton.jit
def _attention_factor(
    seed_ptr, rate_ptr, order_ptr, number, e, end, h, all_heads, first_head, H: tl.constexpr, ACC: tl.constexpr
):
    edge = tl.load(order_ptr + e, mask=e < end, other=0).to(tl.int64)
    rate = tl.load(rate_ptr + h, mask=h < H, other=0.0)
    drawn = bits(seed_ptr, 2 * number, edge[:, None] * all_heads + first_head + h[None, :])
    return factor(drawn, rate[None, :], ACC)


@triton.jit(do_not_specialize=_FREE)
def _hop_kernel(
    z_ptr, x_ptr, attention_ptr, out_ptr, partial_ptr, pieces_ptr, col_ptr, order_ptr, z_scale_ptr, x_scale_ptr,
    seed_ptr, attention_rate_ptr, feature_rate_ptr, number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, D: tl.constexpr, HB: tl.constexpr, DB: tl.constexpr, J: tl.constexpr, UNROLL: tl.constexpr,
    Z_SCALED: tl.constexpr, ATTENTION_DROP: tl.constexpr, FEATURE_DROP: tl.constexpr,
    INDEX: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    node = tl.load(pieces_ptr + piece * 4)
    begin = tl.load(pieces_ptr + piece * 4 + 1)
    end = tl.load(pieces_ptr + piece * 4 + 2)
    slot = tl.load(pieces_ptr + piece * 4 + 3)
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    d = tl.arange(0, DB)
    lane = h[:, None] * D + d[None, :]
    inside = _inside(h, d, H, D, HB, DB)
    if node < 0:
        return
    # What the row needs at the end is on its way while its neighbours are gathered.
    own = node.to(INDEX) * (H * D) + lane
    x = tl.load(x_ptr + own, mask=inside, other=0.0).to(ACC)
    acc = tl.zeros([J, HB, DB], dtype=ACC)
    for start in range(begin, end, UNROLL * J):
        for i in tl.static_range(UNROLL):
            e = start + i * J + tl.arange(0, J)
            z, a = _neighbours(z_ptr, col_ptr, attention_ptr, e, end, h, lane, inside, H, D, INDEX, ACC)
            if ATTENTION_DROP:
                a *= _attention_factor(
                    seed_ptr, attention_rate_ptr, order_ptr, number, e, end, h, all_heads, first_head, H, ACC
                )
            acc += a[:, :, None] * z
    row = tl.sum(acc, axis=0)
    if slot < 0:
        row = _hop_row(
            row, x, node, h, d, z_scale_ptr, x_scale_ptr, seed_ptr, feature_rate_ptr,
            number, all_heads, all_width, first_head, first_column, H, Z_SCALED, FEATURE_DROP, ACC,
        )  # fmt: skip
        tl.store(out_ptr + own, row.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        tl.store(partial_ptr + slot.to(INDEX) * (H * D) + lane, row, mask=inside)


@triton.jit
def _sum_slots(partial_ptr, hubs_ptr, hub, h, lane, inside, H: tl.constexpr, D: tl.constexpr, INDEX: tl.constexpr):
    """A hub and the sum of what its pieces left, in order."""
    node = tl.load(hubs_ptr + hub * 3)
    first = tl.load(hubs_ptr + hub * 3 + 1)
    last = tl.load(hubs_ptr + hub * 3 + 2)
    acc = tl.zeros(lane.shape, dtype=partial_ptr.dtype.element_ty)
    for start in range(first, last, 16):
        for i in tl.static_range(16):
            limit = tl.where(start + i < last, H, 0)
            where = tl.cast(start + i, INDEX) * (H * D) + lane
            acc += tl.load(partial_ptr + where, mask=inside & (h < limit)[:, None], other=0.0)
    return node, acc


@triton.jit(do_not_specialize=_FREE)
def _hop_hubs_kernel(
    x_ptr, out_ptr, partial_ptr, hubs_ptr, z_scale_ptr, x_scale_ptr, seed_ptr, feature_rate_ptr,
    number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, D: tl.constexpr, HB: tl.constexpr, DB: tl.constexpr,
    Z_SCALED: tl.constexpr, FEATURE_DROP: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    d = tl.arange(0, DB)
    lane = h[:, None] * D + d[None, :]
    inside = _inside(h, d, H, D, HB, DB)
    node, acc = _sum_slots(partial_ptr, hubs_ptr, tl.program_id(0), h, lane, inside, H, D, INDEX)
    if node < 0:
        return
    own = node.to(INDEX) * (H * D) + lane
    x = tl.load(x_ptr + own, mask=inside, other=0.0).to(ACC)
    acc = _hop_row(
        acc, x, node, h, d, z_scale_ptr, x_scale_ptr, seed_ptr, feature_rate_ptr,
        number, all_heads, all_width, first_head, first_column, H, Z_SCALED, FEATURE_DROP, ACC,
    )  # fmt: skip
    tl.store(out_ptr + own, acc.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward_row(
    acc, before, node, h, d, first_scale_ptr, scale_ptr, seed_ptr, feature_rate_ptr,
    number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, FIRST: tl.constexpr, FEATURE_DROP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """From the sum over the out-edges of a node to its T, and to its gradient so far."""
    if FEATURE_DROP:
        acc *= _feature_factor(
            seed_ptr, feature_rate_ptr, 2 * number - 1, node, h, d,
            all_heads, all_width, first_head, first_column, H, ACC,
        )  # fmt: skip
    if FIRST:
        before *= tl.load(first_scale_ptr + h, mask=h < H, other=0.0)[:, None]
    return acc, before + tl.load(scale_ptr + h, mask=h < H, other=0.0)[:, None] * acc


@triton.jit(do_not_specialize=_FREE)
def _hop_backward_kernel(
    grad_ptr, z_ptr, attention_ptr, grad_attention_ptr, grad_x_ptr, out_ptr, partial_ptr,
    pieces_ptr, col_ptr, order_ptr, z_scale_ptr, first_scale_ptr, scale_ptr,
    seed_ptr, attention_rate_ptr, feature_rate_ptr, number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, D: tl.constexpr, HB: tl.constexpr, DB: tl.constexpr, J: tl.constexpr,
    Z_SCALED: tl.constexpr, FIRST: tl.constexpr, ADD: tl.constexpr, WRITE: tl.constexpr,
    ATTENTION_DROP: tl.constexpr, FEATURE_DROP: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    node = tl.load(pieces_ptr + piece * 4)
    begin = tl.load(pieces_ptr + piece * 4 + 1)
    end = tl.load(pieces_ptr + piece * 4 + 2)
    slot = tl.load(pieces_ptr + piece * 4 + 3)
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    d = tl.arange(0, DB)
    lane = h[:, None] * D + d[None, :]
    inside = _inside(h, d, H, D, HB, DB)
    if node < 0:
        return
    own = node.to(INDEX) * (H * D) + lane
    z = tl.load(z_ptr + own, mask=inside, other=0.0).to(ACC)
    before_ptr = grad_ptr if FIRST else grad_x_ptr
    before = tl.load(before_ptr + own, mask=inside, other=0.0).to(ACC)
    if Z_SCALED:
        z *= tl.load(z_scale_ptr + h, mask=h < H, other=0.0)[:, None]
    acc = tl.zeros([J, HB, DB], dtype=ACC)
    for start in range(begin, end, 4 * J):
        # Four steps by hand: all loads stand before the first store, which they could not overtake.
        e0 = start + tl.arange(0, J)
        e1, e2, e3 = e0 + J, e0 + 2 * J, e0 + 3 * J
        g0, a0 = _neighbours(grad_ptr, col_ptr, attention_ptr, e0, end, h, lane, inside, H, D, INDEX, ACC)
        g1, a1 = _neighbours(grad_ptr, col_ptr, attention_ptr, e1, end, h, lane, inside, H, D, INDEX, ACC)
        g2, a2 = _neighbours(grad_ptr, col_ptr, attention_ptr, e2, end, h, lane, inside, H, D, INDEX, ACC)
        g3, a3 = _neighbours(grad_ptr, col_ptr, attention_ptr, e3, end, h, lane, inside, H, D, INDEX, ACC)
        dot0 = tl.sum(g0 * z[None, :, :], axis=2)
        dot1 = tl.sum(g1 * z[None, :, :], axis=2)
        dot2 = tl.sum(g2 * z[None, :, :], axis=2)
        dot3 = tl.sum(g3 * z[None, :, :], axis=2)
        if ATTENTION_DROP:
            kept0 = _attention_factor(
                seed_ptr, attention_rate_ptr, order_ptr, number, e0, end, h, all_heads, first_head, H, ACC
            )
            kept1 = _attention_factor(
                seed_ptr, attention_rate_ptr, order_ptr, number, e1, end, h, all_heads, first_head, H, ACC
            )
            kept2 = _attention_factor(
                seed_ptr, attention_rate_ptr, order_ptr, number, e2, end, h, all_heads, first_head, H, ACC
            )
            kept3 = _attention_factor(
                seed_ptr, attention_rate_ptr, order_ptr, number, e3, end, h, all_heads, first_head, H, ACC
            )
            a0, a1, a2, a3 = a0 * kept0, a1 * kept1, a2 * kept2, a3 * kept3
            dot0, dot1, dot2, dot3 = dot0 * kept0, dot1 * kept1, dot2 * kept2, dot3 * kept3
        entry = e0.to(INDEX)[:, None] * H + h[None, :]
        if ADD:
            dot0 += tl.load(grad_attention_ptr + entry, mask=_on_edge(e0, end, h, H), other=0.0)
            dot1 += tl.load(grad_attention_ptr + entry + J * H, mask=_on_edge(e1, end, h, H), other=0.0)
            dot2 += tl.load(grad_attention_ptr + entry + 2 * J * H, mask=_on_edge(e2, end, h, H), other=0.0)
            dot3 += tl.load(grad_attention_ptr + entry + 3 * J * H, mask=_on_edge(e3, end, h, H), other=0.0)
        acc += a0[:, :, None] * g0 + a1[:, :, None] * g1 + a2[:, :, None] * g2 + a3[:, :, None] * g3
        tl.store(grad_attention_ptr + entry, dot0, mask=_on_edge(e0, end, h, H))
        tl.store(grad_attention_ptr + entry + J * H, dot1, mask=_on_edge(e1, end, h, H))
        tl.store(grad_attention_ptr + entry + 2 * J * H, dot2, mask=_on_edge(e2, end, h, H))
        tl.store(grad_attention_ptr + entry + 3 * J * H, dot3, mask=_on_edge(e3, end, h, H))
    row = tl.sum(acc, axis=0)
    if slot < 0:
        row, total = _backward_row(
            row, before, node, h, d, first_scale_ptr, scale_ptr, seed_ptr, feature_rate_ptr,
            number, all_heads, all_width, first_head, first_column, H, FIRST, FEATURE_DROP, ACC,
        )  # fmt: skip
        tl.store(grad_x_ptr + own, total.to(grad_x_ptr.dtype.element_ty), mask=inside)
        if WRITE:
            tl.store(out_ptr + own, row.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        tl.store(partial_ptr + slot.to(INDEX) * (H * D) + lane, row, mask=inside)


@triton.jit(do_not_specialize=_FREE)
def _hop_backward_hubs_kernel(
    grad_ptr, grad_x_ptr, out_ptr, partial_ptr, hubs_ptr, first_scale_ptr, scale_ptr, seed_ptr, feature_rate_ptr,
    number, all_heads, all_width, first_head, first_column,
    H: tl.constexpr, D: tl.constexpr, HB: tl.constexpr, DB: tl.constexpr,
    FIRST: tl.constexpr, WRITE: tl.constexpr, FEATURE_DROP: tl.constexpr, INDEX: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    d = tl.arange(0, DB)
    lane = h[:, None] * D + d[None, :]
    inside = _inside(h, d, H, D, HB, DB)
    node, acc = _sum_slots(partial_ptr, hubs_ptr, tl.program_id(0), h, lane, inside, H, D, INDEX)
    if node < 0:
        return
    own = node.to(INDEX) * (H * D) + lane
    before_ptr = grad_ptr if FIRST else grad_x_ptr
    before = tl.load(before_ptr + own, mask=inside, other=0.0).to(ACC)
    acc, total = _backward_row(
        acc, before, node, h, d, first_scale_ptr, scale_ptr, seed_ptr, feature_rate_ptr,
        number, all_heads, all_width, first_head, first_column, H, FIRST, FEATURE_DROP, ACC,
    )  # fmt: skip
    tl.store(grad_x_ptr + own, total.to(grad_x_ptr.dtype.element_ty), mask=inside)
    if WRITE:
        tl.store(out_ptr + own, acc.to(out_ptr.dtype.element_ty), mask=inside)


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
    x_ptr, out_ptr, seed_ptr, rate_ptr, size, STREAM: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr
):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = i < size
    x = tl.load(x_ptr + i, mask=live, other=0.0).to(ACC)
    stream = tl.full([], STREAM, tl.int32)
    kept = x * factor(bits(seed_ptr, stream, i), tl.load(rate_ptr), ACC)
    tl.store(out_ptr + i, kept.to(out_ptr.dtype.element_ty), mask=live)


def accumulator(dtype: torch.dtype) -> tl.dtype:
    return tl.float64 if dtype == torch.float64 else tl.float32


class Tile(NamedTuple):
    """How one step of a program covers [edges, heads, width]."""

    edges: int
    heads: int
    width: int
    warps: int


def tile(heads: int, width: int, itemsize: int) -> Tile:
    """512 bytes in one warp, 16 a thread: a wide head, several narrow heads, or several edges of all heads.

    A group of heads goes over all nodes before the next does, so that the rows of a group tend to stay in the L2 cache.
    """
    lanes, width = 512 // itemsize, triton.next_power_of_2(width)
    group = min(triton.next_power_of_2(heads), max(1, lanes // width))
    return Tile(max(1, lanes // (group * width)), group, width, max(1, min(8, width // lanes)))


def _blocks(z: Tensor, attention: Tensor, segments: Segments) -> tuple[dict, dict, int]:
    """The options of the kernels over these tensors, those of the hubs' kernel, and the groups of heads."""
    t = tile(z.size(1), z.size(2), z.element_size())
    wide = max(z.numel(), attention.numel(), segments.num_slots * z.size(1) * z.size(2)) > 2**31 - 2**16
    hubs = {"H": z.size(1), "D": z.size(2), "HB": t.heads, "DB": t.width, "num_warps": t.warps}
    hubs |= {"INDEX": tl.int64 if wide else tl.int32, "ACC": accumulator(z.dtype)}
    return hubs | {"J": t.edges}, hubs, triton.cdiv(z.size(1), t.heads)


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
    options, hubs, groups = _blocks(z, attention, segments)
    flags = {"Z_SCALED": z_scale is not None, "FEATURE_DROP": draw.feature_rate is not None}
    partial = _partial(z, attention, segments)
    position = _slice(draw, number)
    _hop_kernel[(segments.pieces.size(0), groups)](
        z, x, attention, out, partial, segments.pieces, col, segments.order, z_scale, x_scale,
        draw.seed, draw.attention_rate, draw.feature_rate, *position,
        UNROLL=max(2, 8 // options["J"]), ATTENTION_DROP=draw.attention_rate is not None, **flags, **options,
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
    grad_x: Tensor,
    out: Tensor | None,
) -> None:
    if grad.numel() == 0:
        return
    options, hubs, groups = _blocks(z, attention, segments)
    flags = {"FIRST": first_scale is not None, "WRITE": out is not None}
    flags["FEATURE_DROP"] = draw.feature_rate is not None and number > 0
    partial = _partial(z, attention, segments)
    position = _slice(draw, number)
    _hop_backward_kernel[(segments.pieces.size(0), groups)](
        grad, z, attention, grad_attention, grad_x, out, partial, segments.pieces, col, segments.order,
        z_scale, first_scale, scale, draw.seed, draw.attention_rate, draw.feature_rate, *position,
        Z_SCALED=z_scale is not None, ADD=add, ATTENTION_DROP=draw.attention_rate is not None, **flags, **options,
    )  # fmt: skip
    if segments.hubs.size(0):
        _hop_backward_hubs_kernel[(segments.hubs.size(0), groups)](
            grad, grad_x, out, partial, segments.hubs, first_scale, scale, draw.seed, draw.feature_rate,
            *position, **flags, **hubs,
        )  # fmt: skip


_BLOCK = 1024


def hop_dropout(grad: Tensor, draw: Draw, number: int) -> Tensor:
    out = torch.empty_like(grad)
    if grad.numel():
        _hop_dropout_kernel[(triton.cdiv(grad.numel(), _BLOCK),)](
            grad, out, draw.seed, draw.feature_rate, grad.numel(), *_slice(draw, number),
            H=grad.size(1), D=grad.size(2), BLOCK=_BLOCK, ACC=accumulator(grad.dtype),
        )  # fmt: skip
    return out


def dropout(x: Tensor, rate: Tensor, seed: Tensor) -> Tensor:
    out = torch.empty_like(x)
    if x.numel():
        _dropout_kernel[(triton.cdiv(x.numel(), _BLOCK),)](
            x, out, seed, rate, x.numel(), STREAM=DENSE_STREAM, BLOCK=_BLOCK, ACC=accumulator(x.dtype)
        )
    return out

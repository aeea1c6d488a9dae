"""One hop of the diffusion on the GPU: every node gathers its neighbours."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from magna.graph import Segments
from magna.ops.backend.registry import Draw
from magna.ops.triton.launch import Bound
from magna.ops.triton.rows import (
    FREE,
    FREE_OF_ROWS,
    attention_factor,
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
from magna.ops.triton.sizes import ceil_div


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

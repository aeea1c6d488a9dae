"""Matrix products in Triton, for results that are used up, or changed, before they would be written."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from magna.ops.triton_launch import INTERPRETED, bound
from magna.ops.triton_sizes import ceil_div

# Rows of both matrices and columns of a tile, and what it takes to multiply them.
TILE = {"BM": 16, "BN": 32, "BC": 16} if INTERPRETED else {"BM": 128, "BN": 128, "BC": 64}
LAUNCH = {"num_warps": 4, "num_stages": 3}

# Triton's interpreter takes the bits of bfloat16 numbers for integers where it multiplies matrices.
_WIDENS = tl.constexpr(INTERPRETED)


@triton.jit
def tile_rows(tile, size, B: tl.constexpr):
    """The B rows of a tile: their numbers, and where to read them, which is within the matrix beyond its end, too."""
    row = tile * B + tl.arange(0, B)
    return row, tl.minimum(row, size - 1).to(tl.int64)


@triton.jit
def product_tile(a_ptr, b_at, m, b_step, C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr):
    """Rows m of a matrix with C columns times some columns of one with C rows, in float32.

    `b_at` is where the first BC rows of those columns lie, `b_step` how far it is to the next.
    """
    c = tl.arange(0, BC)
    a_at = a_ptr + m[:, None] * C + c[None, :]
    total = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(0, C, BC):
        if C % BC == 0:
            a, b = tl.load(a_at), tl.load(b_at)
        else:
            live = c < C - start
            a, b = tl.load(a_at, mask=live[None, :], other=0.0), tl.load(b_at, mask=live[:, None], other=0.0)
        if _WIDENS:
            a, b = a.to(tl.float32), b.to(tl.float32)
        total = tl.dot(a, b, total)
        a_at += BC
        b_at += b_step
    return total


@triton.jit
def _masked_product_kernel(
    a_ptr, b_ptr, mask_ptr, out_ptr, partial_ptr, rows, columns,
    C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """`partial` [tiles of rows, columns]: the sums of the columns within each tile."""
    # Tiles of the same rows follow each other.
    m, m_read = tile_rows(tl.program_id(1), rows, BM)
    n, n_read = tile_rows(tl.program_id(0), columns, BN)
    b_at = b_ptr + tl.arange(0, BC).to(tl.int64)[:, None] * columns + n_read[None, :]
    out = product_tile(a_ptr, b_at, m_read, BC * columns, C, BM, BN, BC)
    place, live = m_read[:, None] * columns + n[None, :], (m < rows)[:, None] & (n < columns)[None, :]
    out = tl.where(tl.load(mask_ptr + place, mask=live, other=0.0) <= 0, 0.0, out).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + place, out, mask=live)
    sums = tl.sum(out.to(tl.float32), axis=0)
    tl.store(partial_ptr + tl.program_id(1).to(tl.int64) * columns + n, sums, mask=n < columns)


def masked_product(a: Tensor, b: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """a @ b but where the mask is 0 or below, and for each tile of rows [tiles, N] the sums of its columns.

    Shapes: a [M, C], b [C, N], mask [M, N] → [M, N].
    """
    (rows, channels), columns = a.shape, b.size(1)
    out, tiles = torch.empty_like(mask), ceil_div(rows, TILE["BM"])
    partial = torch.empty(tiles, columns, dtype=torch.float32, device=a.device)
    if out.numel():
        kernel = bound(_masked_product_kernel, C=channels, **TILE, **LAUNCH)
        kernel[ceil_div(columns, TILE["BN"]), tiles](a, b, mask, out, partial, rows, columns)
    return out, partial

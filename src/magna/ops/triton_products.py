"""Matrix products in Triton, for results that are used up, or changed, before they would be written."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

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
def product_tile(a_ptr, b_ptr, m, n, C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr):
    """a[m] @ b[n].T in float32, of matrices with C columns."""
    c = tl.arange(0, BC)
    a_at, b_at = a_ptr + m[:, None] * C + c[None, :], b_ptr + n[None, :] * C + c[:, None]
    total = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(0, C, BC):
        if C % BC == 0:
            a, b = tl.load(a_at), tl.load(b_at)
        else:
            live = c < C - start
            a, b = tl.load(a_at, mask=live[None, :], other=0.0), tl.load(b_at, mask=live[:, None], other=0.0)
        total = _multiplied(a, b, total)
        a_at += BC
        b_at += BC
    return total


@triton.jit
def _multiplied(a, b, total):
    if _WIDENS:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total)


@triton.jit
def _masked_product_kernel(
    partial_ptr, a, b, mask, out, columns, C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """`partial` [tiles of rows, columns]: the sums of the columns within each tile. The others are descriptors: zeros
    are read beyond the end of a matrix, and nothing is written there.
    """
    # Tiles of the same rows follow each other.
    m, n = tl.program_id(1) * BM, tl.program_id(0) * BN
    total = tl.zeros([BM, BN], dtype=tl.float32)
    for c in range(0, C, BC):
        total = _multiplied(a.load([m, c]), b.load([c, n]), total)
    kept = tl.where(mask.load([m, n]) <= 0, 0.0, total).to(tl.bfloat16)
    out.store([m, n], kept)
    column = n + tl.arange(0, BN)
    place = partial_ptr + tl.program_id(1).to(tl.int64) * columns + column
    tl.store(place, tl.sum(kept.to(tl.float32), axis=0), mask=column < columns)


def masked_product(a: Tensor, b: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """a @ b but where the mask is 0 or below, and for each tile of rows [tiles, N] the sums of its columns.

    All are bfloat16, their columns a multiple of 8: the GPU's copy engine moves their tiles.

    Shapes: a [M, C], b [C, N], mask [M, N] → [M, N].
    """
    (rows, channels), columns = a.shape, b.size(1)
    out, (BM, BN, BC) = torch.empty_like(mask), TILE.values()
    partial = torch.empty(ceil_div(rows, BM), columns, dtype=torch.float32, device=a.device)
    if out.numel():
        tiles = (a, (BM, BC)), (b, (BC, BN)), (mask, (BM, BN)), (out, (BM, BN))
        described = (TensorDescriptor.from_tensor(matrix, list(tile)) for matrix, tile in tiles)
        kernel = bound(_masked_product_kernel, C=channels, **TILE, num_warps=4, num_stages=2)
        kernel[ceil_div(columns, BN), ceil_div(rows, BM)](partial, *described, columns)
    return out, partial

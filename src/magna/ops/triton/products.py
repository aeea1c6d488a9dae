"""Matrix products in Triton whose results are changed or consumed before they would be written."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from magna.ops.triton.launch import INTERPRETED
from magna.ops.triton.sizes import ceil_div

# Rows and columns of a tile, and channels of one step of its product.
TILE = {"BM": 16, "BN": 32, "BC": 16} if INTERPRETED else {"BM": 128, "BN": 128, "BC": 64}

# Triton's interpreter reads bfloat16 numbers as integers in a matrix product.
_WIDENS = tl.constexpr(INTERPRETED)


def described(matrix: Tensor, *tile: str) -> TensorDescriptor:
    """A matrix by tiles, which the GPU's copy engine moves; beyond its end zeros are read and nothing is written.

    `triton.jit` launches kernels that take these, as `Bound` knows tensors alone.
    """
    return TensorDescriptor.from_tensor(matrix, [TILE[size] for size in tile])


@triton.jit
def product_tile(
    a, b, m, n, C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """BM rows of a from m on times BN columns of b (TURNED: rows of b) from n on, in float32."""
    total = tl.zeros([BM, BN], dtype=tl.float32)
    for c in range(0, C, BC):
        left, right = a.load([m, c]), b.load([n, c]).T if TURNED else b.load([c, n])
        if _WIDENS:
            left, right = left.to(tl.float32), right.to(tl.float32)
        total = tl.dot(left, right, total)
    return total


@triton.jit
def _masked_product_kernel(
    sums_ptr, a_sums_ptr, a, b, mask, out, columns,
    C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """`sums` and `a_sums` [tiles of rows, columns]: the sums of the columns of the result and of a within each tile."""
    # Tiles of the same rows follow each other; one program after them sums a, which is in the cache then.
    m, n, tile = tl.program_id(1) * BM, tl.program_id(0) * BN, tl.program_id(1).to(tl.int64)
    if n < columns:
        total = product_tile(a, b, m, n, C, BM, BN, BC, TURNED=False)
        masked = tl.where(mask.load([m, n]) <= 0, 0.0, total).to(tl.bfloat16)
        out.store([m, n], masked)
        _store_sums(sums_ptr + tile * columns, masked, n, columns, BN)
    else:
        for c in range(0, C, BC):
            _store_sums(a_sums_ptr + tile * C, a.load([m, c]), c, C, BC)


@triton.jit
def _store_sums(ptr, values, first, size, B: tl.constexpr):
    """The sums of the columns of a tile whose first column is `first` of `size`."""
    column = first + tl.arange(0, B)
    tl.store(ptr + column, tl.sum(values.to(tl.float32), axis=0), mask=column < size)


def masked_product(a: Tensor, b: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A @ b but where the mask is 0 or below; for each tile of rows the sums of its columns [tiles, N], and those of a.

    All are bfloat16, their columns a multiple of `dense.ALIGNED`.

    Shapes: a [M, C], b [C, N], mask [M, N] → [M, N].
    """
    (rows, channels), columns = a.shape, b.size(1)
    out, tiles = torch.empty_like(mask), ceil_div(rows, TILE["BM"])
    sums, a_sums = (a.new_empty(tiles, width, dtype=torch.float32) for width in (columns, channels))
    if out.numel():
        factors = described(a, "BM", "BC"), described(b, "BC", "BN")
        inputs = sums, a_sums, *factors, described(mask, "BM", "BN"), described(out, "BM", "BN"), columns
        grid = ceil_div(columns, TILE["BN"]) + 1, tiles
        _masked_product_kernel[grid](*inputs, C=channels, **TILE, num_warps=4, num_stages=2)
    return out, sums, a_sums

"""The gradient of a table after a lookup of rows, on the GPU: each row of the table is written once.

The positions of the lookup are sorted by their rows, stably. A program for each row adds its positions in that order,
tile by tile, without atomics.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from magna.ops.triton.launch import accumulator, bound, ceil_div, power_of_2

_COUNTED = 2**14  # positions, at most, that are sorted by comparing all pairs; a sort takes a dozen kernels
_PART, _OTHERS = 16, 256  # positions of a program of that kernel, and others of a step
_PLACES = 256  # positions of a program of `_first_kernel`
_BYTES = 1024  # of a row, for the one warp of a program of `_sum_rows_kernel`
_TILE = 4  # gradients of a step; the registers of more would leave fewer rows in flight


@triton.jit
def _order_kernel(index_ptr, order_ptr, row_ptr, first_ptr, number, BN: tl.constexpr, BM: tl.constexpr):
    """The place of a position is the number of those with a lower row, plus those earlier with the same row.

    One number holds both counts, up to `_COUNTED` each.
    """
    begin = tl.program_id(0) * BN
    n = begin + tl.arange(0, BN)
    row = tl.load(index_ptr + n, mask=n < number, other=0).to(tl.int32)
    counts = tl.zeros([BN, BM], dtype=tl.int32)  # of lower rows, plus 65536 times those of the same row
    for start in range(0, number, BM):
        m = start + tl.arange(0, BM)
        other = tl.load(index_ptr + m, mask=m < number, other=2147483647).to(tl.int32)
        counts += (other[None, :] < row[:, None]).to(tl.int32)
        if start < begin + BN:
            counts += tl.where((other[None, :] == row[:, None]) & (m[None, :] < n[:, None]), 65536, 0)
    count = tl.sum(counts, axis=1)
    place = (count & 65535) + (count >> 16)
    tl.store(order_ptr + place, n, mask=n < number)
    tl.store(row_ptr + place, row, mask=n < number)
    tl.store(first_ptr + row, place, mask=(n < number) & (count < 65536))


@triton.jit
def _first_kernel(row_ptr, first_ptr, number, BN: tl.constexpr):
    """The first place of each row in the order."""
    place = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.load(row_ptr + place, mask=place < number, other=-1)
    before = tl.load(row_ptr + place - 1, mask=(place > 0) & (place < number), other=-1)
    tl.store(first_ptr + row, place, mask=row != before)


@triton.jit
def _positions(order_ptr, row_ptr, first, row, number, BN: tl.constexpr):
    """The next positions, -1 for those of other rows."""
    place = first + tl.arange(0, BN)
    taken = tl.load(row_ptr + place, mask=place < number, other=-1)
    position = tl.load(order_ptr + place, mask=place < number, other=-1).to(tl.int32)
    return tl.where(taken == row, position, -1)


@triton.jit
def _sum_rows_kernel(
    out_ptr, grad_ptr, whole_ptr, order_ptr, row_ptr, first_ptr, number,
    C: tl.constexpr, CB: tl.constexpr, BN: tl.constexpr, WHOLE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    c = tl.program_id(1) * CB + tl.arange(0, CB)
    entry = row.to(tl.int64) * C + c
    first = tl.load(first_ptr + row)
    if WHOLE:
        total = tl.load(whole_ptr + entry, mask=c < C, other=0.0).to(ACC)
    else:
        total = tl.zeros([CB], dtype=ACC)
    if first >= 0:
        position = _positions(order_ptr, row_ptr, first, row, number, BN)
        while tl.max(position, axis=0) >= 0:
            first += BN
            following = _positions(order_ptr, row_ptr, first, row, number, BN)
            live = (position >= 0)[:, None] & (c < C)[None, :]
            tile = tl.load(grad_ptr + position.to(tl.int64)[:, None] * C + c[None, :], mask=live, other=0.0)
            total += tl.sum(tile.to(ACC), axis=0)
            position = following
    tl.store(out_ptr + entry, total.to(out_ptr.dtype.element_ty), mask=c < C)


def table_gradient(grad: Tensor, index: Tensor, whole: Tensor | None, size: int) -> Tensor:
    """The sum of `whole` [N, C], or zeros, N the size, and of grad [B, C] at the rows `index` [B]."""
    number, width = grad.shape
    if grad.numel() == 0:
        return grad.new_zeros(size, width) if whole is None else whole.clone()
    first = torch.full((size,), -1, dtype=torch.int32, device=grad.device)
    if number <= _COUNTED:
        order, row = (torch.empty(number, dtype=torch.int32, device=grad.device) for _ in range(2))
        kernel = bound(_order_kernel, BN=_PART, BM=_OTHERS)
        kernel[ceil_div(number, _PART),](index, order, row, first, number)
    else:
        row, order = index.int().sort(stable=True)
        bound(_first_kernel, BN=_PLACES)[ceil_div(number, _PLACES),](row, first, number)
    out = grad.new_empty(size, width)
    columns = min(_BYTES // grad.itemsize, power_of_2(width))
    sizes = {"C": width, "CB": columns, "BN": _TILE, "WHOLE": whole is not None, "ACC": accumulator(grad.dtype)}
    kernel = bound(_sum_rows_kernel, **sizes, num_warps=1)
    kernel[size, ceil_div(width, columns)](out, grad, whole, order, row, first, number)
    return out

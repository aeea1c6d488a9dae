"""The gradient of rows that were looked up in a table, on the GPU: each row of the table is written once.

The positions are put in order of the rows they took, equal ones as they came; the first of a row adds up all of them in
that order: no atomics. The rows of a hub come in tiles, so that they do not wait for one another.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from magna.ops.triton_launch import bound
from magna.ops.triton_sizes import accumulator, ceil_div, power_of_2

_COUNTED = 2**14  # positions, at most, whose order is found by comparing all with all: a sort takes a dozen kernels
_PART, _OTHERS = 16, 256  # positions of a program of that kernel, and with how many it compares them in one step
_COLUMNS = 256  # of a program that adds up rows
_SHORT, _LONG = 4, 8  # rows that it takes at first, and in each step where there are more: they lie in registers


@triton.jit
def _order_kernel(index_ptr, order_ptr, row_ptr, number, BN: tl.constexpr, BM: tl.constexpr):
    """Where a position comes in the order: behind as many as took a lower row, or the same one earlier."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.load(index_ptr + n, mask=n < number, other=0).to(tl.int32)
    before = tl.zeros([BN, BM], dtype=tl.int32)
    for start in range(0, number, BM):
        m = start + tl.arange(0, BM)
        other = tl.load(index_ptr + m, mask=m < number, other=2147483647).to(tl.int32)
        earlier = (m[None, :] < n[:, None]).to(tl.int32)
        before += (other[None, :] < row[:, None] + earlier).to(tl.int32)
    place = tl.sum(before, axis=1)
    tl.store(order_ptr + place, n, mask=n < number)
    tl.store(row_ptr + place, row, mask=n < number)


@triton.jit
def _row_at(row_ptr, place, number):
    return tl.load(row_ptr + place, mask=(place >= 0) & (place < number), other=-1)


@triton.jit
def _tile(grad_ptr, order_ptr, row_ptr, first, row, c, number, C: tl.constexpr, BN: tl.constexpr, ACC: tl.constexpr):
    """The gradients of the next positions, zeros where they are of other rows."""
    place = first + tl.arange(0, BN)
    live = _row_at(row_ptr, place, number) == row
    position = tl.load(order_ptr + place, mask=live, other=0).to(tl.int64)
    live = live[:, None] & (c < C)[None, :]
    return tl.load(grad_ptr + position[:, None] * C + c[None, :], mask=live, other=0.0).to(ACC)


@triton.jit
def _add_rows_kernel(
    out_ptr, grad_ptr, order_ptr, row_ptr, number,
    C: tl.constexpr, CB: tl.constexpr, SHORT: tl.constexpr, LONG: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0)
    row = _row_at(row_ptr, first, number)
    if _row_at(row_ptr, first - 1, number) != row:
        c = tl.program_id(1) * CB + tl.arange(0, CB)
        total = tl.sum(_tile(grad_ptr, order_ptr, row_ptr, first, row, c, number, C, SHORT, ACC), axis=0)
        first += SHORT
        if _row_at(row_ptr, first, number) == row:
            more = tl.zeros([LONG, CB], dtype=ACC)
            while _row_at(row_ptr, first, number) == row:
                more += _tile(grad_ptr, order_ptr, row_ptr, first, row, c, number, C, LONG, ACC)
                first += LONG
            total += tl.sum(more, axis=0)
        place = row.to(tl.int64) * C + c
        total += tl.load(out_ptr + place, mask=c < C, other=0.0).to(ACC)
        tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=c < C)


def add_rows(out: Tensor, grad: Tensor, index: Tensor) -> None:
    """Add grad [B, C] to the rows of `out` [N, C] that `index` [B] says."""
    number, width = grad.shape
    if grad.numel() == 0:
        return
    if number <= _COUNTED:
        order, row = (torch.empty(number, dtype=torch.int32, device=grad.device) for _ in range(2))
        kernel = bound(_order_kernel, BN=_PART, BM=_OTHERS)
        kernel[ceil_div(number, _PART),](index, order, row, number)
    else:
        row, order = index.int().sort(stable=True)
    columns = min(_COLUMNS, power_of_2(width))
    sizes = {"C": width, "CB": columns, "SHORT": _SHORT, "LONG": _LONG, "ACC": accumulator(grad.dtype)}
    bound(_add_rows_kernel, **sizes)[number, ceil_div(width, columns)](out, grad, order, row, number)

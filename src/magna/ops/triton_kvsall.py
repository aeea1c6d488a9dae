"""What the blocked loss does between its matrix products, on the GPU: one pass over a block of scores each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 1024  # scores that a program looks at in one step
_ENTRIES = 128  # answers of a program


@triton.jit
def _softmax_kernel(
    scores_ptr, bias_ptr, top_ptr, total_ptr, width, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    top = tl.load(top_ptr + row)
    total = tl.load(total_ptr + row)
    for first in range(0, width, BLOCK):
        column = first + tl.arange(0, BLOCK)
        live = column < width
        score = tl.load(scores_ptr + row * width + column, mask=live, other=float("-inf"))
        score += tl.load(bias_ptr + column, mask=live, other=0.0)
        above = tl.maximum(top, tl.max(score, axis=0))
        total = total * tl.exp(top - above) + tl.sum(tl.exp(score - above), axis=0)
        top = above
    tl.store(top_ptr + row, top)
    tl.store(total_ptr + row, total)


@triton.jit
def _entries_here(row_ptr, column_ptr, num_entries, start, width, BLOCK: tl.constexpr):
    """The next answers: their place in the list, row, column within the block, and whether they are in it."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = entry < num_entries
    row = tl.load(row_ptr + entry, mask=live, other=0)
    column = tl.load(column_ptr + entry, mask=live, other=-1) - start
    return entry, row, column, live & (column >= 0) & (column < width)


@triton.jit
def _pick_kernel(
    scores_ptr, bias_ptr, row_ptr, column_ptr, picked_ptr, num_entries, start, width, BLOCK: tl.constexpr,
):  # fmt: skip
    entry, row, column, here = _entries_here(row_ptr, column_ptr, num_entries, start, width, BLOCK)
    score = tl.load(scores_ptr + row * width + column, mask=here, other=0.0)
    score += tl.load(bias_ptr + column, mask=here, other=0.0)
    tl.store(picked_ptr + entry, score, mask=here)


@triton.jit
def _gradient_kernel(
    scores_ptr, bias_ptr, top_ptr, total_ptr, share_ptr, elsewhere_ptr, out_ptr, width, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < width
    score = tl.load(scores_ptr + row * width + column, mask=live, other=0.0)
    score += tl.load(bias_ptr + column, mask=live, other=0.0)
    softmax = tl.exp(score - tl.load(top_ptr + row)) / tl.load(total_ptr + row)
    grad = tl.load(share_ptr + row) * (softmax - tl.load(elsewhere_ptr + row))
    tl.store(out_ptr + row * width + column, grad.to(out_ptr.dtype.element_ty), mask=live)


@triton.jit
def _answer_gradient_kernel(
    scores_ptr, bias_ptr, top_ptr, total_ptr, share_ptr, elsewhere_ptr, extra_ptr, row_ptr, column_ptr, out_ptr,
    num_entries, start, width, BLOCK: tl.constexpr,
):  # fmt: skip
    _, row, column, here = _entries_here(row_ptr, column_ptr, num_entries, start, width, BLOCK)
    score = tl.load(scores_ptr + row * width + column, mask=here, other=0.0)
    score += tl.load(bias_ptr + column, mask=here, other=0.0)
    target = tl.load(elsewhere_ptr + row) + tl.load(extra_ptr + row)
    softmax = tl.exp(score - tl.load(top_ptr + row)) / tl.load(total_ptr + row)
    grad = tl.load(share_ptr + row) * (softmax - target)
    # Each query has an answer once, so no other program writes here.
    tl.store(out_ptr + row * width + column, grad.to(out_ptr.dtype.element_ty), mask=here)


def accumulate(
    scores: Tensor, bias: Tensor, start: int, entries: tuple[Tensor, Tensor], top: Tensor, total: Tensor, picked: Tensor
) -> None:
    rows, width = scores.shape
    if rows == 0:
        return
    _softmax_kernel[rows,](scores, bias, top, total, width, _columns(width))
    num_entries = picked.numel()
    if num_entries:
        _pick_kernel[triton.cdiv(num_entries, _ENTRIES),](
            scores, bias, *entries, picked, num_entries, start, width, _ENTRIES
        )


def gradient(
    scores: Tensor,
    bias: Tensor,
    start: int,
    entries: tuple[Tensor, Tensor],
    top: Tensor,
    total: Tensor,
    share: Tensor,
    elsewhere: Tensor,
    extra: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    rows, width = scores.shape
    out = torch.empty_like(scores, dtype=dtype)
    if rows == 0:
        return out
    block = _columns(width)
    _gradient_kernel[rows, triton.cdiv(width, block)](scores, bias, top, total, share, elsewhere, out, width, block)
    num_entries = entries[0].numel()
    if num_entries:
        _answer_gradient_kernel[triton.cdiv(num_entries, _ENTRIES),](
            scores, bias, top, total, share, elsewhere, extra, *entries, out, num_entries, start, width, _ENTRIES
        )
    return out


def _columns(width: int) -> int:
    return min(_COLUMNS, triton.next_power_of_2(width))

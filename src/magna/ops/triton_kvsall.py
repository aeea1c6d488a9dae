"""What the blocked loss does between its matrix products, on the GPU: one pass over a block of scores each."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from magna.ops.answers import Block
from magna.ops.triton_dense import bias_backward
from magna.ops.triton_launch import bound
from magna.ops.triton_sizes import ceil_div, power_of_2

_COLUMNS = 1024  # scores that a program looks at in one step
_ENTRIES = 128  # answers of a program


@triton.jit
def _scores_at(
    scores_ptr, bias_ptr, entity_ptr, own_ptr, row, column, live, start, width, OWN: tl.constexpr,
):  # fmt: skip
    """The scores at some places of a block, -inf where there are none."""
    score = tl.load(scores_ptr + row * width + column, mask=live, other=float("-inf"))
    score += tl.load(bias_ptr + column, mask=live, other=0.0)
    if OWN:
        score += tl.where(column == tl.load(entity_ptr + row) - start, tl.load(own_ptr + row), 0.0)
    return score


@triton.jit
def _softmax_kernel(
    scores_ptr, bias_ptr, entity_ptr, own_ptr, top_ptr, total_ptr, start, width, OWN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    top = tl.load(top_ptr + row)
    total = tl.load(total_ptr + row)
    for first in range(0, width, BLOCK):
        column = first + tl.arange(0, BLOCK)
        score = _scores_at(scores_ptr, bias_ptr, entity_ptr, own_ptr, row, column, column < width, start, width, OWN)
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
    scores_ptr, bias_ptr, entity_ptr, own_ptr, row_ptr, column_ptr, picked_ptr, num_entries, start, width,
    OWN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    entry, row, column, here = _entries_here(row_ptr, column_ptr, num_entries, start, width, BLOCK)
    score = _scores_at(scores_ptr, bias_ptr, entity_ptr, own_ptr, row, column, here, start, width, OWN)
    tl.store(picked_ptr + entry, score, mask=here)


@triton.jit
def _store_gradient(score, target, top_ptr, total_ptr, share_ptr, out_ptr, row, column, live, width):
    softmax = tl.exp(score - tl.load(top_ptr + row)) / tl.load(total_ptr + row)
    grad = tl.load(share_ptr + row) * (softmax - target)
    tl.store(out_ptr + row * width + column, grad.to(out_ptr.dtype.element_ty), mask=live)
    return grad


@triton.jit
def _gradient_kernel(
    scores_ptr, bias_ptr, entity_ptr, own_ptr, top_ptr, total_ptr, share_ptr, elsewhere_ptr, out_ptr, grad_own_ptr,
    start, width, OWN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BLOCK
    column = first + tl.arange(0, BLOCK)
    live = column < width
    score = _scores_at(scores_ptr, bias_ptr, entity_ptr, own_ptr, row, column, live, start, width, OWN)
    target = tl.load(elsewhere_ptr + row)
    grad = _store_gradient(score, target, top_ptr, total_ptr, share_ptr, out_ptr, row, column, live, width)
    if OWN:
        place = tl.load(entity_ptr + row) - start
        # In one program of one block.
        if (place >= first) & (place < tl.minimum(first + BLOCK, width)):
            tl.store(grad_own_ptr + row, tl.sum(tl.where(column == place, grad, 0.0), axis=0))


@triton.jit
def _answer_gradient_kernel(
    scores_ptr, bias_ptr, entity_ptr, own_ptr, top_ptr, total_ptr, share_ptr, elsewhere_ptr, extra_ptr, row_ptr,
    column_ptr, out_ptr, grad_own_ptr, num_entries, start, width, OWN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # Each query has an answer once, so no other program writes where this one does.
    _, row, column, here = _entries_here(row_ptr, column_ptr, num_entries, start, width, BLOCK)
    score = _scores_at(scores_ptr, bias_ptr, entity_ptr, own_ptr, row, column, here, start, width, OWN)
    target = tl.load(elsewhere_ptr + row) + tl.load(extra_ptr + row)
    grad = _store_gradient(score, target, top_ptr, total_ptr, share_ptr, out_ptr, row, column, here, width)
    if OWN:
        tl.store(grad_own_ptr + row, grad, mask=here & (column == tl.load(entity_ptr + row) - start))


def column_sums(e: Tensor, dtype: torch.dtype) -> Tensor:
    return bias_backward(e, None)[1].to(dtype)


def accumulate(block: Block, top: Tensor, total: Tensor, picked: Tensor) -> None:
    rows, width = block.scores.shape
    if rows == 0:
        return
    given, owned = _given(block), block.own is not None
    kernel = bound(_softmax_kernel, OWN=owned, BLOCK=_columns(width))
    kernel[rows,](*given, top, total, block.start, width)
    num_entries = picked.numel()
    if num_entries:
        kernel = bound(_pick_kernel, OWN=owned, BLOCK=_ENTRIES)
        kernel[ceil_div(num_entries, _ENTRIES),](*given, *block.where, picked, num_entries, block.start, width)


def gradient(
    block: Block,
    top: Tensor,
    total: Tensor,
    share: Tensor,
    elsewhere: Tensor,
    extra: Tensor,
    grad_own: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    rows, width = block.scores.shape
    out = torch.empty_like(block.scores, dtype=dtype)
    if rows == 0:
        return out
    given, owned = (*_given(block), top, total, share, elsewhere), block.own is not None
    columns = _columns(width)
    kernel = bound(_gradient_kernel, OWN=owned, BLOCK=columns)
    kernel[rows, ceil_div(width, columns)](*given, out, grad_own, block.start, width)
    num_entries = block.where[0].numel()
    if num_entries:
        kernel = bound(_answer_gradient_kernel, OWN=owned, BLOCK=_ENTRIES)
        kernel[ceil_div(num_entries, _ENTRIES),](
            *given, extra, *block.where, out, grad_own, num_entries, block.start, width
        )
    return out


def _given(block: Block) -> tuple[Tensor | None, ...]:
    return (block.scores, block.bias, *(block.own or (None, None)))


def _columns(width: int) -> int:
    return min(_COLUMNS, power_of_2(width))

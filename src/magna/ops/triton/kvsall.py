"""The blocked loss after its matrix products, on the GPU: one pass over a block of scores for each step."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from magna.ops import loss_torch as kvsall_steps
from magna.ops.answers import Factors, Scanned
from magna.ops.backend.registry import product
from magna.ops.triton import kvsall_products as triton_kvsall_products
from magna.ops.triton.answers import ENTRIES, answer_gradient, entries_inside
from magna.ops.triton.dense import bias_backward
from magna.ops.triton.launch import bound
from magna.ops.triton.sizes import ceil_div, power_of_2
from magna.ops.triton.targets import entries, loss, targets

__all__ = ["column_sums", "entries", "gradient", "loss", "scan", "targets"]

_COLUMNS = 1024  # scores of a step of a program


@triton.jit
def _scores_at(
    scores_ptr, bias_ptr, entity_ptr, own_ptr, row, column, live, start, width, OWN: tl.constexpr,
):  # fmt: skip
    """The scores at some places of a block, -inf outside of it."""
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
def _pick_kernel(
    scores_ptr, bias_ptr, entity_ptr, own_ptr, row_ptr, column_ptr, picked_ptr, num_entries, start, width,
    OWN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    entry, row, column, inside = entries_inside(row_ptr, column_ptr, num_entries, start, width, BLOCK)
    score = _scores_at(scores_ptr, bias_ptr, entity_ptr, own_ptr, row, column, inside, start, width, OWN)
    tl.store(picked_ptr + entry, score, mask=inside)


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
    softmax = tl.exp(score - tl.load(top_ptr + row)) / tl.load(total_ptr + row)
    grad = tl.load(share_ptr + row) * (softmax - tl.load(elsewhere_ptr + row))
    tl.store(out_ptr + row * width + column, grad.to(out_ptr.dtype.element_ty), mask=live)
    if OWN:
        place = tl.load(entity_ptr + row) - start
        # True in one program of one block.
        if (place >= first) & (place < tl.minimum(first + BLOCK, width)):
            tl.store(grad_own_ptr + row, tl.sum(tl.where(column == place, grad, 0.0), axis=0))


def column_sums(e: Tensor, dtype: torch.dtype) -> Tensor:
    return bias_backward(e, None)[1].to(dtype)


def scan(factors: Factors, size: int) -> Scanned:
    if triton_kvsall_products.takes(factors):
        return triton_kvsall_products.scan(factors)
    return kvsall_steps.scan_blocks(factors, size, _accumulate)


def _accumulate(block: Factors, scores: Tensor, top: Tensor, total: Tensor, picked: Tensor) -> None:
    rows, width = scores.shape
    if rows == 0:
        return
    inputs, owned = (scores, block.bias, *(block.self_bias or (None, None))), block.self_bias is not None
    kernel = bound(_softmax_kernel, OWN=owned, BLOCK=_columns(width))
    kernel[rows,](*inputs, top, total, block.start, width)
    num_entries = picked.numel()
    if num_entries:
        kernel = bound(_pick_kernel, OWN=owned, BLOCK=ENTRIES)
        kernel[ceil_div(num_entries, ENTRIES),](*inputs, *block.where, picked, num_entries, block.start, width)


def gradient(
    block: Factors, scanned: Scanned, share: Tensor, elsewhere: Tensor, extra: Tensor, grad_own: Tensor
) -> Tensor:
    rows, width = len(block.query), len(block.bias)
    out = block.query.new_empty(rows, width)
    if rows == 0:
        return out
    if triton_kvsall_products.takes(block):
        triton_kvsall_products.gradient(block, scanned, share, elsewhere, grad_own, out)
    else:
        scores, columns = product(block.query, block.entities.T), _columns(width)
        kernel = bound(_gradient_kernel, OWN=block.self_bias is not None, BLOCK=columns)
        inputs = scores, block.bias, *(block.self_bias or (None, None)), scanned.top, scanned.total, share, elsewhere
        kernel[rows, ceil_div(width, columns)](*inputs, out, grad_own, block.start, width)
    answer_gradient(block, scanned, share, elsewhere, extra, grad_own, out)
    return out


def _columns(width: int) -> int:
    return min(_COLUMNS, power_of_2(width))

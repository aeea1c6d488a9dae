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
from magna.ops.triton.dense import bias_backward
from magna.ops.triton.kvsall_products import ENTRIES, answer_gradient, entries_inside
from magna.ops.triton.launch import accumulator, bound, ceil_div, power_of_2

_COLUMNS = 1024  # scores of a step of a program
_QUERIES = 1024  # of a step of the one program that sums over all of them


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


@triton.jit
def _entries_kernel(ptr_ptr, index_ptr, row_ptr, column_ptr, rows, number, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """As `answers.entries`: the last query that starts at an entry or before it, by bisection."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = entry < number
    row = tl.zeros([BLOCK], dtype=tl.int32)
    for step in tl.static_range(STEPS):
        later = row + (1 << (STEPS - 1 - step))
        starts = tl.load(ptr_ptr + later, mask=live & (later <= rows), other=number)
        row = tl.where((later <= rows) & (starts <= entry), later, row)
    asked = row < rows
    tl.store(row_ptr + entry, tl.where(asked, row, 0).to(tl.int64), mask=live)
    tl.store(column_ptr + entry, tl.where(asked, tl.load(index_ptr + entry, mask=live, other=0), -1), mask=live)


@triton.jit
def _weights(ptr_ptr, weight_ptr, n, live, WEIGHTED: tl.constexpr, ACC: tl.constexpr):
    """The numbers of answers of some queries, and their weights before normalisation."""
    count = tl.load(ptr_ptr + n + 1, mask=live, other=0) - tl.load(ptr_ptr + n, mask=live, other=0)
    weight = (count > 0).to(ACC)
    if WEIGHTED:
        weight *= tl.load(weight_ptr + n, mask=live, other=0.0).to(ACC)
    return count, weight


@triton.jit
def _x_log_x(x):
    return tl.where(x > 0, x * tl.log(tl.where(x > 0, x, 1.0)), 0.0)


@triton.jit
def _targets_kernel(
    ptr_ptr, weight_ptr, out_ptr, rows,
    ENTITIES: tl.constexpr, SMOOTHING: tl.constexpr, WEIGHTED: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """One program, for the sum of the weights."""
    total = tl.zeros([BLOCK], dtype=ACC)
    for start in range(0, rows, BLOCK):
        n = start + tl.arange(0, BLOCK)
        total += _weights(ptr_ptr, weight_ptr, n, n < rows, WEIGHTED, ACC)[1]
    whole = tl.sum(total, axis=0)
    # Constants in the type of the sums; literals would have 32 bits.
    smoothing, entities = tl.full([BLOCK], SMOOTHING, ACC), tl.full([BLOCK], ENTITIES, ACC)
    for start in range(0, rows, BLOCK):
        n = start + tl.arange(0, BLOCK)
        live = n < rows
        count, weight = _weights(ptr_ptr, weight_ptr, n, live, WEIGHTED, ACC)
        tl.store(out_ptr + n, weight / tl.where(whole > 0, whole, 1.0), mask=live)
        answers = tl.maximum(count, 1).to(ACC)
        parts = answers * (1 - smoothing) + smoothing
        extra, elsewhere = (1 - smoothing) / parts, smoothing / entities / parts
        tl.store(out_ptr + rows + n, extra, mask=live)
        tl.store(out_ptr + 2 * rows + n, elsewhere, mask=live)
        entropy = answers * _x_log_x(extra + elsewhere) + (entities - answers) * _x_log_x(elsewhere)
        tl.store(out_ptr + 3 * rows + n, entropy, mask=live)


@triton.jit
def _loss_kernel(
    q_ptr, sums_ptr, bias_ptr, own_ptr, top_ptr, total_ptr, picked_ptr, ptr_ptr, targets_ptr, out_ptr, rows,
    BIASED: tl.constexpr, OWN: tl.constexpr, C: tl.constexpr, CB: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, CB)
    q = tl.load(q_ptr + row * C + c, mask=c < C, other=0.0).to(ACC)
    scores = tl.sum(q * tl.load(sums_ptr + c, mask=c < C, other=0.0), axis=0)
    if BIASED:
        scores += tl.load(bias_ptr)
    if OWN:
        scores += tl.load(own_ptr + row)
    first, end = tl.load(ptr_ptr + row), tl.load(ptr_ptr + row + 1)
    picked = tl.zeros([BLOCK], dtype=ACC)
    for start in range(first, end, BLOCK):
        entry = start + tl.arange(0, BLOCK)
        picked += tl.load(picked_ptr + entry, mask=entry < end, other=0.0)
    share, extra = tl.load(targets_ptr + row), tl.load(targets_ptr + rows + row)
    elsewhere, entropy = tl.load(targets_ptr + 2 * rows + row), tl.load(targets_ptr + 3 * rows + row)
    divergence = tl.load(top_ptr + row) + tl.log(tl.load(total_ptr + row)) - elsewhere * scores + entropy
    tl.store(out_ptr + row, share * (divergence - extra * tl.sum(picked, axis=0)))


def entries(ptr: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    row, column = (torch.empty_like(index, memory_format=torch.contiguous_format) for _ in range(2))
    number, rows = index.numel(), ptr.numel() - 1
    if number:
        kernel = bound(_entries_kernel, STEPS=rows.bit_length(), BLOCK=ENTRIES)
        kernel[ceil_div(number, ENTRIES),](ptr.contiguous(), index.contiguous(), row, column, rows, number)
    return row, column


def targets(ptr: Tensor, weight: Tensor | None, num_entities: int, smoothing: float, dtype: torch.dtype) -> Tensor:
    rows = ptr.numel() - 1
    out = torch.empty(4, rows, dtype=dtype, device=ptr.device)
    if rows:
        constants = {"ENTITIES": num_entities, "SMOOTHING": smoothing, "WEIGHTED": weight is not None}
        sizes = {"BLOCK": min(_QUERIES, power_of_2(rows)), "ACC": accumulator(dtype), "num_warps": 8}
        kernel = bound(_targets_kernel, **constants, **sizes)
        kernel[1,](ptr.contiguous(), None if weight is None else weight.contiguous(), out, rows)
    return out


def loss(factors: Factors, sums: Tensor, bias: Tensor | None, scanned: Scanned, ptr: Tensor, targets: Tensor) -> Tensor:
    (rows, width), self_bias, dtype = factors.query.shape, factors.self_bias, targets.dtype
    out = torch.empty_like(scanned.top)
    if rows:
        sizes = {"C": width, "CB": power_of_2(max(width, 1)), "BLOCK": ENTRIES, "ACC": accumulator(dtype)}
        kernel = bound(_loss_kernel, BIASED=bias is not None, OWN=self_bias is not None, **sizes)
        inputs = factors.query, sums, None if bias is None else bias.sum(dtype=dtype), self_bias and self_bias[1]
        kernel[rows,](*inputs, *scanned, ptr.contiguous(), targets, out, rows)
    return out.sum()

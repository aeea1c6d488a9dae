"""The loss over all entities of bfloat16 numbers, on the GPU: scores are consumed where they are computed."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from magna.ops.answers import Factors, Scanned
from magna.ops.gpu.linear import ALIGNED
from magna.ops.triton.dense import TILE, described, product_tile
from magna.ops.triton.launch import bound, ceil_div

ENTRIES = 128  # answers of a program
_PICKED = {"BLOCK": 8, "BC": 512}  # answers of a program that scores them, and channels in one step
_MERGED = {"BQ": 16, "BT": 64}  # queries of a program that merges the tiles, and tiles in one step
_LAUNCH = {"num_warps": 4, "num_stages": 3}


@triton.jit
def entries_inside(row_ptr, column_ptr, num_entries, start, width, BLOCK: tl.constexpr):
    """The next answers: their place in the list, row, column within the block, and a mask of those inside it."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = entry < num_entries
    row = tl.load(row_ptr + entry, mask=live, other=0)
    column = tl.load(column_ptr + entry, mask=live, other=-1) - start
    return entry, row, column, live & (column >= 0) & (column < width)


@triton.jit
def _tile_scores(
    q, e, bias_ptr, entity_ptr, own_ptr, rows, entities, start,
    OWN: tl.constexpr, C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Queries, entities and scores of a tile, -inf after the last entity; tiles of one entity follow each other."""
    first, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    scores = product_tile(q, e, first, column, C, BM, BN, BC, TURNED=True)
    m, n = first + tl.arange(0, BM), column + tl.arange(0, BN)
    m_read = tl.minimum(m, rows - 1)  # the last query again for rows after it
    scores += tl.load(bias_ptr + n, mask=n < entities, other=float("-inf"))[None, :]
    if OWN:
        place, _, any_inside = _own_places(entity_ptr, m_read, entities, start, BN)
        if any_inside:
            scores += tl.where(n[None, :] == place[:, None], tl.load(own_ptr + m_read)[:, None], 0.0)
    return m, m_read, n, scores


@triton.jit
def _own_places(entity_ptr, m_read, entities, start, BN: tl.constexpr):
    """The places of the queries' own entities in a block, a mask of those in this tile, and True if there is any.

    There seldom is one, and the test is faster than comparing every score's place.
    """
    place, first = tl.load(entity_ptr + m_read) - start, tl.program_id(1) * BN
    inside = (place >= first) & (place < tl.minimum(first + BN, entities))
    return place, inside, tl.max(inside.to(tl.int32), axis=0) > 0


@triton.jit
def _scan_kernel(
    q, e, bias_ptr, entity_ptr, own_ptr, top_ptr, total_ptr, rows, entities,
    OWN: tl.constexpr, C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """`top` and `total` [tiles of entities, rows]: the softmax's largest score and its sum within each tile."""
    m, _, _, scores = _tile_scores(q, e, bias_ptr, entity_ptr, own_ptr, rows, entities, 0, OWN, C, BM, BN, BC)
    top = tl.max(scores, axis=1)
    total = tl.sum(tl.exp(scores - top[:, None]), axis=1)
    place = tl.program_id(1).to(tl.int64) * rows + m
    tl.store(top_ptr + place, top, mask=m < rows)
    tl.store(total_ptr + place, total, mask=m < rows)


@triton.jit
def _merge_kernel(
    tops_ptr, totals_ptr, top_ptr, total_ptr, rows, tiles, BQ: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BQ + tl.arange(0, BQ)
    top, total = tl.full([BQ], float("-inf"), tl.float32), tl.zeros([BQ], dtype=tl.float32)
    for first in range(0, tiles, BT):
        tile = first + tl.arange(0, BT)
        live = (tile < tiles)[:, None] & (row < rows)[None, :]
        place = tile.to(tl.int64)[:, None] * rows + row[None, :]
        tops = tl.load(tops_ptr + place, mask=live, other=float("-inf"))
        totals = tl.load(totals_ptr + place, mask=live, other=0.0)
        above = tl.where(row < rows, tl.maximum(top, tl.max(tops, axis=0)), 0.0)
        total = total * tl.exp(top - above) + tl.sum(totals * tl.exp(tops - above[None, :]), axis=0)
        top = above
    tl.store(top_ptr + row, top, mask=row < rows)
    tl.store(total_ptr + row, total, mask=row < rows)


@triton.jit
def _pick_kernel(
    q_ptr, e_ptr, bias_ptr, entity_ptr, own_ptr, row_ptr, column_ptr, picked_ptr, num_entries, entities,
    OWN: tl.constexpr, C: tl.constexpr, BC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    entry, row, column, inside = entries_inside(row_ptr, column_ptr, num_entries, 0, entities, BLOCK)
    c, score = tl.arange(0, BC), tl.load(bias_ptr + column, mask=inside, other=0.0)
    for start in range(0, C, BC):
        live = inside[:, None] & (start + c < C)[None, :]
        q = tl.load(q_ptr + row[:, None] * C + start + c[None, :], mask=live, other=0.0).to(tl.float32)
        e = tl.load(e_ptr + column[:, None] * C + start + c[None, :], mask=live, other=0.0).to(tl.float32)
        score += tl.sum(q * e, axis=1)
    if OWN:
        score += tl.where(column == tl.load(entity_ptr + row), tl.load(own_ptr + row), 0.0)
    tl.store(picked_ptr + entry, score, mask=inside)


@triton.jit
def _gradient_kernel(
    q, e, bias_ptr, entity_ptr, own_ptr, top_ptr, total_ptr, share_ptr, elsewhere_ptr, grad_own_ptr, out,
    rows, width, start, OWN: tl.constexpr, C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    m, m_read, n, scores = _tile_scores(q, e, bias_ptr, entity_ptr, own_ptr, rows, width, start, OWN, C, BM, BN, BC)
    share = tl.load(share_ptr + m_read)
    scale, less = share / tl.load(total_ptr + m_read), share * tl.load(elsewhere_ptr + m_read)
    grad = tl.exp(scores - tl.load(top_ptr + m_read)[:, None]) * scale[:, None] - less[:, None]
    out.store([tl.program_id(0) * BM, tl.program_id(1) * BN], grad.to(tl.bfloat16))
    if OWN:
        place, inside, any_inside = _own_places(entity_ptr, m_read, width, start, BN)
        if any_inside:  # in one tile of one block
            own_grad = tl.sum(tl.where(n[None, :] == place[:, None], grad, 0.0), axis=1)
            tl.store(grad_own_ptr + m, own_grad, mask=(m < rows) & inside)


def takes(factors: Factors) -> bool:
    aligned = factors.query.size(1) % ALIGNED == len(factors.bias) % ALIGNED == 0
    return aligned and factors.query.dtype == torch.bfloat16


def scan(factors: Factors) -> Scanned:
    (rows, channels), entities = factors.query.shape, factors.entities.size(0)
    top, total = factors.bias.new_empty(rows), factors.bias.new_empty(rows)
    picked = factors.bias.new_zeros(factors.where[0].shape)
    if rows == 0:
        return Scanned(top, total, picked)
    constants = {"OWN": factors.self_bias is not None, "C": channels}
    tiles = ceil_div(entities, TILE["BN"])
    tops, totals = factors.bias.new_empty(2, tiles, rows).unbind()
    inputs = *_by_tiles(factors), *_biases(factors)
    _scan_kernel[ceil_div(rows, TILE["BM"]), tiles](
        *inputs, tops, totals, rows, entities, **constants, **TILE, **_LAUNCH
    )
    bound(_merge_kernel, **_MERGED)[ceil_div(rows, _MERGED["BQ"]),](tops, totals, top, total, rows, tiles)
    num_entries = picked.numel()
    if num_entries:
        kernel = bound(_pick_kernel, **constants, **_PICKED)
        tensors = factors.query, factors.entities, *_biases(factors), *factors.where
        kernel[ceil_div(num_entries, _PICKED["BLOCK"]),](*tensors, picked, num_entries, entities)
    return Scanned(top, total, picked)


def gradient(block: Factors, scanned: Scanned, share: Tensor, elsewhere: Tensor, grad_own: Tensor, out: Tensor) -> None:
    """Write share (softmax − what all targets have) of a block of scores into `out`."""
    rows, width = out.shape
    inputs = *_by_tiles(block), *_biases(block), scanned.top, scanned.total, share, elsewhere, grad_own
    constants = {"OWN": block.self_bias is not None, "C": block.query.size(1), **TILE, **_LAUNCH}
    _gradient_kernel[ceil_div(rows, TILE["BM"]), ceil_div(width, TILE["BN"])](
        *inputs, described(out, "BM", "BN"), rows, width, block.start, **constants
    )


def _by_tiles(factors: Factors) -> tuple[TensorDescriptor, TensorDescriptor]:
    return described(factors.query, "BM", "BC"), described(factors.entities, "BN", "BC")


def _biases(factors: Factors) -> tuple[Tensor | None, ...]:
    return factors.bias, *(factors.self_bias or (None, None))


@triton.jit
def _answer_gradient_kernel(
    top_ptr, total_ptr, picked_ptr, share_ptr, elsewhere_ptr, extra_ptr, grad_own_ptr, entity_ptr, row_ptr, column_ptr,
    out_ptr, num_entries, start, width, OWN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # A query has each answer once, so no two programs write to one place.
    entry, row, column, inside = entries_inside(row_ptr, column_ptr, num_entries, start, width, BLOCK)
    score = tl.load(picked_ptr + entry, mask=inside, other=0.0)
    softmax = tl.exp(score - tl.load(top_ptr + row)) / tl.load(total_ptr + row)
    grad = tl.load(share_ptr + row) * (softmax - tl.load(elsewhere_ptr + row) - tl.load(extra_ptr + row))
    tl.store(out_ptr + row * width + column, grad.to(out_ptr.dtype.element_ty), mask=inside)
    if OWN:
        tl.store(grad_own_ptr + row, grad, mask=inside & (column == tl.load(entity_ptr + row) - start))


def answer_gradient(
    block: Factors, scanned: Scanned, share: Tensor, elsewhere: Tensor, extra: Tensor, grad_own: Tensor, out: Tensor
) -> None:
    """Write share (softmax − target) where the answers are into the gradient of a block's scores."""
    num_entries = scanned.picked.numel()
    if num_entries == 0:
        return
    entity = None if block.self_bias is None else block.self_bias[0]
    kernel = bound(_answer_gradient_kernel, OWN=entity is not None, BLOCK=ENTRIES)
    kernel[ceil_div(num_entries, ENTRIES),](
        *(*scanned, share, elsewhere, extra, grad_own, entity, *block.where, out),
        *(num_entries, block.start, out.size(1)),
    )

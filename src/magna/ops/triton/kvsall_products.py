"""The loss over all entities of bfloat16 numbers, on the GPU: scores are used up where they were multiplied."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from magna.ops.answers import Factors, Scanned
from magna.ops.gpu.linear import ALIGNED
from magna.ops.triton.answers import entries_here
from magna.ops.triton.launch import bound
from magna.ops.triton.products import TILE, described, product_tile
from magna.ops.triton.sizes import ceil_div

_PICKED = {"BLOCK": 8, "BC": 512}  # answers of a program that multiplies those alone, and channels in one step
_MERGED = {"BQ": 16, "BT": 64}  # queries of a program that merges the tiles, and tiles in one step
_LAUNCH = {"num_warps": 4, "num_stages": 3}


@triton.jit
def _tile_scores(
    q, e, bias_ptr, entity_ptr, own_ptr, rows, entities, start,
    OWN: tl.constexpr, C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Queries, entities and scores of a tile, -inf where there is no entity; tiles of an entity follow each other."""
    first, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    scores = product_tile(q, e, first, column, C, BM, BN, BC, TURNED=True)
    m, n = first + tl.arange(0, BM), column + tl.arange(0, BN)
    m_read = tl.minimum(m, rows - 1)  # of which something is to be read, also beyond the last query
    scores += tl.load(bias_ptr + n, mask=n < entities, other=float("-inf"))[None, :]
    if OWN:
        place, _, any_here = _own_places(entity_ptr, m_read, entities, start, BN)
        if any_here:
            scores += tl.where(n[None, :] == place[:, None], tl.load(own_ptr + m_read)[:, None], 0.0)
    return m, m_read, n, scores


@triton.jit
def _own_places(entity_ptr, m_read, entities, start, BN: tl.constexpr):
    """Where queries have their own entity in a block, whether that is in this tile, and whether it is for any of them:
    it seldom is, and looking for it at every score takes longer than asking.
    """
    place, first = tl.load(entity_ptr + m_read) - start, tl.program_id(1) * BN
    here = (place >= first) & (place < tl.minimum(first + BN, entities))
    return place, here, tl.max(here.to(tl.int32), axis=0) > 0


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
    entry, row, column, here = entries_here(row_ptr, column_ptr, num_entries, 0, entities, BLOCK)
    c, score = tl.arange(0, BC), tl.load(bias_ptr + column, mask=here, other=0.0)
    for start in range(0, C, BC):
        live = here[:, None] & (start + c < C)[None, :]
        q = tl.load(q_ptr + row[:, None] * C + start + c[None, :], mask=live, other=0.0).to(tl.float32)
        e = tl.load(e_ptr + column[:, None] * C + start + c[None, :], mask=live, other=0.0).to(tl.float32)
        score += tl.sum(q * e, axis=1)
    if OWN:
        score += tl.where(column == tl.load(entity_ptr + row), tl.load(own_ptr + row), 0.0)
    tl.store(picked_ptr + entry, score, mask=here)


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
        place, here, any_here = _own_places(entity_ptr, m_read, width, start, BN)
        if any_here:  # in one tile of one block
            own = tl.sum(tl.where(n[None, :] == place[:, None], grad, 0.0), axis=1)
            tl.store(grad_own_ptr + m, own, mask=(m < rows) & here)


def takes(given: Factors) -> bool:
    aligned = given.query.size(1) % ALIGNED == len(given.bias) % ALIGNED == 0
    return aligned and given.query.dtype == torch.bfloat16


def scan(given: Factors) -> Scanned:
    (rows, channels), entities = given.query.shape, given.entities.size(0)
    top, total = given.bias.new_empty(rows), given.bias.new_empty(rows)
    picked = given.bias.new_zeros(given.where[0].shape)
    if rows == 0:
        return Scanned(top, total, picked)
    constants = {"OWN": given.self_bias is not None, "C": channels}
    tiles = ceil_div(entities, TILE["BN"])
    tops, totals = given.bias.new_empty(2, tiles, rows).unbind()
    factors = *_by_tiles(given), *_biases(given)
    _scan_kernel[ceil_div(rows, TILE["BM"]), tiles](
        *factors, tops, totals, rows, entities, **constants, **TILE, **_LAUNCH
    )
    bound(_merge_kernel, **_MERGED)[ceil_div(rows, _MERGED["BQ"]),](tops, totals, top, total, rows, tiles)
    num_entries = picked.numel()
    if num_entries:
        kernel = bound(_pick_kernel, **constants, **_PICKED)
        tensors = given.query, given.entities, *_biases(given), *given.where
        kernel[ceil_div(num_entries, _PICKED["BLOCK"]),](*tensors, picked, num_entries, entities)
    return Scanned(top, total, picked)


def gradient(block: Factors, found: Scanned, share: Tensor, elsewhere: Tensor, grad_own: Tensor, out: Tensor) -> None:
    """Write share (softmax − what all targets have) of a block of scores into `out`."""
    rows, width = out.shape
    given = *_by_tiles(block), *_biases(block), found.top, found.total, share, elsewhere, grad_own
    constants = {"OWN": block.self_bias is not None, "C": block.query.size(1), **TILE, **_LAUNCH}
    _gradient_kernel[ceil_div(rows, TILE["BM"]), ceil_div(width, TILE["BN"])](
        *given, described(out, "BM", "BN"), rows, width, block.start, **constants
    )


def _by_tiles(given: Factors) -> tuple[TensorDescriptor, TensorDescriptor]:
    return described(given.query, "BM", "BC"), described(given.entities, "BN", "BC")


def _biases(given: Factors) -> tuple[Tensor | None, ...]:
    return given.bias, *(given.self_bias or (None, None))

"""Filtered ranks of true answers among all entities, a block of queries at a time."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from magna.errors import ArgumentError
from magna.graph.csr import check_range
from magna.ops import checks
from magna.ops.answers import Answers, SelfBias, check_answers, check_block, check_products, check_self_bias, entries
from magna.ops.backend.registry import as_they_come

_BLOCK_BYTES = {"cpu": 64 << 20, "cuda": 256 << 20}  # scores of a block


class RankCounts(NamedTuple):
    """Numbers of other entities that score higher than each target, and of those that score the same; int64 [T]."""

    better: Tensor
    equal: Tensor


@torch.no_grad()
def rank_targets(
    query: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    query_index: Tensor,
    target: Tensor,
    known: Answers | None,
    self_bias: SelfBias | None = None,
    *,
    block: int | None = None,
) -> RankCounts:
    """Count the entities above each true answer and those tied with it, the filtered protocol's two numbers.

    The optimistic rank is 1 + better, the pessimistic one 1 + better + equal, the realistic one their mean.

    All scores of a query come from one product, the target's among them, and each unique query is scored once however
    many targets it has. Entities in `known` do not count. NaN loses: a target that scores NaN is below all others, and
    another entity that scores NaN is above none and tied with none.

    Args:
        query: unique queries; scores are query @ candidates.T + bias.
        candidates: all entities.
        bias: one number per entity, or None.
        query_index: the query that each target answers.
        target: the true entities.
        known: ptr and index of the entities known to be true for each query, in all splits, in increasing order; the
            target may be among them. None ranks among all entities.
        self_bias: one entity of each query, int64 [Q], and a bias of its score, [Q]; or None.
        block: queries at a time; None: those whose scores fit into a small part of the memory.

    Shapes: query [Q, C], candidates [N, C], bias [N], query_index [T], target [T] → better [T], equal [T].

    >>> query, candidates = torch.ones(1, 1), torch.tensor([[3.0], [2.0], [1.0], [2.0]])
    >>> known = torch.tensor([0, 2]), torch.tensor([0, 1])
    >>> rank_targets(query, candidates, None, torch.tensor([0]), torch.tensor([1]), known)
    RankCounts(better=tensor([0]), equal=tensor([1]))
    """
    check_products(query, candidates, bias)
    check_self_bias(self_bias, (query.size(0), candidates.size(0)), query.device)
    checks.alike("target", target, torch.int64, [target.numel()], query.device, "as query")

    def scores(rows: Tensor) -> Tensor:
        products = query[rows] @ candidates.T
        if bias is not None:
            products += bias
        if self_bias is not None:
            entity, value = self_bias[0][rows], self_bias[1][rows].to(products.dtype)
            products.scatter_add_(1, entity[:, None], value[:, None])
        return products

    block = _block_size(block, query.element_size() * candidates.size(0), query.device)
    return rank_scores(scores, query.size(0), candidates.size(0), query_index, target, known, block=block)


@torch.no_grad()
def rank_scores(
    scores: Callable[[Tensor], Tensor],
    num_queries: int,
    num_entities: int,
    query_index: Tensor,
    target: Tensor,
    known: Answers | None,
    *,
    block: int | None = None,
) -> RankCounts:
    """Count as `rank_targets` does, with scores of any form.

    Args:
        scores: a function from positions of unique queries, int64 [b], to a new tensor of their scores, [b, N].
        num_queries: number of unique queries.
        num_entities: number of entities N.
        query_index: the query that each target answers.
        target: the true entities.
        known: ptr and index of the entities known to be true for each query, or None.
        block: queries at a time.

    >>> table = torch.tensor([[3.0, 2.0, 1.0, 2.0]])
    >>> rank_scores(lambda rows: table[rows], 1, 4, torch.tensor([0]), torch.tensor([1]), None)
    RankCounts(better=tensor([1]), equal=tensor([1]))
    """
    Q, N, device = num_queries, num_entities, target.device
    block = _block_size(block, 4 * N, device)
    for name, index, size in (("query_index", query_index, Q), ("target", target, N)):
        checks.alike(name, index, torch.int64, [target.numel()], device, "one per target")
        check_range(name, index, size)
    if known is not None:
        check_answers("known", known, (Q, N), device, validate=True)
    # Queries with many targets first. Then those of a block that have an r-th target are its first rows, and the r-th
    # targets of all rows are compared at once without a copy.
    count = torch.bincount(query_index, minlength=Q)
    by_count = count.argsort(descending=True, stable=True)
    place = torch.empty_like(by_count)
    place[by_count] = torch.arange(Q, device=device)
    by_place = place[query_index].argsort(stable=True)  # [T]
    first = torch.cat([count.new_zeros(1), count[by_count].cumsum(0)])  # [Q + 1] of a query's targets, in this order
    row, column, among_known = _filters(query_index, target, known, place, N)
    eligible = N - (~among_known).long()
    if known is not None:
        eligible -= known[0].diff()[query_index]
    ends, counts = first.tolist(), count[by_count].tolist()
    borders = torch.searchsorted(row, torch.arange(0, Q + block, block, device=device)).tolist()
    better, equal = torch.empty_like(target), torch.empty_like(target)
    for number, start in enumerate(range(0, Q, block)):
        stop = min(start + block, Q)
        ranked = by_place[ends[start] : ends[stop]]
        if len(ranked) == 0:
            break
        with as_they_come(device):
            rows = scores(by_count[start:stop])  # [block, N]
        if rows.shape != (stop - start, N):
            raise ArgumentError("scores", rows, f"[{stop - start}, {N}], a row per query and a column per entity")
        true = rows[place[query_index[ranked]] - start, target[ranked]]
        filtered = slice(borders[number], borders[number + 1])
        rows[row[filtered] - start, column[filtered]] = torch.nan
        above, tied = _compare(rows, true, first[start:stop] - ends[start], counts[start:stop])
        # A target that is not known to be true was counted as equal to itself.
        itself = ~among_known[ranked] & ~true.isnan()
        better[ranked] = torch.where(true.isnan(), eligible[ranked], above)
        equal[ranked] = tied - itself.long()
    return RankCounts(better, equal)


def _block_size(block: int | None, row_bytes: int, device: torch.device) -> int:
    """Queries at a time."""
    check_block(block)
    return max(1, _BLOCK_BYTES.get(device.type, 64 << 20) // row_bytes) if block is None else block


def _compare(scores: Tensor, true: Tensor, first: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
    """Numbers of scores above each target of a block in its row, and of those equal to it."""
    above, tied = torch.empty_like(true, dtype=torch.int64), torch.empty_like(true, dtype=torch.int64)
    # Floating-point numbers are added up faster than truth values, and exactly so far.
    marks = torch.empty_like(scores, dtype=torch.float32 if scores.size(1) < 2**24 else torch.float64)
    for turn in range(counts[0]):
        rows = bisect_left(counts, -turn, key=operator.neg)  # those with more targets than that
        at = first[:rows] + turn
        limit = true[at, None]
        above[at] = torch.gt(scores[:rows], limit, out=marks[:rows]).sum(1).long()
        tied[at] = torch.eq(scores[:rows], limit, out=marks[:rows]).sum(1).long()
    return above, tied


def _filters(
    query_index: Tensor, target: Tensor, known: Answers | None, place: Tensor, num_entities: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and columns of the known answers, by row, and a mask of the targets among them."""
    if known is None:
        none = target.new_empty(0)
        return none, none, torch.zeros_like(target, dtype=torch.bool)
    query, entity = entries(known[0], known[1][: int(known[0][-1])])
    key, wanted = query * num_entities + entity, query_index * num_entities + target  # increasing
    position = torch.searchsorted(key, wanted).clamp_max(max(len(key) - 1, 0))
    among = key[position] == wanted if len(key) else torch.zeros_like(target, dtype=torch.bool)
    row, order = place[query].sort(stable=True)
    return row, entity[order], among

"""The answers of many queries as `ptr` and `index`: those of query b are index[ptr[b]:ptr[b + 1]], increasing.

Entries of `index` from ptr[-1] on are ignored, so that batches with more and fewer answers can have tensors of one
size, which a CUDA graph needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from magna.errors import ArgumentError
from magna.graph.csr import check_range
from magna.ops import checks

Answers = tuple[Tensor, Tensor]
SelfBias = tuple[Tensor, Tensor]  # one entity of each query, and a bias of its score


class Factors(NamedTuple):
    """The parts of scores query @ entities.T + bias, with `self_bias` added to one entity of each query."""

    query: Tensor  # [B, C]
    entities: Tensor  # those from `start` on, [width, C]
    bias: Tensor  # [width] or more, with -inf after the last entity
    self_bias: SelfBias | None
    where: Answers  # `entries` of all answers, also of other entities
    start: int = 0

    def blocks(self, size: int) -> Iterator[Factors]:
        """Blocks of `size` entities, zeros after the last one."""
        for start in range(0, self.entities.size(0), size):
            entities, bias = self.entities[start : start + size], self.bias[start : start + size]
            missing = len(bias) - len(entities)
            if missing:
                entities = torch.nn.functional.pad(entities, (0, 0, 0, missing))
            yield self._replace(entities=entities, bias=bias, start=start)


class Scanned(NamedTuple):
    """Statistics of the scores of all entities."""

    top: Tensor  # [B], the largest of each query
    total: Tensor  # [B], Σ_j exp(s_j − top)
    picked: Tensor  # [A], the scores of the answers


def entries(ptr: Tensor, index: Tensor) -> Answers:
    """The query and the entity of each entry; an entry that is ignored belongs to query 0 and entity -1.

    Shapes: ptr [B + 1], index [A] → [A], [A].

    >>> [t.tolist() for t in entries(torch.tensor([0, 2, 2, 3]), torch.tensor([4, 7, 5, 0]))]
    [[0, 0, 2, 0], [4, 7, 5, -1]]
    """
    query = torch.searchsorted(ptr, torch.arange(index.numel(), device=index.device), right=True) - 1
    ignored = query == ptr.numel() - 1
    return query.masked_fill(ignored, 0), index.masked_fill(ignored, -1)


def shares(ptr: Tensor, weight: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Shares of the queries in a weighted mean, which sum to 1; that of a query without answers is 0.

    Shapes: ptr [B + 1], weight [B] → [B].
    """
    share = (ptr.diff() > 0).to(dtype)
    if weight is not None:
        share = share * weight.detach().to(dtype)
    total = share.sum()
    return share / torch.where(total > 0, total, 1)


def check_products(query: Tensor, candidates: Tensor, bias: Tensor | None) -> None:
    """Refuse shapes, types and devices for which query @ candidates.T + bias has no meaning."""
    if query.dim() != 2 or query.dtype not in checks.DTYPES:
        raise ArgumentError("query", query, "torch.float64, torch.float32 or torch.bfloat16 [queries, channels]")
    allowed = f"{query.dtype} [entities, {query.size(1)}] on {query.device}, one entity or more"
    alike = candidates.dtype == query.dtype and candidates.device == query.device
    if not alike or candidates.dim() != 2 or candidates.size(1) != query.size(1) or candidates.size(0) == 0:
        raise ArgumentError("candidates", candidates, allowed)
    if bias is not None:
        checks.alike("bias", bias, None, candidates.shape[:1], query.device, "one per entity")


def check_block(block: int | None) -> None:
    if block is not None and block < 1:
        raise ArgumentError("block", block, "1 and above, or None")


def check_answers(name: str, answers: Answers, sizes: tuple[int, int], device: torch.device, validate: bool) -> None:
    """Refuse ptr and index of a wrong form and, with `validate`, out of range or order (waits for the GPU).

    `sizes` are the numbers of queries and entities.
    """
    ptr, index = answers
    checks.alike(f"{name}: ptr", ptr, torch.int64, [sizes[0] + 1], device, "as query")
    checks.alike(f"{name}: index", index, torch.int64, [index.numel()], device, "as query")
    if not validate:
        return
    if int(ptr[0]) != 0 or bool((ptr.diff() < 0).any()) or int(ptr[-1]) > index.numel():
        allowed = f"numbers from 0 that do not decrease, up to {index.numel()}, the size of index"
        raise ArgumentError(f"{name}: ptr", ptr.tolist(), allowed)
    query, entity = entries(ptr, index[: int(ptr[-1])])
    check_range(f"{name}: index", entity, sizes[1])
    unordered = (query.diff() == 0) & (entity.diff() <= 0)
    if bool(unordered.any()):
        place = int(unordered.nonzero()[0])
        pair, allowed = entity[place : place + 2].tolist(), "increasing numbers, each once"
        raise ArgumentError(f"{name}: query {int(query[place])}", pair, allowed, "sorting, and removing duplicates")


def check_self_bias(
    self_bias: SelfBias | None, sizes: tuple[int, int], device: torch.device, validate: bool = True
) -> None:
    if self_bias is None:
        return
    entity, bias = self_bias
    checks.alike("self_bias: entities", entity, torch.int64, sizes[:1], device, "one per query")
    float_type = bias.dtype if bias.is_floating_point() else torch.float32
    checks.alike("self_bias: biases", bias, float_type, sizes[:1], device, "one per query")
    if validate:
        check_range("self_bias: entities", entity, sizes[1])

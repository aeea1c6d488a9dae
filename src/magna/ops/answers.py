"""The answers of many queries as `ptr` and `index`: those of query b are index[ptr[b]:ptr[b + 1]], in increasing order.

Entries of `index` from ptr[-1] on are ignored, so that batches with more and fewer answers can have tensors of one
size, which a CUDA graph needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

Answers = tuple[Tensor, Tensor]
Own = tuple[Tensor, Tensor]  # one entity of each query, and what is added to its score


class Factors(NamedTuple):
    """What scores are made of: query @ entities.T + bias, and `own` on one entity of each query."""

    query: Tensor  # [B, C]
    entities: Tensor  # those from `start` on, [width, C]
    bias: Tensor  # [width], or more of them: those of entities that are not there are -inf
    own: Own | None
    where: Answers  # `entries` of all answers, of these entities and of others
    start: int = 0

    def blocks(self, size: int) -> Iterator[Factors]:
        """So many entities at a time, zeros where there are biases but no entities any more."""
        for start in range(0, self.entities.size(0), size):
            entities, bias = self.entities[start : start + size], self.bias[start : start + size]
            missing = len(bias) - len(entities)
            if missing:
                entities = torch.nn.functional.pad(entities, (0, 0, 0, missing))
            yield self._replace(entities=entities, bias=bias, start=start)


class Scanned(NamedTuple):
    """What a walk over all entities leaves of the scores."""

    top: Tensor  # [B], the largest of each query
    total: Tensor  # [B], Σ_j exp(s_j − top)
    picked: Tensor  # [A], those of the answers


def entries(answers: Answers) -> Answers:
    """The query and the entity of each entry; an entry that is ignored belongs to query 0 and entity -1.

    Shapes: ptr [B + 1], index [A] → [A], [A].

    >>> [t.tolist() for t in entries((torch.tensor([0, 2, 2, 3]), torch.tensor([4, 7, 5, 0])))]
    [[0, 0, 2, 0], [4, 7, 5, -1]]
    """
    ptr, index = answers
    query = torch.searchsorted(ptr, torch.arange(index.numel(), device=index.device), right=True) - 1
    ignored = query == ptr.numel() - 1
    return query.masked_fill(ignored, 0), index.masked_fill(ignored, -1)


def shares(ptr: Tensor, weight: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What each query counts in a weighted mean: they sum to 1; a query without answers counts nothing.

    Shapes: ptr [B + 1], weight [B] → [B].
    """
    share = (ptr.diff() > 0).to(dtype)
    if weight is not None:
        share = share * weight.detach().to(dtype)
    total = share.sum()
    return share / torch.where(total > 0, total, 1)


def check_products(query: Tensor, candidates: Tensor, bias: Tensor | None) -> None:
    """Whether query @ candidates.T + bias makes sense."""
    if query.dim() != 2:
        raise ValueError(f"query has shape {list(query.shape)}; allowed: [queries, channels]")
    if candidates.dim() != 2 or candidates.size(1) != query.size(1) or candidates.size(0) == 0:
        allowed = f"[entities, {query.size(1)}], one entity or more and the channels of query"
        raise ValueError(f"candidates has shape {list(candidates.shape)}; allowed: {allowed}")
    if query.dtype not in (torch.float64, torch.float32, torch.bfloat16):
        raise ValueError(f"query has dtype {query.dtype}; allowed: torch.float64, torch.float32, torch.bfloat16")
    if candidates.dtype != query.dtype:
        raise ValueError(f"candidates has dtype {candidates.dtype}; allowed: {query.dtype}, as query")
    if bias is not None and bias.shape != candidates.shape[:1]:
        raise ValueError(f"bias has shape {list(bias.shape)}; allowed: {list(candidates.shape[:1])}, one per entity")
    for name, tensor in (("candidates", candidates), ("bias", bias)):
        if tensor is not None and tensor.device != query.device:
            raise ValueError(f"{name} is on {tensor.device}, query on {query.device}; move one with .to(device)")


def check_answers(name: str, answers: Answers, num_queries: int, device: torch.device) -> None:
    """Whether ptr and index have the right form; their values are `check_values`' matter."""
    ptr, index = answers
    if ptr.dtype != torch.int64 or ptr.shape != (num_queries + 1,):
        raise ValueError(f"{name}: ptr is {ptr.dtype} {list(ptr.shape)}; allowed: torch.int64 [{num_queries + 1}]")
    if index.dtype != torch.int64 or index.dim() != 1:
        raise ValueError(f"{name}: index is {index.dtype} {list(index.shape)}; allowed: torch.int64 [entries]")
    if ptr.device != device or index.device != device:
        raise ValueError(f"{name}: ptr and index are on {ptr.device} and {index.device}; allowed: {device}, as query")


def check_values(name: str, answers: Answers, num_entities: int) -> None:
    """Whether ptr and index describe answers in range and in order (waits for the GPU)."""
    ptr, index = answers
    if int(ptr[0]) != 0 or bool((ptr.diff() < 0).any()) or int(ptr[-1]) > index.numel():
        raise ValueError(f"{name}: ptr must start at 0, not decrease, and end at most at {index.numel()}, index's size")
    query, entity = entries((ptr, index[: int(ptr[-1])]))
    wrong = (entity < 0) | (entity >= num_entities)
    if bool(wrong.any()):
        raise ValueError(f"{name}: index has {int(entity[wrong][0])}; allowed: 0 to {num_entities - 1}, the entities")
    unordered = (query.diff() == 0) & (entity.diff() <= 0)
    if bool(unordered.any()):
        place = int(unordered.nonzero()[0])
        raise ValueError(
            f"{name}: query {int(query[place])} has the answers {int(entity[place])}, {int(entity[place + 1])} in this "
            "order; allowed: increasing, each once (sort them and take out duplicates)"
        )


def check_own(own: Own | None, num_queries: int, device: torch.device) -> None:
    if own is None:
        return
    entity, bias = own
    for name, tensor, allowed in (("entities", entity, "torch.int64"), ("biases", bias, "a float type")):
        right_type = tensor.is_floating_point() if name == "biases" else tensor.dtype == torch.int64
        if not right_type or tensor.shape != (num_queries,) or tensor.device != device:
            raise ValueError(
                f"own has {name} of {tensor.dtype} {list(tensor.shape)} on {tensor.device}; allowed: {allowed} "
                f"[{num_queries}] on {device}, one per query"
            )


def check_own_values(own: Own | None, num_entities: int) -> None:
    if own is not None:
        check_range("own has entities", own[0], num_entities)


def check_range(has: str, index: Tensor, size: int) -> None:
    """Whether all are from 0 to size - 1 (waits for the GPU)."""
    if index.numel() and not (0 <= int(index.min()) and int(index.max()) < size):
        raise ValueError(f"{has} {int(index.min())} to {int(index.max())}; allowed: 0 to {size - 1}")

"""What the blocked loss does to a block of scores between its matrix products, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from magna.ops.answers import Answers, Own


def column_sums(e: Tensor, dtype: torch.dtype) -> Tensor:
    return e.sum(0, dtype=dtype)


def accumulate(
    scores: Tensor,
    bias: Tensor,
    own: Own | None,
    start: int,
    where: Answers,
    top: Tensor,
    total: Tensor,
    picked: Tensor,
) -> None:
    """Take a block into the softmax's largest score and its sum, and note down the scores of the answers."""
    _add(scores, bias, own, start)
    query, entity, here = _within(where, start, scores.size(1))
    picked += torch.where(here, scores[query, entity], 0)
    above = torch.maximum(top, scores.amax(1))
    total *= (top - above).exp()
    total += scores.sub_(above[:, None]).exp_().sum(1)
    top.copy_(above)


def gradient(
    scores: Tensor,
    bias: Tensor,
    own: Own | None,
    start: int,
    where: Answers,
    top: Tensor,
    total: Tensor,
    share: Tensor,
    elsewhere: Tensor,
    extra: Tensor,
    grad_own: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """share (softmax − target) of a block; what it is where `own` was added goes into `grad_own`, not rounded."""
    _add(scores, bias, own, start)
    softmax = scores.sub_(top[:, None]).exp_().div_(total[:, None])
    grad = softmax.sub_(elsewhere[:, None]).mul_(share[:, None])
    query, entity, here = _within(where, start, scores.size(1))
    # A place gets one number at most, and beside it zeros: the order of the sum cannot be seen.
    less = torch.where(here, (share * extra)[query], 0)
    grad.view(-1).index_add_(0, query * scores.size(1) + entity, less, alpha=-1)
    if own is not None:
        column, here = _within_block(own[0], start, grad.size(1))
        grad_own += torch.where(here, grad.gather(1, column[:, None]).squeeze(1), 0)
    return grad.to(dtype)


def _add(scores: Tensor, bias: Tensor, own: Own | None, start: int) -> None:
    scores += bias
    if own is not None:
        column, here = _within_block(own[0], start, scores.size(1))
        scores.scatter_add_(1, column[:, None], torch.where(here, own[1], 0)[:, None])


def _within(where: Answers, start: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """The answers' queries and their places in a block, 0 for those that are not in it, and which are."""
    return where[0], *_within_block(where[1], start, width)


def _within_block(entity: Tensor, start: int, width: int) -> tuple[Tensor, Tensor]:
    column = entity - start
    here = (column >= 0) & (column < width)
    return torch.where(here, column, 0), here

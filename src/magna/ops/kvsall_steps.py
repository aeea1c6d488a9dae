"""What the blocked loss does to a block of scores between its matrix products, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from magna.ops.answers import Answers


def accumulate(
    scores: Tensor, bias: Tensor, start: int, where: Answers, top: Tensor, total: Tensor, picked: Tensor
) -> None:
    """Take a block into the softmax's largest score and its sum, and note down the scores of the answers."""
    scores += bias
    query, entity, here = _within(where, start, scores.size(1))
    picked += torch.where(here, scores[query, entity], 0)
    above = torch.maximum(top, scores.amax(1))
    total *= (top - above).exp()
    total += scores.sub_(above[:, None]).exp_().sum(1)
    top.copy_(above)


def gradient(
    scores: Tensor,
    bias: Tensor,
    start: int,
    where: Answers,
    top: Tensor,
    total: Tensor,
    share: Tensor,
    elsewhere: Tensor,
    extra: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """share (softmax − target) of a block."""
    softmax = scores.add_(bias).sub_(top[:, None]).exp_().div_(total[:, None])
    grad = softmax.sub_(elsewhere[:, None]).mul_(share[:, None])
    query, entity, here = _within(where, start, scores.size(1))
    # A place gets one number at most, and beside it zeros: the order of the sum cannot be seen.
    less = torch.where(here, (share * extra)[query], 0)
    grad.view(-1).index_add_(0, query * scores.size(1) + entity, less, alpha=-1)
    return grad.to(dtype)


def _within(where: Answers, start: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """The answers' queries and their places in a block, 0 for those that are not in it, and which are."""
    query, entity = where[0], where[1] - start
    here = (entity >= 0) & (entity < width)
    return query, torch.where(here, entity, 0), here

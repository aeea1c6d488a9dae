"""What the blocked loss does to a block of scores between its matrix products, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from magna.ops.answers import Block


def column_sums(e: Tensor, dtype: torch.dtype) -> Tensor:
    return e.sum(0, dtype=dtype)


def accumulate(block: Block, top: Tensor, total: Tensor, picked: Tensor) -> None:
    """Take a block into the softmax's largest score and its sum, and note down the scores of the answers."""
    scores, (query, entity, here) = _with_biases(block), _within(block)
    picked += torch.where(here, scores[query, entity], 0)
    above = torch.maximum(top, scores.amax(1))
    total *= (top - above).exp()
    total += scores.sub_(above[:, None]).exp_().sum(1)
    top.copy_(above)


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
    """share (softmax − target) of a block; what it is where `own` was added goes into `grad_own`, not rounded."""
    softmax = _with_biases(block).sub_(top[:, None]).exp_().div_(total[:, None])
    grad = softmax.sub_(elsewhere[:, None]).mul_(share[:, None])
    query, entity, here = _within(block)
    # A place gets one number at most, and beside it zeros: the order of the sum cannot be seen.
    less = torch.where(here, (share * extra)[query], 0)
    grad.view(-1).index_add_(0, query * grad.size(1) + entity, less, alpha=-1)
    if block.own is not None:
        column, here = _places(block.own[0], block)
        grad_own += torch.where(here, grad.gather(1, column[:, None]).squeeze(1), 0)
    return grad.to(dtype)


def _with_biases(block: Block) -> Tensor:
    scores = block.scores.add_(block.bias)
    if block.own is not None:
        column, here = _places(block.own[0], block)
        scores.scatter_add_(1, column[:, None], torch.where(here, block.own[1], 0)[:, None])
    return scores


def _within(block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """The answers' queries and their places in a block, 0 for those that are not in it, and which are."""
    return block.where[0], *_places(block.where[1], block)


def _places(entity: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    column = entity - block.start
    here = (column >= 0) & (column < block.scores.size(1))
    return torch.where(here, column, 0), here

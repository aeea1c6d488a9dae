"""What the blocked loss does to a block of scores behind its matrix product, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from magna.ops import answers
from magna.ops.answers import Factors, Scanned
from magna.ops.backend.registry import product

Accumulate = Callable[[Factors, Tensor, Tensor, Tensor, Tensor], None]


def entries(ptr: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    return answers.entries((ptr, index))


def targets(ptr: Tensor, weight: Tensor | None, num_entities: int, smoothing: float, dtype: torch.dtype) -> Tensor:
    """[4, B] as `kvsall_targets_op` has them."""
    # A query without answers has share 0; it only must not divide by 0.
    count = ptr.diff().clamp_min(1).to(dtype)
    whole = count * (1 - smoothing) + smoothing
    extra, elsewhere = (1 - smoothing) / whole, smoothing / num_entities / whole
    answer = extra + elsewhere
    entropy = count * torch.xlogy(answer, answer) + (num_entities - count) * torch.xlogy(elsewhere, elsewhere)
    return torch.stack([answers.shares(ptr, weight, dtype), extra, elsewhere, entropy])


def column_sums(e: Tensor, dtype: torch.dtype) -> Tensor:
    return e.sum(0, dtype=dtype)


def accumulate(block: Factors, scores: Tensor, top: Tensor, total: Tensor, picked: Tensor) -> None:
    """Take a block into the softmax's largest score and its sum, and note down the scores of the answers."""
    scores, (query, entity, here) = _with_biases(block, scores), _within(block)
    picked += torch.where(here, scores[query, entity], 0)
    above = torch.maximum(top, scores.amax(1))
    total *= (top - above).exp()
    total += scores.sub_(above[:, None]).exp_().sum(1)
    top.copy_(above)


def scan(given: Factors, size: int) -> Scanned:
    return scan_blocks(given, size, accumulate)


def scan_blocks(given: Factors, size: int, accumulate: Accumulate) -> Scanned:
    top = given.bias.new_full(given.query.shape[:1], -torch.inf)
    total, picked = torch.zeros_like(top), given.bias.new_zeros(given.where[0].shape)
    for block in given.blocks(size):
        accumulate(block, product(block.query, block.entities.T), top, total, picked)
    return Scanned(top, total, picked)


def loss(given: Factors, sums: Tensor, bias: Tensor | None, found: Scanned, ptr: Tensor, targets: Tensor) -> Tensor:
    """The loss, once all blocks are accumulated; `sums` is that of all candidates."""
    share, extra, elsewhere, entropy = targets
    scores = given.query.to(sums.dtype) @ sums
    if bias is not None:
        scores += bias.sum(dtype=sums.dtype)
    if given.own is not None:
        scores += given.own[1]
    rest = (share * (found.top + found.total.log() - elsewhere * scores + entropy)).sum()
    return rest - ((share * extra)[given.where[0]] * found.picked).sum()


def gradient(
    block: Factors, found: Scanned, share: Tensor, elsewhere: Tensor, extra: Tensor, grad_own: Tensor
) -> Tensor:
    """Share (softmax − target) of a block; what it is where `own` was added goes into `grad_own`, not rounded."""
    scores = _with_biases(block, product(block.query, block.entities.T))
    softmax = scores.sub_(found.top[:, None]).exp_().div_(found.total[:, None])
    grad = softmax.sub_(elsewhere[:, None]).mul_(share[:, None])
    query, entity, here = _within(block)
    # A place gets one number at most, and beside it zeros: the order of the sum cannot be seen.
    less = torch.where(here, (share * extra)[query], 0)
    grad.view(-1).index_add_(0, query * grad.size(1) + entity, less, alpha=-1)
    if block.own is not None:
        column, here = _places(block.own[0], block)
        grad_own += torch.where(here, grad.gather(1, column[:, None]).squeeze(1), 0)
    return grad.to(block.query.dtype)


def _with_biases(block: Factors, scores: Tensor) -> Tensor:
    scores.add_(block.bias)
    if block.own is not None:
        column, here = _places(block.own[0], block)
        scores.scatter_add_(1, column[:, None], torch.where(here, block.own[1], 0)[:, None])
    return scores


def _within(block: Factors) -> tuple[Tensor, Tensor, Tensor]:
    """The answers' queries and their places in a block, 0 for those that are not in it, and which are."""
    return block.where[0], *_places(block.where[1], block)


def _places(entity: Tensor, block: Factors) -> tuple[Tensor, Tensor]:
    column = entity - block.start
    here = (column >= 0) & (column < len(block.bias))
    return torch.where(here, column, 0), here

"""The steps of the blocked loss between the matrix products, in plain PyTorch, and the size of its blocks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from magna.ops.answers import Factors, Scanned, shares
from magna.ops.answers import entries as entries
from magna.ops.backend.registry import product

Accumulate = Callable[[Factors, Tensor, Tensor, Tensor, Tensor], None]


_BLOCK_BYTES = {"cpu": 16 << 20, "cuda": 64 << 20}  # scores of a block, or their gradient if no scores are stored
_LEAST_BLOCKS = 8  # of float32, also if all scores would fit: a block is small beside them
_SMALL_BYTES = 4 << 20  # all scores, too few to cut


def choose_block(num_queries: int, num_entities: int, device: torch.device, dtype: torch.dtype = torch.float32) -> int:
    """Number of entities of a block, a multiple of 64 that makes the blocks about alike.

    On the GPU a block of bfloat16 products stores its gradient alone, in that type.
    """
    each = 2 if dtype == torch.bfloat16 and device.type == "cuda" else 4
    fit = _BLOCK_BYTES.get(device.type, 16 << 20) // (each * max(num_queries, 1))
    least = 1 if each * num_queries * num_entities <= _SMALL_BYTES else _LEAST_BLOCKS * each // 4
    number = max(least, -(-num_entities // max(fit, 64)))
    return -(-num_entities // (64 * number)) * 64


def targets(ptr: Tensor, weight: Tensor | None, num_entities: int, smoothing: float, dtype: torch.dtype) -> Tensor:
    """The targets [4, B] of `kvsall_targets_op`."""
    # A query without answers has share 0, and must not divide by 0.
    count = ptr.diff().clamp_min(1).to(dtype)
    whole = count * (1 - smoothing) + smoothing
    extra, elsewhere = (1 - smoothing) / whole, smoothing / num_entities / whole
    answer = extra + elsewhere
    entropy = count * torch.xlogy(answer, answer) + (num_entities - count) * torch.xlogy(elsewhere, elsewhere)
    return torch.stack([shares(ptr, weight, dtype), extra, elsewhere, entropy])


def column_sums(e: Tensor, dtype: torch.dtype) -> Tensor:
    return e.sum(0, dtype=dtype)


def accumulate(block: Factors, scores: Tensor, top: Tensor, total: Tensor, picked: Tensor) -> None:
    """Add a block to the largest score and the sum of the softmax, and to the scores of the answers."""
    scores, (query, entity, inside) = _with_biases(block, scores), _within(block)
    picked += torch.where(inside, scores[query, entity], 0)
    above = torch.maximum(top, scores.amax(1))
    total *= (top - above).exp()
    total += scores.sub_(above[:, None]).exp_().sum(1)
    top.copy_(above)


def scan(factors: Factors, size: int) -> Scanned:
    return scan_blocks(factors, size, accumulate)


def scan_blocks(factors: Factors, size: int, accumulate: Accumulate) -> Scanned:
    top = factors.bias.new_full(factors.query.shape[:1], -torch.inf)
    total, picked = torch.zeros_like(top), factors.bias.new_zeros(factors.where[0].shape)
    for block in factors.blocks(size):
        accumulate(block, product(block.query, block.entities.T), top, total, picked)
    return Scanned(top, total, picked)


def loss(factors: Factors, sums: Tensor, bias: Tensor | None, scanned: Scanned, ptr: Tensor, targets: Tensor) -> Tensor:
    """The loss, once all blocks are accumulated; `sums` is that of all candidates."""
    share, extra, elsewhere, entropy = targets
    scores = factors.query.to(sums.dtype) @ sums
    if bias is not None:
        scores += bias.sum(dtype=sums.dtype)
    if factors.self_bias is not None:
        scores += factors.self_bias[1]
    rest: Tensor = (share * (scanned.top + scanned.total.log() - elsewhere * scores + entropy)).sum()
    picked: Tensor = ((share * extra)[factors.where[0]] * scanned.picked).sum()
    return rest - picked


def gradient(
    block: Factors, scanned: Scanned, share: Tensor, elsewhere: Tensor, extra: Tensor, grad_self_bias: Tensor
) -> Tensor:
    """Share (softmax − target) of a block; `grad_self_bias` gets that of the scores with a bias, not rounded."""
    scores = _with_biases(block, product(block.query, block.entities.T))
    softmax = scores.sub_(scanned.top[:, None]).exp_().div_(scanned.total[:, None])
    grad = softmax.sub_(elsewhere[:, None]).mul_(share[:, None])
    query, entity, inside = _within(block)
    # A place gets at most one number besides zeros, so the order of the sum has no effect.
    less = torch.where(inside, (share * extra)[query], 0)
    grad.view(-1).index_add_(0, query * grad.size(1) + entity, less, alpha=-1)
    if block.self_bias is not None:
        column, inside = _places(block.self_bias[0], block)
        grad_self_bias += torch.where(inside, grad.gather(1, column[:, None]).squeeze(1), 0)
    return grad.to(block.query.dtype)


def _with_biases(block: Factors, scores: Tensor) -> Tensor:
    scores.add_(block.bias)
    if block.self_bias is not None:
        column, inside = _places(block.self_bias[0], block)
        scores.scatter_add_(1, column[:, None], torch.where(inside, block.self_bias[1], 0)[:, None])
    return scores


def _within(block: Factors) -> tuple[Tensor, Tensor, Tensor]:
    """The answers' queries, their places in a block, 0 outside of it, and a mask of those inside."""
    return block.where[0], *_places(block.where[1], block)


def _places(entity: Tensor, block: Factors) -> tuple[Tensor, Tensor]:
    column = entity - block.start
    inside = (column >= 0) & (column < len(block.bias))
    return torch.where(inside, column, 0), inside

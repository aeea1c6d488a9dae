"""Metrics as pure functions."""

from __future__ import annotations

from torch import Tensor


def accuracy(scores: Tensor, target: Tensor) -> float:
    """The share of rows whose largest score is at the target; a row with NaN is wrong.

    Shapes: scores [B, classes], target [B] → float, NaN for an empty batch.

    >>> import torch
    >>> accuracy(torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0]]), torch.tensor([0, 1, 1]))
    0.6666666666666666
    """
    right = (scores.argmax(-1) == target) & ~scores.isnan().any(-1)
    return int(right.sum()) / target.numel() if target.numel() else float("nan")

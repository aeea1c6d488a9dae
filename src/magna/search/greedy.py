"""Weights of an ensemble: the average of good members, with greedy steps (Caruana et al. 2004) from there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

MOST_PICKS = 25
_LOSS = 1e-3  # weight of the log-loss, which decides between equal accuracies
_LARGEST_LOSS = 10.0


def accuracy_then_loss(probabilities: Tensor, truth: Tensor) -> float:
    """Accuracy, less a small share of the log-loss.

    Shapes: probabilities [n, C], truth [n].

    >>> accuracy_then_loss(torch.eye(2), torch.tensor([0, 1]))
    1.0
    """
    right = float((probabilities.argmax(1) == truth).double().mean())
    loss = -float(probabilities[torch.arange(truth.numel()), truth].clamp(min=1e-12).log().mean())
    return right - _LOSS * min(loss, _LARGEST_LOSS)


def chosen_weights(probabilities: Sequence[Tensor], truth: Tensor, picks: int = MOST_PICKS) -> list[float]:
    """The weight of each member in the average.

    The start is the plain average of all members within a standard error of the best one, since with few labels more
    cannot be told apart. Each further step adds the member after which the average scores best, with repetition; the
    best average on the way counts, the shortest one if several are level, and the first of equal members is taken, so
    that simpler members stand first.

    Shapes: probabilities [n, C] each, truth [n].

    >>> truth = torch.tensor([0, 1, 1] * 9)
    >>> right, wrong = torch.eye(2)[truth], torch.eye(2)[1 - truth]
    >>> chosen_weights([wrong, right], truth)
    [0.0, 1.0]
    """
    scores = [accuracy_then_loss(each, truth) for each in probabilities]
    best = max(scores)
    error = math.sqrt(max(0.0, best * (1 - best)) / max(1, truth.numel()))
    counts = [int(score >= best - error) for score in scores]
    total = torch.stack([each for each, count in zip(probabilities, counts, strict=True) if count]).sum(0)
    best_counts, best = list(counts), accuracy_then_loss(total / sum(counts), truth)
    for _ in range(picks):
        size = sum(counts) + 1
        scores = [accuracy_then_loss((total + each) / size, truth) for each in probabilities]
        pick = max(range(len(scores)), key=lambda index: (scores[index], -index))
        total, counts[pick] = total + probabilities[pick], counts[pick] + 1
        if scores[pick] > best:
            best, best_counts = scores[pick], list(counts)
    return [count / sum(best_counts) for count in best_counts]

"""Greedy ensemble selection (Caruana et al. 2004): members are added, with repetition, while the score rises."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

MOST_PICKS = 25


def greedy_weights(
    probabilities: Sequence[Tensor], score: Callable[[Tensor], float], picks: int = MOST_PICKS
) -> list[float]:
    """The weight of each member in the average with the best score, among those that greedy steps meet.

    Each step adds the member after which the average scores best; the first of equals is taken, so that simpler members
    stand first. The steps end after `picks`; the best average on the way counts, the shortest one if several are level.

    Shapes: probabilities [n, C] each.

    >>> truth = torch.tensor([0, 1, 1])
    >>> right, wrong = torch.eye(2)[truth], torch.eye(2)[1 - truth]
    >>> greedy_weights([wrong, right], lambda p: float((p.argmax(1) == truth).double().mean()))
    [0.0, 1.0]
    """
    total, counts = torch.zeros_like(probabilities[0]), [0] * len(probabilities)
    best, best_counts = float("-inf"), list(counts)
    for size in range(1, picks + 1):
        scores = [score((total + each) / size) for each in probabilities]
        pick = max(range(len(scores)), key=lambda index: (scores[index], -index))
        total, counts[pick] = total + probabilities[pick], counts[pick] + 1
        if scores[pick] > best:
            best, best_counts = scores[pick], list(counts)
    return [count / sum(best_counts) for count in best_counts]

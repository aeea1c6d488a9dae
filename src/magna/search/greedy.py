"""Weights of an ensemble: the average of good members, with greedy steps (Caruana et al. 2004) from there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from magna.search.judging import Judge

MOST_PICKS = 25


def chosen_weights(answers: Sequence[Tensor], truth: Tensor, judge: Judge, picks: int = MOST_PICKS) -> list[float]:
    """The weight of each member in the average.

    The start is the plain average of all members within a standard error of the best one, since with few labels more
    cannot be told apart. Each further step adds the member after which the average scores best, with repetition; the
    best average on the way counts, the shortest one if several are level, and the first of equal members is taken, so
    that simpler members stand first.

    Shapes: answers [n, C] each, truth [n].

    >>> truth = torch.tensor([0, 1, 1] * 9)
    >>> right, wrong = torch.eye(2)[truth], torch.eye(2)[1 - truth]
    >>> chosen_weights([wrong, right], truth, Judge("classes", "accuracy"))
    [0.0, 1.0]
    """
    scores = [judge.rank(each, truth) for each in answers]
    top = max(range(len(scores)), key=lambda index: (scores[index], -index))
    error = judge.error(answers[top], truth)
    counts = [int(score >= scores[top] - error) for score in scores]
    total = torch.stack([each for each, count in zip(answers, counts, strict=True) if count]).sum(0)
    best_counts, best = list(counts), judge.rank(total / sum(counts), truth)
    for _ in range(picks):
        size = sum(counts) + 1
        scores = [judge.rank((total + each) / size, truth) for each in answers]
        pick = max(range(len(scores)), key=lambda index: (scores[index], -index))
        total, counts[pick] = total + answers[pick], counts[pick] + 1
        if scores[pick] > best:
            best, best_counts = scores[pick], list(counts)
    return [count / sum(best_counts) for count in best_counts]

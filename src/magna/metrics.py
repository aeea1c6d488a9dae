"""Metrics, and what can be said about several of them, as pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


def accuracy(scores: Tensor, target: Tensor) -> float:
    """The share of rows whose largest score is at the target; a row with NaN is wrong.

    Shapes: scores [B, classes], target [B] → float, NaN for an empty batch.

    >>> import torch
    >>> accuracy(torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0]]), torch.tensor([0, 1, 1]))
    0.6666666666666666
    """
    return float(correct(scores, target).double().mean())


def correct(scores: Tensor, target: Tensor) -> Tensor:
    """bool [B]: the rows whose largest score is at the target; a row with NaN is wrong."""
    return (scores.argmax(-1) == target) & ~scores.isnan().any(-1)


class Spread(NamedTuple):
    """Mean and standard deviation (n − 1) of some values; the deviation of a single value is 0."""

    mean: float
    std: float
    size: int

    @property
    def standard_error(self) -> float:
        return self.std / math.sqrt(self.size)


def spread(values: Sequence[float]) -> Spread:
    """Mean, deviation and number of the values.

    >>> spread([1.0, 2.0, 3.0])
    Spread(mean=2.0, std=1.0, size=3)
    """
    if not values:
        raise ValueError("there are no values; allowed: one or more")
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(statistics.fmean(values), std, len(values))


def difference(ours: Spread, theirs: Spread) -> tuple[float, float]:
    """The difference of two means of independent runs, and its standard error (Welch).

    >>> difference(Spread(5.0, 3.0, 9), Spread(3.0, 0.0, 1))
    (2.0, 1.0)
    """
    return ours.mean - theirs.mean, math.hypot(ours.standard_error, theirs.standard_error)


class Paired(NamedTuple):
    """Ours minus theirs, pair by pair, and two-sided p values of its being chance."""

    difference: Spread
    t_test: float
    wilcoxon: float


def paired_test(ours: Sequence[float], theirs: Sequence[float]) -> Paired:
    """Student's paired t-test and Wilcoxon's signed-rank test; pairs that are all equal tell nothing: p = 1.

    >>> result = paired_test([0.82, 0.85, 0.81], [0.80, 0.84, 0.81])
    >>> round(result.difference.mean, 3), round(result.t_test, 2)
    (0.01, 0.23)
    """
    from scipy import stats

    if len(ours) != len(theirs) or len(ours) < 2:
        raise ValueError(f"there are {len(ours)} and {len(theirs)} values; allowed: as many of both, two or more")
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    if not any(differences):
        return Paired(spread(differences), 1.0, 1.0)
    # Equal differences leave the t-test nothing to divide by: they are no chance.
    t_test = float(stats.ttest_rel(ours, theirs).pvalue) if len(set(differences)) > 1 else 0.0
    return Paired(spread(differences), t_test, float(stats.wilcoxon(differences).pvalue))

"""Metrics of nodes, by target: classes, several labels, or a number.

Every function takes the scores of a model and the target of the same nodes, and returns a float64 tensor without
dimensions. Nothing here waits for the device, and everything works under `torch.vmap`: a batch of trials measures all
of them at once. A metric that the nodes do not define, as ROC AUC of one class alone, is NaN.

Shapes: classes: scores [n, C], target [n]; labels: scores [n, L], target [n, L] of 0, 1 and NaN (unknown); number:
scores [n] or [n, 1], target [n].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from magna.data.node_data import Target
from magna.tasks.metrics import correct

Measure = Callable[[Tensor, Tensor], Tensor]


class Counts(NamedTuple):
    """Nodes by class, or by label: predicted rightly, in truth, and predicted. float64 [C]."""

    hits: Tensor
    support: Tensor
    predicted: Tensor

    @property
    def precision(self) -> Tensor:
        """NaN for a class that is never predicted."""
        return self.hits / self.predicted

    @property
    def recall(self) -> Tensor:
        """NaN for a class without nodes."""
        return self.hits / self.support

    @property
    def f1(self) -> Tensor:
        """NaN for a class without nodes that is never predicted."""
        return 2 * self.hits / (self.support + self.predicted)


def class_counts(scores: Tensor, target: Tensor) -> Counts:
    """Counts of each class; a row with NaN predicts none.

    >>> class_counts(torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0]]), torch.tensor([0, 1, 1])).hits.tolist()
    [1.0, 1.0]
    """
    numbers = torch.arange(scores.size(-1), device=scores.device)
    truth = target[:, None] == numbers
    chosen = (scores.argmax(-1)[:, None] == numbers) & ~scores.isnan().any(-1, keepdim=True)
    return Counts(*(part.double().sum(0) for part in (truth & chosen, truth, chosen)))


def label_counts(scores: Tensor, target: Tensor) -> Counts:
    """Counts of the nodes that have each label, of those where it is known; a score above 0 predicts it."""
    truth, chosen = target == 1, (scores > 0) & ~target.isnan()
    return Counts(*(part.double().sum(0) for part in (truth & chosen, truth, chosen)))


def _accuracy(scores: Tensor, target: Tensor) -> Tensor:
    return correct(scores, target).double().mean()


def _label_accuracy(scores: Tensor, target: Tensor) -> Tensor:
    right = ((scores > 0) == (target == 1)) & ~scores.isnan() & ~target.isnan()
    return right.double().sum() / (~target.isnan()).double().sum()


def _balanced_accuracy(scores: Tensor, target: Tensor) -> Tensor:
    return _mean(class_counts(scores, target).recall)


def _label_balanced_accuracy(scores: Tensor, target: Tensor) -> Tensor:
    counts, negatives = label_counts(scores, target), (target == 0).double().sum(0)
    rightly_absent = negatives - (counts.predicted - counts.hits)
    return _mean(_mean(torch.stack([counts.recall, rightly_absent / negatives])))


def _macro_f1(scores: Tensor, target: Tensor) -> Tensor:
    return _mean(class_counts(scores, target).f1)


def _label_macro_f1(scores: Tensor, target: Tensor) -> Tensor:
    return _mean(label_counts(scores, target).f1)


def _log_loss(scores: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores.double(), target)


def _label_log_loss(scores: Tensor, target: Tensor) -> Tensor:
    known = ~target.isnan()
    losses = F.binary_cross_entropy_with_logits(scores.double(), target.nan_to_num().double(), reduction="none")
    return torch.where(known, losses, 0.0).sum() / known.double().sum()


def _r2(values: Tensor, target: Tensor) -> Tensor:
    values, target = values.reshape(target.shape).double(), target.double()
    error, spread = (target - values).square().sum(), (target - target.mean()).square().sum()
    # Of equal targets none of the spread can be explained: 1 for a perfect fit, else 0.
    return torch.where(spread > 0, 1 - error / spread, (error == 0).double())


def _mae(values: Tensor, target: Tensor) -> Tensor:
    return (values.reshape(target.shape).double() - target.double()).abs().mean()


def _as_labels(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Classes as labels, one against the rest: of two classes the second one alone."""
    scores = scores.double()
    if scores.size(-1) == 2:
        return (scores[:, 1] - scores[:, 0])[:, None], (target == 1).double()[:, None]
    numbers = torch.arange(scores.size(-1), device=scores.device)
    return scores.log_softmax(-1), (target[:, None] == numbers).double()


class _Ranking(NamedTuple):
    """Known entries of each label, sorted by score, best first. Entries [n, L] are float64."""

    positive: Tensor  # 1 for an entry that has the label
    above: tuple[Tensor, Tensor]  # entries with and without the label whose score is higher
    to_here: tuple[Tensor, Tensor]  # the same with those whose score is equal
    total: tuple[Tensor, Tensor]  # [L]

    @staticmethod
    def of(scores: Tensor, target: Tensor) -> _Ranking:
        ordered, order = scores.sort(dim=0, descending=True)
        entries = [(target == label).double().gather(0, order) for label in (1, 0)]
        place = torch.arange(len(ordered), device=scores.device)[:, None].expand(ordered.shape)
        step = ordered[1:] != ordered[:-1]
        edge = torch.ones_like(ordered[:1], dtype=torch.bool)
        first = torch.where(torch.cat([edge, step]), place, 0).cummax(0).values
        last = torch.where(torch.cat([step, edge]), place, len(ordered) - 1).flip(0).cummin(0).values.flip(0)
        sums = [each.cumsum(0) for each in entries]
        above = tuple((s - each).gather(0, first) for s, each in zip(sums, entries, strict=True))
        to_here = tuple(s.gather(0, last) for s in sums)
        return _Ranking(entries[0], above, to_here, tuple(each.sum(0) for each in entries))  # type: ignore[arg-type]


def label_roc_auc(scores: Tensor, target: Tensor) -> Tensor:
    """Area under the ROC curve of each label, [L]: the share of pairs in order, ties count half.

    NaN for a label that all known entries have, or none; 0 for one with a score of NaN.
    """
    ranking = _Ranking.of(scores, target)
    positive, negative = ranking.total
    higher = (ranking.above[1] + ranking.to_here[1]) / 2
    area = (ranking.positive * (negative - higher)).sum(0) / (positive * negative)
    return _no_nan_scores(scores, target, area)


def label_average_precision(scores: Tensor, target: Tensor) -> Tensor:
    """Average precision of each label, [L]: the precision at the score of each entry that has it, averaged.

    NaN for a label that no known entry has; 0 for one with a score of NaN.
    """
    ranking = _Ranking.of(scores, target)
    positive, negative = ranking.to_here
    precision = positive / (positive + negative).clamp(min=1)
    return _no_nan_scores(scores, target, (ranking.positive * precision).sum(0) / ranking.total[0])


def _no_nan_scores(scores: Tensor, target: Tensor, values: Tensor) -> Tensor:
    is_nan = (scores.isnan() & ~target.isnan()).any(0)
    return torch.where(is_nan & ~values.isnan(), 0.0, values)


def _roc_auc(scores: Tensor, target: Tensor) -> Tensor:
    return _mean(label_roc_auc(*_as_labels(scores, target)))


def _label_roc_auc(scores: Tensor, target: Tensor) -> Tensor:
    return _mean(label_roc_auc(scores.double(), target))


def _average_precision(scores: Tensor, target: Tensor) -> Tensor:
    return _mean(label_average_precision(*_as_labels(scores, target)))


def _label_average_precision(scores: Tensor, target: Tensor) -> Tensor:
    return _mean(label_average_precision(scores.double(), target))


def _mean(values: Tensor) -> Tensor:
    """Mean over the first dimension of what is not NaN."""
    defined = ~values.isnan()
    return values.nan_to_num().sum(0) / defined.double().sum(0)


NODE_METRICS: Mapping[Target, Mapping[str, Measure]] = {
    "classes": {
        "accuracy": _accuracy,
        "balanced_accuracy": _balanced_accuracy,
        "macro_f1": _macro_f1,
        "roc_auc": _roc_auc,
        "average_precision": _average_precision,
        "log_loss": _log_loss,
    },
    "labels": {
        "roc_auc": _label_roc_auc,
        "average_precision": _label_average_precision,
        "accuracy": _label_accuracy,
        "balanced_accuracy": _label_balanced_accuracy,
        "macro_f1": _label_macro_f1,
        "log_loss": _label_log_loss,
    },
    "number": {"r2": _r2, "mae": _mae},
}


def default_metric(target: Target) -> str:
    """The metric that models are judged by where no other is named: the first of the target's.

    >>> default_metric("classes"), default_metric("labels"), default_metric("number")
    ('accuracy', 'roc_auc', 'r2')
    """
    return next(iter(NODE_METRICS[target]))

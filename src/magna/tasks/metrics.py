"""Metrics, and statistics of several of them, as pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from magna.errors import ArgumentError, MissingExtra
from magna.typing import one_of

if TYPE_CHECKING:
    from torch import Tensor

TieRule = Literal["realistic", "optimistic", "pessimistic"]
RANK_METRICS = ("mrr", "mr", "hits@1", "hits@3", "hits@10")
_TIE_DIGITS = 9
Number = TypeVar("Number", float, "Tensor")


def correct(scores: Tensor, target: Tensor) -> Tensor:
    """Bool [B]: the rows whose largest score is at the target; a row with NaN is wrong.

    >>> import torch
    >>> correct(torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0]]), torch.tensor([0, 1, 1])).tolist()
    [True, True, False]
    """
    return (scores.argmax(-1) == target) & ~scores.isnan().any(-1)


class MetricForm(NamedTuple):
    """A metric in sentences and tables, and its direction."""

    words: str
    unit: str
    scale: int
    digits: int
    larger_is_better: bool = True
    worst: float = 0.0  # value of a training that diverged

    def number(self, value: float) -> str:
        return f"{self.scale * value:.{self.digits}f}"

    def text(self, value: float, std: float | None = None) -> str:
        """The value with its unit.

        >>> METRIC_FORMS["accuracy"].text(0.815, 0.01), METRIC_FORMS["mrr"].text(0.3456)
        ('81.5 ± 1.0 %', 'MRR 0.346')
        """
        number = " ± ".join(self.number(each) for each in (value, std) if each is not None)
        return f"{number} %" if self.unit == "%" else f"{self.unit} {number}"

    def score(self, value: Number) -> Number:
        """The value as selection compares it, larger is better."""
        return value if self.larger_is_better else -value


METRIC_FORMS = {
    "accuracy": MetricForm("accuracy", "%", 100, 1),
    "balanced_accuracy": MetricForm("balanced accuracy", "balanced accuracy", 1, 3),
    "macro_f1": MetricForm("macro F1", "macro F1", 1, 3),
    "roc_auc": MetricForm("ROC AUC", "ROC AUC", 1, 3),
    "average_precision": MetricForm("average precision", "average precision", 1, 3),
    "log_loss": MetricForm("log-loss", "log-loss", 1, 4, larger_is_better=False, worst=math.inf),
    "r2": MetricForm("R²", "R²", 1, 3, worst=-math.inf),
    "mae": MetricForm("mean absolute error", "MAE", 1, 4, larger_is_better=False, worst=math.inf),
    "mrr": MetricForm("MRR", "MRR", 1, 3),
}


def headline(metrics: Mapping[str, float], std: Mapping[str, float] | None = None) -> str:
    """The metric that a task is judged by, the first one of its metrics, with its deviation.

    >>> headline({"accuracy": 0.815, "loss": 0.7}, {"accuracy": 0.01}), headline({"mr": 12.0, "mrr": 0.3456})
    ('81.5 ± 1.0 %', 'MRR 0.346')
    """
    name = next(name for name in metrics if name in METRIC_FORMS)
    return METRIC_FORMS[name].text(metrics[name], None if std is None else std[name])


@dataclass(frozen=True, eq=False)
class Ranks:
    """Ranks of true answers, from the two counts of `magna.ops.rank_targets`, and their metrics.

    >>> import torch
    >>> ranks = Ranks(better=torch.tensor([0, 4]), equal=torch.tensor([2, 0]))
    >>> ranks.ranks("realistic").tolist(), ranks.ranks("optimistic").tolist(), ranks.ranks("pessimistic").tolist()
    ([2.0, 5.0], [1.0, 5.0], [3.0, 5.0])
    >>> ranks.metrics()
    {'mrr': 0.35, 'mr': 3.5, 'hits@1': 0.0, 'hits@3': 0.5, 'hits@10': 1.0}
    """

    better: Tensor  # [T], numbers of other entities that score higher
    equal: Tensor  # [T], numbers of other entities that score the same

    def __len__(self) -> int:
        return len(self.better)

    def ranks(self, tie: TieRule = "realistic") -> Tensor:
        """float64 [T], 1 is best: below no tied entity (optimistic), all (pessimistic), or half of them (realistic)."""
        one_of("tie", tie, TieRule)
        below = {"optimistic": 0.0, "realistic": 0.5, "pessimistic": 1.0}[tie]
        return 1 + self.better.double() + below * self.equal.double()

    def metrics(self, tie: TieRule = "realistic") -> dict[str, float]:
        """Mean reciprocal rank, mean rank, and the shares of ranks up to 1, 3 and 10; NaN without ranks."""
        ranks = self.ranks(tie)
        means = [ranks.reciprocal().mean(), ranks.mean(), *((ranks <= k).double().mean() for k in (1, 3, 10))]
        return dict(zip(RANK_METRICS, (float(mean) for mean in means), strict=True))

    def select(self, rows: Any) -> Ranks:
        """The ranks at some rows: a slice, a mask or positions."""
        return Ranks(self.better[rows], self.equal[rows])

    def by(self, groups: Tensor) -> dict[int, Ranks]:
        """The ranks of each group, such as a relation, in increasing order.

        Shapes: groups int64 [T].
        """
        return {group: self.select(groups == group) for group in sorted(set(groups.tolist()))}


class Spread(NamedTuple):
    """Mean and standard deviation (n − 1) of some values; the deviation of a single value is 0."""

    mean: float
    std: float
    size: int

    @property
    def standard_error(self) -> float:
        return self.std / math.sqrt(self.size)


def spread(values: Sequence[float]) -> Spread:
    """Mean, standard deviation and number of the values.

    >>> spread([1.0, 2.0, 3.0])
    Spread(mean=2.0, std=1.0, size=3)
    """
    if not values:
        raise ArgumentError("values", list(values), "one or more")
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(statistics.fmean(values), std, len(values))


def difference(ours: Spread, theirs: Spread) -> tuple[float, float]:
    """The difference of two means of independent runs, and its standard error (Welch).

    >>> difference(Spread(5.0, 3.0, 9), Spread(3.0, 0.0, 1))
    (2.0, 1.0)
    """
    return ours.mean - theirs.mean, math.hypot(ours.standard_error, theirs.standard_error)


class Paired(NamedTuple):
    """Ours minus theirs, pair by pair, and two-sided p values."""

    difference: Spread
    t_test: float
    wilcoxon: float


def import_stats() -> Any:
    """SciPy's statistics, or the refusal that names its extra."""
    try:
        from scipy import stats
    except ModuleNotFoundError:
        raise MissingExtra("a paired test", "scipy", "paper") from None
    return stats


def paired_test(ours: Sequence[float], theirs: Sequence[float]) -> Paired:
    """Student's paired t-test and Wilcoxon's signed-rank test; p = 1 if all pairs are equal.

    >>> result = paired_test([0.82, 0.85, 0.81], [0.80, 0.84, 0.81])
    >>> round(result.difference.mean, 3), round(result.t_test, 2)
    (0.01, 0.23)
    """
    stats = import_stats()
    if len(ours) != len(theirs) or len(ours) < 2:
        raise ArgumentError("theirs", list(theirs), f"as many values as ours, {len(ours)}, and two or more")
    # Differences of accuracies are often equal; rounding keeps such ties from differing in their last bits.
    differences = [round(a - b, _TIE_DIGITS) for a, b in zip(ours, theirs, strict=True)]
    if not any(differences):
        return Paired(spread(differences), 1.0, 1.0)
    # Equal differences have no variance to divide by.
    t_test = float(stats.ttest_rel(ours, theirs).pvalue) if len(set(differences)) > 1 else 0.0
    return Paired(spread(differences), t_test, float(stats.wilcoxon(differences).pvalue))


def holm(p_values: Sequence[float]) -> list[float]:
    """P values of a family of tests, adjusted by Holm's step-down rule, in the order that they came in.

    A test is significant at a level if its adjusted value is at most that level; then the chance of one false finding
    among all tests of the family is at most the level.

    >>> holm([0.04, 0.01, 0.3])
    [0.08, 0.03, 0.3]
    """
    for value in p_values:
        if not 0 <= value <= 1:
            raise ArgumentError("p_values", value, "0 to 1")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted

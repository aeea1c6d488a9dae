"""`Judge`: scores of answers on nodes that trained no weight, for every target and metric, with a standard error."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import stdev

import torch
from torch import Tensor

from magna.data.node_data import Target
from magna.tasks.metrics import METRIC_FORMS
from magna.tasks.node_metrics import NODE_METRICS
from magna.tasks.node_report import node_metrics

_LOSS, _LARGEST_LOSS = 1e-3, 10.0  # weight of the log-loss, which decides between equal scores
_LEAST = 1e-12  # probability
_RESAMPLES = 40  # of the nodes, for the standard error of a metric that is no mean


class Judge:
    """Compares answers: probabilities of classes or labels, or values of a number.

    >>> judge = Judge("classes", "accuracy")
    >>> judge.value(torch.eye(2), torch.tensor([0, 1])), judge.error(torch.eye(2), torch.tensor([0, 1]))
    (1.0, 0.0)
    """

    def __init__(self, kind: Target, metric: str) -> None:
        self.kind, self.metric, self.form = kind, metric, METRIC_FORMS[metric]
        self._measure: Callable[[Tensor, Tensor], Tensor] = NODE_METRICS[kind][metric]

    def scores(self, answers: Tensor) -> Tensor:
        """Scores whose probabilities the answers are."""
        if self.kind == "number":
            return answers
        logs = answers.double().clamp(min=_LEAST).log()
        return logs if self.kind == "classes" else logs - (1 - answers.double()).clamp(min=_LEAST).log()

    def value(self, answers: Tensor, truth: Tensor) -> float:
        """The metric."""
        return float(self._measure(self.scores(answers), truth))

    def rank(self, answers: Tensor, truth: Tensor) -> float:
        """The metric, larger is better, less a small share of the log-loss of classes."""
        value = self.form.score(self.value(answers, truth))
        if self.kind != "classes" or math.isnan(value):
            return -math.inf if math.isnan(value) else value
        loss = -float(answers[torch.arange(truth.numel()), truth].double().clamp(min=_LEAST).log().mean())
        return value - _LOSS * min(loss, _LARGEST_LOSS)

    def error(self, answers: Tensor, truth: Tensor) -> float:
        """The standard error of the metric over nodes: of accuracy by its formula, else by drawing the nodes anew."""
        size = len(truth)
        if self.metric == "accuracy" and self.kind == "classes":
            value = self.value(answers, truth)
            return math.sqrt(value * (1 - value) / max(1, size))
        draw = torch.Generator().manual_seed(0)
        drawn = (torch.randint(size, (size,), generator=draw) for _ in range(_RESAMPLES))
        values = [value for rows in drawn if not math.isnan(value := self.value(answers[rows], truth[rows]))]
        return stdev(values) if len(values) > 1 else 0.0

    def metrics(self, answers: Tensor, truth: Tensor) -> dict[str, float]:
        """Every metric of the target, the chosen one first."""
        every = node_metrics(self.scores(answers), truth, self.kind, None)
        return {self.metric: every[self.metric]} | every if self.metric in every else every

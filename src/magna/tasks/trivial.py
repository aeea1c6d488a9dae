"""Trivial predictors, which cost nothing: the majority class and the features alone of nodes, rules of links.

A model is worth its graph where it is better than these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from magna.data import KnowledgeGraph
from magna.ops import rank_scores
from magna.tasks.base import Task
from magna.tasks.links import LinkPrediction
from magna.tasks.metrics import METRIC_FORMS, Ranks
from magna.tasks.nodes import NodeClassification

# Penalties of the linear model, chosen on validation, and the most numbers of its features.
_PENALTIES = (1e-1, 1e-2, 1e-3)
_MOST_NUMBERS = 20_000_000
_STEPS = 50


def trivial_scores(task: NodeClassification) -> dict[str, Tensor]:
    """Scores of all nodes by their class's share in training ("majority"), and by a linear model of the features.

    A number has the mean of training ("mean") in place of the majority.
    """
    y, train = task.target.encoded(task.data.y), task.data.train
    constant = torch.zeros(1, task.num_classes)
    if task.target.name == "classes":
        constant[0] = (torch.bincount(y[train], minlength=task.num_classes) / len(train)).clamp(min=1e-9).log()
    elif task.target.name == "labels":
        constant[0] = torch.nanmean(y[train], 0).nan_to_num(0.5).clamp(1e-6, 1 - 1e-6).logit()
    first = "mean" if task.target.name == "number" else "majority"
    return {first: constant.expand(task.num_nodes, -1), "features": _linear_scores(task, y)}


def _linear_scores(task: NodeClassification, y: Tensor) -> Tensor:
    """Scores of a linear model on standardised features, with the task's loss and an L2 penalty."""
    x, train, valid = task.data.x, task.data.train, task.data.valid
    assert x is not None
    rows = max(1, _MOST_NUMBERS // max(1, x.size(1)))
    if len(train) > rows:
        train = train[torch.linspace(0, len(train) - 1, rows).long()]
    mean, deviation = x[train].mean(0), x[train].std(0, correction=0)
    scale = torch.where(deviation > 0, 1 / deviation, 0.0)
    inputs, best, chosen = (x[train] - mean) * scale, -torch.inf, torch.zeros(task.num_nodes, task.num_classes)
    for penalty in _PENALTIES:
        weight, bias = _fitted(lambda scores: task.target.loss(scores, y[train]), inputs, task.num_classes, penalty)
        scores = x @ (scale[:, None] * weight) + (bias - (mean * scale) @ weight)
        metrics = task.measure(scores.to(task.device), task.nodes("valid")) if len(valid) else None
        value = 0.0 if metrics is None else task.score({n: float(v) for n, v in metrics.items()})[0]
        if value > best:
            best, chosen = value, scores
    return chosen


def _fitted(loss: Callable[[Tensor], Tensor], inputs: Tensor, outputs: int, penalty: float) -> tuple[Tensor, Tensor]:
    weight = torch.zeros(inputs.size(1), outputs, requires_grad=True)
    bias = torch.zeros(outputs, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimiser.zero_grad()
        with torch.enable_grad():
            value = loss(inputs @ weight + bias) + penalty / 2 * weight.square().sum()
            value.backward()
        return float(value.detach())

    optimiser.step(closure)
    return weight.detach(), bias.detach()


def trivial_ranks(graph: KnowledgeGraph, split: str) -> dict[str, Ranks]:
    """Filtered ranks of a split by two rules that read the training triples alone.

    "frequency": an entity scores by how often it answers the relation. "reverse": it scores by the best rule
    (h, r', t) → (h, r, t), of r' the inverse of r or another relation or its inverse; frequency decides between ties.
    """
    ranking, rules = graph.ranking(split), _Rules(graph)
    head, relation = ranking.queries.unbind(1)

    def ranks(weight: float) -> Ranks:
        def score(rows: Tensor) -> Tensor:
            return torch.stack(
                [rules.scores(int(h), int(r), weight) for h, r in zip(head[rows], relation[rows], strict=True)]
            )

        return Ranks(*rank_scores(score, len(head), graph.num_entities, ranking.query, ranking.target, ranking.known))

    return {"frequency": ranks(0.0), "reverse": ranks(1.0)}


class _Rules:
    """Confidence of each relation given another one between the same entities, and the answers of each relation."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        queries, answers, size = graph.queries.cpu(), graph.answers, graph.num_entities
        query = torch.repeat_interleave(torch.arange(len(queries)), answers.counts.cpu())
        head, relation = queries[query].unbind(1)
        tail = answers.index.cpu()
        kinds = int(relation.max()) + 1
        pair, place = torch.unique(head * size + tail, return_inverse=True)
        together = torch.zeros(kinds, kinds)
        for kind in range(kinds):
            has_kind = torch.zeros(len(pair), dtype=torch.bool).index_fill_(0, place[relation == kind], True)
            together[kind] = torch.bincount(relation[has_kind[place]], minlength=kinds)
        self._confidence = together / together.diagonal().clamp(min=1)[:, None]  # of the column, given the row
        self._confidence.fill_diagonal_(0)
        order = torch.argsort(head, stable=True)
        self._relation, self._tail = relation[order], tail[order]
        self._ptr = torch.cat([torch.zeros(1).long(), torch.bincount(head, minlength=size).cumsum(0)]).tolist()
        self._frequency = torch.zeros(kinds, size).index_put_((relation, tail), torch.ones(len(tail)), accumulate=True)
        self._frequency /= self._frequency.amax(1, keepdim=True).clamp(min=1)

    def scores(self, head: int, relation: int, weight: float) -> Tensor:
        """Scores [N] of all entities; `weight` is 0 for the frequency alone."""
        near = slice(self._ptr[head], self._ptr[head + 1])
        confidence = weight * self._confidence[self._relation[near], relation]
        # The frequency is below the smallest difference of two confidences that matters.
        return (1e-4 * self._frequency[relation]).scatter_reduce(
            0, self._tail[near], confidence + 1e-4 * self._frequency[relation, self._tail[near]], "amax"
        )


def trivial_metrics(task: Task, split: str) -> dict[str, dict[str, float]]:
    """Metrics of the trivial predictors on a split."""
    if isinstance(task, NodeClassification):
        scores = trivial_scores(task)
        return {name: task.metrics_of(each.to(task.device), split) for name, each in scores.items()}
    if isinstance(task, LinkPrediction):
        return {
            name: ranks.metrics() for name, ranks in trivial_ranks(task.graph.to(torch.device("cpu")), split).items()
        }
    return {}


def gain_note(metric: str, value: float, trivial: Mapping[str, Mapping[str, float]]) -> str | None:
    """A line for a model that is no better than a trivial predictor."""
    form = METRIC_FORMS[metric]
    scored = {name: metrics[metric] for name, metrics in trivial.items() if metric in metrics}
    if not scored:
        return None
    best = max(scored, key=lambda name: form.score(scored[name]))
    if form.score(value) > form.score(scored[best]):
        return None
    return f"no gain over {TRIVIAL_WORDS[best]}: {form.text(scored[best])}, the model {form.text(value)}"


def gain_on_validation(task: Task, metrics: Mapping[str, float]) -> list[str]:
    """A line for validation metrics that are no better than a trivial predictor's, or none."""
    note = gain_note(task.metric, metrics[task.metric], trivial_metrics(task, "valid"))
    return [] if note is None else [f"validation: {note}"]


TRIVIAL_WORDS = {
    "majority": "the majority class",
    "mean": "the mean of training",
    "features": "the features alone",
    "frequency": "the most frequent answers",
    "reverse": "the reverse triples alone",
}

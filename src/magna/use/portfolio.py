"""Portfolios in the place of one model: the weighted mean of the probabilities of their members."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from magna.data.node_data import Target
from magna.nn.link_model import LinkModel


class FixedScores(nn.Module):
    """Scores [N, C] that are known already, called as a model is.

    >>> FixedScores(torch.eye(2))("features", "edges").tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.scores = scores

    def forward(self, *_: Any, **__: Any) -> Tensor:
        return self.scores


def averaged_log(members: Iterable[tuple[Tensor, float]], target: Target = "classes") -> Tensor:
    r"""Logarithm of the weighted mean of probabilities, :math:`\log \sum_m w_m \, \mathrm{softmax}(s_m)`.

    For labels the scores whose sigmoid is the mean of the members'; for numbers their mean.

    Shapes: scores [N, C] with a weight, of each member → [N, C], in float64.

    >>> averaged_log([(torch.zeros(1, 2), 0.5), (torch.tensor([[0.0, 99.0]]), 0.5)]).exp().tolist()
    [[0.25, 0.75]]
    """
    parts = [(scores.double(), weight) for scores, weight in members if weight > 0]
    if target == "number":
        return torch.stack([weight * values for values, weight in parts]).sum(0)
    if target == "labels":
        yes, no = (
            torch.stack([logsigmoid(sign * scores) + math.log(weight) for scores, weight in parts]).logsumexp(0)
            for sign in (1, -1)
        )
        return yes - no
    return torch.stack([scores.log_softmax(-1) + math.log(weight) for scores, weight in parts]).logsumexp(0)


class LinkPortfolio(LinkModel):
    r"""Link models whose probabilities of the entities are averaged, query by query.

    .. math:: s(q) = \log \sum_m w_m \, \mathrm{softmax}(s_m(q) / T_m)

    over all entities, T_m the temperature of member m. States are those of the members side by side.

    Args:
        members: the models, with their weights and temperatures.
    """

    def __init__(self, members: Sequence[tuple[LinkModel, float, float]]) -> None:
        super().__init__()
        models, self._weights, self._temperatures = zip(*members, strict=True)
        self.members = nn.ModuleList(models)
        self.num_entities, self.num_relations = models[0].num_entities, models[0].num_relations
        self.num_layers = max(model.num_layers for model in models)
        self._widths: list[int] = []

    def encode(self, *edges: Any, **options: Any) -> Tensor:
        states = [member.encode(*edges, **options) for member in self._models()]
        self._widths = [part.size(1) for part in states]
        return torch.cat(states, 1)

    def scores(self, states: Tensor, head: Tensor, relation: Tensor, tail: Tensor | None = None) -> Tensor:
        """Scores [B, N] of queries with all entities, or [B, n] with the entities `tail` [B, n]."""
        parts = zip(self._models(), states.split(self._widths, 1), self._temperatures, strict=True)
        each = [model.scores(part, head, relation) / temperature for model, part, temperature in parts]
        scores = averaged_log(zip(each, self._weights, strict=True))
        return scores if tail is None else scores.gather(1, tail)

    def _models(self) -> list[LinkModel]:
        return list(self.members)  # type: ignore[arg-type]

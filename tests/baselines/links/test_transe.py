"""TransE computes its formula, trains with either loss, and is ranked in blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.links import ENTITIES, RELATIONS, link_settings, link_task, trained_losses
from torch.nn.functional import logsigmoid

from magna.baselines.links.transe import TransE


def _model(**options: Any) -> TransE:
    torch.manual_seed(0)
    return TransE(ENTITIES, RELATIONS, **{"channels": 8} | options)


@pytest.mark.parametrize("distance", [1, 2])
def test_scores_are_the_formula(distance: int) -> None:
    model = _model(distance=distance)
    entity, relation = model.entity_table, model.relation_table
    head, kind = torch.tensor([3, 5, 5]), torch.tensor([0, 1, 1 + RELATIONS])
    moved = torch.stack([entity[3] + relation[0], entity[5] + relation[1], entity[5] - relation[1]])
    expected = -(moved[:, None] - entity).abs().pow(distance).sum(2).pow(1 / distance)
    torch.testing.assert_close(model.scores(model.encode(), head, kind), expected)
    tail = torch.tensor([[1, 2], [3, 3], [9, 0]])
    torch.testing.assert_close(model.scores(model.encode(), head, kind, tail), expected.gather(1, tail))
    # One score from both ends: (5, 1, 7) and (7, inverse of 1, 5).
    ends, inverse = torch.tensor([7]), torch.tensor([1 + RELATIONS])
    torch.testing.assert_close(model.scores(model.encode(), ends, inverse)[0, 5], expected[1, 7])


def test_the_sampled_loss_is_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = link_task(), _model(negatives=6, margin=2.0, adversarial=0.5)
    objective = task.objective(link_settings(label_smoothing=0.0, query_weight="uniform"), model)
    batch, drawn = objective.batches()[-1], torch.randint(ENTITIES, (16, 6))
    monkeypatch.setattr(torch, "randint", lambda *_, **__: drawn)
    monkeypatch.setattr(torch, "rand_like", torch.zeros_like)  # the first answer of each query
    scores, (ptr, index) = model.scores(model.encode(), *task.graph.queries.unbind(1)), task.graph.answers
    losses = []
    for row, query in enumerate(batch[batch >= 0].tolist()):
        answer, *others = index[ptr[query] : ptr[query + 1]].tolist()
        wrong = [e for e in drawn[row].tolist() if e not in (answer, *others)]
        share = (0.5 * (scores[query, wrong] + 2)).softmax(0).detach()
        negative = -(share * logsigmoid(-2 - scores[query, wrong])).sum()
        losses.append((negative - logsigmoid(2 + scores[query, answer])) / 2)
    torch.testing.assert_close(objective.loss(model, batch), torch.stack(losses).mean())


@pytest.mark.parametrize("options", [{}, {"negatives": 8, "adversarial": 1.0}])
def test_it_trains(options: dict[str, Any]) -> None:
    losses = trained_losses(_model(**options))
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    ("options", "settings", "text"),
    [
        ({"adversarial": 1.0}, {}, "adversarial is 1.0; allowed: only with negatives above 0"),
        ({"negatives": 2}, {"label_smoothing": 0.1}, "label_smoothing is 0.1; allowed: 0 with model.negatives"),
        ({}, {"n3": 0.1}, "n3 is 0.1; allowed: 0 with a model without this part"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(
    options: dict[str, Any], settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        link_task().objective(link_settings(**settings), _model(**options))

"""RotH computes the distances of the Poincaré ball, at its edges too, and trains with either loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.links import ENTITIES, RELATIONS, link_settings, link_task, trained_losses
from torch import Tensor

from magna.baselines.links.roth import RotH, mobius_add


def _model(**options: Any) -> RotH:
    torch.manual_seed(0)
    model = RotH(ENTITIES, RELATIONS, **{"channels": 6, "embedding_std": 0.7} | options).double()
    with torch.no_grad():
        for table in (model.curvature, model.head_bias, model.tail_bias):
            table.normal_()
    return model


def _point(x: Tensor, c: Tensor) -> Tensor:
    """exp_0^c(x)."""
    length: Tensor = c.sqrt() * x.norm()
    return x * (length.tanh() / length)


def _sum(x: Tensor, y: Tensor, c: Tensor) -> Tensor:
    """Möbius addition of two points."""
    xy, xx, yy = x @ y, x @ x, y @ y
    return ((1 + 2 * c * xy + c * yy) * x + (1 - c * xx) * y) / (1 + 2 * c * xy + c**2 * xx * yy)


def _expected(model: RotH, head: int, relation: int, tail: int) -> Tensor:
    c = torch.log(1 + model.curvature[relation, 0].exp())
    h, t = (_point(model.entity_table[node], c) for node in (head, tail))
    turn = model.angle[relation]
    matrix = torch.cat(
        [torch.cat([turn.cos().diag(), -turn.sin().diag()], 1), torch.cat([turn.sin().diag(), turn.cos().diag()], 1)]
    )
    query = _sum(matrix @ h, _point(model.translation[relation], c), c)
    distance = 2 / c.sqrt() * torch.atanh(c.sqrt() * _sum(-query, t, c).norm())
    squared: Tensor = distance.square()
    return model.head_bias[head, 0] + model.tail_bias[tail, 0] - squared


def test_scores_are_the_formula() -> None:
    model = _model()
    head, relation = torch.tensor([3, 5, 5]), torch.tensor([0, 1, 1 + RELATIONS])
    pairs = list(zip(head.tolist(), relation.tolist(), strict=True))
    expected = torch.stack([torch.stack([_expected(model, h, r, t) for t in range(ENTITIES)]) for h, r in pairs])
    scores = model.scores(model.encode(), head, relation)
    torch.testing.assert_close(scores, expected)
    tail = torch.tensor([[1, 2], [3, 3], [9, 0]])
    torch.testing.assert_close(model.scores(model.encode(), head, relation, tail), expected.gather(1, tail))


def test_laws_of_the_ball() -> None:
    x, c = torch.randn(4, 6).double() / 5, torch.tensor([[0.3], [1.0], [2.0], [1e-9]]).double()
    y = torch.randn(4, 6).double() / 5
    torch.testing.assert_close(mobius_add(-x, mobius_add(x, y, c), c), y)  # left cancellation
    torch.testing.assert_close(mobius_add(x, y, c)[3], (x + y)[3])  # a flat space has plain sums


@pytest.mark.parametrize("scale", [0.0, 1e-8, 1.0, 1e3])
def test_scores_and_gradients_are_finite(scale: float) -> None:
    model = _model().float()
    with torch.no_grad():
        model.entity_table.mul_(scale)
        model.translation.mul_(scale)
    scores = model.scores(model.encode(), torch.tensor([0, 1]), torch.tensor([0, 4]))
    scores.sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert scores.isfinite().all() and all(grad is not None and grad.isfinite().all() for grad in gradients)


@pytest.mark.parametrize("options", [{}, {"negatives": 8, "adversarial": 1.0, "margin": 1.0}])
def test_it_trains(options: dict[str, Any]) -> None:
    losses = trained_losses(_model(**options).float())
    assert losses[-1] < 0.8 * losses[0]


def test_options_that_are_refused() -> None:
    with pytest.raises(ValueError, match="channels is 5; allowed: an even number"):
        RotH(4, 2, channels=5)
    with pytest.raises(ValueError, match=r"margin is 2\.0; allowed: only with negatives above 0"):
        RotH(4, 2, margin=2.0)
    with pytest.raises(ValueError, match=r"label_smoothing is 0\.1; allowed: 0 with model\.negatives"):
        link_task().objective(link_settings(label_smoothing=0.1), _model(negatives=2))

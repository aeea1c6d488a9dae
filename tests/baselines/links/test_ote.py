"""OTE computes its two distances with orthogonal matrices, and trains with either loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.links import ENTITIES, RELATIONS, trained_losses
from torch import Tensor

from magna.baselines.links.ote import OTE, orthonormal_rows


def _model(**options: Any) -> OTE:
    torch.manual_seed(0)
    model = OTE(ENTITIES, RELATIONS, **{"channels": 12, "group_channels": 3} | options).double()
    torch.nn.init.normal_(model.log_scale)
    return model


def test_rows_are_orthonormal_and_span_the_same_spaces() -> None:
    matrices = torch.randn(2, 5, 4, 4).double()
    rows = orthonormal_rows(matrices)
    torch.testing.assert_close(rows @ rows.mT, torch.eye(4).double().expand(2, 5, 4, 4))
    lower = matrices @ rows.mT  # row k is a sum of the first k + 1
    torch.testing.assert_close(lower, lower.tril())
    assert (lower.diagonal(dim1=-2, dim2=-1) > 0).all()


def _expected(model: OTE, entity: int, relation: int, candidate: int) -> Tensor:
    kind, total = relation % RELATIONS, torch.zeros(()).double()
    for group in range(4):
        part = slice(3 * group, 3 * group + 3)
        factor, scale = torch.linalg.qr(model.matrices[kind, group].T)
        matrix = (factor * scale.diagonal().sign()).T
        exponent = model.log_scale[kind, part]
        transform = exponent.exp().diag() @ matrix if relation < RELATIONS else (-exponent).exp().diag() @ matrix.T
        total = total - (transform @ model.entity_table[entity, part] - model.entity_table[candidate, part]).norm()
    return total


def test_scores_are_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model()
    head, relation = torch.tensor([3, 5, 5]), torch.tensor([0, 1, 1 + RELATIONS])
    pairs = list(zip(head.tolist(), relation.tolist(), strict=True))
    expected = torch.stack([torch.stack([_expected(model, h, r, t) for t in range(ENTITIES)]) for h, r in pairs])
    torch.testing.assert_close(model.scores(model.encode(), head, relation), expected)
    monkeypatch.setattr("magna.baselines.links.base._BLOCK", 3 * 12 * 7)
    torch.testing.assert_close(model.scores(model.encode(), head, relation), expected)
    tail = torch.tensor([[1, 2], [3, 3], [9, 0]])
    torch.testing.assert_close(model.scores(model.encode(), head, relation, tail), expected.gather(1, tail))


@pytest.mark.parametrize("options", [{}, {"negatives": 8, "adversarial": 1.0, "margin": 3.0}])
def test_it_trains(options: dict[str, Any]) -> None:
    losses = trained_losses(_model(**options).float())
    assert losses[-1] < 0.8 * losses[0]


def test_groups_divide_the_channels() -> None:
    with pytest.raises(ValueError, match="group_channels is 4; allowed: divisors of channels, 10"):
        OTE(4, 2, channels=10)

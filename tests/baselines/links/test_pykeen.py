"""PyKEEN's interactions: its own models with copied weights, both directions, both losses, and what is refused."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch
from tests.support.links import ENTITIES, RELATIONS, link_task, trained_losses
from tests.support.pykeen import pykeen_twin
from torch import Tensor

from magna.baselines.links.pykeen import PyKEENModel, PyKEENOptions

pytest.importorskip("pykeen")

STRUCTURE = "h0 r0 t1 + h1 r1 t0 - h1 r0 t1 + h2 r2 t2 + h0 r3 t3 - h3 r1 t3"
NAMES = ["AutoSF", "QuatE", "RotatE"]


def _model(interaction: str, **options: Any) -> PyKEENModel:
    torch.manual_seed(0)
    options = {"structure": STRUCTURE} | options if interaction == "AutoSF" else options
    model = PyKEENModel(ENTITIES, RELATIONS, interaction=interaction, **{"channels": 12} | options)
    return model.double().eval()


def _tables(model: PyKEENModel) -> tuple[Tensor, Tensor]:
    return model.entity_table.detach(), model.relation_table.detach()


def _expected(model: PyKEENModel, head: int, relation: int, tail: int) -> Tensor:
    """The formula of a triple, without PyKEEN."""
    entities, relations = _tables(model)
    h, r, t = entities[head], relations[relation], entities[tail]
    if model.options.interaction == "RotatE":
        turned = torch.view_as_complex(h.view(-1, 2)) * torch.exp(1j * r * math.pi * 12 / 22)  # (9 + 2) / (12 / 2)
        return -(turned - torch.view_as_complex(t.view(-1, 2))).abs().square().sum().sqrt()
    if model.options.interaction == "AutoSF":
        terms = [(0, 0, 1, 1), (1, 1, 0, 1), (1, 0, 1, -1), (2, 2, 2, 1), (0, 3, 3, 1), (3, 1, 3, -1)]
        blocks = [rows.view(4, -1) for rows in (h, r, t)]
        return torch.stack([s * (blocks[0][i] * blocks[1][j] * blocks[2][k]).sum() for i, j, k, s in terms]).sum()
    (a, b, c, d), (p, q, u, v) = h.view(-1, 4).T, (r.view(-1, 4) / r.view(-1, 4).norm(dim=1, keepdim=True)).T
    product = [a * p - b * q - c * u - d * v, a * q + b * p + c * v - d * u]
    product += [a * u - b * v + c * p + d * q, a * v + b * u - c * q + d * p]
    return -(torch.stack(product, 1) * t.view(-1, 4)).sum()


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_the_formula_from_both_ends(name: str) -> None:
    model, states = _model(name), _model(name).encode()
    head, relation = torch.tensor([3, 5, 5]), torch.tensor([0, 1, 1 + RELATIONS])
    expected = [[_expected(model, 3, 0, e), _expected(model, 5, 1, e), _expected(model, e, 1, 5)] for e in range(40)]
    scores = model.scores(states, head, relation)
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float64).T)
    tail = torch.tensor([[1, 2], [3, 3], [9, 0]])
    torch.testing.assert_close(model.scores(states, head, relation, tail), scores.gather(1, tail))


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_pykeens_model(name: str) -> None:
    model, triples = _model(name), link_task().graph.triples
    query = triples.test[:, :2]
    with torch.no_grad():
        expected = pykeen_twin(model, triples.train).score_t(query)
    ours = model.scores(model.encode(), *query.unbind(1))
    torch.testing.assert_close(ours.float(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{}, {"negatives": 8, "adversarial": 1.0, "margin": 3.0}])
def test_it_trains(name: str, options: dict[str, Any]) -> None:
    losses = trained_losses(_model(name, **options).float())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_dense_scores(name: str) -> None:
    model = _model(name)
    head, relation = torch.tensor([3, 5]), torch.tensor([0, 1 + RELATIONS])
    weight = torch.randn(2, ENTITIES, dtype=torch.float64)

    def total(entities: Tensor, relations: Tensor) -> Tensor:
        tables = {"entity_table": entities, "relation_table": relations}
        scores: Tensor = torch.func.functional_call(model, tables, (torch.empty(0), None, head, relation))
        return (scores * weight).sum()

    inputs = [table.clone().requires_grad_() for table in _tables(model)]
    assert torch.autograd.gradcheck(total, inputs)


def test_a_saved_model_scores_the_same(tmp_path: Any) -> None:
    for name in NAMES:
        model = _model(name).float()
        model.save_pretrained(tmp_path / name)
        again = PyKEENModel.from_pretrained(tmp_path / name)
        query = torch.tensor([1, 2]), torch.tensor([0, 4])
        torch.testing.assert_close(again.scores(again.encode(), *query), model.scores(model.encode(), *query))


def test_a_model_without_memory_leaves_pykeen_as_it_was() -> None:
    with torch.device("meta"):
        PyKEENModel(4, 2, interaction="QuatE")
    model = _model("QuatE")
    assert model.scores(model.encode(), torch.tensor([0]), torch.tensor([0])).isfinite().all()


def test_without_pykeen_one_line_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pykeen.nn", None)
    text = r"the interaction QuatE needs PyKEEN, which is not installed; try pip install \".*\[baselines\]\""
    with pytest.raises(ImportError, match=text):
        PyKEENModel(4, 2, interaction="QuatE")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"interaction": "RotatE", "channels": 7}, "channels is 7; allowed: multiples of 2 with RotatE"),
        ({"interaction": "QuatE", "channels": 6}, "channels is 6; allowed: multiples of 4 with QuatE"),
        ({"interaction": "QuatE", "margin": 2.0}, "margin is 2.0; allowed: only with negatives above 0"),
        (
            {"interaction": "RotatE", "embedding_std": 2.0},
            "embedding_std is 2.0; allowed: only with interaction 'AutoSF'",
        ),
        ({"interaction": "AutoSF", "structure": "h0 r1"}, "structure is 'h0 r1'; allowed: a sum such as"),
        ({"interaction": "TransF"}, "interaction is 'TransF'"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PyKEENOptions.from_flat(options)

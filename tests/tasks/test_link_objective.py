"""The loss of link models: masked edges, its definition, and steps that can be captured."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.support.links import ENTITIES, RELATIONS, link_model, link_settings, link_task, one_triple, with_biases
from tests.support.measuring import Capturable
from torch import Tensor
from torch.nn.functional import cross_entropy

from magna.config.schema import Config
from magna.nn import LinkPredictor
from magna.tasks import LinkPrediction
from magna.tasks.link_objective import LinkObjective, dense_loss
from magna.training.capture import step_precision
from magna.typing import Control

TASK = link_task()
QUERIES = len(TASK.graph.queries)


def _objective(model: LinkPredictor | None = None, task: LinkPrediction = TASK, **settings: Any) -> LinkObjective:
    return task.objective(link_settings(**settings), model or link_model())


def _answers(query: int) -> list[int]:
    answers = TASK.graph.answers
    rows: list[int] = answers.index[int(answers.ptr[query]) : int(answers.ptr[query + 1])].tolist()
    return rows


def _mask(objective: LinkObjective, batch: Tensor) -> Tensor:
    mask = objective._edge_mask(batch)
    assert mask is not None
    return mask


def test_an_epoch_asks_every_query_once_in_an_order_of_epoch_and_seed() -> None:
    objective = _objective()
    batches = objective.batches(epoch=2, seed=5)
    assert len(batches) == objective.num_batches and {len(batch) for batch in batches} == {16}
    queries = torch.cat(batches)
    assert sorted(queries[queries >= 0].tolist()) == list(range(QUERIES))
    torch.manual_seed(77)
    assert torch.equal(queries, torch.cat(_objective().batches(2, 5)))
    assert not torch.equal(queries, torch.cat(objective.batches(3, 5)))
    assert not torch.equal(queries, torch.cat(objective.batches(2, 6)))


@pytest.mark.parametrize("control", ["none", "random-graph", "no-types"])
def test_no_edge_reveals_an_answer_of_the_batch(control: Control) -> None:
    task = link_task(control)
    objective = _objective(task=task)
    batch = objective.batches()[0]
    queries = {tuple(query) for query in task.graph.queries[batch].tolist()}
    source, target = task.edge_index.tolist()
    edges = zip(source, target, task.graph.edge_type.tolist(), _mask(objective, batch).tolist(), strict=True)
    for s, t, r, stays in edges:
        inverse = (r + RELATIONS) % (2 * RELATIONS)
        reveals = r < 2 * RELATIONS and ((s, r) in queries or (t, inverse) in queries)
        assert stays != reveals
    assert _objective(task=task, mask_answers=False)._edge_mask(batch) is None


STEPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ComplEx": {"model": {"decoder": "complex"}},
    "TuckER": {"model": {"decoder": "tucker"}},
    "ConvE": {"model": {"decoder": "conve"}},
    "no encoder": {"model": {"num_layers": 0}},
    "one block of width 24": {"model": {"hidden_channels": 24, "input_projection": True}},
    "relation prediction": {"task": {"relation_prediction": 1.0}},
    "relation prediction from embeddings": {"task": {"relation_prediction": 1.0, "relation_guess": "embeddings"}},
    "relation prediction by TuckER": {"task": {"relation_prediction": 1.0}, "model": {"decoder": "tucker"}},
    "N3": {"task": {"n3": 0.1}},
    "uniform weights": {"task": {"query_weight": "uniform"}},
    "no mask": {"task": {"mask_answers": False}},
    "top-k": {"model": {"top_k": 2, "top_k_shared": True}},
    "edge dropout": {"model": {"edge_dropout": 0.3, "edge_dropout_shared": True}},
    "dropout": {"model": {"dropout": 0.3, "feature_dropout": 0.3, "input_dropout": 0.2, "decoder_dropout": 0.2}},
    "shallow": {
        "model": {"skip_channels": 10},
        "task": {"relation_prediction": 1.0, "skip_relation_prediction": 2.0, "skip_n3": 0.1},
    },
    "shallow in bfloat16": {"model": {"skip_channels": 10}, "bfloat16": True},
    "biases": {"model": {"loop_bias": True, "entity_bias": True}},
    "relations from entities": {"model": {"relation_source": "entities", "relation_norm": "unbiased"}},
    "learnt alpha": {"model": {"hop_weights": "alpha"}},
    "learnt weights": {"model": {"hop_weights": "theta"}},
    "no propagation": {"model": {"K": 0}},
    "bfloat16": {"bfloat16": True},
}


@pytest.mark.parametrize("case", STEPS.values(), ids=STEPS)
def test_a_step_can_be_captured(case: dict[str, Any]) -> None:
    model = link_model(**case.get("model", {})).train()
    objective = _objective(model, **case.get("task", {}))
    batch, rough = objective.batches()[0], case.get("bfloat16", False)
    for checked in (nullcontext(), Capturable()):  # the first step may allocate and cache
        with checked:
            # As `step_precision` does it on a GPU.
            with torch.autocast("cpu", torch.bfloat16, enabled=rough, cache_enabled=False):
                loss = objective.loss(model, batch)
            loss.backward()


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("weighting", ["answers", "uniform"])
@pytest.mark.parametrize("last", [False, True])
def test_the_loss_is_its_definition(weighting: str, last: bool, biased: bool) -> None:
    model = with_biases() if biased else link_model()
    objective = _objective(model, label_smoothing=0.2, query_weight=weighting)
    batch = objective.batches()[-1 if last else 0]
    used = batch[batch >= 0]  # padding counts for nothing and masks no edge
    assert (len(batch) - len(used) > 1) == last
    assert len(set(batch.tolist())) == len(batch)  # padding has different heads
    mask, queries = _mask(objective, used), TASK.graph.queries[used].unbind(1)
    logs = model(TASK.edge_index[:, mask], TASK.graph.edge_type[mask], *queries).log_softmax(1).detach()
    total, weights = 0.0, 0.0
    for row, query in enumerate(used.tolist()):
        answers = _answers(query)
        target = torch.full((ENTITIES,), 0.2 / ENTITIES)
        target[answers] += 0.8
        target /= target.sum()
        weight = len(answers) if weighting == "answers" else 1
        total += weight * float((target * (target.log() - logs[row])).sum())
        weights += weight
    assert objective.loss(model, batch).item() == pytest.approx(total / weights, rel=1e-4)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_of_scores_of_any_form_is_that_of_products(smoothing: float) -> None:
    model = link_model()
    objective = _objective(model, label_smoothing=smoothing, mask_answers=False)
    batch = objective.batches()[-1]
    head, relation, count, first = objective._queries[:, batch]
    scores = model(TASK.edge_index, TASK.edge_type, head, relation)
    loss = dense_loss(scores, objective._answers(first, count), count.float(), smoothing)
    torch.testing.assert_close(loss, objective.loss(model, batch))


def test_a_step_masks_few_edges() -> None:
    """A step of all queries would mask every edge, and attention would never learn."""
    objective = _objective(batch_size=512)
    assert objective.batch_size == -(-QUERIES // 10) and objective.num_batches == 10
    assert all(_mask(objective, batch).float().mean() > 0.6 for batch in objective.batches())
    # Without a mask or an encoder a step may have all queries.
    assert _objective(batch_size=512, mask_answers=False).batch_size == QUERIES
    assert _objective(link_model(num_layers=0), batch_size=512).batch_size == QUERIES
    # Two queries can be normed.
    tiny = LinkPrediction(one_triple(), torch.device("cpu"))
    assert _objective(link_model(decoder="conve", entity_channels=64), tiny).batch_size == 2


def test_a_smaller_batch_is_noted() -> None:
    tables: dict[str, Any] = {"task": {"name": "link_prediction", "batch_size": 512}}
    (note,) = TASK.notes(Config.from_dict(tables))
    size = _objective(batch_size=512).batch_size
    assert f"batch_size is 512 and training has {QUERIES} queries: a step takes {size}, as it masks" in note
    assert TASK.notes(Config.from_dict(tables | {"model": {"num_layers": 0}})) == ()
    tables["task"]["batch_size"] = 16
    assert TASK.notes(Config.from_dict(tables)) == ()


def test_padding_asks_the_usual_queries() -> None:
    """Norms of a decoder see the usual mixture."""
    objective = _objective()
    head, relation, count, _ = objective._queries[:, -objective.batch_size :]
    queries = list(zip(head.tolist(), relation.tolist(), strict=True))
    assert set(queries) <= {tuple(row) for row in TASK.graph.queries.tolist()}
    assert len(set(head.tolist())) == objective.batch_size
    assert set(relation.tolist()) == set(range(2 * RELATIONS)) and not count.any()


def _with_one_answer() -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """A batch of queries with one answer each, so that nothing is drawn, and their heads, relations and tails."""
    single = [query for query in range(QUERIES) if len(_answers(query)) == 1][:8]
    head, relation = TASK.graph.queries[single].unbind(1)
    tail = torch.tensor([_answers(query)[0] for query in single])
    return torch.tensor(single + [-1] * 8), (head, relation, tail)


def _n3(*factors: Tensor) -> Tensor:
    return torch.stack([rows.abs().pow(3).sum() for rows in factors]).sum() / len(factors[0])


@pytest.mark.parametrize("source", ["states", "embeddings"])
def test_relation_prediction_and_n3(source: str) -> None:
    model = link_model()
    objective = _objective(model, relation_prediction=0.5, relation_guess=source, n3=0.01)
    batch, (head, relation, tail) = _with_one_answer()
    deep, states = model.deep, model.encode(TASK.edge_index, TASK.edge_type, edge_mask=_mask(objective, batch))
    projected = deep.decoder.relation(deep.relation_table)
    rows, table = (states, projected) if source == "states" else (deep.entity_table, deep.relation_table)
    predicted = cross_entropy((rows[head] * rows[tail]) @ table.T, relation, label_smoothing=1e-3)
    extra = 0.5 * predicted + 0.01 * _n3(states[head], projected[relation], states[tail])
    torch.testing.assert_close(objective.loss(model, batch), _objective(model).loss(model, batch) + extra)


@pytest.mark.parametrize("weighting", ["answers", "uniform"])
def test_an_answer_drawn_at_random_stands_for_all(weighting: str) -> None:
    model = link_model(num_layers=0, final_norm="layer")
    drawn, plain = (_objective(model, n3=n3, query_weight=weighting) for n3 in (1.0, 0.0))
    batch = plain.batches()[0]
    torch.manual_seed(0)
    samples = torch.stack([drawn.loss(model, batch) - plain.loss(model, batch) for _ in range(400)]).detach()
    norms = model.deep.norm(model.deep.entity_table).abs().pow(3).sum(1)
    of_relations = model.deep.decoder.relation(model.deep.relation_table).abs().pow(3).sum(1)
    total, weights, most = 0.0, 0.0, 0
    for query in batch.tolist():
        (head, relation), answers = TASK.graph.queries[query].tolist(), _answers(query)
        weight = len(answers) if weighting == "answers" else 1
        total += weight * (norms[head] + of_relations[relation] + norms[answers].mean()).item()
        weights, most = weights + weight, max(most, len(answers))
    assert most > 1 and samples.std() > 0
    assert abs(float(samples.mean()) - total / weights) < 5 * float(samples.std()) / 20


def test_shallow_embeddings_have_their_own_loss() -> None:
    settings: dict[str, Any] = {"label_smoothing": 0.2, "relation_prediction": 0.5, "n3": 0.1}
    model = link_model(skip_channels=10)
    objective = _objective(model, **settings, skip_relation_prediction=2.0, skip_n3=0.01)
    batch, (head, relation, tail) = _with_one_answer()
    assert model.shallow is not None
    entities, relations = model.shallow.entity_table, model.shallow.relation_table
    answered = cross_entropy((entities[head] * relations[relation]) @ entities.T, tail)
    predicted = cross_entropy((entities[head] * entities[tail]) @ relations.T, relation, label_smoothing=1e-3)
    shallow = answered + 2.0 * predicted + 0.01 * _n3(entities[head], relations[relation], entities[tail])
    loss, deep = objective.loss(model, batch), list(model.deep.parameters())
    with_shallow = torch.autograd.grad(loss, deep)
    model.shallow, alone = None, _objective(model, **settings)
    torch.testing.assert_close(loss, alone.loss(model, batch) + shallow)
    without = torch.autograd.grad(alone.loss(model, batch), deep)
    assert all(torch.equal(one, other) for one, other in zip(with_shallow, without, strict=True))


@pytest.mark.parametrize(
    ("settings", "model", "text"),
    [
        (
            {"relation_prediction": 1.0, "relation_guess": "embeddings"},
            {"relation_channels": 6},
            "relation_guess is 'embeddings'; allowed: 'states' with entities of width 12 and relations of width 6",
        ),
        ({"relation_prediction": 1.0}, {"decoder": "conve"}, "relation_prediction is 1.0; allowed: 0 with ConvE"),
        (
            {"skip_relation_prediction": 1.0},
            {"decoder": "conve", "skip_channels": 12},
            r"task\.skip_relation_prediction is 1.0; allowed: 0 with ConvE",
        ),
        ({"skip_n3": 1.0}, {}, r"task\.skip_n3 is 1.0; allowed: 0 with a model without"),
        ({"batch_size": 1}, {"decoder": "conve"}, r"task\.batch_size is 1; allowed: 2 or more"),
    ],
)
def test_settings_that_the_model_cannot_serve_are_refused(
    settings: dict[str, Any], model: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        _objective(link_model(**model), **settings)


def test_shallow_embeddings_are_checked_by_their_own_widths() -> None:
    model = link_model(relation_channels=6, skip_channels=12)
    objective = _objective(model, skip_relation_prediction=1.0, relation_guess="embeddings")
    assert math.isfinite(objective.loss(model, objective.batches()[0]).item())


def test_bfloat16_products_give_nearly_the_same_loss() -> None:
    objective, model = _objective(), link_model()
    batch = objective.batches()[0]
    exact = objective.loss(model, batch)
    with step_precision("bfloat16", TASK.device, model):  # float32 on a CPU: many take several times as long
        assert objective.loss(model, batch) == exact
    with torch.autocast("cpu", torch.bfloat16):
        loss = objective.loss(model, batch)
    loss.backward()
    assert loss.dtype == torch.float32 and 0 < abs(loss.item() - exact.item()) < 0.02
    assert all(parameter.grad is not None for parameter in model.parameters())

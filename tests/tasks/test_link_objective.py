"""The loss of link models: masked edges, its definition, and steps that can be captured."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.support.links import ENTITIES, RELATIONS, link_model, link_settings, link_task, with_biases
from tests.support.measuring import Capturable
from torch import Tensor
from torch.nn.functional import cross_entropy

from magna.config.schema import Config
from magna.data import KnowledgeGraph
from magna.data.triples import triples_from
from magna.nn import LinkPredictor
from magna.tasks import LinkPrediction
from magna.tasks.link_objective import LinkObjective, dense_loss
from magna.training.capture import step_precision
from magna.typing import Control

BIASED = {"loop_bias": True, "entity_bias": True}


def _objective(
    task: LinkPrediction | None = None, model: LinkPredictor | None = None, **settings: Any
) -> LinkObjective:
    task = link_task() if task is None else task
    return task.objective(link_settings(**settings), link_model(task) if model is None else model)


def _answers(task: LinkPrediction, query: int) -> list[int]:
    answers = task.graph.answers
    rows: list[int] = answers.index[int(answers.ptr[query]) : int(answers.ptr[query + 1])].tolist()
    return rows


def _mask(objective: LinkObjective, batch: Tensor) -> Tensor:
    mask = objective._edge_mask(batch)
    assert mask is not None
    return mask


def _scores(task: LinkPrediction, model: LinkPredictor, batch: Tensor, mask: Tensor) -> Tensor:
    """Scores of a batch on the graph without the masked edges."""
    head, relation = task.graph.queries[batch].unbind(1)
    scores: Tensor = model(task.edge_index[:, mask], task.graph.edge_type[mask], head, relation)
    return scores


def test_an_epoch_asks_every_query_once() -> None:
    task, objective = link_task(), _objective()
    batches = objective.batches(epoch=2, seed=5)
    assert len(batches) == objective.num_batches and {len(batch) for batch in batches} == {16}
    queries = torch.cat(batches)
    assert sorted(queries[queries >= 0].tolist()) == list(range(len(task.graph.queries)))


def test_the_order_depends_on_epoch_and_seed_alone() -> None:
    first = torch.stack(_objective().batches(3, 1))
    torch.manual_seed(77)
    assert torch.equal(first, torch.stack(_objective().batches(3, 1)))
    assert not torch.equal(first, torch.stack(_objective().batches(4, 1)))
    assert not torch.equal(first, torch.stack(_objective().batches(3, 2)))


@pytest.mark.parametrize("control", ["none", "random-graph", "no-types"])
def test_no_edge_reveals_an_answer_of_the_batch(control: Control) -> None:
    task = link_task(control)
    objective = _objective(task)
    batch = objective.batches()[0]
    queries = {tuple(query) for query in task.graph.queries[batch].tolist()}
    source, target = task.edge_index.tolist()
    edges = zip(source, target, task.graph.edge_type.tolist(), _mask(objective, batch).tolist(), strict=True)
    for s, t, r, stays in edges:
        inverse = (r + RELATIONS) % (2 * RELATIONS)
        reveals = r < 2 * RELATIONS and ((s, r) in queries or (t, inverse) in queries)
        assert stays != reveals
    assert _objective(task, mask_answers=False)._edge_mask(batch) is None


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
    "biases": {"model": BIASED},
    "relations from entities": {"model": {"relation_source": "entities", "relation_norm": "unbiased"}},
    "learnt alpha": {"model": {"hop_weights": "alpha"}},
    "learnt weights": {"model": {"hop_weights": "theta"}},
    "no propagation": {"model": {"K": 0}},
    "bfloat16": {"bfloat16": True},
}


@pytest.mark.parametrize("case", STEPS.values(), ids=STEPS)
def test_a_step_can_be_captured(case: dict[str, Any]) -> None:
    task = link_task()
    model = link_model(task, **case.get("model", {})).train()
    objective = _objective(task, model, **case.get("task", {}))
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
    task = link_task()
    model = with_biases(link_model(task, **BIASED)) if biased else link_model(task)
    objective = _objective(task, model, label_smoothing=0.2, query_weight=weighting)
    batch = objective.batches()[-1 if last else 0]
    assert bool((batch < 0).any()) == last
    assert len(set(batch.tolist())) == len(batch)  # padding has different heads
    used = batch[batch >= 0]
    logs = _scores(task, model, used, _mask(objective, batch)).log_softmax(1).detach()
    total, weights = 0.0, 0.0
    for row, query in enumerate(used.tolist()):
        answers = _answers(task, query)
        target = torch.full((ENTITIES,), 0.2 / ENTITIES)
        target[answers] += 0.8
        target /= target.sum()
        weight = len(answers) if weighting == "answers" else 1
        total += weight * float((target * (target.log() - logs[row])).sum())
        weights += weight
    assert objective.loss(model, batch).item() == pytest.approx(total / weights, rel=1e-4)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_of_scores_of_any_form_is_that_of_products(smoothing: float) -> None:
    task = link_task()
    model = link_model(task)
    objective = _objective(task, model, label_smoothing=smoothing, mask_answers=False)
    batch = objective.batches()[-1]
    head, relation, count, first = objective._queries[:, batch]
    scores = model(task.edge_index, task.edge_type, head, relation)
    loss = dense_loss(scores, objective._answers(first, count), count.float(), smoothing)
    torch.testing.assert_close(loss, objective.loss(model, batch))


def test_padding_masks_no_edge() -> None:
    objective = _objective()
    batch = objective.batches()[-1]
    assert len(batch[batch < 0]) > 1
    assert torch.equal(_mask(objective, batch), _mask(objective, batch[batch >= 0]))


def test_a_step_masks_few_edges() -> None:
    """A step of all queries would mask every edge, and attention would never learn."""
    task = link_task()
    model, alone, queries = link_model(task), link_model(task, num_layers=0), len(task.graph.queries)
    objective = _objective(task, model, batch_size=512)
    assert objective.batch_size == -(-queries // 10) and objective.num_batches == 10
    assert all(_mask(objective, batch).float().mean() > 0.6 for batch in objective.batches())
    # Without a mask or an encoder a step may have all queries.
    assert _objective(task, model, batch_size=512, mask_answers=False).batch_size == queries
    assert _objective(task, alone, batch_size=512).batch_size == queries


def test_a_smaller_batch_is_noted() -> None:
    task = link_task()
    tables: dict[str, Any] = {"task": {"name": "link_prediction", "batch_size": 512}}
    (note,) = task.notes(Config.from_dict(tables))
    size, queries = _objective(task, batch_size=512).batch_size, len(task.graph.queries)
    assert f"batch_size is 512 and training has {queries} queries: a step takes {size}, as it masks" in note
    assert task.notes(Config.from_dict(tables | {"model": {"num_layers": 0}})) == ()
    tables["task"]["batch_size"] = 16
    assert task.notes(Config.from_dict(tables)) == ()


def test_a_graph_of_two_queries_has_batches_that_can_be_normed() -> None:
    rows = {split: [("a", "r", "b")] for split in ("train", "valid", "test")}
    task = LinkPrediction(KnowledgeGraph.from_triples(triples_from("one", rows)), torch.device("cpu"))
    model = link_model(task, decoder="conve", entity_channels=64)
    assert _objective(task, model).batch_size == 2


def test_padding_asks_the_usual_queries() -> None:
    """Norms of a decoder see the usual mixture."""
    task, objective = link_task(), _objective()
    head, relation, count, _ = objective._queries[:, -objective.batch_size :]
    queries = list(zip(head.tolist(), relation.tolist(), strict=True))
    assert set(queries) <= {tuple(row) for row in task.graph.queries.tolist()}
    assert len(set(head.tolist())) == objective.batch_size
    assert set(relation.tolist()) == set(range(2 * RELATIONS)) and not count.any()


def test_padding_does_not_change_the_loss() -> None:
    task = link_task()
    model, objective = link_model(task), _objective(task, mask_answers=False)
    batch = objective.batches()[0]
    padded = torch.cat([batch[:10], batch.new_full((6,), -1)])
    small = _objective(task, mask_answers=False, batch_size=10)
    torch.testing.assert_close(objective.loss(model, padded), small.loss(model, batch[:10]))


def _with_one_answer(task: LinkPrediction) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """A batch of queries with one answer each, so that nothing is drawn, and their heads, relations and tails."""
    single = [q for q in range(len(task.graph.queries)) if len(_answers(task, q)) == 1][:8]
    head, relation = task.graph.queries[single].unbind(1)
    tail = torch.tensor([_answers(task, query)[0] for query in single])
    return torch.tensor(single + [-1] * 8), (head, relation, tail)


@pytest.mark.parametrize("source", ["states", "embeddings"])
def test_relation_prediction_and_n3(source: str) -> None:
    task = link_task()
    model = link_model(task)
    objective = _objective(task, model, relation_prediction=0.5, relation_guess=source, n3=0.01)
    batch, (head, relation, tail) = _with_one_answer(task)
    deep, states = model.deep, model.encode(task.edge_index, task.edge_type, edge_mask=_mask(objective, batch))
    rows, table = states, deep.decoder.relation(deep.relation_table)
    if source == "embeddings":
        rows, table = deep.entity_table, deep.relation_table
    predicted = cross_entropy((rows[head] * rows[tail]) @ table.T, relation, label_smoothing=1e-3)
    factors = (states[head], deep.decoder.relation(deep.relation_table[relation]), states[tail])
    n3 = torch.stack([factor.abs().pow(3).sum() for factor in factors]).sum() / len(head)
    expected = _objective(task, model).loss(model, batch) + 0.5 * predicted + 0.01 * n3
    torch.testing.assert_close(objective.loss(model, batch), expected)


@pytest.mark.parametrize("weighting", ["answers", "uniform"])
def test_an_answer_drawn_at_random_stands_for_all(weighting: str) -> None:
    task = link_task()
    model = link_model(task, num_layers=0, final_norm="layer")
    drawn, plain = (_objective(task, model, n3=n3, query_weight=weighting) for n3 in (1.0, 0.0))
    batch = plain.batches()[0]
    torch.manual_seed(0)
    samples = torch.stack([drawn.loss(model, batch) - plain.loss(model, batch) for _ in range(400)]).detach()
    norms = model.deep.norm(model.deep.entity_table).abs().pow(3).sum(1)
    of_relations = model.deep.decoder.relation(model.deep.relation_table).abs().pow(3).sum(1)
    total, weights, most = 0.0, 0.0, 0
    for query in batch.tolist():
        (head, relation), answers = task.graph.queries[query].tolist(), _answers(task, query)
        weight = len(answers) if weighting == "answers" else 1
        total += weight * (norms[head] + of_relations[relation] + norms[answers].mean()).item()
        weights, most = weights + weight, max(most, len(answers))
    assert most > 1 and samples.std() > 0
    assert abs(float(samples.mean()) - total / weights) < 5 * float(samples.std()) / 20


def test_shallow_embeddings_have_their_own_loss() -> None:
    settings: dict[str, Any] = {"label_smoothing": 0.2, "relation_prediction": 0.5, "n3": 0.1}
    task = link_task()
    model = link_model(task, skip_channels=10)
    objective = _objective(task, model, **settings, skip_relation_prediction=2.0, skip_n3=0.01)
    batch, (head, relation, tail) = _with_one_answer(task)
    assert model.shallow is not None
    entities, relations = model.shallow.entity_table, model.shallow.relation_table
    answered = cross_entropy((entities[head] * relations[relation]) @ entities.T, tail)
    predicted = cross_entropy((entities[head] * entities[tail]) @ relations.T, relation, label_smoothing=1e-3)
    factors = (entities[head], relations[relation], entities[tail])
    n3 = torch.stack([rows.abs().pow(3).sum() for rows in factors]).sum() / len(head)
    shallow = answered + 2.0 * predicted + 0.01 * n3
    loss, deep = objective.loss(model, batch), list(model.deep.parameters())
    with_shallow = torch.autograd.grad(loss, deep)
    model.shallow, alone = None, _objective(task, model, **settings)
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
    task = link_task()
    with pytest.raises(ValueError, match=text):
        _objective(task, link_model(task, **model), **settings)


def test_shallow_embeddings_are_checked_by_their_own_widths() -> None:
    task = link_task()
    model = link_model(task, relation_channels=6, skip_channels=12)
    objective = _objective(task, model, skip_relation_prediction=1.0, relation_guess="embeddings")
    assert math.isfinite(objective.loss(model, objective.batches()[0]).item())


def test_a_cpu_multiplies_float32() -> None:
    """Many take several times as long for bfloat16."""
    task, objective = link_task(), _objective()
    model, batch = link_model(task), objective.batches()[0]
    with step_precision("bfloat16", task.device, model):
        rough = objective.loss(model, batch)
    assert rough == objective.loss(model, batch)


def test_bfloat16_products_give_nearly_the_same_loss() -> None:
    objective, model = _objective(), link_model(link_task())
    batch = objective.batches()[0]
    exact = objective.loss(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        loss = objective.loss(model, batch)
    loss.backward()
    assert loss.dtype == torch.float32 and 0 < abs(loss.item() - exact.item()) < 0.02
    assert all(parameter.grad is not None for parameter in model.parameters())

"""Link prediction: what is asked is not told, the loss is its definition, ranks are those of a plain sort."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.measuring import Capturable
from torch import Tensor, nn

from magna.config.schema import Config, ModelConfig, load_recipe
from magna.data import KnowledgeGraph
from magna.data.triples import triples_from
from magna.nn import LinkPredictor
from magna.nn.link_predictor import Scored
from magna.tasks import LinkPrediction, make_task
from magna.tasks.links import log_probabilities
from magna.training.capture import step_precision

ENTITIES, RELATIONS = 40, 3
MODEL = ModelConfig(hidden_channels=16, heads=4, K=2, num_layers=1, entity_channels=12, final_norm="layer")


def _graph(seed: int = 0) -> KnowledgeGraph:
    generator = torch.Generator().manual_seed(seed)
    columns = [torch.randint(size, (260,), generator=generator) for size in (ENTITIES, RELATIONS, ENTITIES)]
    rows = sorted({(f"e{h:02}", f"r{r}", f"e{t:02}") for h, r, t in torch.stack(columns, dim=1).tolist()})
    order = torch.randperm(len(rows), generator=generator).tolist()
    shuffled = [rows[i] for i in order]
    return KnowledgeGraph.from_triples(
        triples_from("random", {"train": shuffled[60:], "valid": shuffled[:30], "test": shuffled[30:60]})
    )


def _task(control: str = "none", precision: str = "float32", **settings) -> LinkPrediction:
    tables = {
        "data": {"control": control},
        "model": {"skip_channels": 10},  # so that settings of what goes past the encoder may be given
        "task": {"name": "link_prediction", "batch_size": 16} | settings,
        "train": {"precision": precision},
    }
    return LinkPrediction(_graph(), Config.from_dict(tables), torch.device("cpu"))


def _model(task: LinkPrediction, **changes) -> LinkPredictor:
    torch.manual_seed(0)
    return task.make_model(ModelConfig(**(vars(MODEL) | changes))).eval()


def _answers(task: LinkPrediction, query: int) -> list[int]:
    answers = task.graph.answers
    return answers.index[int(answers.ptr[query]) : int(answers.ptr[query + 1])].tolist()


def _scores(task: LinkPrediction, model: LinkPredictor, batch: Tensor, mask: Tensor) -> Tensor:
    """Of the queries of a batch, on the graph without the edges that are masked."""
    head, relation = task.graph.queries[batch].unbind(1)
    return model(task.edge_index[:, mask], task.graph.edge_type[mask], head, relation).scores()


def test_an_epoch_asks_every_query_once() -> None:
    task = _task()
    batches = task.batches(epoch=2, seed=5)
    assert len(batches) == task.num_batches and {len(batch) for batch in batches} == {16}
    asked = torch.cat(batches)
    assert sorted(asked[asked >= 0].tolist()) == list(range(len(task.graph.queries)))


def test_the_order_depends_on_epoch_and_seed_alone() -> None:
    first = torch.stack(_task().batches(3, 1))
    torch.manual_seed(77)
    assert torch.equal(first, torch.stack(_task().batches(3, 1)))
    assert not torch.equal(first, torch.stack(_task().batches(4, 1)))
    assert not torch.equal(first, torch.stack(_task().batches(3, 2)))


@pytest.mark.parametrize("control", ["none", "random-graph", "no-types"])
def test_no_edge_tells_an_answer_of_the_batch(control: str) -> None:
    task = _task(control)
    batch = task.batches()[0]
    kept = task._not_told(batch)
    assert kept is not None
    asked = {tuple(query) for query in task.graph.queries[batch].tolist()}
    source, target = task.edge_index.tolist()
    for s, t, r, stays in zip(source, target, task.graph.edge_type.tolist(), kept.tolist(), strict=True):
        inverse = (r + RELATIONS) % (2 * RELATIONS)
        told = r < 2 * RELATIONS and ((s, r) in asked or (t, inverse) in asked)
        assert stays != told
    assert _task(mask_answers=False)._not_told(batch) is None


STEPS: dict[str, dict[str, dict[str, object]]] = {
    "plain": {},
    "ComplEx": {"model": {"decoder": "complex"}},
    "TuckER": {"model": {"decoder": "tucker"}},
    "ConvE": {"model": {"decoder": "conve"}},
    "no encoder": {"model": {"num_layers": 0}},
    "one block of width 24": {"model": {"hidden_channels": 24, "input_projection": True}},
    "guess of the relation": {"task": {"relation_prediction": 1.0}},
    "guess from embeddings": {"task": {"relation_prediction": 1.0, "relation_guess": "embeddings"}},
    "guess with TuckER": {"task": {"relation_prediction": 1.0}, "model": {"decoder": "tucker"}},
    "N3": {"task": {"n3": 0.1}},
    "uniform weights": {"task": {"query_weight": "uniform"}},
    "answers told": {"task": {"mask_answers": False}},
    "top-k": {"model": {"top_k": 2, "top_k_shared": True}},
    "edges left out": {"model": {"edge_dropout": 0.3, "edge_dropout_shared": True}},
    "dropout": {"model": {"dropout": 0.3, "feature_dropout": 0.3, "input_dropout": 0.2, "decoder_dropout": 0.2}},
    "past the encoder": {
        "model": {"skip_channels": 10},
        "task": {"relation_prediction": 1.0, "skip_relation_prediction": 2.0, "skip_n3": 0.1},
    },
    "past the encoder in bfloat16": {"model": {"skip_channels": 10}, "train": {"precision": "bfloat16"}},
    "biases": {"model": {"entity_bias": True, "loop_bias": True}},
    "relations from entities": {"model": {"relation_source": "entities", "relation_norm": "unbiased"}},
    "learnt alpha": {"model": {"hop_weights": "alpha"}},
    "learnt weights": {"model": {"hop_weights": "theta"}},
    "no propagation": {"model": {"K": 0}},
    "bfloat16": {"train": {"precision": "bfloat16"}},
}


@pytest.mark.parametrize("tables", STEPS.values(), ids=STEPS)
def test_a_step_can_be_captured(tables: dict[str, dict[str, object]]) -> None:
    task = _task(**tables.get("train", {}), **tables.get("task", {}))  # type: ignore[arg-type]
    model = _model(task, **tables.get("model", {})).train()
    batch = task.batches()[0]
    for checked in (nullcontext(), Capturable()):  # what is made once, in the first step, may be
        with checked:
            # As `step_precision` does it on a GPU.
            with torch.autocast("cpu", torch.bfloat16, enabled=task.precision == "bfloat16", cache_enabled=False):
                loss = task.loss(model, batch)
            loss.backward()


BIASED = {"loop_bias": True, "entity_bias": True}


def _with_biases(model: LinkPredictor) -> LinkPredictor:
    with torch.no_grad():
        for bias in (model.loop_bias, model.decoder.entity_bias):
            assert bias is not None
            bias.normal_(std=3.0)
    return model


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("weighting", ["answers", "uniform"])
@pytest.mark.parametrize("last", [False, True])
def test_the_loss_is_its_definition(weighting: str, last: bool, biased: bool) -> None:
    task = _task(label_smoothing=0.2, query_weight=weighting)
    model = _with_biases(_model(task, **BIASED)) if biased else _model(task)
    batch = task.batches()[-1 if last else 0]
    assert bool((batch < 0).any()) == last
    assert len(batch.unique()) == len(batch)  # places that are left have heads of their own
    used = batch[batch >= 0]
    kept = task._not_told(batch)
    assert kept is not None
    logs = _scores(task, model, used, kept).log_softmax(1).detach()
    total, weights = 0.0, 0.0
    for row, query in enumerate(used.tolist()):
        answers = _answers(task, query)
        target = torch.full((ENTITIES,), 0.2 / ENTITIES)
        target[answers] += 0.8
        target /= target.sum()
        weight = len(answers) if weighting == "answers" else 1
        total += weight * float((target * (target.log() - logs[row])).sum())
        weights += weight
    assert task.loss(model, batch).item() == pytest.approx(total / weights, rel=1e-4)


def test_places_that_are_left_hide_no_edge() -> None:
    task = _task()
    batch = task.batches()[-1]
    assert len(batch[batch < 0]) > 1
    free, without = task._not_told(batch), task._not_told(batch[batch >= 0])
    assert free is not None and without is not None and torch.equal(free, without)


def test_a_step_leaves_most_edges_where_they_are() -> None:
    """A step of all queries would hide every edge, and attention would never learn."""
    task = _task(batch_size=512)
    queries = len(task.graph.queries)
    assert task.batch_size == -(-queries // 10) and task.num_batches == 10
    for batch in task.batches():
        kept = task._not_told(batch)
        assert kept is not None and kept.float().mean() > 0.6
    (note,) = task.notes
    assert f"batch_size is 512 and training has {queries} queries: a step takes {task.batch_size}, as it hides" in note
    # Where nothing is hidden, or nothing is heard, a step may have them all.
    assert _task(batch_size=512, mask_answers=False).batch_size == queries
    alone = Config.from_dict({"model": {"num_layers": 0}, "task": {"name": "link_prediction", "batch_size": 512}})
    assert task.with_config(alone).batch_size == queries and task.with_config(alone).notes == ()
    assert _task(batch_size=16).notes == ()


def test_a_graph_of_two_queries_has_batches_that_can_be_normed() -> None:
    rows = {split: [("a", "r", "b")] for split in ("train", "valid", "test")}
    config = Config.from_dict({"model": {"decoder": "conve"}, "task": {"name": "link_prediction"}})
    task = LinkPrediction(KnowledgeGraph.from_triples(triples_from("one", rows)), config, torch.device("cpu"))
    assert task.batch_size == 2 and task.make_model(replace(MODEL, decoder="conve", entity_channels=64))


def test_places_that_are_left_ask_what_the_rest_asks() -> None:
    """Queries from everywhere, so that the norms of a decoder see the usual mixture."""
    task = _task()
    head, relation, count, _ = task._queries[:, -task.batch_size :]
    asked = list(zip(head.tolist(), relation.tolist(), strict=True))
    assert set(asked) <= {tuple(row) for row in task.graph.queries.tolist()}
    assert len(set(head.tolist())) == task.batch_size
    assert set(relation.tolist()) == set(range(2 * RELATIONS)) and not count.any()


def test_one_loss_for_all_batch_sizes() -> None:
    """Places that are left in a batch change nothing."""
    task = _task(mask_answers=False)
    model = _model(task)
    batch = task.batches()[0]
    padded = torch.cat([batch[:10], batch.new_full((6,), -1)])
    small = _task(mask_answers=False, batch_size=10)
    torch.testing.assert_close(task.loss(model, padded), small.loss(model, batch[:10]))


def _with_one_answer(task: LinkPrediction) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """A batch of queries that have one answer each, so that nothing is drawn, and their heads, relations and tails."""
    single = [q for q in range(len(task.graph.queries)) if len(_answers(task, q)) == 1][:8]
    head, relation = task.graph.queries[single].unbind(1)
    tail = torch.tensor([_answers(task, query)[0] for query in single])
    return torch.tensor(single + [-1] * 8), (head, relation, tail)


@pytest.mark.parametrize("guess", ["states", "embeddings"])
def test_guessing_the_relation_and_n3(guess: str) -> None:
    plain, task = _task(), _task(relation_prediction=0.5, relation_guess=guess, n3=0.01)
    model = _model(task)
    batch, (head, relation, tail) = _with_one_answer(task)
    states = model.encode(task.edge_index, task.edge_type, edge_mask=task._not_told(batch))
    rows, table = states, model.decoder.relation(model.relation_table)
    if guess == "embeddings":
        rows, table = model.entity_table, model.relation_table
    told = torch.nn.functional.cross_entropy((rows[head] * rows[tail]) @ table.T, relation, label_smoothing=1e-3)
    factors = (states[head], model.decoder.relation(model.relation_table[relation]), states[tail])
    n3 = sum(factor.abs().pow(3).sum() for factor in factors) / len(head)
    expected = plain.loss(model, batch) + 0.5 * told + 0.01 * n3
    torch.testing.assert_close(task.loss(model, batch), expected)


@pytest.mark.parametrize("weighting", ["answers", "uniform"])
def test_an_answer_drawn_at_random_stands_for_all(weighting: str) -> None:
    task = _task(n3=1.0, query_weight=weighting, mask_answers=False)
    model = _model(task, num_layers=0, entity_channels=12)
    plain = _task(query_weight=weighting, mask_answers=False)
    batch = task.batches()[0]
    torch.manual_seed(0)
    found = torch.stack([task.loss(model, batch) - plain.loss(model, batch) for _ in range(400)]).detach()
    norms = model.norm(model.entity_table).abs().pow(3).sum(1)
    of_relations = model.decoder.relation(model.relation_table).abs().pow(3).sum(1)
    total, weights, most = 0.0, 0.0, 0
    for query in batch.tolist():
        (head, relation), answers = task.graph.queries[query].tolist(), _answers(task, query)
        weight = len(answers) if weighting == "answers" else 1
        total += weight * (norms[head] + of_relations[relation] + norms[answers].mean()).item()
        weights, most = weights + weight, max(most, len(answers))
    assert most > 1 and found.std() > 0
    assert abs(float(found.mean()) - total / weights) < 5 * float(found.std()) / 20


def test_embeddings_past_the_encoder_have_a_loss_of_their_own() -> None:
    settings: dict[str, Any] = {"label_smoothing": 0.2, "relation_prediction": 0.5, "n3": 0.1}
    task = _task(**settings, skip_relation_prediction=2.0, skip_n3=0.01)
    model = _model(task, skip_channels=10)
    batch, (head, relation, tail) = _with_one_answer(task)
    assert model.skip is not None
    entities, relations = model.skip.entity_table, model.skip.relation_table
    scores = (entities[head] * relations[relation]) @ entities.T
    answered = torch.nn.functional.cross_entropy(scores, tail)
    guessed = torch.nn.functional.cross_entropy(
        (entities[head] * entities[tail]) @ relations.T, relation, label_smoothing=1e-3
    )
    n3 = sum(rows.abs().pow(3).sum() for rows in (entities[head], relations[relation], entities[tail])) / len(head)
    past = answered + 2.0 * guessed + 0.01 * n3
    loss = task.loss(model, batch)
    rest = {name: p for name, p in model.named_parameters() if not name.startswith("skip.")}
    with_past = torch.autograd.grad(loss, list(rest.values()))
    model.skip, alone = None, _task(**settings)
    torch.testing.assert_close(loss, alone.loss(model, batch) + past)
    without = torch.autograd.grad(alone.loss(model, batch), list(rest.values()))
    for name, one, other in zip(rest, with_past, without, strict=True):
        assert torch.equal(one, other), f"the encoder feels what goes past it in {name}"


def test_a_report_has_the_parts_of_the_scores() -> None:
    task = _task()
    model = _model(task, skip_channels=10, embedding_std=1.0)
    report = task.report(model, "test")
    assert model.skip is not None
    assert report["skip"] == task.evaluate(model.skip, "test")
    model.skip = None
    assert report["encoder"] == task.evaluate(model, "test") != report["metrics"]
    assert "encoder" not in task.report(model, "test")


def test_what_guessing_the_relation_needs() -> None:
    task = _task(relation_prediction=1.0, relation_guess="embeddings")
    with pytest.raises(ValueError, match="entities of width 12 and relations of width 6; allowed: equal widths"):
        _model(task, relation_channels=6)
    with pytest.raises(ValueError, match="'conve', which cannot score all relations of a pair; allowed: distmult, "):
        _model(_task(relation_prediction=1.0), decoder="conve")
    with pytest.raises(ValueError, match=r"^task.skip_relation_prediction with model.decoder 'conve'"):
        _model(_task(skip_relation_prediction=1.0), decoder="conve", skip_channels=12)
    # Each by its own widths.
    past = _task(skip_relation_prediction=1.0, relation_guess="embeddings")
    model = _model(past, relation_channels=6, skip_channels=12)
    assert math.isfinite(past.loss(model, past.batches()[0]).item())


def test_the_batch_norms_of_conve_need_two_queries() -> None:
    with pytest.raises(ValueError, match=r"task.batch_size is 1 with model.decoder 'conve'.*allowed: 2 and above"):
        _model(_task(batch_size=1), decoder="conve")


def test_a_processor_multiplies_float32() -> None:
    """Many take several times as long for bfloat16."""
    task, rough = _task(), _task(precision="bfloat16")
    model, batch = _model(task), task.batches()[0]
    with step_precision("bfloat16", task.device, model):
        assert rough.loss(model, batch) == task.loss(model, batch)


def test_bfloat16_products_give_nearly_the_same_loss() -> None:
    task, rough = _task(), _task(precision="bfloat16")
    model = _model(task)
    batch = task.batches()[0]
    exact = task.loss(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        loss = rough.loss(model, batch)
    loss.backward()
    assert loss.dtype == torch.float32 and 0 < abs(loss.item() - exact.item()) < 0.02
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("biased", [False, True])
def test_ranks_are_those_of_a_plain_sort(biased: bool) -> None:
    task = _task()
    model = _with_biases(_model(task, **BIASED)) if biased else _model(task)
    triples = task.graph.triples
    everything = {tuple(row) for split in ("train", "valid", "test") for row in triples.split(split).tolist()}
    kept = torch.ones(task.num_edges, dtype=torch.bool)
    reciprocal: dict[str, list[float]] = {"tail": [], "head": []}
    for h, r, t in triples.test.tolist():
        for side, (given, relation, target) in {"tail": (h, r, t), "head": (t, r + RELATIONS, h)}.items():
            scores = model(
                task.edge_index[:, kept], task.graph.edge_type[kept], torch.tensor([given]), torch.tensor([relation])
            ).scores()[0]
            others = [
                e
                for e in range(ENTITIES)
                if e != target and ((h, r, e) if side == "tail" else (e, r, t)) not in everything
            ]
            reciprocal[side].append(1 / (1 + int((scores[others] > scores[target]).sum())))
    report = task.report(model, "test")
    for side, values in reciprocal.items():
        assert report[side]["mrr"] == pytest.approx(sum(values) / len(values))
    both = reciprocal["tail"] + reciprocal["head"]
    assert task.evaluate(model, "test") == report["metrics"]
    assert report["metrics"]["mrr"] == pytest.approx(sum(both) / len(both))
    assert sum(part["ranks"] for part in report["relations"].values()) == 2 * len(triples.test)
    assert set(report["relations"]) <= set(triples.relations)


def test_a_model_that_says_nothing_is_ranked_in_the_middle() -> None:
    task = _task()
    model = _model(task)
    with torch.no_grad():
        model.relation_table.zero_()
    metrics = task.evaluate(model, "valid")
    assert metrics["mrr_pessimistic"] < metrics["mrr"] < metrics["mrr_optimistic"] == 1.0


def test_a_random_graph_keeps_degrees_and_types() -> None:
    task, random = _task(), _task("random-graph")
    assert not torch.equal(task.edge_index, random.edge_index)
    assert torch.equal(task.graph.edge_type, random.graph.edge_type)
    for row in (0, 1):
        assert torch.equal(task.edge_index[row].bincount(), random.edge_index[row].bincount())
    size = len(task.graph.triples.train)
    assert torch.equal(random.edge_index[:, :size].flip(0), random.edge_index[:, size : 2 * size])


def test_a_random_graph_says_nothing_that_is_true() -> None:
    task = _task("random-graph")
    triples = task.graph.triples
    true = {tuple(row) for split in ("train", "valid", "test") for row in triples.split(split).tolist()}
    source, target = task.edge_index.tolist()
    told = set(zip(source, task.graph.edge_type.tolist(), target, strict=True))
    assert not told & true and not told & {(t, r, h) for h, r, t in true}


def test_a_random_graph_of_one_triple_is_what_it_is() -> None:
    rows = {split: [("a", "r", "b")] for split in ("train", "valid", "test")}
    graph = KnowledgeGraph.from_triples(triples_from("one", rows))
    assert torch.equal(graph.at_random().edge_index, graph.edge_index)


def test_without_types() -> None:
    task = _task("no-types")
    model = _model(task)
    assert not model.typed and math.isfinite(task.loss(model, task.batches()[0]).item())


def test_the_temperature_is_the_one_that_fits_validation() -> None:
    task = _task()
    model = _model(task)
    with torch.no_grad():
        model.relation_table.mul_(50)  # far too sure of itself
    assert task.calibrate(model)["temperature"] == pytest.approx(16.0)


def test_the_temperature_is_that_of_the_sum_of_the_scores() -> None:
    task = _task()
    model = _model(task, skip_channels=10)
    assert model.skip is not None
    with torch.no_grad():
        model.relation_table.zero_()  # says nothing, at any temperature
        model.skip.relation_table.mul_(1000)  # far too sure of itself
    assert task.calibrate(model)["temperature"] == pytest.approx(16.0)
    model.skip = None
    assert task.calibrate(model)["temperature"] < 1


class _Guess(nn.Module):
    """Names one entity for every triple of validation with the same score, and is right about half of them."""

    def __init__(self, task: LinkPrediction, score: float):
        super().__init__()
        ranking = task.graph.ranking("valid")
        head, relation = ranking.queries[ranking.query].unbind(1)
        wrong = torch.arange(len(head)) % 2
        self.table = torch.zeros(ENTITIES, 2 * RELATIONS, ENTITIES)
        self.table[head, relation, (ranking.target + wrong) % ENTITIES] = score

    def forward(self, edge_index: Tensor, edge_type: Tensor, head: Tensor, relation: Tensor) -> Scored:
        return Scored(self.table[head, relation], torch.eye(ENTITIES), None, torch.eye(ENTITIES))


def test_the_temperature_goes_with_the_scores() -> None:
    task = _task()
    # Half of the guesses are right where e^(score / temperature) is the number of the other entities, 39.
    for score in (1.0, 4.0, 16.0, 48.0):
        found = task.calibrate(_Guess(task, score))["temperature"]
        assert found == pytest.approx(score / math.log(ENTITIES - 1), rel=0.2)


def test_the_temperature_is_fitted_without_the_test_triples() -> None:
    task = _task()
    guess, triples = _Guess(task, 4.0), task.graph.triples
    head, relation, tail = triples.valid.unbind(1)
    wrong = torch.arange(len(head)) % 2
    # They say that no guess is wrong.
    tails = torch.stack([head, relation, (tail + wrong) % ENTITIES], dim=1)
    heads = torch.stack([(head + wrong) % ENTITIES, relation, tail], dim=1)
    other = KnowledgeGraph.from_triples(replace(triples, test=torch.cat([tails, heads])))
    config = Config.from_dict({"task": {"name": "link_prediction"}})
    assert LinkPrediction(other, config, torch.device("cpu")).calibrate(guess) == task.calibrate(guess)


def test_probabilities_leave_known_answers_out() -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0]])
    told = torch.tensor([[False, False, True]])
    probabilities = log_probabilities(scores, told).exp()
    torch.testing.assert_close(probabilities[:, :2], scores[:, :2].softmax(1))
    torch.testing.assert_close(probabilities[0, 2], scores.softmax(1)[0, 2])


def test_training_without_triples_is_refused() -> None:
    triples = triples_from("empty", {"train": [], "valid": [("a", "r", "b")], "test": [("a", "r", "b")]})
    with pytest.raises(ValueError, match="empty has no train triple"):
        LinkPrediction(KnowledgeGraph.from_triples(triples), Config(), torch.device("cpu"))


@pytest.mark.parametrize(
    ("recipe", "setting", "text"),
    [
        ("families", "data.normalise_features=true", "data.normalise_features is True; link_prediction has no such"),
        ("families", "data.split=random", "data.split is 'random'; link_prediction has no such"),
        ("digits", "data.control=no-types", "data.control is 'no-types'; node_classification has no such"),
    ],
)
def test_settings_of_the_other_task_are_refused(recipe: str, setting: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_task(load_recipe(recipe).with_values([setting]), None, torch.device("cpu"))


@pytest.mark.parametrize(
    ("recipe", "setting"), [("families", "task.consistency=1.0"), ("digits", "task.label_smoothing=0.3")]
)
def test_losses_of_the_other_task_are_refused(recipe: str, setting: str) -> None:
    with pytest.raises(ValueError, match="has no such setting"):
        load_recipe(recipe).with_values([setting])


def test_models_that_are_no_link_predictors_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.name is 'gat'; allowed for link prediction: 'magna'"):
        _task().make_model(ModelConfig(name="gat"))

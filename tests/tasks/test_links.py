"""Link prediction: ranks are those of a plain sort, the temperature fits validation, controls keep what they should."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.links import ENTITIES, RELATIONS, link_model, link_task, with_biases
from torch import Tensor

from magna.config.schema import load_recipe
from magna.data import KnowledgeGraph
from magna.data.triples import triples_from
from magna.nn.link_model import LinkModel
from magna.tasks import LinkPrediction, make_task
from magna.tasks.links import log_probabilities


def test_ranks_are_those_of_a_plain_sort() -> None:
    task = link_task()
    _check_ranks(task, link_model(task))
    _check_ranks(task, with_biases(link_model(task, loop_bias=True, entity_bias=True)))
    _check_ranks(task, Guess(task, 4.0))


def _check_ranks(task: LinkPrediction, model: LinkModel) -> None:
    triples = task.graph.triples
    everything = {tuple(row) for split in ("train", "valid", "test") for row in triples.split(split).tolist()}
    reciprocal: dict[str, list[float]] = {"tail": [], "head": []}
    for h, r, t in triples.test.tolist():
        for side, (end, relation, target) in {"tail": (h, r, t), "head": (t, r + RELATIONS, h)}.items():
            query = torch.tensor([end]), torch.tensor([relation])
            scores = model(task.edge_index, task.graph.edge_type, *query)[0]
            others = [
                e
                for e in range(ENTITIES)
                if e != target and ((h, r, e) if side == "tail" else (e, r, t)) not in everything
            ]
            better, equal = ((scores[others] > scores[target]).sum(), (scores[others] == scores[target]).sum())
            reciprocal[side].append(1 / (1 + int(better) + int(equal) / 2))
    report = task.report(model, "test")
    for side, values in reciprocal.items():
        assert report[side]["mrr"] == pytest.approx(sum(values) / len(values))
    both = reciprocal["tail"] + reciprocal["head"]
    assert task.evaluate(model, "test") == report["metrics"]
    assert report["metrics"]["mrr"] == pytest.approx(sum(both) / len(both))
    assert sum(part["ranks"] for part in report["relations"].values()) == 2 * len(triples.test)
    assert set(report["relations"]) <= set(triples.relations)


def test_equal_scores_are_ranked_in_the_middle() -> None:
    task = link_task()
    model = link_model(task)
    with torch.no_grad():
        model.deep.relation_table.zero_()
    metrics = task.evaluate(model, "valid")
    assert metrics["mrr_pessimistic"] < metrics["mrr"] < metrics["mrr_optimistic"] == 1.0


def test_a_report_ranks_each_part_of_the_scores() -> None:
    task = link_task()
    model = link_model(task, skip_channels=10, embedding_std=1.0)
    shallow, report = model.shallow, task.report(model, "test")
    assert shallow is not None
    model.shallow = None
    assert report["encoder"] == task.evaluate(model, "test") != report["metrics"]
    assert "encoder" not in task.report(model, "test")
    alone = link_model(task, num_layers=0, final_norm="none", entity_channels=10)
    alone.deep.load_state_dict(shallow.state_dict())
    assert report["skip"] == task.evaluate(alone, "test")


def test_a_random_graph_keeps_degrees_and_types() -> None:
    task, random = link_task(), link_task("random-graph")
    assert not torch.equal(task.edge_index, random.edge_index)
    assert torch.equal(task.graph.edge_type, random.graph.edge_type)
    for row in (0, 1):
        assert torch.equal(task.edge_index[row].bincount(), random.edge_index[row].bincount())
    size = len(task.graph.triples.train)
    assert torch.equal(random.edge_index[:, :size].flip(0), random.edge_index[:, size : 2 * size])


def test_a_random_graph_has_no_true_triple() -> None:
    task = link_task("random-graph")
    triples = task.graph.triples
    true = {tuple(row) for split in ("train", "valid", "test") for row in triples.split(split).tolist()}
    source, target = task.edge_index.tolist()
    edges = set(zip(source, task.graph.edge_type.tolist(), target, strict=True))
    assert not edges & true and not edges & {(t, r, h) for h, r, t in true}


def test_a_random_graph_of_one_triple_cannot_differ() -> None:
    rows = {split: [("a", "r", "b")] for split in ("train", "valid", "test")}
    graph = KnowledgeGraph.from_triples(triples_from("one", rows))
    assert torch.equal(graph.at_random().edge_index, graph.edge_index)


def test_the_control_without_types() -> None:
    task = link_task("no-types")
    model = link_model(task)
    assert not model.typed and task.edge_type is None and task.evaluate(model, "valid")["mrr"] > 0


def test_the_temperature_is_the_one_that_fits_validation() -> None:
    task = link_task()
    model = link_model(task)
    with torch.no_grad():
        model.deep.relation_table.mul_(50)  # far too confident
    assert task.calibrate(model)["temperature"] == pytest.approx(16.0)


def test_the_temperature_is_that_of_the_sum_of_the_scores() -> None:
    task = link_task()
    model = link_model(task, skip_channels=10)
    assert model.shallow is not None
    with torch.no_grad():
        model.deep.relation_table.zero_()  # equal scores at any temperature
        model.shallow.relation_table.mul_(1000)  # far too confident
    assert task.calibrate(model)["temperature"] == pytest.approx(16.0)
    model.shallow = None
    assert task.calibrate(model)["temperature"] < 1


class Guess(LinkModel):
    """Gives one entity of every triple of validation the same score and the others 0; half of the guesses are right."""

    def __init__(self, task: LinkPrediction, score: float):
        super().__init__()
        ranking = task.graph.ranking("valid")
        head, relation = ranking.queries[ranking.query].unbind(1)
        wrong = torch.arange(len(head)) % 2
        self.table = torch.zeros(ENTITIES, 2 * RELATIONS, ENTITIES)
        self.table[head, relation, (ranking.target + wrong) % ENTITIES] = score

    def encode(self, *graph: Any, **edges: Any) -> Tensor:
        del graph, edges
        return self.table

    def scores(self, states: Tensor, head: Tensor, relation: Tensor, tail: Tensor | None = None) -> Tensor:
        assert tail is None
        return states[head, relation]


def test_the_temperature_is_proportional_to_the_scores() -> None:
    task = link_task()
    # Half of the guesses are right where e^(score / temperature) is the number of the other entities, 39.
    for score in (1.0, 4.0, 16.0, 48.0):
        temperature = task.calibrate(Guess(task, score))["temperature"]
        assert temperature == pytest.approx(score / math.log(ENTITIES - 1), rel=0.2)


def test_the_temperature_is_fitted_without_the_test_triples() -> None:
    task = link_task()
    guess, triples = Guess(task, 4.0), task.graph.triples
    head, relation, tail = triples.valid.unbind(1)
    wrong = torch.arange(len(head)) % 2
    # By these test triples no guess is wrong.
    tails = torch.stack([head, relation, (tail + wrong) % ENTITIES], dim=1)
    heads = torch.stack([(head + wrong) % ENTITIES, relation, tail], dim=1)
    other = KnowledgeGraph.from_triples(replace(triples, test=torch.cat([tails, heads])))
    assert LinkPrediction(other, torch.device("cpu")).calibrate(guess) == task.calibrate(guess)


def test_probabilities_leave_known_answers_out() -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0]])
    known = torch.tensor([[False, False, True]])
    probabilities = log_probabilities(scores, known).exp()
    torch.testing.assert_close(probabilities[:, :2], scores[:, :2].softmax(1))
    torch.testing.assert_close(probabilities[0, 2], scores.softmax(1)[0, 2])


def test_blocks_cover_all_queries_with_their_known_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magna.tasks.links._BLOCK", 7)
    task = link_task()
    model, queries = link_model(task), task.graph.queries[torch.arange(40) % 19]
    rows, scores, known = zip(*task.blocks(model, queries, ("train",)), strict=True)
    assert [part.start for part in rows] == [0, 7, 14, 21, 28, 35]
    whole = model(task.edge_index, task.edge_type, *queries.unbind(1))
    torch.testing.assert_close(torch.cat(scores), whole)
    true = {tuple(row) for row in task.graph.triples.train.tolist()}
    for (head, relation), row in zip(queries.tolist(), torch.cat(known).tolist(), strict=True):
        triples = [
            (head, relation, e) if relation < RELATIONS else (e, relation - RELATIONS, head) for e in range(ENTITIES)
        ]
        assert row == [triple in true for triple in triples]


def test_training_without_triples_is_refused() -> None:
    triples = triples_from("empty", {"train": [], "valid": [("a", "r", "b")], "test": [("a", "r", "b")]})
    with pytest.raises(ValueError, match="empty: it has no train triple"):
        LinkPrediction(KnowledgeGraph.from_triples(triples), torch.device("cpu"))


@pytest.mark.parametrize(
    ("recipe", "setting", "text"),
    [
        (
            "families",
            "data.normalise_features=true",
            "data.normalise_features is True; allowed: a setting of the data of link",
        ),
        ("families", "data.split=random", "data.split is 'random'; allowed: a setting of the data of link"),
        ("digits", "data.control=no-types", "data.control is 'no-types'; allowed: a setting of the data of node"),
    ],
)
def test_settings_of_the_other_task_are_refused(recipe: str, setting: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_task(load_recipe(recipe).with_values([setting]), None, torch.device("cpu"))


@pytest.mark.parametrize(
    ("recipe", "setting"), [("families", "task.consistency=1.0"), ("digits", "task.label_smoothing=0.3")]
)
def test_losses_of_the_other_task_are_refused(recipe: str, setting: str) -> None:
    with pytest.raises(ValueError, match=r"allowed: a setting of (link_prediction|node_classification): "):
        load_recipe(recipe).with_values([setting])

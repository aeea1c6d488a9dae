"""Link prediction: ranks are those of a plain sort, the temperature fits validation, controls keep what they should."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.links import ENTITIES, RELATIONS, link_model, link_task, one_triple, with_biases
from torch import Tensor

from magna.config.registry import model_settings
from magna.config.schema import load_recipe
from magna.data import KnowledgeGraph
from magna.nn.link_model import LinkModel
from magna.tasks import LinkPrediction
from magna.tasks.links import log_probabilities

TASK = link_task()


class Guess(LinkModel):
    """Gives one entity of every triple of validation the same score and the others 0; half of the guesses are right."""

    def __init__(self, score: float):
        super().__init__()
        ranking = TASK.graph.ranking("valid")
        head, relation = ranking.queries[ranking.query].unbind(1)
        wrong = torch.arange(len(head)) % 2
        self.table = torch.zeros(ENTITIES, 2 * RELATIONS, ENTITIES)
        self.table[head, relation, (ranking.target + wrong) % ENTITIES] = score

    def encode(self, *_: Any, **__: Any) -> Tensor:
        return self.table

    def scores(self, states: Tensor, head: Tensor, relation: Tensor, tail: Tensor | None = None) -> Tensor:
        assert tail is None
        return states[head, relation]


@pytest.mark.parametrize("model", [link_model(), with_biases(), Guess(4.0)], ids=["plain", "biased", "any form"])
def test_ranks_are_those_of_a_plain_sort(model: LinkModel) -> None:
    triples = TASK.graph.triples
    everything = {tuple(row) for split in ("train", "valid", "test") for row in triples.split(split).tolist()}
    reciprocal: dict[str, list[float]] = {"tail": [], "head": []}
    for h, r, t in triples.test.tolist():
        for side, (end, relation, target) in {"tail": (h, r, t), "head": (t, r + RELATIONS, h)}.items():
            query = torch.tensor([end]), torch.tensor([relation])
            scores = model(TASK.edge_index, TASK.graph.edge_type, *query)[0]
            others = [
                e
                for e in range(ENTITIES)
                if e != target and ((h, r, e) if side == "tail" else (e, r, t)) not in everything
            ]
            better, equal = ((scores[others] > scores[target]).sum(), (scores[others] == scores[target]).sum())
            reciprocal[side].append(1 / (1 + int(better) + int(equal) / 2))
    report = TASK.report(model, "test")
    for side, values in reciprocal.items():
        assert report[side]["mrr"] == pytest.approx(sum(values) / len(values))
    both = reciprocal["tail"] + reciprocal["head"]
    assert TASK.evaluate(model, "test") == report["metrics"]
    assert report["metrics"]["mrr"] == pytest.approx(sum(both) / len(both))
    assert sum(part["ranks"] for part in report["relations"].values()) == 2 * len(triples.test)
    assert set(report["relations"]) <= set(triples.relations)


def test_equal_scores_are_ranked_in_the_middle() -> None:
    model = link_model()
    with torch.no_grad():
        model.deep.relation_table.zero_()
    metrics = TASK.evaluate(model, "valid")
    assert metrics["mrr_pessimistic"] < metrics["mrr"] < metrics["mrr_optimistic"] == 1.0


def test_a_report_ranks_each_part_of_the_scores() -> None:
    model = link_model(skip_channels=10, embedding_std=1.0)
    shallow, report = model.shallow, TASK.report(model, "test")
    assert shallow is not None
    model.shallow = None
    assert report["encoder"] == TASK.evaluate(model, "test") != report["metrics"]
    assert "encoder" not in TASK.report(model, "test")
    alone = link_model(num_layers=0, final_norm="none", entity_channels=10)
    alone.deep.load_state_dict(shallow.state_dict())
    assert report["skip"] == TASK.evaluate(alone, "test")


def test_a_random_graph_keeps_degrees_and_types_and_has_no_true_triple() -> None:
    random = link_task("random-graph")
    assert torch.equal(TASK.graph.edge_type, random.graph.edge_type)
    for row in (0, 1):
        assert torch.equal(TASK.edge_index[row].bincount(), random.edge_index[row].bincount())
    triples = TASK.graph.triples
    size = len(triples.train)
    assert torch.equal(random.edge_index[:, :size].flip(0), random.edge_index[:, size : 2 * size])
    true = {tuple(row) for split in ("train", "valid", "test") for row in triples.split(split).tolist()}
    source, target = random.edge_index.tolist()
    edges = set(zip(source, random.graph.edge_type.tolist(), target, strict=True))
    assert not edges & true and not edges & {(t, r, h) for h, r, t in true}
    alone = one_triple()  # cannot differ
    assert torch.equal(alone.at_random().edge_index, alone.edge_index)


def test_the_control_without_types() -> None:
    task = link_task("no-types")
    model: Any = task.make_model(model_settings("link_prediction"))
    assert not model.typed and task.edge_type is None and task.evaluate(model, "valid")["mrr"] > 0


def test_the_temperature_is_that_of_the_sum_of_the_scores() -> None:
    model = link_model(skip_channels=10)
    assert model.shallow is not None
    with torch.no_grad():
        model.deep.relation_table.zero_()  # equal scores at any temperature
        model.shallow.relation_table.mul_(1000)  # far too confident
    assert TASK.calibrate(model)["temperature"] > 16
    model.shallow = None
    assert TASK.calibrate(model)["temperature"] == 1, "no temperature is better than another"


def test_the_temperature_is_proportional_to_the_scores() -> None:
    # Half of the guesses are right where e^(score / temperature) is the number of the other entities, 39.
    for score in (1.0, 4.0, 16.0, 48.0):
        temperature = TASK.calibrate(Guess(score))["temperature"]
        assert temperature == pytest.approx(score / math.log(ENTITIES - 1), rel=0.03)


def test_the_temperature_is_the_minimum_of_the_loss() -> None:
    model = Guess(4.0)
    model.table += torch.randn(model.table.shape, generator=torch.Generator().manual_seed(0))
    queries, target = TASK._sample("valid")

    def loss(temperature: float) -> float:
        parts = [
            log_probabilities(scores.double() / temperature, known).gather(1, target[rows, None]).sum()
            for rows, scores, known in TASK.blocks(model, queries, ("train", "valid"))
        ]
        return -float(torch.stack(parts).sum())

    best = TASK.calibrate(model)["temperature"]
    assert loss(best) < min(loss(1.05 * best), loss(best / 1.05))


def test_confidence_is_that_of_the_best_unknown_answer() -> None:
    guess = Guess(4.0)
    probability, right = TASK.confidences(guess, "valid", TASK.calibrate(guess)["temperature"])
    assert len(probability) == len(right) > 0 and probability.min() > 1 / ENTITIES
    # Half of the guesses are right, and that is what the probabilities say.
    assert probability.mean().item() == pytest.approx(right.float().mean().item(), abs=0.05)


def test_the_temperature_is_fitted_without_the_test_triples() -> None:
    guess, triples = Guess(4.0), TASK.graph.triples
    head, relation, tail = triples.valid.unbind(1)
    wrong = torch.arange(len(head)) % 2
    # By these test triples no guess is wrong.
    tails = torch.stack([head, relation, (tail + wrong) % ENTITIES], dim=1)
    heads = torch.stack([(head + wrong) % ENTITIES, relation, tail], dim=1)
    other = KnowledgeGraph.from_triples(replace(triples, test=torch.cat([tails, heads])))
    assert LinkPrediction(other, torch.device("cpu")).calibrate(guess) == TASK.calibrate(guess)


def test_probabilities_leave_known_answers_out() -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0]])
    known = torch.tensor([[False, False, True]])
    probabilities = log_probabilities(scores, known).exp()
    torch.testing.assert_close(probabilities[:, :2], scores[:, :2].softmax(1))
    torch.testing.assert_close(probabilities[0, 2], scores.softmax(1)[0, 2])


def test_blocks_cover_all_queries_with_their_known_answers() -> None:
    model, queries = link_model(), TASK.graph.queries[torch.arange(40) % 19]
    rows, scores, known = zip(*TASK.blocks(model, queries, ("train",), size=7), strict=True)
    assert [part.start for part in rows] == [0, 7, 14, 21, 28, 35]
    whole = model(TASK.edge_index, TASK.edge_type, *queries.unbind(1))
    torch.testing.assert_close(torch.cat(scores), whole)
    true = {tuple(row) for row in TASK.graph.triples.train.tolist()}
    for (head, relation), row in zip(queries.tolist(), torch.cat(known).tolist(), strict=True):
        triples = [
            (head, relation, e) if relation < RELATIONS else (e, relation - RELATIONS, head) for e in range(ENTITIES)
        ]
        assert row == [triple in true for triple in triples]


def test_training_without_triples_is_refused() -> None:
    with pytest.raises(ValueError, match="tiny: it has no train triple"):
        LinkPrediction(one_triple(train=[]), torch.device("cpu"))


@pytest.mark.parametrize(
    ("recipe", "setting", "text"),
    [
        (
            "families",
            "data.normalise_features=true",
            "normalise_features is True; allowed: a setting of the data of link",
        ),
        ("families", "data.split=random", "data.split is 'random'; allowed: a setting of the data of link"),
        ("digits", "data.control=no-types", "data.control is 'no-types'; allowed: a setting of the data of node"),
        ("families", "task.consistency=1.0", "allowed: a setting of link_prediction: "),
        ("digits", "task.label_smoothing=0.3", "allowed: a setting of node_classification: "),
    ],
)
def test_settings_of_the_other_task_are_refused(recipe: str, setting: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        load_recipe(recipe).with_values([setting])


@pytest.mark.parametrize("interaction", ["AutoSF", "QuatE", "RotatE"])
def test_ranks_of_an_adapter_are_those_of_pykeens_evaluator(interaction: str) -> None:
    """PyKEEN's model with the same weights, ranked from end to end by PyKEEN, to the last rank."""
    pytest.importorskip("pykeen")
    from pykeen.evaluation import RankBasedEvaluator
    from tests.support.pykeen import pykeen_twin

    from magna.baselines.links.pykeen import PyKEENModel

    model, triples = PyKEENModel(ENTITIES, RELATIONS, interaction=interaction, channels=16), TASK.graph.triples
    ours, evaluator = TASK.ranks(model, "test"), RankBasedEvaluator(clear_on_finalize=False)
    everything = torch.cat([triples.train, triples.valid])
    arguments: Any = {"mapped_triples": triples.test, "additional_filter_triples": everything, "use_tqdm": False}
    results = evaluator.evaluate(pykeen_twin(model, triples.train), batch_size=len(triples.test), **arguments)
    for side in ("tail", "head"):
        rows = TASK.graph.ranking("test").side(side)
        theirs = torch.from_numpy(np.concatenate(evaluator.ranks[side, "realistic"]))
        assert torch.equal(ours.select(rows).ranks("realistic").double(), theirs.double())
    mrr = results.get_metric("both.realistic.inverse_harmonic_mean_rank")
    assert TASK.evaluate(model, "test")["mrr"] == pytest.approx(mrr)

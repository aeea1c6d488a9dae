"""Predictors that cost nothing: the majority, a linear model, and rules of links."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from magna.config.schema import Config
from magna.data import KnowledgeGraph, load_digits, load_knowledge_graph
from magna.data.triples import Triples
from magna.tasks import LinkPrediction, NodeClassification
from magna.tasks.trivial import gain_note, gain_on_validation, trivial_metrics, trivial_ranks

CPU = torch.device("cpu")


def test_the_majority_and_the_features_alone() -> None:
    data = load_digits()
    task = NodeClassification(data, Config(), CPU)
    trivial = trivial_metrics(task, "valid")
    assert gain_on_validation(task, {"accuracy": 0.99}) == []
    (line,) = gain_on_validation(task, {"accuracy": 0.5})
    assert line.startswith("validation: no gain over the features alone: 8")
    most = data.y[data.train].bincount().argmax()
    assert trivial["majority"]["accuracy"] == pytest.approx(float((data.y[data.valid] == most).double().mean()))
    assert data.x is not None
    x = (data.x - data.x[data.train].mean(0)) / data.x[data.train].std(0, correction=0).clamp(min=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peers = [LogisticRegression(C=1 / (len(data.train) * p)) for p in (1e-1, 1e-2, 1e-3)]
        scores = [p.fit(x[data.train], data.y[data.train]).score(x[data.valid], data.y[data.valid]) for p in peers]
    assert trivial["features"]["accuracy"] == pytest.approx(max(scores), abs=0.01)


def test_numbers_and_labels_have_a_linear_model_as_well() -> None:
    data = load_digits()
    assert data.x is not None
    number = replace(data, y=7 + 3 * data.x[:, 20] - data.x[:, 30], num_classes=1, target="number")
    trivial = trivial_metrics(NodeClassification(number, Config(), CPU), "test")
    assert trivial["mean"]["r2"] == pytest.approx(0, abs=0.02) and trivial["features"]["r2"] > 0.95
    y = torch.stack([data.y > 4, data.y == 0], 1).float()
    y[::5, 0] = torch.nan
    labels = NodeClassification(replace(data, y=y, num_classes=2, target="labels"), Config(), CPU)
    assert trivial_metrics(labels, "test")["features"]["roc_auc"] > 0.9


def _graph(train: list[tuple[int, int, int]], test: list[tuple[int, int, int]]) -> KnowledgeGraph:
    entities, relations = tuple(f"e{i}" for i in range(6)), ("loves", "loved_by", "knows")
    parts = [torch.tensor(part) for part in (train, test, test)]
    return KnowledgeGraph.from_triples(
        Triples("toy", entities, relations, train=parts[0], valid=parts[1], test=parts[2])
    )


def test_the_reverse_rule_finds_the_inverse_relation() -> None:
    # Relation 1 is the inverse of 0 in training; of the test triple (4, 0, 5) training knows (5, 1, 4).
    train = [(0, 0, 1), (1, 1, 0), (2, 0, 3), (3, 1, 2), (5, 1, 4), (0, 2, 1), (2, 2, 1)]
    ranks = trivial_ranks(_graph(train, [(4, 0, 5)]), "test")
    assert ranks["reverse"].metrics()["mrr"] == 1.0
    assert ranks["frequency"].metrics()["mrr"] < 0.5


def test_the_frequency_of_answers() -> None:
    train = [(0, 0, 3), (1, 0, 3), (2, 0, 3), (4, 0, 5)]
    ranks = trivial_ranks(_graph(train, [(5, 0, 3)]), "test")
    assert ranks["frequency"].ranks()[0] == 1


def test_links_are_compared_with_rules() -> None:
    task = LinkPrediction(load_knowledge_graph("families"), CPU)
    trivial = trivial_metrics(task, "valid")
    # No relation of this graph has its inverse in it.
    assert trivial["reverse"]["mrr"] == trivial["frequency"]["mrr"] > 0


def test_a_model_that_is_no_better_is_told_so() -> None:
    trivial = {"majority": {"accuracy": 0.8}, "features": {"accuracy": 0.7}}
    assert gain_note("accuracy", 0.81, trivial) is None
    note = "no gain over the majority class: 80.0 %, the model 80.0 %"
    assert gain_note("accuracy", 0.8, trivial) == note
    errors = {"mean": {"mae": 3.0}, "features": {"mae": 1.0}}
    assert gain_note("mae", 0.5, errors) is None
    assert "the features alone: MAE 1.0000" in str(gain_note("mae", 2.0, errors))
    assert gain_note("roc_auc", 0.5, errors) is None

"""Predictions of several labels and of numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from magna.config.schema import Config
from magna.data import load_digits
from magna.tasks import NodeClassification
from magna.use.node_labels import labels_of, names_of, truth_of
from magna.use.nodes import Predictions


@pytest.mark.parametrize("kind", ["labels", "number"])
def test_labels_and_numbers_have_columns_of_their_own(kind: Any) -> None:
    data = load_digits()
    if kind == "number":
        changes: dict[str, Any] = {"y": 100 + 5 * data.y.float(), "num_classes": 1}
    else:
        changes = {"y": torch.stack([data.y > 4, data.y == 0], 1).float(), "num_classes": 2}
        changes["schema"] = replace(data.schema, class_names=("large", "zero"))
    data = replace(data, target=kind, **changes)
    task = NodeClassification(data, Config(), torch.device("cpu"))
    scores = task.target.encoded(data.y)[:, None] if kind == "number" else 20 * data.y - 10
    answers = task.answers(scores).view(data.num_nodes, -1)
    predictions = Predictions(
        dataset=data.name,
        classes=names_of(data),
        ids=[data.id_of(node) for node in range(data.num_nodes)],
        labels=labels_of(data, answers),
        probabilities=answers,
        truth=truth_of(data, torch.arange(data.num_nodes)),
        split=[None] * data.num_nodes,
        target=data.target,
    )
    assert predictions.labels == predictions.truth
    columns, first = predictions.columns(), predictions.to_dict()["nodes"][0]
    if kind == "number":
        assert list(columns) == ["id", "value", "true_value"]
        assert columns["value"] == pytest.approx(data.y.tolist(), rel=1e-5)
    else:
        assert list(columns) == ["id", "labels", "probability_large", "probability_zero", "true_labels"]
        assert set(columns["labels"]) == {"", "large", "zero"}
    assert list(first) == list(columns)

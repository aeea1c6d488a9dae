"""Labels of nodes in words: classes, several labels, and numbers; their columns in a table of predictions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from magna.data import NodeData
from magna.data.node_data import UNLABELLED

_SEPARATOR = "; "  # between the labels of a node


def names_of(graph: NodeData) -> list[str]:
    """The name of each column of answers."""
    return ["value"] if graph.target == "number" else [graph.class_name(at) for at in range(graph.num_classes)]


def labels_of(graph: NodeData, answers: Tensor) -> list[str]:
    """The likeliest class of each row, the labels with a probability of ½ or more, or the number."""
    if graph.target == "classes":
        return [graph.class_name(label) for label in answers.argmax(1).tolist()]
    if graph.target == "number":
        return [f"{value:.6g}" for value in answers[:, 0].tolist()]
    return [_joined(graph, row) for row in answers >= 0.5]


def truth_of(graph: NodeData, nodes: Tensor) -> list[str | None]:
    """The true label of some nodes in the same words; None for a node without one."""
    y, labelled = graph.y[nodes], graph.labelled[nodes].tolist()
    if graph.target == "classes":
        return [None if label == UNLABELLED else graph.class_name(label) for label in y.tolist()]
    texts = labels_of(graph, y[:, None]) if graph.target == "number" else [_joined(graph, row) for row in y == 1]
    return [text if known else None for text, known in zip(texts, labelled, strict=True)]


def _joined(graph: NodeData, row: Tensor) -> str:
    return _SEPARATOR.join(graph.class_name(label) for label in torch.nonzero(row)[:, 0].tolist())


def columns_of(predictions: Any) -> dict[str, list[Any]]:
    """Columns of the :class:`magna.use.nodes.Predictions` of labels, each with its probability, or of numbers."""
    columns: dict[str, list[Any]] = {"id": predictions.ids}
    truth: list[Any] = list(predictions.truth)
    if predictions.target == "number":
        columns["value"] = predictions.probabilities[:, 0].tolist()
        truth, name = [None if text is None else float(text) for text in truth], "true_value"
    else:
        columns["labels"] = predictions.labels
        for at, label in enumerate(predictions.classes):
            columns[f"probability_{label}"] = predictions.probabilities[:, at].tolist()
        name = "true_labels"
    return columns | ({name: truth} if any(value is not None for value in truth) else {})

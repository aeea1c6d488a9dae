"""Labels of nodes in words: classes, several labels, and numbers; their columns in a table of predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from magna.data import NodeData
from magna.data.node_data import UNLABELLED, Target

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


def columns_of(
    target: Target,
    names: Sequence[str],
    ids: list[str],
    labels: list[str],
    answers: Tensor,
    truth: Sequence[str | None],
) -> dict[str, list[Any]]:
    """Columns of labels, each with its probability, or of numbers."""
    columns: dict[str, list[Any]] = {"id": ids}
    true_values: list[Any] = list(truth)
    if target == "number":
        columns["value"] = answers[:, 0].tolist()
        true_values, name = [None if text is None else float(text) for text in truth], "true_value"
    else:
        columns["labels"] = labels
        for at, label in enumerate(names):
            columns[f"probability_{label}"] = answers[:, at].tolist()
        name = "true_labels"
    return columns | ({name: true_values} if any(value is not None for value in truth) else {})

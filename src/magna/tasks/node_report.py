"""The report of a finished run on nodes: every metric, each class, calibration, and trivial predictors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from magna.data.node_data import Target
from magna.tasks.calibration import calibrated, reliability
from magna.tasks.node_metrics import NODE_METRICS, class_counts, label_counts

_OF_PROBABILITIES = ("log_loss",)  # metrics that a temperature changes


def node_metrics(
    scores: Tensor, target: Tensor, kind: Target, calibration: Mapping[str, Any] | None
) -> dict[str, float]:
    """Every metric of a target that the nodes define, of the calibrated probabilities.

    Platt scaling may move a label across the probability of ½; all other calibrations keep every decision.
    """
    honest = calibrated(scores, calibration) if kind != "number" else scores
    # A temperature changes no decision: scores as they are have no further rounding.
    decided = honest if "slope" in (calibration or {}) else scores
    values = {
        name: float(measure(honest if name in _OF_PROBABILITIES else decided, target))
        for name, measure in NODE_METRICS[kind].items()
    }
    return {name: value for name, value in values.items() if not math.isnan(value)}


def class_report(
    scores: Tensor, target: Tensor, kind: Target, names: Sequence[str], calibration: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Precision, recall, F1 and support of each class or label; of classes the confusion matrix; the calibration.

    A row of the matrix has the nodes of a class by the class that was predicted. What is not defined is None.
    """
    if kind == "number":
        return {}
    honest = calibrated(scores, calibration)
    counts = class_counts(scores, target) if kind == "classes" else label_counts(honest, target)
    columns = zip(*(part.tolist() for part in (counts.precision, counts.recall, counts.f1)), strict=True)
    report: dict[str, Any] = {
        "classes": [
            dict(zip(("precision", "recall", "f1"), (None if math.isnan(v) else v for v in row), strict=True))
            | {"class": name, "support": int(support)}
            for name, row, support in zip(names, columns, counts.support.tolist(), strict=True)
        ]
    }
    if kind == "classes":
        size = scores.size(1)
        pairs = torch.bincount(target * size + scores.argmax(1), minlength=size * size)
        report["confusion"] = {"classes": list(names), "rows": pairs.view(size, size).tolist()}
    return report | {"calibration": reliability(*confidences(honest, target, kind))}


def confidences(scores: Tensor, target: Tensor, kind: Target) -> tuple[Tensor, Tensor]:
    """Confidence in each answer and whether it is right: of the likeliest class, or of each known label."""
    if kind == "classes":
        confidence, answer = scores.double().softmax(1).max(1)
        return confidence, answer == target
    known = ~target.isnan()
    share = scores.double().sigmoid()[known]
    return torch.maximum(share, 1 - share), (share >= 0.5) == (target[known] == 1)

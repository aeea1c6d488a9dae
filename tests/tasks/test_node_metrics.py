"""Metrics of nodes equal those of scikit-learn, on random and on degenerate input, alone and in a batch."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from sklearn import metrics as sk
from torch import Tensor

from magna.data.node_data import Target
from magna.tasks.metrics import METRIC_FORMS
from magna.tasks.node_metrics import NODE_METRICS, class_counts, label_average_precision, label_roc_auc


def _value(target: Target, name: str, scores: Tensor, truth: Tensor) -> float:
    value = NODE_METRICS[target][name](scores, truth)
    assert value.dtype == torch.float64 and value.dim() == 0
    return float(value)


def _classes(name: str, scores: Tensor, y: Tensor) -> float:
    """The metric by scikit-learn; the classes that `y` has decide over ROC AUC and average precision."""
    shares, truth, chosen = scores.double().softmax(1).numpy(), y.numpy(), scores.argmax(1).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "accuracy":
            return float(sk.accuracy_score(truth, chosen))
        if name == "balanced_accuracy":
            return float(sk.balanced_accuracy_score(truth, chosen))
        if name == "macro_f1":
            return float(sk.f1_score(truth, chosen, average="macro", zero_division=np.nan))
        if name == "log_loss":
            # scikit-learn bounds shares away from 0.
            return -float(log_softmax(scores.double().numpy(), axis=1)[np.arange(len(truth)), truth].mean())
        one = sk.roc_auc_score if name == "roc_auc" else sk.average_precision_score
        if shares.shape[1] == 2:
            return float(one(truth, (scores[:, 1] - scores[:, 0]).double().numpy()))
        # Logarithms: shares near 1 are rounded to one number, and ties differ in their last bits.
        shares = scores.double().log_softmax(1).numpy()
        present = [c for c in range(shares.shape[1]) if 0 < (truth == c).sum() < len(truth)]
        return float(np.mean([one(truth == c, shares[:, c]) for c in present]))


def _cases() -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    cases = []
    for size, classes in ((1, 3), (7, 2), (40, 2), (40, 5), (300, 4)):
        scores, y = torch.randn(size, classes, generator=draw), torch.randint(classes, (size,), generator=draw)
        cases += [(scores, y), ((2 * scores).round(), y)]  # the second with many ties
    far = torch.randint(3, (50,), generator=draw)
    cases.append((torch.randn(50, 3, generator=draw) + 60 * torch.eye(3)[far], far.roll(1)))  # saturated
    cases.append((torch.randn(30, 4, generator=draw), torch.randint(2, (30,), generator=draw)))  # classes without nodes
    cases.append((torch.zeros(20, 3), torch.randint(3, (20,), generator=draw)))  # a constant model
    return cases


@pytest.mark.parametrize("name", NODE_METRICS["classes"])
def test_metrics_of_classes_are_those_of_scikit_learn(name: str) -> None:
    for scores, y in _cases():
        if name in ("roc_auc", "average_precision") and len(set(y.tolist())) == 1:
            continue
        assert _value("classes", name, scores, y) == pytest.approx(_classes(name, scores, y), rel=1e-9), scores.shape


def _labels(name: str, scores: Tensor, y: Tensor) -> float:
    """The metric of each label by scikit-learn, over its known entries, averaged."""
    values = []
    for s, t in zip(scores.double().T, y.T, strict=True):
        s, t = s[~t.isnan()].numpy(), t[~t.isnan()].numpy().astype(int)
        if len(t) == 0:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            by_name: dict[str, Any] = {
                "roc_auc": lambda s=s, t=t: sk.roc_auc_score(t, s) if 0 < t.sum() < len(t) else np.nan,
                "average_precision": lambda s=s, t=t: sk.average_precision_score(t, s) if t.sum() else np.nan,
                "balanced_accuracy": lambda s=s, t=t: sk.balanced_accuracy_score(t, s > 0),
                "macro_f1": lambda s=s, t=t: sk.f1_score(t, s > 0, zero_division=np.nan),
            }
            values.append(by_name[name]())
    return float(np.nanmean(values))


@pytest.mark.parametrize("name", NODE_METRICS["labels"])
def test_metrics_of_labels_are_those_of_scikit_learn(name: str) -> None:
    draw = torch.Generator().manual_seed(1)
    for scale in (1.0, 0.0):
        scores = (torch.randn(80, 5, generator=draw) * 3).round() / 2 * scale
        y = (torch.rand(80, 5, generator=draw) < 0.3).float()
        y[torch.rand(80, 5, generator=draw) < 0.2] = math.nan
        y[:, 3], y[:, 4] = 0.0, math.nan  # a label that nobody has, one that nobody knows
        known = ~y.isnan()
        entries = scores[known].double(), y[known].long()
        if name == "accuracy":
            expected = float(sk.accuracy_score(entries[1], entries[0] > 0))
        elif name == "log_loss":
            expected = float(sk.log_loss(entries[1], entries[0].sigmoid()))
        else:
            expected = _labels(name, scores, y)
        assert _value("labels", name, scores, y) == pytest.approx(expected, rel=1e-9)


def test_metrics_of_numbers_are_those_of_scikit_learn() -> None:
    draw = torch.Generator().manual_seed(2)
    target, values = torch.randn(50, generator=draw), torch.randn(50, 1, generator=draw)
    for y in (target, 1e4 + target, torch.full((50,), 3.0)):
        assert _value("number", "r2", values, y) == pytest.approx(sk.r2_score(y.double(), values[:, 0].double()))
        assert _value("number", "mae", values, y) == pytest.approx(sk.mean_absolute_error(y, values))
    constant = torch.full((5,), 3.0)
    assert _value("number", "r2", constant, constant) == 1.0


@pytest.mark.parametrize("target", NODE_METRICS)
def test_a_batch_of_trials_is_measured_as_each_alone(target: Target) -> None:
    draw = torch.Generator().manual_seed(3)
    scores = torch.randn(3, 30, 1 if target == "number" else 4, generator=draw).round(decimals=1)
    y = torch.randint(4, (30,), generator=draw) if target == "classes" else torch.randn(30, generator=draw)
    if target == "labels":
        y = (torch.rand(30, 4, generator=draw) < 0.5).float()
    for name, measure in NODE_METRICS[target].items():
        together = torch.vmap(lambda each, measure=measure: measure(each, y))(scores)
        assert together.tolist() == pytest.approx([_value(target, name, each, y) for each in scores], rel=1e-14)


def test_nan_never_wins() -> None:
    scores, y = torch.tensor([[9.0, 0.0], [0.0, 9.0], [math.nan, 0.0], [8.0, 0.0]]), torch.tensor([0, 1, 0, 0])
    assert _value("classes", "accuracy", scores, y) == 0.75
    assert class_counts(scores, y).predicted.tolist() == [2, 1]
    assert _value("classes", "roc_auc", scores, y) == 0.0 == _value("classes", "average_precision", scores, y)
    labels = torch.tensor([[1.0], [0.0]])
    assert _value("labels", "accuracy", torch.tensor([[1.0], [math.nan]]), labels) == 0.5


def test_what_the_nodes_do_not_define_is_nan() -> None:
    scores = torch.randn(4, 2)
    assert math.isnan(_value("classes", "roc_auc", scores, torch.zeros(4, dtype=torch.int64)))
    alike = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert label_roc_auc(torch.randn(2, 2).double(), alike).isnan().all()
    assert label_average_precision(torch.randn(2, 2).double(), alike).isnan().tolist() == [False, True]


def test_every_metric_has_a_form() -> None:
    assert {name for measures in NODE_METRICS.values() for name in measures} == set(METRIC_FORMS) - {"mrr"}

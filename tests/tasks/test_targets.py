"""Classes with weights, several labels and numbers: losses, ensembles, and trainings alone and in a batch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor
from torch.nn import functional as F

from magna.config.schema import Config
from magna.data import NodeData, load_digits
from magna.nn.ensemble import averaged
from magna.tasks import NodeClassification
from magna.tasks.targets import Classes, Number, SeveralLabels, target_of
from magna.training.loop import fit
from magna.training.trials import train_trials

CPU = torch.device("cpu")
SMALL = ["model.hidden_channels=16", "model.heads=2", "model.K=2", "train.epochs=12", "train.lr=0.02"]


@pytest.fixture(scope="module")
def labels() -> NodeData:
    """Digits with three labels each (even, above 4, a 3), some of them unknown."""
    data = load_digits()
    y = torch.stack([data.y % 2 == 0, data.y > 4, data.y == 3], dim=1).float()
    y[::7, 1] = math.nan
    return replace(data, y=y, num_classes=3, target="labels")


@pytest.fixture(scope="module")
def number() -> NodeData:
    """Digits as prices, far from a mean of 0 and a deviation of 1."""
    data = load_digits()
    return replace(data, y=1000 + 50 * data.y.float(), num_classes=1, target="number")


def _task(data: NodeData, *settings: str) -> tuple[NodeClassification, Config]:
    config = Config().with_values([*SMALL, *settings])
    return NodeClassification(data, config, CPU), config


def _trained(data: NodeData, *settings: str) -> tuple[NodeClassification, Any]:
    task, config = _task(data, *settings)
    torch.manual_seed(0)
    network = task.make_model(config.model)
    fit(config, task, network, lambda epoch: None)
    return task, network


def test_balanced_classes_are_weighted_as_scikit_learn_does() -> None:
    scores, y = torch.randn(60, 4), torch.tensor([0] * 40 + [1] * 15 + [2] * 5)  # no node of class 3
    weight = compute_class_weight("balanced", classes=np.arange(3), y=y.numpy())
    expected = F.cross_entropy(scores, y, torch.tensor([*weight, 0.0], dtype=torch.float32))
    torch.testing.assert_close(Classes().loss(scores, y, balanced=True), expected)
    assert torch.equal(Classes().loss(scores, y), F.cross_entropy(scores, y))


def test_the_loss_of_labels_reads_known_entries_alone() -> None:
    scores = torch.randn(30, 4, requires_grad=True)
    y = (torch.rand(30, 4) < 0.3).float()
    y[torch.rand(30, 4) < 0.4] = math.nan
    known = ~y.isnan()
    loss = SeveralLabels().loss(scores, y)
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(scores[known], y[known]))
    loss.backward()
    assert scores.grad is not None and torch.equal(scores.grad != 0, known)
    column, truth = scores[known[:, 0], :1], y[known[:, 0], :1]
    weight = torch.tensor(compute_class_weight("balanced", classes=np.array([0.0, 1.0]), y=truth[:, 0].numpy())).float()
    expected = F.binary_cross_entropy_with_logits(column, truth, weight[truth.long()])
    torch.testing.assert_close(SeveralLabels().loss(column, truth, balanced=True), expected)


def test_a_number_is_learnt_in_standard_units_and_answered_in_its_own(number: NodeData) -> None:
    target = target_of(number)
    train = number.y[number.train].double()
    assert target.scale == pytest.approx([train.mean().item(), train.std(correction=0).item()])
    assert target.encoded(number.y)[number.train].std(correction=0).item() == pytest.approx(1, abs=1e-5)
    outputs = target.encoded(number.y)[:, None]
    torch.testing.assert_close(target.answers(outputs), number.y.double(), rtol=1e-6, atol=0)
    torch.testing.assert_close(target.outputs(target.scores(outputs)).float(), outputs)
    assert target_of(number, [1.0, 2.0]).scale == [1.0, 2.0], "a finished run keeps the scale of its training"
    constant = replace(number, y=torch.full_like(number.y, 5.0))
    assert target_of(constant).scale == [5.0, 1.0]


def test_each_target_compares_passes() -> None:
    passes = [torch.randn(9, 3), torch.randn(9, 3)]
    for target in (Classes(), SeveralLabels(), Number(0.0, 1.0)):
        logs = [target.logs(each) for each in passes]
        assert target.distance(logs, 1.0, 0.0) > 0
        torch.testing.assert_close(target.distance(logs[:1] * 2, 1.0, 0.0), torch.tensor(0.0))
    one, other = (each.sigmoid() for each in passes)
    # A label is a pair of classes, whose shares differ alike.
    expected = ((one - other) / 2).square().mul(2).mean()
    torch.testing.assert_close(
        SeveralLabels().distance([SeveralLabels().logs(each) for each in passes], 1.0, 0.0), expected
    )


def test_members_of_an_ensemble_are_averaged_by_target() -> None:
    scores = torch.randn(3, 6, 2)
    torch.testing.assert_close(averaged(scores).softmax(-1), scores.softmax(-1).mean(0))
    torch.testing.assert_close(averaged(scores, "labels").sigmoid(), scores.sigmoid().mean(0))
    torch.testing.assert_close(averaged(scores, "number"), scores.mean(0))


@pytest.mark.parametrize("settings", [[], ["task.consistency=0.5"], ["model.members=2"]], ids=str)
def test_labels_and_numbers_are_learnt(labels: NodeData, number: NodeData, settings: list[str]) -> None:
    task, network = _trained(labels, *settings)
    assert set(task.evaluate(network, "valid")) == {"roc_auc", "loss"}
    assert task.evaluate(network, "valid")["roc_auc"] > 0.85
    task, network = _trained(number, "train.epochs=60", *settings)
    assert task.evaluate(network, "valid")["r2"] > 0.4


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("labels", ["task.metric=average_precision"]),
        ("labels", ["task.class_weights=balanced", "task.consistency=0.5"]),
        ("number", ["task.metric=mae", "task.consistency=0.5"]),
        ("number", ["model.members=2"]),
        ("classes", ["task.metric=macro_f1", "task.class_weights=balanced"]),
        ("classes", ["task.metric=log_loss"]),
    ],
)
def test_a_batch_of_trials_learns_what_each_learns_alone(
    labels: NodeData, number: NodeData, kind: str, settings: list[str]
) -> None:
    data = {"labels": labels, "number": number, "classes": load_digits()}[kind]
    without_chance = [f"model.{name}=0" for name in ("input_dropout", "dropout", "feature_dropout")]
    task, config = _task(data, *settings, *without_chance)
    torch.manual_seed(0)
    network = task.make_model(config.model)
    progress = fit(config, task, network, lambda epoch: None)
    result = train_trials([config], task, keep_weights=True, read_test=True)[0]
    assert progress.best is not None and result.test is not None and result.weights is not None
    network.load_state_dict(result.weights)
    assert task.evaluate(network, "valid") == pytest.approx(result.valid, rel=1e-3)
    assert task.evaluate(network, "test") == pytest.approx(result.test, rel=1e-3)
    if config.model.members == 1:
        assert result.valid == pytest.approx(progress.best, rel=0.05)


def test_the_metric_chooses_the_epoch(number: NodeData) -> None:
    task, config = _task(number, "task.metric=mae")
    rows: list[Any] = []
    torch.manual_seed(0)
    progress = fit(config, task, task.make_model(config.model), rows.append)
    errors = [row.valid["mae"] for row in rows]
    assert progress.best_epoch == errors.index(min(errors))
    assert progress.best is not None and progress.best["mae"] == min(errors)


def test_a_metric_must_serve_the_target(labels: NodeData, number: NodeData) -> None:
    with pytest.raises(ValueError, match=r"task.metric is 'r2'; allowed: accuracy, .* for a target of classes"):
        _task(load_digits(), "task.metric=r2")
    with pytest.raises(ValueError, match=r"task.metric is 'macro_f1'; allowed: r2, mae for a target of number"):
        _task(number, "task.metric=macro_f1")
    with pytest.raises(ValueError, match=r"task.class_weights is 'balanced'; allowed: none for numbers"):
        _task(number, "task.class_weights=balanced")
    y = labels.y.clone()
    y[labels.valid] = 0.0
    alike = replace(labels, y=y)
    with pytest.raises(ValueError, match=r"task.metric is 'roc_auc'; allowed: accuracy, .*, as all validation labels"):
        _task(alike, "task.metric=roc_auc")
    assert _task(alike)[0].metric == "accuracy", "the first one that validation defines"


class _Listener(torch.nn.Module):
    """Keeps the edges that it is called with."""

    def forward(self, x: Tensor, *_: Tensor, **edges: Tensor) -> Tensor:
        self.edges = edges
        return x[:, :10]


def test_the_model_gets_weights_and_features_of_edges() -> None:
    data, model = load_digits(), _Listener()
    task, _ = _task(data)
    task.scores(model)
    assert model.edges == {}
    size = data.edge_index.size(1)
    task, _ = _task(replace(data, edge_weight=torch.full((size,), 2.0), edge_attr=torch.ones(size, 3)))
    task.scores(model)
    assert model.edges["edge_weight"].unique().tolist() == [1.0, 2.0], "loops weigh 1"
    assert model.edges["edge_attr"].shape == (task.num_edges, 3)

"""The task: loss on training nodes, metrics per split, clear refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from magna.config.registry import model_settings
from magna.config.schema import Config
from magna.config.tables import NodeDataOptions, NodeTask
from magna.data import NodeData, load_digits
from magna.tasks import NodeClassification, make_task
from magna.tasks.nodes import consistency

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def digits() -> NodeData:
    return load_digits()


@pytest.fixture(scope="module")
def task(digits: NodeData) -> NodeClassification:
    return NodeClassification(digits, Config(), CPU)


class _Oracle(nn.Module):
    """Knows every label, but one of them."""

    def __init__(self, data: NodeData, wrong: int):
        super().__init__()
        self.logits = 100 * nn.functional.one_hot(data.y, data.num_classes).float()
        self.logits[wrong] = self.logits[wrong].roll(1)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.logits


def test_metrics_are_those_of_the_split(digits: NodeData, task: NodeClassification) -> None:
    oracle = _Oracle(digits, wrong=int(digits.valid[3]))
    assert task.evaluate(oracle, "train")["accuracy"] == 1.0
    assert task.evaluate(oracle, "valid")["accuracy"] == 1 - 1 / 500
    assert task.evaluate(oracle, "test")["accuracy"] == 1.0
    assert float(task.loss(oracle, task.nodes("train"))) == 0.0


def test_the_loss_sees_training_nodes_alone(digits: NodeData, task: NodeClassification) -> None:
    model = task.make_model(model_settings(hidden_channels=8, num_layers=1, K=2))
    logits = task.scores(model).detach().requires_grad_()
    task.loss(lambda *_: logits, task.nodes("train")).backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad.abs().sum(1).nonzero().squeeze(1), digits.train)


def test_evaluation_is_without_dropout(task: NodeClassification) -> None:
    model = task.make_model(model_settings(hidden_channels=8, num_layers=1, K=2, input_dropout=0.5))
    assert task.evaluate(model, "valid") == task.evaluate(model, "valid")


def test_selection_prefers_accuracy_then_loss() -> None:
    score = NodeClassification.score
    assert score({"accuracy": 0.9, "loss": 9.0}) > score({"accuracy": 0.8, "loss": 0.1})
    assert score({"accuracy": 0.9, "loss": 0.1}) > score({"accuracy": 0.9, "loss": 0.2})


def test_passes_are_compared_where_their_mean_is_sure() -> None:
    unsure = torch.tensor([[0.5, 0.5], [0.9, 0.1]])
    sure = torch.tensor([[0.7, 0.3], [0.7, 0.3]])
    passes = [unsure.log().requires_grad_(), sure.log().requires_grad_()]  # means of 0.6 and of 0.8
    whole, second = consistency(passes, 0.5), consistency([p[1:] for p in passes], 0.5)
    assert torch.equal(consistency(passes, 0.5, 0.5), whole) and not torch.isclose(whole, second)
    torch.testing.assert_close(consistency(passes, 0.5, 0.7), second)
    nothing = consistency(passes, 0.5, 0.9)
    assert nothing.item() == 0.0
    nothing.backward()
    assert passes[0].grad is not None and not passes[0].grad.any()


def test_passes_are_compared_on_nodes_that_are_drawn(digits: NodeData, task: NodeClassification) -> None:
    logits, nodes = torch.randn(2, digits.num_nodes, digits.num_classes), task.nodes("train")
    settings = NodeTask(consistency=1.0, ramp=1, consistency_nodes=100)

    def loss(settings: NodeTask) -> float:
        passes = iter(logits)
        return float(task.loss(lambda *_: next(passes), nodes, settings=settings))

    draws = torch.tensor([loss(settings) for _ in range(200)])
    assert draws.std() > 0
    torch.testing.assert_close(
        draws.mean(), torch.tensor(loss(replace(settings, consistency_nodes=0))), rtol=0.01, atol=0
    )


def test_self_loops_are_a_setting(digits: NodeData, task: NodeClassification) -> None:
    without = NodeClassification(digits, replace(Config(), data=NodeDataOptions(self_loops=False)), CPU)
    assert task.num_edges == without.num_edges + digits.num_nodes


@pytest.mark.parametrize("setting", [{"relation_channels": 7}, {"relation_norm": "layer"}])
def test_settings_of_edge_types_need_edge_types(
    digits: NodeData, task: NodeClassification, setting: dict[str, Any]
) -> None:
    model, (name,) = model_settings(hidden_channels=8, **setting), setting
    with pytest.raises(ValueError, match=f"model.{name} is .*; allowed: the default, as the edges of digits"):
        task.make_model(model)
    typed = replace(digits, edge_type=torch.zeros_like(digits.edge_index[0]), num_relations=1)
    NodeClassification(typed, Config(), CPU).make_model(model)


def test_a_backend_that_cannot_run_is_refused_before_there_is_a_run() -> None:
    config = Config().with_values(["model.backend=cpu"])
    device = torch.device("meta")
    with pytest.raises(ValueError, match=r"model.backend is 'cpu', which cannot run here: .*; try model.backend=auto"):
        make_task(config, None, device)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"x": None}, "digits: it has no features"),
        ({"train": torch.tensor([], dtype=torch.int64)}, "it has no train node"),
        ({"num_classes": 1}, "it has one label alone"),
    ],
)
def test_data_that_cannot_be_learnt_from_is_refused(digits: NodeData, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        NodeClassification(replace(digits, **changes), Config(), CPU)


def test_scores_that_are_no_numbers_are_refused(digits: NodeData) -> None:
    task = NodeClassification(digits, Config(), CPU)

    class Broken(nn.Module):
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return torch.full((task.num_nodes, 10), float("nan"))

    with pytest.raises(ValueError, match="its scores are not numbers; the largest input of the model is 1, "):
        task.finite_scores(Broken())


@pytest.mark.parametrize(("target", "words"), [("number", "a number each"), ("labels", "several labels each")])
def test_other_targets_than_classes_are_refused(digits: NodeData, target: Any, words: str) -> None:
    data = replace(digits, target=target, y=digits.y.float()[:, None].repeat(1, 2) if target == "labels" else digits.y)
    with pytest.raises(ValueError, match=f"its nodes have {words}; allowed: one class each"):
        NodeClassification(data, Config(), CPU)

"""`hops`: every model is in the figure, with a reach that suffices, and a control that cannot know."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from magna.config.registry import NODE_TASK, find_model, model_names
from magna.data.far_answers import CLASSES, far_answers
from magna.paper.studies import hops
from magna.paper.study import StudyJob
from magna.tasks import NodeClassification
from magna.training.trials import train_trials


def test_every_node_model_of_this_package_is_in_the_figure() -> None:
    names = {name for name in model_names(NODE_TASK) if name != "custom"}  # a class of the user's own
    ours = {name for name in names if find_model(NODE_TASK, name).kind.__module__.startswith("magna.")}
    measured = {system.model for system in (hops.SYSTEMS | hops.CONTROLS).values()}
    assert measured == ours and len(hops.SYSTEMS) == len(ours) - 1 == 16, "an MLP reads no edges: it is a control"
    panels = [system.panel for name, system in hops.SYSTEMS.items() if name != "MAGNA"]
    assert set(panels) == set(hops._PANELS) and max(map(panels.count, panels)) <= 4, "as many as there are colours"


@pytest.mark.parametrize("name", hops.SYSTEMS)
def test_a_model_reaches_the_answer_with_each_choice(name: str) -> None:
    distance = 3
    point = hops.hops_point(hops.SYSTEMS[name], distance, (0.01,))
    assert len(point.choices) == 2
    data = far_answers(distance)
    for choice in range(2):
        config = point.chosen(choice)
        task = NodeClassification(data, config, torch.device("cpu"))
        assert task.data.x is not None
        torch.manual_seed(0)
        model, asked = task.make_model(config.model).eval(), task.nodes("test")
        x = task.data.x.clone().requires_grad_()
        model(x, task.data.edge_index)[asked].square().sum().backward()
        assert x.grad is not None
        answers = x.grad[asked + distance].abs().sum(1)
        share = 0.2 if name == "g-U-Nets" else 0.9  # of the paths; pooling drops nodes, ReLU some signals
        assert float((answers > 0).float().mean()) > share


def test_the_control_is_at_chance_and_a_model_of_enough_hops_is_not() -> None:
    control, enough = hops.CONTROLS["control: one hop short"], hops.SYSTEMS["APPNP"]
    accuracies = []
    for system in (control, enough):
        point = hops.hops_point(system, 2, (0.03,))
        config = point.chosen(0).with_values(["train.epochs=60"])
        task = NodeClassification(far_answers(2), config, torch.device("cpu"))
        (result,) = train_trials([config], task, read_test=True)
        assert result.test is not None
        accuracies.append(result.test["accuracy"])
    assert abs(accuracies[0] - 1 / CLASSES) < 0.1 and accuracies[1] > 0.6  # 0.1: three standard errors of 160 nodes


def test_a_model_has_the_distance_or_one_more() -> None:
    for name, values in (
        ("GCN", ("4", "5")),
        ("MAGNA", ("4", "5")),
        ("Diff-GCN", ("1", "2")),
        ("g-U-Nets", ("2", "3")),
    ):
        choices = hops.hops_point(hops.SYSTEMS[name], 4, (0.003, 0.01)).choices
        assert len(choices) == 4 and {choice[0].partition("=")[2] for choice in choices} == set(values)
    (choice,) = hops.hops_point(hops.CONTROLS["control: one hop short"], 1, (0.01,)).choices
    assert choice[0] == "model.K=0"


def test_no_data_set_can_be_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data set of hops is \['cora'\]; allowed: none, as its graphs are generated"):
        hops.measure_hops(StudyJob(tmp_path, datasets=["cora"]))

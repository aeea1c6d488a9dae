"""Every member of the portfolio takes a graph with weights and features of edges, and its answers can be repeated."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.support.graphs import uniform

from magna.config.tables import NodeDataOptions
from magna.data import NodeData, load_digits, to_pyg
from magna.data.pyg import save_pyg
from magna.search.members import Member, load_members
from magna.search.own_graph import train_portfolio
from magna.search.portfolio import Budget
from magna.tasks import NodeClassification
from magna.use.nodes import predict_nodes


def _weighted() -> NodeData:
    """Digits whose edges have a weight and two features."""
    data = load_digits()
    count = data.edge_index.size(1)
    weight = uniform(count, seed=1, low=0.2, high=3.0).float()
    return replace(data, edge_weight=weight, edge_attr=uniform(count, 2, seed=2).float())


@pytest.mark.slow
def test_every_member_trains_on_weights_and_features_of_edges(tmp_path: Path) -> None:
    save_pyg(to_pyg(_weighted()), tmp_path / "graph")
    members = [
        replace(member, tables=dict(member.tables) | {"train": dict(member.tables["train"]) | {"epochs": 1}})
        for member in load_members()
    ]
    options = NodeDataOptions(name=str(tmp_path / "graph"))
    # Twelve members have one step each, as the validation split of the digits is large.
    result = train_portfolio(options, Budget(steps=len(members)), tmp_path / "run", members=members, device="cpu")
    assert [row["fault"] for row in result["members"]] == [""] * len(members)
    predictions = predict_nodes(tmp_path / "run", device="cpu")
    with (tmp_path / "run" / "predictions.csv").open(newline="") as file:
        stored = torch.tensor([float(row["probability"]) for row in csv.DictReader(file)]).double()
    # The file has six digits.
    torch.testing.assert_close(stored, predictions.probabilities.amax(1), rtol=1e-4, atol=0)


@pytest.mark.parametrize("member", load_members(), ids=lambda member: member.name)
def test_a_member_reads_the_weights_unless_it_ignores_all_edges(member: Member) -> None:
    data = _weighted()
    config = member.config(NodeDataOptions(name="digits"), "counts", member.name, seed=0)
    scores = []
    for each in (data, replace(data, edge_weight=None)):
        task = NodeClassification(each, config, torch.device("cpu"))
        torch.manual_seed(0)
        scores.append(task.scores(task.make_model(config.model).eval()))
    assert torch.equal(*scores) == (config.model.name == "mlp")

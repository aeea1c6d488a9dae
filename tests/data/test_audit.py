"""The audit: every number on graphs that can be counted by hand, and on Cora."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.data import needs, node_graph, printed_audit

from magna.data import load_digits, load_node_data
from magna.data.audit import audit_nodes


def test_numbers_that_can_be_counted_by_hand() -> None:
    # A path 0-1-2-3, a pair 4-5, and 6 alone; 1→2 twice, a loop on 0.
    edges = [(0, 1), (1, 0), (1, 2), (1, 2), (2, 1), (2, 3), (3, 2), (4, 5), (0, 0)]
    x = torch.tensor([[1.0], [2.0], [0.0], [1.0], [0.0], [5.0], [6.0]])
    train, valid, test = (torch.tensor(nodes) for nodes in ([0, 1, 4], [2, 1], [3, 6, 6]))
    report = audit_nodes(node_graph(edges, [0, 0, 1, 1, 0, -1, 1], x=x, train=train, valid=valid, test=test))
    size = {"nodes": 7, "edges": 9, "features": 1, "classes": 2, "relations": None, "labelled": 6}
    assert report["size"] == size
    assert report["edges"] == {"self_loops": 1, "duplicates": 1, "undirected": False}
    assert report["degree"] == {"mean_in": 9 / 7, "median_in": 1, "largest_in": 3, "isolated": 1}
    assert report["homophily"] == pytest.approx(4 / 7)
    assert report["components"] == {"count": 3, "largest": 4, "share_of_largest": 4 / 7}
    assert report["distance"]["mean"] == pytest.approx((3 * 1 + 2 * 2 + 3) / 6) and report["distance"]["exact"]
    assert report["suggested_K"] == 2
    assert report["classes"] == [
        {"class": "0", "all": 3, "train": 3, "valid": 1, "test": 0},
        {"class": "1", "all": 3, "train": 0, "valid": 1, "test": 3},
    ]
    leakage = report["leakage"]
    assert leakage["shared_nodes"] == {"train_valid": 1, "train_test": 0, "valid_test": 0}
    assert leakage["listed_twice"] == {"train": 0, "valid": 0, "test": 1}
    # Node 3 looks like node 0; node 2, all zeros, says nothing.
    assert leakage["same_features_as_training"] == {"valid": 1, "test": 1}
    twice, again = "test lists more than once: 1", "listed more than once: 1"
    for words in ("both train and valid: 1", twice, "no training node in class 1", again, "without an edge"):
        assert any(words in line for line in report["warnings"]), words
    assert json.loads(json.dumps(report)) == report


def test_a_graph_without_edges_labels_or_features_and_one_with_types() -> None:
    report = audit_nodes(node_graph([], [-1, -1, -1]))
    assert report["homophily"] is None and report["distance"]["mean"] is None
    assert report["suggested_K"] == 1 and report["components"]["count"] == 3
    assert "no two nodes are joined" in printed_audit(report)
    assert "no edge joins two labelled nodes" in printed_audit(audit_nodes(node_graph([(0, 2)], [0, 1, -1])))
    typed = node_graph([(0, 1), (0, 1), (0, 1)], [0, 0], edge_type=torch.tensor([0, 1, 1]), num_relations=2)
    assert audit_nodes(typed)["edges"]["duplicates"] == 1


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=200))
def test_distances_are_those_of_scipy(edges: list[tuple[int, int]]) -> None:
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import shortest_path

    report = audit_nodes(node_graph(edges, [0] * 100))
    adjacency = coo_matrix((np.ones(len(edges)), np.transpose(edges)), shape=(100, 100))
    distance = shortest_path(adjacency, directed=False, unweighted=True)
    reachable = np.isfinite(distance)
    inside = reachable[reachable.sum(1).argmax()]
    size = int(inside.sum())
    assert report["components"]["largest"] == size
    # Components of the same size may differ; then scipy's first one is not ours.
    if size > 1 and (reachable.sum(1) == size).sum() == size:
        expected = distance[np.ix_(inside, inside)].sum() / (size * (size - 1))
        assert report["distance"]["mean"] == pytest.approx(expected)


def test_a_large_component_is_sampled_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = load_digits()
    exact = audit_nodes(digits)
    text = printed_audit(exact)
    assert "96.9 % of edges join nodes of one class" in text and "suggested K  8" in text
    assert "nothing suspicious was found" in text
    assert all(len(line.rstrip()) <= 100 for line in text.splitlines())
    monkeypatch.setattr("magna.data.audit.EXACT_NODES", 100)
    report = audit_nodes(digits)
    assert not report["distance"]["exact"] and report["distance"]["sources"] == 512
    assert report["distance"]["mean"] == pytest.approx(exact["distance"]["mean"], rel=0.03)
    assert report == audit_nodes(digits) and "from 512 random nodes" in printed_audit(report)


@pytest.mark.parametrize(
    ("name", "distance", "K", "components", "isolated", "homophily"),
    [("cora", 6.31, 7, 78, 0, 0.81), ("citeseer", 9.33, 10, 438, 48, 0.74)],
)
def test_planetoid(name: str, distance: float, K: int, components: int, isolated: int, homophily: float) -> None:
    needs(name)
    report = audit_nodes(load_node_data(name))
    assert round(report["distance"]["mean"], 2) == distance and report["suggested_K"] == K
    assert (report["components"]["count"], report["degree"]["isolated"]) == (components, isolated)
    assert round(report["homophily"], 2) == homophily
    assert set(report["leakage"]["shared_nodes"].values()) == {0}


def test_several_labels_are_counted_and_numbers_are_not() -> None:
    nan, edges = float("nan"), [(0, 1), (1, 2), (2, 0)]
    data = node_graph(edges, [0, 0, 1], train=torch.tensor([0, 1]))
    several = torch.tensor([[1, 0], [1, nan], [nan, nan]])
    report = audit_nodes(replace(data, target="labels", y=several))
    assert report["size"]["labelled"] == 2 and report["homophily"] is None
    assert [row["all"] for row in report["classes"]] == [2, 0] and report["classes"][0]["train"] == 2
    assert "homophily" not in printed_audit(report) and "no training node in class" not in str(report["warnings"])
    numbers = audit_nodes(replace(data, target="number", y=torch.tensor([0.5, nan, 2]), num_classes=1))
    assert numbers["classes"] == [] and numbers["size"]["labelled"] == 2 and numbers["homophily"] is None

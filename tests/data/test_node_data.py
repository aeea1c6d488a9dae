"""Digits, the Planetoid graphs as published, and what all node data share."""

from __future__ import annotations

import collections
import hashlib
import pickle
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.data import Harm, needs, node_graph

from magna.data import NodeData, Schema, load_digits, load_node_data, load_planetoid
from magna.data.node_data import Target
from magna.data.planetoid import FILES, read_restricted
from magna.data.pyg import from_pyg, to_pyg


@pytest.fixture(scope="module")
def digits() -> NodeData:
    return load_digits()


def assert_same(one: NodeData, other: NodeData) -> None:
    for part in ("edge_index", "x", "y", "train", "valid", "test"):
        assert torch.equal(getattr(one, part), getattr(other, part))


def test_digits_counts(digits: NodeData) -> None:
    assert digits.x is not None and digits.x.shape == (1_797, 64) and digits.edge_index.shape == (2, 15_044)
    # The same on every machine.
    parts = (digits.edge_index, digits.train, digits.valid, digits.test)
    together = b"".join(part.numpy().astype("<i8").tobytes() for part in parts)
    assert hashlib.sha256(together).hexdigest() == "217bc35720cb91f5ccb865034fb7d715571829ea998c3d9ce55214a3b99a9f1b"


def test_digits_are_those_of_scikit_learn(digits: NodeData) -> None:
    images, labels = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    assert digits.x is not None and torch.equal(16 * digits.x, torch.from_numpy(images).float())
    assert digits.y.tolist() == labels.tolist()


def test_self_loops_are_added_once(digits: NodeData) -> None:
    looped = digits.with_self_loops()
    assert looped.edge_index.size(1) == 15_044 + 1_797
    source, target = looped.edge_index
    assert torch.equal(source[source == target], torch.arange(1_797))
    assert torch.equal(target, target.sort().values)
    assert torch.equal(looped.with_self_loops().edge_index, looped.edge_index)


def weighted(edges: list[tuple[int, int]], weights: list[float], **parts: Any) -> NodeData:
    values = torch.tensor(weights)
    return node_graph(edges, [0, 1, 0], edge_weight=values, edge_attr=torch.stack([values, -values], 1), **parts)


def test_weights_and_attributes_follow_their_edges() -> None:
    data = weighted([(0, 1), (0, 1), (2, 1), (1, 2), (2, 2)], [1.0, 2.0, 4.0, 8.0, 5.0])
    both = data.with_both_directions()
    assert both.edge_index.tolist() == [[1, 0, 2, 1], [0, 1, 1, 2]]
    assert both.edge_weight is not None and both.edge_weight.tolist() == [3, 3, 12, 12]  # the sum
    assert both.edge_attr is not None and both.edge_attr[:, 0].tolist() == [1.5, 1.5, 6, 6]  # the mean
    looped = both.with_self_loops()
    assert looped.edge_weight is not None and looped.edge_attr is not None
    loops = looped.edge_index[0] == looped.edge_index[1]
    assert looped.edge_weight[loops].tolist() == [1] * 3 and looped.edge_attr[loops].eq(0).all()
    assert looped.edge_weight[~loops].tolist() == [3, 3, 12, 12]
    assert looped.edge_attr[~loops, 1].tolist() == [-1.5, -1.5, -6, -6]
    replaced = data.with_self_loops()  # the loop of weight 5
    assert replaced.edge_weight is not None and replaced.edge_weight[-1] == 1
    assert weighted([], []).with_both_directions().with_self_loops().edge_index.size(1) == 3


def test_a_graph_that_lists_both_directions_keeps_its_weights() -> None:
    both = weighted([(0, 1), (1, 0), (1, 2), (2, 1)], [3.0, 3.0, 4.0, 4.0]).with_both_directions()
    assert both.edge_weight is not None and both.edge_weight.tolist() == [3, 3, 4, 4]


def test_weights_of_typed_edges_add_up_within_a_type_and_direction() -> None:
    types = torch.tensor([0, 0, 1, 0])
    data = weighted([(0, 1), (0, 1), (0, 1), (1, 0)], [1.0, 2.0, 4.0, 8.0], edge_type=types, num_relations=2)
    both = data.with_both_directions()
    assert both.edge_type is not None and both.edge_weight is not None and both.num_relations == 4
    rows = zip(*both.edge_index.tolist(), both.edge_type.tolist(), both.edge_weight.tolist(), strict=True)
    assert set(rows) == {(0, 1, 0, 3), (0, 1, 1, 4), (1, 0, 0, 8), (1, 0, 2, 3), (1, 0, 3, 4), (0, 1, 2, 8)}
    loops = both.with_self_loops()
    assert loops.edge_weight is not None and loops.num_relations == 5


def test_labelled_nodes_of_every_target() -> None:
    nan = float("nan")
    several, number = torch.tensor([[0, nan], [nan, nan], [1, 0]]), torch.tensor([0.5, nan, -1.0])
    data = node_graph([], [0, -1, 1])
    assert data.labelled.tolist() == [True, False, True] and data.target == "classes"
    targets: list[tuple[Target, torch.Tensor]] = [("labels", several), ("number", number)]
    for target, y in targets:
        changed = replace(data, target=target, y=y)
        assert changed.labelled.tolist() == [True, False, True] and changed.num_nodes == 3


def test_the_fingerprint_reads_weights_and_attributes() -> None:
    plain, data = node_graph([(0, 1)], [0, 1, 0]), weighted([(0, 1)], [2.0])
    assert data.edge_weight is not None and data.edge_attr is not None
    others = plain, replace(data, edge_weight=data.edge_weight + 1), replace(data, edge_attr=data.edge_attr + 1)
    assert len({each.fingerprint() for each in (data, *others)}) == 4


def test_rows_are_normalised_and_zeros_stay() -> None:
    x = node_graph([], [0, 0], x=torch.tensor([[1.0, 3.0], [0.0, 0.0]])).with_row_normalised_features().x
    assert x is not None and x.tolist() == [[0.25, 0.75], [0.0, 0.0]]


def test_a_constant_feature_becomes_zero() -> None:
    x = node_graph([], [0] * 9, x=torch.full((9, 1), 0.1)).with_standardised_features().x
    assert x is not None and x.tolist() == [[0.0]] * 9


def test_to_pyg_and_back(digits: NodeData) -> None:
    typed = replace(digits, edge_type=digits.edge_index[0] % 3, num_relations=3)
    for data in (digits, typed):
        pyg = to_pyg(data)
        pyg.validate()
        assert (pyg.num_nodes, pyg.num_features, pyg.num_edges) == (1_797, 64, 15_044)
        back = from_pyg(pyg, "digits")
        assert_same(back, data)
        assert (back.num_classes, back.num_relations) == (10, data.num_relations)


def test_transforms_of_pyg_serve(digits: NodeData) -> None:
    from torch_geometric.transforms import AddSelfLoops, Compose, NormalizeFeatures

    theirs = from_pyg(Compose([NormalizeFeatures(), AddSelfLoops()])(to_pyg(digits)))
    ours = digits.with_row_normalised_features().with_self_loops()
    assert theirs.x is not None and ours.x is not None and torch.allclose(theirs.x, ours.x)
    assert torch.equal(theirs.with_self_loops().edge_index, ours.edge_index)


def test_cora_is_that_of_pyg() -> None:
    needs("cora")
    from torch_geometric.io import read_planetoid_data

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # old names inside the published pickles
        theirs = from_pyg(read_planetoid_data(str(FILES["cora/ind.cora.x"].locate().parent), "cora"))
    assert_same(theirs.with_both_directions(), load_node_data("cora"))


def test_a_scale_of_other_columns_is_refused(digits: NodeData) -> None:
    data = replace(digits, schema=Schema(feature_shift=(1.0,), feature_scale=(1.0,)))
    with pytest.raises(ValueError, match="64 features; allowed: 1, as in training"):
        data.with_standardised_features()


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "features", "classes", "train"),
    [
        ("cora", 2_708, 5_278, 1_433, 7, 140),
        ("citeseer", 3_327, 4_552, 3_703, 6, 120),
        ("pubmed", 19_717, 44_324, 500, 3, 60),
    ],
)
def test_planetoid_counts(name: str, nodes: int, edges: int, features: int, classes: int, train: int) -> None:
    needs(name)
    data = load_planetoid(name)
    assert data.x is not None and data.x.shape == (nodes, features)
    assert (data.num_nodes, data.num_classes, data.edge_index.size(1)) == (nodes, classes, 2 * edges)
    assert (len(data.train), len(data.valid), len(data.test)) == (train, 500, 1_000)
    source, target = data.edge_index
    assert (source != target).all() and torch.equal(target, target.sort().values)
    both = torch.unique(source * nodes + target)
    assert len(both) == 2 * edges and torch.equal(both, torch.unique(target * nodes + source))
    assert torch.bincount(data.y[data.train]).tolist() == [20] * classes
    assert (data.y[torch.cat([data.train, data.valid, data.test])] >= 0).all()
    # Citeseer's 15 nodes without features or label.
    unlabelled = data.y < 0
    assert int(unlabelled.sum()) == (15 if name == "citeseer" else 0)
    assert (data.x[unlabelled] == 0).all()


def test_a_hostile_pickle_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad").write_bytes(pickle.dumps(Harm(), protocol=2))
    with pytest.raises(ValueError, match="the pickle asks for"):
        read_restricted(tmp_path / "bad")
    assert not (tmp_path / "harm").exists()
    (tmp_path / "graph").write_bytes(pickle.dumps(collections.defaultdict(list, {0: [1], 1: [0]}), protocol=2))
    assert read_restricted(tmp_path / "graph") == {0: [1], 1: [0]}
    with pytest.raises(ValueError, match="allowed: 'cora', 'citeseer', 'pubmed'"):
        load_planetoid("coral")

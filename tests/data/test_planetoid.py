"""Cora, Citeseer and Pubmed as published, and a reader that executes nothing."""

from __future__ import annotations

import collections
import pickle
from pathlib import Path

import pytest
import torch
from tests.support.data import Harm, needs

from magna.data import load_planetoid
from magna.data.planetoid import read_restricted


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "features", "classes", "train"),
    [
        ("cora", 2_708, 5_278, 1_433, 7, 140),
        ("citeseer", 3_327, 4_552, 3_703, 6, 120),
        ("pubmed", 19_717, 44_324, 500, 3, 60),
    ],
)
def test_counts(name: str, nodes: int, edges: int, features: int, classes: int, train: int) -> None:
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

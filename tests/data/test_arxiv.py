"""ogbn-arxiv: OGB's own files where they are, else the public graph with features that are called stand-ins."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.data import needs
from tests.support.ogb import CLASSES, N, write_ogb_files

from magna.config.tables import NodeDataOptions
from magna.data import load_arxiv, load_node_data
from magna.data.arxiv import load_ogb
from magna.tasks.metrics import correct


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    write_ogb_files(tmp_path)
    return tmp_path


def test_ogb_files_are_read(data_dir: Path) -> None:
    data = load_node_data("ogbn-arxiv", data_dir)
    assert (data.name, data.num_nodes, data.num_classes) == ("ogbn-arxiv", N, CLASSES)
    assert data.schema.class_names == ("cs.NA", "cs.MM", "cs.LO")
    assert data.x is not None and data.x.shape == (N, 2) and data.x.dtype == torch.float32
    assert data.test.tolist() == [25, 26, 27, 28, 29] and data.notes == ()
    edges = {(source, target) for source, target in data.edge_index.T.tolist()}
    assert edges == {(target, source) for source, target in edges}
    directed = load_node_data(NodeDataOptions(name="ogbn-arxiv", undirected=False), data_dir)
    assert directed.edge_index.shape == (2, 2 * N)


def test_the_ogb_package_reads_the_same(data_dir: Path) -> None:
    pytest.importorskip("ogb")
    from ogb.nodeproppred import Evaluator, NodePropPredDataset

    root = data_dir / "ogbn_arxiv"
    about = {"dir_path": str(root), "version": 1, "download_name": "arxiv", "split": "time", "url": ""}
    about |= {"task type": "multiclass classification", "num tasks": 1, "num classes": CLASSES, "eval metric": "acc"}
    about |= dict.fromkeys(("is hetero", "binary", "add_inverse_edge"), "False")
    about |= {"additional node files": "node_year", "additional edge files": "None"}
    (root / "RELEASE_v1.txt").touch()
    theirs, ours = NodePropPredDataset("ogbn-arxiv", meta_dict=about), load_ogb(root)
    graph, labels = theirs[0]
    assert np.array_equal(graph["edge_index"], ours.edge_index.numpy())
    assert ours.x is not None and np.array_equal(graph["node_feat"].astype(np.float32), ours.x.numpy())
    assert np.array_equal(labels[:, 0], ours.y.numpy())
    for split, nodes in theirs.get_idx_split().items():
        assert np.array_equal(np.sort(nodes), ours.split(split).numpy())

    scores = torch.randn(N, CLASSES, generator=torch.Generator().manual_seed(0))
    answer = {"y_true": ours.y[:, None], "y_pred": scores.argmax(1, keepdim=True)}
    accuracy = correct(scores, ours.y).double().mean().item()
    assert Evaluator("ogbn-arxiv").eval(answer)["acc"] == pytest.approx(accuracy)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("split/time/valid", None, r"valid\.csv\.gz: it is missing"),
        ("raw/edge", "0,99\n", "edge to node 99; allowed: 0 to 29"),
        ("raw/edge", "0,a\n", "not gzipped CSV"),
        ("raw/edge", "0,1,2\n", "3 columns; allowed: 2"),
        ("raw/node-feat", "1,2\n", "has 1 lines; allowed: 30"),
        ("raw/node-feat", "1,nan\n" * N, "row 0, feature 1 is nan"),
        ("raw/node-label", "1\n", "has 1 lines; allowed: 30"),
    ],
)
def test_damaged_ogb_files_are_named(data_dir: Path, name: str, text: str | None, words: str) -> None:
    file = data_dir / "ogbn_arxiv" / f"{name}.csv.gz"
    file.unlink()
    if text is not None:
        file.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(ValueError, match=words):
        load_node_data("ogbn-arxiv", data_dir)


def test_missing_features_offer_stand_ins(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.features=stand-in"):
        load_node_data("ogbn-arxiv", tmp_path)


def test_the_public_graph() -> None:
    needs("ogbn-arxiv")
    data = load_arxiv()
    assert (data.num_nodes, data.num_classes, data.edge_index.size(1)) == (169_343, 40, 2_315_598)
    assert (len(data.train), len(data.valid), len(data.test)) == (90_941, 29_799, 48_603)
    assert data.x is None
    source, target = load_arxiv(directed=True).edge_index
    assert source.numel() == 1_166_243
    assert (data.y[source] == data.y[target]).float().mean() == pytest.approx(0.655, abs=0.001)


@pytest.mark.slow
def test_stand_in_features_are_called_so() -> None:
    needs("ogbn-arxiv")
    data = load_node_data(NodeDataOptions(name="ogbn-arxiv", features="stand-in"))
    assert data.name == "ogbn-arxiv (stand-in features)"
    assert "not comparable" in data.notes[0]
    assert data.x is not None and data.x.shape == (169_343, 42) and torch.isfinite(data.x).all()
    # The first line of the guesses is 24,4,10,16,23.
    assert data.x[0, [24, 4, 10, 16, 23]].tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    first = data.x[:, :40].argmax(1)
    right = [float((first == data.y)[data.split(split)].double().mean()) for split in ("train", "valid", "test")]
    assert right == pytest.approx([0.728, 0.743, 0.744], abs=0.001)
    assert data.class_name(0) == "cs.NA"

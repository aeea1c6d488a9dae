"""Graphs from memory are those of the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from magna.data import NodeData, load_user_graph
from magna.data.in_memory import writer_of
from magna.training.train import train

ROOT = Path(__file__).parents[2] / "examples" / "own_graph"


def _read(what: Any, folder: Path) -> NodeData:
    write = writer_of(what)
    assert write is not None
    write(folder)
    write(folder)  # the same data again, as a resumed run has it
    return load_user_graph(folder)


def _equal(one: NodeData, other: NodeData) -> bool:
    assert one.x is not None and other.x is not None
    names = one.schema == other.schema and one.node_ids == other.node_ids
    parts = [(one.x, other.x), (one.y, other.y), (one.train, other.train), (one.edge_index, other.edge_index)]
    return names and all(torch.equal(*pair) for pair in parts)


@pytest.mark.parametrize("indexed", [False, True])
def test_a_pair_of_tables(tmp_path: Path, indexed: bool) -> None:
    pandas = pytest.importorskip("pandas")
    nodes = pandas.read_csv(ROOT / "nodes.csv", dtype={"id": str})
    edges = pandas.read_csv(ROOT / "edges.csv", dtype={"source": str, "target": str})
    nodes = nodes.set_index("id") if indexed else nodes
    assert _equal(_read((nodes, edges), tmp_path / "data"), load_user_graph(ROOT))
    write = writer_of((nodes, edges.iloc[:3]))
    assert write is not None
    with pytest.raises(ValueError, match="it holds other data; try another run_dir"):
        write(tmp_path / "data")


def test_a_networkx_graph(tmp_path: Path) -> None:
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph()
    for i in range(12):
        graph.add_node(f"n{i}", x=float(i % 2), **({"label": "odd" if i % 2 else "even"} if i < 10 else {}))
    for i in range(12):
        graph.add_edge(f"n{i}", f"n{(i + 2) % 12}", type="next")
    data = _read(graph, tmp_path / "data")
    assert data.node_ids == tuple(f"n{i}" for i in range(12)) and data.y.tolist() == [0, 1] * 5 + [-1, -1]
    assert data.edge_index.tolist()[1][:3] == [2, 3, 4] and data.schema.relation_names == ("next",)
    assert data.x is not None and data.x[:2].tolist() == [[0.0], [1.0]]


def test_training_stores_it_beside_the_run(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    nodes = pandas.read_csv(ROOT / "nodes.csv", dtype={"id": str})
    edges = pandas.read_csv(ROOT / "edges.csv", dtype={"source": str, "target": str})
    few = {"train.epochs": 1, "model.hidden_channels": 8}
    result = train((nodes, edges), settings=few, run_dir=tmp_path / "run", device="cpu")
    assert (tmp_path / "run" / "data" / "nodes.csv").is_file() and result["runs"][0]["valid"]
    assert writer_of("digits") is None and writer_of((1, 2)) is None

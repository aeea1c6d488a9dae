"""Pandas tables and networkx graphs: as the files that they stand for, and as what `magna.train` takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.running import SMALL

import magna
from magna.config.tables import NodeDataOptions
from magna.data import load_user_graph
from magna.data.frames import save_frames, save_networkx


def tables() -> tuple[Any, Any]:
    pandas = pytest.importorskip("pandas")
    size = 40
    nodes = pandas.DataFrame(
        {
            "id": [f"{row:03}" for row in range(size)],
            "age": [None if row == 3 else row / 3 for row in range(size)],
            "member": [row % 3 == 0 for row in range(size)],
            "team": ["red" if row % 2 else "blue" for row in range(size)],
            "label": [None if row == 7 else "ab"[row % 2] for row in range(size)],
        }
    )
    edges = pandas.DataFrame({"source": nodes["id"], "target": nodes["id"].iloc[::-1].to_numpy(), "weight": 2.5})
    return nodes, edges


def test_tables_are_read_as_their_files_would_be(tmp_path: Path) -> None:
    nodes, edges = tables()
    save_frames(nodes, edges, tmp_path / "a")
    data = load_user_graph(tmp_path / "a")
    assert data.node_ids is not None and data.node_ids[:2] == ("000", "001") and data.num_nodes == 40
    assert data.schema.feature_names == ("age", "age is empty", "member", "team=blue", "team=red")
    assert data.x is not None and data.x[3, 1] == 1 and data.x[:4, 2].tolist() == [1, 0, 0, 1]
    assert data.y.tolist()[6:9] == [0, -1, 0] and data.edge_weight is not None and data.edge_weight[0] == 2.5
    save_frames(nodes, edges, tmp_path / "a")  # the same again
    with pytest.raises(ValueError, match="it holds other data; try another run_dir"):
        save_frames(nodes.assign(age=1), edges, tmp_path / "a")
    for index in (nodes.set_index("id"), nodes.set_index("id").rename_axis(None)):
        save_frames(index, edges, tmp_path / f"index-{index.index.name}")
        assert load_user_graph(tmp_path / f"index-{index.index.name}").node_ids == data.node_ids
    with pytest.raises(ValueError, match=r"it is not a pair of tables; allowed: \(nodes, edges\), two pandas"):
        save_frames(nodes, [(0, 1)], tmp_path / "b")


def test_a_networkx_graph_is_read_with_its_attributes(tmp_path: Path) -> None:
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph()
    graph.add_node("a", x=[1.0, 2.0], club="red")
    graph.add_node(7, x=[3.0, 4.0], old=True)
    graph.add_edge("a", 7, weight=3, km=float("nan"))
    graph.add_edge(7, "a", weight=1, km=2)
    save_networkx(graph, tmp_path)
    data = load_user_graph(tmp_path, options=NodeDataOptions(columns="label=club"))
    assert data.node_ids == ("a", "7") and data.edge_index.tolist() == [[0, 1], [1, 0]]
    assert data.schema.feature_names == ("x_0", "x_1", "old", "old is empty")
    assert data.x is not None and data.x.tolist() == [[1, 2, 1, 1], [3, 4, 1, 0]]
    assert data.y.tolist() == [0, -1] and data.edge_weight is not None and data.edge_weight.tolist() == [3, 1]
    assert data.edge_attr is not None and data.edge_attr.tolist() == [[2, 1], [2, 0]]


def test_train_takes_tables_and_networkx_graphs(tmp_path: Path) -> None:
    networkx = pytest.importorskip("networkx")
    nodes, edges = tables()
    settings = {f"{table}.{key}": value for table in ("model", "train") for key, value in SMALL[table].items()}
    graph = networkx.karate_club_graph()
    for number, (node, values) in enumerate(graph.nodes(data=True)):
        values["degree"] = graph.degree[node] + number / 100
    for data, columns in (((nodes, edges.drop(columns="weight")), ""), (graph, "label=club")):
        run = tmp_path / f"run-{columns}"
        result = magna.train(
            data, recipe="digits", settings=settings | {"data.columns": columns}, run_dir=run, device="cpu"
        )
        assert result["runs"][0]["test"]["accuracy"] >= 0
        assert magna.predict(run, device="cpu").columns()["label"] and (run / "data" / "nodes.csv").is_file()
        assert json.loads((run / "schema.json").read_text())["class_names"] in (["a", "b"], ["Mr. Hi", "Officer"])
        with pytest.raises(ValueError, match="it holds a run already"):
            magna.train(data, recipe="digits", settings=settings, run_dir=run, device="cpu")

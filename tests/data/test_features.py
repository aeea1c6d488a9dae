"""Columns of text and of numbers with gaps: as features of training, and of new rows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.data import write_texts

from magna.config.tables import NodeDataOptions
from magna.data import NodeData, Schema, load_new_graph, load_node_data, load_user_graph

NODES = """id,age,team,city,label,split
a,10,red,,x,train
b,,blue,Łódź,y,train
c,30,red,Bonn,x,valid
d,20,,Bonn,y,test
"""
EDGES = "source,target\na,b\nc,d\n"


def write(folder: Path, nodes: str = NODES, edges: str = EDGES) -> Path:
    return write_texts(folder, ".csv", nodes=nodes, edges=edges)


def rows(data: NodeData) -> list[list[float]]:
    assert data.x is not None
    return data.x.tolist()


def test_text_is_one_column_a_value_and_gaps_have_the_training_mean(tmp_path: Path) -> None:
    data = load_user_graph(write(tmp_path))
    names = ("age", "age is empty", "team=blue", "team=red", "city=Bonn", "city=Łódź")
    assert data.schema.feature_names == names
    # The mean of training is 10; that of all rows would be 20.
    assert rows(data) == [[10, 0, 0, 1, 0, 0], [10, 1, 1, 0, 0, 1], [30, 0, 0, 1, 1, 0], [20, 0, 0, 0, 1, 0]]
    assert data.notes == (
        "column 'team' is text: 2 features, one for each value",
        "column 'city' is text: 2 features, one for each value",
        "column 'age' has empty cells, filled by its mean 10 and flagged by 'age is empty'",
    )


def test_new_rows_are_encoded_as_in_training(tmp_path: Path) -> None:
    config = NodeDataOptions(name=str(write(tmp_path / "old")))
    schema = Schema.from_dict(load_node_data(config).schema.to_dict())
    nodes = "id,city,team,age\nnew,Łódź,red,\nother,Paris,7,5\n"
    new = load_new_graph(write(tmp_path / "new", nodes, "source,target\nnew,other\n"), config, schema)
    assert rows(new) == [[10, 1, 0, 1, 0, 1], [5, 0, 0, 0, 0, 0]] and new.schema == schema
    assert new.notes == (
        "column 'team' has values that training did not have: '7'",
        "column 'city' has values that training did not have: 'Paris'",
    )
    write(tmp_path / "new", nodes.replace(",5\n", ",old\n"), "source,target\n")
    with pytest.raises(ValueError, match=r"nodes\.csv, line 3: column 'age' is 'old', not a number"):
        load_new_graph(tmp_path / "new", config, schema)


def test_an_empty_cell_that_training_did_not_have_is_filled_and_said(tmp_path: Path) -> None:
    nodes = "id,size,label,split\na,1,x,train\nb,4,y,train\nc,9,x,valid\nd,9,y,test\n"
    config = NodeDataOptions(name=str(write(tmp_path / "old", nodes)))
    schema = load_node_data(config).schema
    assert schema.feature_names == ("size",)
    folder = write(tmp_path / "new", "id,size\ne,\n", "source,target\n")
    new = load_new_graph(folder, config, schema)
    assert rows(new) == [[2.5]] and new.notes == ("column 'size' is empty in 1 rows, filled by 2.5",)
    # A run of an earlier version has the names alone.
    with pytest.raises(ValueError, match=r"nodes\.csv, line 2: column 'size' is empty"):
        load_new_graph(folder, config, Schema(feature_names=("size",), class_names=("x", "y")))


def test_the_mean_is_that_of_the_values_that_there_are(tmp_path: Path) -> None:
    data = load_user_graph(write(tmp_path, "id,size,split,label\na,,train,x\nb,6,,\nc,8,,\n", "source,target\n"))
    assert rows(data) == [[7, 1], [6, 0], [8, 0]]
    data = load_user_graph(write(tmp_path, "id,size,none\na,,\nb,6,\n", "source,target\n"))
    assert rows(data) == [[6, 1], [6, 0]] and "column 'none' is empty and was left out" in data.notes


@pytest.mark.parametrize("count", [50, 51])
def test_a_text_column_of_many_values_is_refused_unless_ignored(tmp_path: Path, count: int) -> None:
    nodes = "id,note\n" + "".join(f"n{row},text {row % count}\n" for row in range(200))
    folder = write(tmp_path, nodes, "source,target\n")
    if count == 50:
        assert len(load_user_graph(folder).schema.feature_names or ()) == 50
        return
    words = r"nodes\.csv: column 'note' is text with 51 different values, such as 'text 0'; allowed: up to 50; try"
    with pytest.raises(ValueError, match=f"{words} --ignore note"):
        load_user_graph(folder)
    assert load_user_graph(folder, options=NodeDataOptions(ignore="note")).x is None


def test_many_columns_with_gaps_share_a_note(tmp_path: Path) -> None:
    data = load_user_graph(write(tmp_path, "id,p,q,r,s\na,,,,\nb,1,2,3,4\n", "source,target\n"))
    assert len(data.notes) == 1 and data.notes[0].startswith("4 columns have empty cells") and "'s'" in data.notes[0]


def test_constant_and_huge_features_are_scaled_safely(tmp_path: Path) -> None:
    nodes = "id,same,huge\n" + "".join(f"n{row},7,{'3e38' if row == 0 else row}\n" for row in range(1000))
    config = NodeDataOptions(name=str(write(tmp_path, nodes, "source,target\n")), standardise_features=True)
    data = load_node_data(config)
    assert data.x is not None and data.x[:, 0].eq(0).all() and float(data.x.max()) == 20
    assert data.x.isfinite().all()
    assert data.notes[0] == "1 values are more than 20 deviations from their mean and were cut there: 'huge'"


def test_edge_features_and_weights(tmp_path: Path) -> None:
    edges = "source,target,weight,feature:km,feature:road\na,b,2,5,wide\na,c,0,9,wide\nb,c,0.5,,narrow\n"
    config = NodeDataOptions(name=str(write(tmp_path / "old", edges=edges)), undirected=False)
    data = load_node_data(config)
    assert data.edge_index.tolist() == [[0, 1], [1, 2]]
    assert data.edge_weight is not None and data.edge_weight.tolist() == [2, 0.5]
    assert data.edge_attr is not None and data.edge_attr.tolist() == [[5, 0, 0, 1], [7, 1, 1, 0]]
    assert "1 edges of weight 0 are no edges and were left out" in data.notes
    schema = Schema.from_dict(data.schema.to_dict())
    assert schema == data.schema and len(schema.edge_columns or ()) == 2
    edges = "source,target,weight,feature:road,feature:km\na,b,1,wide,\n"
    new = load_new_graph(write(tmp_path / "new", edges=edges), config, schema)
    assert new.edge_attr is not None and new.edge_attr.tolist() == [[7, 1, 0, 1]]
    with pytest.raises(ValueError, match=r"edges\.csv: it has no column 'feature:km'"):
        load_new_graph(write(tmp_path / "new", edges="source,target,feature:road\n"), config, schema)


def test_edge_features_are_standardised_with_those_of_nodes(tmp_path: Path) -> None:
    edges = "source,target,feature:km\na,b,1\na,c,3\n"
    config = NodeDataOptions(name=str(write(tmp_path, edges=edges)), standardise_features=True)
    data = load_node_data(config)
    assert data.edge_attr is not None and sorted(data.edge_attr.squeeze(1).tolist()) == [-1, -1, 1, 1]
    again = load_node_data(config, scaled_like=Schema.from_dict(data.schema.to_dict()))
    assert again.edge_attr is not None and torch.equal(again.edge_attr, data.edge_attr)
    looped = data.with_self_loops().edge_attr
    assert looped is not None and looped.abs().sum(1).eq(0).sum() == 4

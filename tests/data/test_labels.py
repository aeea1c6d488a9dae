"""Labels of nodes: classes, several labels, numbers; what a run says of them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.data import write_texts

from magna.config.tables import NodeDataOptions
from magna.data import NodeData, Schema, load_new_graph, load_node_data, load_user_graph

EDGES = "source,target\n"


def write(folder: Path, labels: list[Any], header: str = "label") -> Path:
    nodes = f"id,{header}\n" + "".join(f"n{row},{label}\n" for row, label in enumerate(labels))
    return write_texts(folder, ".csv", nodes=nodes, edges=EDGES)


def read(folder: Path, labels: list[Any], header: str = "label", **settings: Any) -> NodeData:
    return load_user_graph(write(folder, labels, header), options=NodeDataOptions(**settings))


def test_twenty_numbers_are_classes_and_more_are_a_number(tmp_path: Path) -> None:
    few = read(tmp_path, [row % 20 / 2 for row in range(40)])
    assert (few.target, few.num_classes, few.y.dtype) == ("classes", 20, torch.int64)
    assert few.notes == ("'label' has 20 different numbers: they are classes (--target number: a number)",)
    many = read(tmp_path, [*(row % 21 / 2 for row in range(40)), ""])
    assert (many.target, many.num_classes, many.y.dtype) == ("number", 1, torch.float32)
    assert many.y[:3].tolist() == [0, 0.5, 1] and many.labelled.sum() == 40 and many.schema.class_names == ("label",)
    assert many.notes == ("'label' has 21 different numbers: they are a number (--target classes: classes)",)
    text = read(tmp_path, [f"c{row % 30}" for row in range(90)])
    assert (text.target, text.num_classes, text.notes) == ("classes", 30, ())


def test_the_setting_decides_over_the_count(tmp_path: Path) -> None:
    number = read(tmp_path, [1, 2, "", 2], "pay", target="number", columns="label=pay")
    assert number.target == "number" and number.y[:2].tolist() == [1, 2] and number.notes == ()
    assert number.schema.class_names == ("pay",) and number.labelled.tolist() == [True, True, False, True]
    classes = read(tmp_path, range(30), target="classes")  # type: ignore[arg-type]
    assert (classes.target, classes.num_classes) == ("classes", 30)
    with pytest.raises(ValueError, match=r"nodes\.csv, line 3: its label is 'much'; allowed: a finite number"):
        read(tmp_path, [1, "much"], target="number")
    with pytest.raises(ValueError, match=r"nodes\.csv, line 2: its label is 'inf'"):
        read(tmp_path, ["inf"], target="number")


def test_several_labels(tmp_path: Path) -> None:
    data = read(tmp_path, ["1,0", "0,", ",", "true,1.0"], "label:tall,label:old")
    assert data.target == "labels" and data.num_classes == 2 and data.schema.class_names == ("tall", "old")
    assert data.y.nan_to_num(-1).tolist() == [[1, 0], [0, -1], [-1, -1], [1, 1]]
    assert data.labelled.tolist() == [True, True, False, True] and data.x is None
    for label, words in (("2,0", "line 2: its label:tall is '2'; allowed: 0, 1, or nothing"), ("1,x", "label:old")):
        with pytest.raises(ValueError, match=words):
            read(tmp_path, [label], "label:tall,label:old")
    with pytest.raises(ValueError, match="both a column 'label' and a column 'label:tall'"):
        read(tmp_path, ["1,0"], "label:tall,label")
    with pytest.raises(ValueError, match="it has a column 'label:tall'; allowed: a column 'label' for number"):
        read(tmp_path, ["1"], "label:tall", target="number")


@pytest.mark.parametrize(
    ("label", "columns"),
    [
        ("a;b", "'label:a' and 'label:b'"),
        ("x|y|z", "'label:x' and 'label:y'"),
        ('"[1, 2]"', "'label:1' and 'label:2'"),
        ("\"['a', 'b']\"", "'label:a' and 'label:b'"),
        ("{7}", "'label:7'"),
        ("[]", "'label:NAME'"),
    ],
)
def test_a_list_is_refused_with_the_columns_to_write(tmp_path: Path, label: str, columns: str) -> None:
    with pytest.raises(ValueError, match=r"nodes\.csv, line 3: its label is a list") as caught:
        read(tmp_path, ["a", label])
    assert f"or a column for each label, such as {columns}, of 0, 1 or nothing" in str(caught.value)


def test_a_class_of_one_node_is_said(tmp_path: Path) -> None:
    assert read(tmp_path, ["a", "a", "b"]).notes == ("class 'b' has one labelled node",)
    assert read(tmp_path, ["a", "b", "", "c", "c"]).notes == ("the classes 'a', 'b' have one labelled node",)


def test_nodes_of_a_split_without_a_label_are_not_in_it(tmp_path: Path) -> None:
    labels = ["a,train", "b,Train", "a,valid", ",valid", ",test", ",test", ",train", ","]
    data = read(tmp_path, labels, "label,split")
    assert (data.train.tolist(), data.valid.tolist(), data.test.tolist()) == ([0, 1], [2], [])
    assert data.notes == (
        "class 'b' has one labelled node",
        *(f"{n} nodes of the {name} split have no label and are not in it" for name, n in _COUNTS),
    )
    with pytest.raises(ValueError, match="it has no node with split 'train' and a label; allowed: at least one"):
        read(tmp_path, [",train", "a,test"], "label,split")
    several = read(tmp_path, ["1,,train", ",,train", ",0,test"], "label:a,label:b,split")
    assert several.train.tolist() == [0] and several.test.tolist() == [2]


_COUNTS = (("train", 1), ("valid", 1), ("test", 2))


@pytest.mark.parametrize(
    ("header", "labels", "new", "y"),
    [
        ("label", range(30), ["5.5", ""], [5.5, -1]),
        ("label:a,label:b", ["1,0", "0,1"], ["1,", ",0"], [[1, -1], [-1, 0]]),
        ("label", ["x", "y"], ["y", ""], [1, -1]),
    ],
)
def test_labels_of_a_new_graph_are_those_of_training(
    tmp_path: Path, header: str, labels: Any, new: Any, y: list[Any]
) -> None:
    config = NodeDataOptions(name=str(write(tmp_path / "old", labels, header)))
    schema = Schema.from_dict(load_node_data(config).schema.to_dict())
    data = load_new_graph(write(tmp_path / "new", new, header), config, schema)
    assert data.y.double().nan_to_num(-1).tolist() == y and data.target == schema.target
    assert torch.equal(data.test, data.labelled.nonzero().squeeze(1))
    without = load_new_graph(write(tmp_path / "none", ["3"], "x"), config, replace_columns(schema))
    assert not without.labelled.any() and without.y.shape[1:] == data.y.shape[1:]


def replace_columns(schema: Schema) -> Schema:
    """The same names for a model with one feature x."""
    values = schema.to_dict() | {"feature_names": ["x"], "columns": [{"name": "x", "mean": 0.0}]}
    return Schema.from_dict(values)


def test_a_label_that_training_did_not_have(tmp_path: Path) -> None:
    config = NodeDataOptions(name=str(write(tmp_path / "old", ["1,", "0,1"], "label:a,label:b")))
    schema = load_node_data(config).schema
    with pytest.raises(ValueError, match="its column 'label:c' was not in training; allowed: 'a', 'b'"):
        load_new_graph(write(tmp_path / "new", ["1"], "label:c"), config, schema)
    part = load_new_graph(write(tmp_path / "new", ["1"], "label:b"), config, schema)
    assert part.y.nan_to_num(-1).tolist() == [[-1, 1]]

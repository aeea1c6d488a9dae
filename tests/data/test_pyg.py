"""Saved PyG `Data`: what is read, what is refused, and that nothing in a file is executed."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.data import Harm
from torch_geometric.data import Data

from magna.config.tables import NodeDataOptions
from magna.data import NodeData, load_new_graph, load_node_data, load_user_graph, to_pyg
from magna.data.pyg import save_pyg
from magna.errors import DataError


def _pyg(**changes: Any) -> Data:
    masks = dict(zip(("train_mask", "val_mask", "test_mask"), torch.eye(3, dtype=torch.bool), strict=True))
    edge_index, y = torch.tensor([[0, 1], [1, 2]]), torch.tensor([0, 1, 1])
    return Data(**{"x": torch.tensor([[1.0], [2.0], [3.0]]), "edge_index": edge_index, "y": y} | masks | changes)


def test_a_saved_pyg_data_is_read(tmp_path: Path) -> None:
    torch.save(_pyg(edge_type=torch.tensor([0, 1])), tmp_path / "data.pt")
    for path in (tmp_path, tmp_path / "data.pt"):
        data = load_user_graph(path)
        assert data.x is not None and data.x.tolist() == [[1.0], [2.0], [3.0]]
        assert (data.train.tolist(), data.valid.tolist(), data.test.tolist()) == ([0], [1], [2])
        assert data.num_relations == 2 and data.schema.relation_names == ("0", "1")
    schema = load_node_data(str(tmp_path)).schema
    assert schema.class_names == ("0", "1")
    torch.save(_pyg(edge_type=torch.tensor([0, 0])), tmp_path / "new.pt")
    new = load_new_graph(tmp_path / "new.pt", NodeDataOptions(), schema)
    assert new.num_relations == 4 and new.num_classes == 2
    torch.save(_pyg(edge_type=torch.tensor([0, 2])), tmp_path / "new.pt")
    with pytest.raises(ValueError, match="3 edge types; allowed: 2"):
        load_new_graph(tmp_path / "new.pt", NodeDataOptions(), schema)


@pytest.mark.filterwarnings("error")
def test_features_of_a_pyg_data_may_be_sparse_or_want_a_gradient(tmp_path: Path) -> None:
    plain = torch.tensor([[1.0], [0.0], [3.0]])
    (tmp_path / "folder.pt").mkdir()
    path = tmp_path / "folder.pt" / "data.pt"  # a folder, whatever its name ends in
    for x in (plain.to_sparse(), plain.clone().requires_grad_()):
        torch.save(_pyg(x=x), path)
        data = load_user_graph(path.parent)
        assert data.x is not None and torch.equal(data.x, plain) and not data.x.requires_grad and data.notes == ()
    torch.save(_pyg(x=plain[:, :0], edge_weight=torch.ones(2)), path)
    data = load_user_graph(path)
    assert data.x is None and data.edge_weight is not None and data.edge_weight.tolist() == [1, 1]


def test_a_pyg_data_without_features_has_as_many_nodes_as_labels(tmp_path: Path) -> None:
    torch.save(Data(edge_index=_pyg().edge_index, y=torch.arange(6)), tmp_path / "data.pt")
    assert load_user_graph(tmp_path / "data.pt").num_nodes == 6


def test_edges_of_a_pyg_data_have_weights_and_features(tmp_path: Path) -> None:
    save_pyg(_pyg(edge_weight=torch.tensor([[2.0], [0.0]]), edge_attr=torch.tensor([3, 4])), tmp_path)
    data = load_user_graph(tmp_path)
    assert data.edge_index.tolist() == [[0], [1]] and data.notes == (
        "1 edges of weight 0 are no edges and were left out",
    )
    assert data.edge_weight is not None and data.edge_weight.tolist() == [2]
    assert data.edge_attr is not None and data.edge_attr.tolist() == [[3]]
    back = to_pyg(data)
    assert back.edge_weight.tolist() == [2] and back.edge_attr.tolist() == [[3]]


def test_other_targets_of_a_pyg_data(tmp_path: Path) -> None:
    def stored(name: str, y: torch.Tensor, **settings: Any) -> NodeData:
        graph = Data(edge_index=torch.tensor([[0], [1]]), y=y, x=torch.ones(len(y), 1))
        save_pyg(graph, tmp_path / name)
        return load_user_graph(tmp_path / name, options=NodeDataOptions(**settings))

    nan = float("nan")
    number = stored("many", torch.cat([torch.arange(25.0), torch.tensor([nan])]).double())
    assert (number.target, number.num_classes, number.y.dtype) == ("number", 1, torch.float32)
    assert number.notes == ("'y' has 25 different numbers: they are a number (--target classes: classes)",)
    assert stored("ids", torch.arange(25)).target == "classes"
    assert stored("asked", torch.arange(25), target="number").y.tolist() == [*range(25)]
    few = stored("few", torch.tensor([0.5, 2, nan, 0.5]))
    assert few.y.tolist() == [0, 1, -1, 0] and few.schema.class_names == ("0.5", "2") and few.target == "classes"
    several = stored("several", torch.tensor([[1, 0], [-1, 1]]))
    assert several.target == "labels" and several.y.nan_to_num(-1).tolist() == [[1, 0], [-1, 1]]
    schema = load_node_data(NodeDataOptions(name=str(tmp_path / "few"))).schema
    new = load_user_graph(tmp_path / "few", schema)
    assert new.y.tolist() == few.y.tolist()
    save_pyg(Data(edge_index=torch.tensor([[0], [1]]), y=torch.tensor([3.0, 2.0])), tmp_path / "new")
    with pytest.raises(ValueError, match=r"it has the label 3; allowed: '0\.5', '2', as in training"):
        load_user_graph(tmp_path / "new", schema)


def test_masked_nodes_without_a_label_are_not_in_the_split(tmp_path: Path) -> None:
    torch.save(_pyg(y=torch.tensor([0, 1, -1])), tmp_path / "data.pt")
    data = load_user_graph(tmp_path)
    assert (data.valid.tolist(), data.test.tolist()) == ([1], [])
    assert data.notes == ("1 nodes of test_mask have no label and are not in it",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (Harm(), r"can be read safely: it asks for \w+\.mkdir"),
        (b"nothing", "can be read safely"),
        ({"x": torch.zeros(2)}, "it has dict"),
        (_pyg(edge_index=torch.tensor([[0], [7]])), "edge to node 7; allowed: 0 to 2"),
        (_pyg(edge_index=torch.tensor([[2], [-1]])), "edge to node -1; allowed: 0 to 2"),
        (_pyg(edge_type=torch.tensor([0, -2])), "edge of type -2; allowed: 0 to 1,048,575"),
        (_pyg(edge_type=torch.tensor([0, 10**12])), "edge of type 1000000000000; allowed: 0 to 1,048,575"),
        (_pyg(y=torch.tensor([0, 1, 10**12])), "label of 1000000000000; allowed: 0 to 1,048,575"),
        (_pyg(note=Harm()), "can be read safely"),
        (_pyg(train_mask=torch.zeros(3, dtype=torch.bool)), "no node in train_mask; allowed: at least one, or no"),
        (_pyg(edge_index=torch.zeros(3, 2)), "its edge_index is of another kind"),
        (_pyg(edge_index=None, num_nodes=3), "no edge_index"),
        (_pyg(y=torch.zeros(2)), "its y is of another kind"),
        (_pyg(y=torch.tensor([0.5, 1, float("inf")])), "its y is not finite"),
        (_pyg(y=torch.tensor([[0, 1], [2, 1], [0, 0]])), "several labels a node; allowed: 0, 1, or NaN"),
        (_pyg(y=torch.tensor([-1, 1, 1])), "no node in train_mask"),
        (_pyg(edge_weight=torch.tensor([1.0, -1.0])), "its edge_weight has -1; allowed: 0, which is no edge, or"),
        (_pyg(edge_weight=torch.tensor([1.0, float("nan")])), "its edge_weight has nan"),
        (_pyg(edge_weight=torch.ones(3)), "its edge_weight is of another kind; allowed: a number for each of 2 edges"),
        (_pyg(edge_attr=torch.ones(3, 1)), "its edge_attr is of another kind"),
        (_pyg(edge_attr=torch.tensor([[1.0], [float("inf")]])), "row 1, feature 0 is inf"),
        (_pyg(x=torch.tensor([[1.0], [float("nan")], [3.0]])), "row 1, feature 0 is nan"),
        (_pyg(train_mask=torch.tensor([0, 1, 2])), "its train_mask is of another kind"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_saved_thing_is_refused_and_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if isinstance(content, bytes):
        (tmp_path / "data.pt").write_bytes(content)
    else:
        torch.save(content, tmp_path / "data.pt")
    with pytest.raises(ValueError, match=words) as caught:
        load_user_graph(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "harm").exists()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_file_gives_a_graph_or_a_refusal(position: int, value: int) -> None:
    """Fails without the `except Exception` around `torch.load`, or without the check of the ends of edges."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.pt"
        torch.save(_pyg(), file)
        content = bytearray(file.read_bytes())
        content[position % len(content)] = value
        file.write_bytes(content)
        with contextlib.suppress(DataError):
            data = load_user_graph(file)
            assert data.edge_index.min() >= 0 and data.edge_index.max() < data.num_nodes

"""Your own graph: what is read, under which names, and what is refused in one line with its place."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.data import write_texts

from magna.config.schema import Config
from magna.config.tables import NodeDataOptions
from magna.data import NodeData, Schema, load_new_graph, load_node_data, load_user_graph, prepare
from magna.data.audit import audit_nodes
from magna.data.features import FeatureColumn
from magna.errors import DataError, MissingExtra
from magna.tasks import make_task

NODES = """id,height,width,label,split
007,1.5,2,cat,train
x1,0,-1,dog,train
x2,1e3,0,dog,val
x3,2,2,cat,test
x4,3,3,,
"""
EDGES = """source,target,type
007,x1,likes
x1,x2,sees
x2,x2,likes
x4,007,sees
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "pets")


def write(folder: Path, nodes: str = NODES, edges: str = EDGES) -> Path:
    return write_texts(folder, ".csv", nodes=nodes, edges=edges)


def test_a_folder_is_read_as_it_is(folder: Path) -> None:
    data = load_user_graph(folder)
    assert data.name == "pets" and data.node_ids == ("007", "x1", "x2", "x3", "x4")
    columns = FeatureColumn("height", mean=0.75), FeatureColumn("width", mean=0.5)  # means of the training nodes
    assert data.schema == Schema(("height", "width"), ("cat", "dog"), ("likes", "sees"), columns=columns)
    assert data.notes == ()
    assert data.x is not None and data.x.tolist() == [[1.5, 2], [0, -1], [1000, 0], [2, 2], [3, 3]]
    assert data.y.tolist() == [0, 1, 1, 0, -1]
    assert (data.train.tolist(), data.valid.tolist(), data.test.tolist()) == ([0, 1], [2], [3])
    assert data.edge_index.tolist() == [[0, 1, 2, 4], [1, 2, 2, 0]]
    assert data.edge_type is not None and data.edge_type.tolist() == [0, 1, 0, 1]
    assert (data.num_classes, data.num_relations) == (2, 2)
    assert (data.id_of(0), data.class_name(1)) == ("007", "dog")
    assert data.index_of(["x4", "007"]).tolist() == [4, 0]
    with pytest.raises(ValueError, match="node is '7'; allowed: an id of pets, such as '007'"):
        data.index_of(["7"])


def test_both_directions_and_loops_are_types_of_their_own(folder: Path) -> None:
    data = load_node_data(str(folder))
    assert data.num_relations == 4
    triples = {tuple(triple) for triple in torch.cat([data.edge_index, data.edge_type[None]]).T.tolist()}  # type: ignore[index]
    assert triples == {(0, 1, 0), (1, 2, 1), (4, 0, 1), (1, 0, 2), (2, 1, 3), (0, 4, 3)}
    looped = prepare(data, NodeDataOptions())
    assert looped.num_relations == 5 and looped.edge_type is not None
    assert looped.edge_type[looped.edge_index[0] == looped.edge_index[1]].tolist() == [4] * 5
    assert torch.equal(looped.edge_index[1], looped.edge_index[1].sort().values)
    directed = load_node_data(NodeDataOptions(name=str(folder), undirected=False))
    assert directed.edge_index.tolist() == [[0, 1, 2, 4], [1, 2, 2, 0]] and directed.num_relations == 2


def test_without_types_edges_have_none(folder: Path) -> None:
    data = load_node_data(str(write(folder, edges="source,target\n007,x1\nx1,x2\nx2,x2\nx4,007\n")))
    assert data.edge_type is None and data.num_relations is None and data.schema.relation_names is None
    assert data.edge_index.tolist() == [[1, 4, 0, 2, 1, 0], [0, 0, 1, 1, 2, 4]]


def test_spaces_quotes_and_a_mark_at_the_start_do_no_harm(folder: Path) -> None:
    nodes = '\ufeffid , size,label\r\n"a, b", 1,"1"\r\n\r\nc,2, 10\r\nd,3,2\r\ne,3,\r\n'
    data = load_user_graph(write(folder, nodes, 'source,target\n"a, b",c\n'))
    assert data.node_ids == ("a, b", "c", "d", "e")
    assert data.schema.class_names == ("1", "2", "10")  # whole numbers in their own order
    assert data.schema.feature_names == ("size",) and data.y.tolist() == [0, 2, 1, -1]
    text = load_user_graph(write(folder, nodes.replace("10", "--5"), "source,target\n"))
    assert text.schema.class_names == ("--5", "1", "2")


def test_a_graph_without_edges_or_features_is_read(folder: Path) -> None:
    data = load_user_graph(write(folder, "id,label\na,x\nb,y\n", "source,target\n"))
    assert data.edge_index.shape == (2, 0) and data.x is None
    assert prepare(data, NodeDataOptions(normalise_features=True)).edge_index.tolist() == [[0, 1], [0, 1]]
    data = load_user_graph(write(folder, edges="source,target,type\n"))
    assert data.edge_type is None and data.num_relations is None and data.schema.relation_names is None


def test_a_missing_split_is_drawn_and_said(folder: Path) -> None:
    nodes = "id,size,label\n" + "".join(f"n{i},{i},{'ab'[i % 2]}\n" for i in range(20)) + "n20,1,\n"
    path = str(write(folder, nodes, "source,target\nn1,n2\n"))
    data = load_node_data(path)
    assert (len(data.train), len(data.valid), len(data.test)) == (12, 4, 4)
    assert torch.bincount(data.y[data.train]).tolist() == [6, 6]
    assert torch.unique(torch.cat([data.train, data.valid, data.test])).numel() == 20
    assert data.notes == ("no split given: 60/20/20 drawn at random, seed 0",)
    other, same = (load_node_data(NodeDataOptions(name=path, split_seed=seed)) for seed in (1, 0))
    assert not torch.equal(other.train, data.train) and torch.equal(same.train, data.train)


def test_standardised_features_and_a_new_graph_on_the_same_scale(folder: Path, tmp_path: Path) -> None:
    config = NodeDataOptions(name=str(folder), standardise_features=True)
    data = load_node_data(config)
    assert data.x is not None
    assert data.x.mean(0).abs().max() < 1e-6 and torch.allclose(data.x.std(0, correction=0), torch.ones(2))
    schema = Schema.from_dict(data.schema.to_dict())
    assert schema == data.schema
    nodes = "width,id,height\n2,new,1.5\n0,other,1e3\n"  # columns in another order
    new = load_new_graph(write(tmp_path / "new", nodes, "source,target,type\nnew,other,sees\n"), config, schema)
    assert new.x is not None and torch.equal(new.x, data.x[[0, 2]])
    assert new.node_ids == ("new", "other") and new.num_classes == 2 and new.y.tolist() == [-1, -1]
    assert new.edge_type is not None and new.edge_type.tolist() == [3, 1] and new.num_relations == 4
    assert new.class_name(1) == "dog" and new.test.numel() == 0
    labelled = nodes.replace("height\n", "height,label\n").replace("1.5\n", "1.5,dog\n").replace("1e3\n", "1e3,\n")
    scored = load_new_graph(write(tmp_path / "new", labelled, "source,target,type\n"), config, schema)
    assert scored.y.tolist() == [1, -1] and scored.test.tolist() == [0]


@pytest.mark.parametrize(
    ("nodes", "edges", "words"),
    [
        ("id,height,label\na,1,cat\n", EDGES, "has no column 'width'"),
        ("id,height,width,depth\na,1,2,3\n", EDGES, "column 'depth' was not in training"),
        ("id,height,width,label\na,1,2,horse\n", "source,target,type\n", "the training nodes' 'cat', 'dog'"),
        ("id,height,width\na,1,2\n", "source,target,type\na,a,eats\n", "type is 'eats'; allowed: 'likes', 'sees'"),
        ("id,height,width\na,1,2\n", "source,target\na,a\n", "has no column 'type'"),
    ],
)
def test_a_new_graph_must_have_the_names_of_training(
    folder: Path, tmp_path: Path, nodes: str, edges: str, words: str
) -> None:
    config = NodeDataOptions(name=str(folder))
    schema = load_node_data(config).schema
    with pytest.raises(ValueError, match=words):
        load_new_graph(write(tmp_path / "new", nodes, edges), config, schema)


HEAD = "id,height,width,label,split\n"


@pytest.mark.parametrize(
    ("nodes", "edges", "words"),
    [
        ("", EDGES, ["nodes.csv: it has no column 'id'", "it has nothing"]),
        ("id|x\n1|2\n", EDGES, ["no column 'id'", "'id|x'", "try --columns id=COLUMN"]),
        (HEAD, EDGES, ["nodes.csv: it has no node"]),
        ("name,x\n1,2\n", EDGES, ["no column 'id'", "'name', 'x'"]),
        ("id,x,x\n1,2,3\n", EDGES, ["two columns 'x'"]),
        ("id,x,\n1,2,3\n", EDGES, ["a column without a name"]),
        (NODES + "x1,1,1,cat,\n", EDGES, ["nodes.csv, line 7:", "the id 'x1' of line 3"]),
        (NODES + ",1,1,cat,\n", EDGES, ["nodes.csv, line 7: it has no id"]),
        (NODES + "x5,1,1\n", EDGES, ["nodes.csv, line 7: it has 3 cells; allowed: 5"]),
        (NODES + 'x5,"1,1,cat,\n', EDGES, ["nodes.csv, line 7: it is not CSV"]),
        (NODES + "x5,tall,1,cat,\n", EDGES, ["nodes.csv, line 7: column 'height' is 'tall', not a number"]),
        (NODES + "x5,1,nan,cat,\n", EDGES, ["nodes.csv, line 7: column 'width' is nan; allowed: finite"]),
        (NODES + "x5,1,1e300,cat,\n", EDGES, ["column 'width' is 1e+300; allowed: finite"]),
        (NODES + "x5,1,1,horse,test\n", EDGES, ["nodes.csv, line 7: its label is 'horse'", "'cat', 'dog'"]),
        (NODES + "x5,1,1,cat,exam\n", EDGES, ["nodes.csv, line 7: its split is 'exam'", "train, valid"]),
        (NODES.replace("train", "test"), EDGES, ["no node with split 'train'"]),
        (NODES, EDGES + "x4,x9,sees\n", ["edges.csv, line 6: its target is 'x9'", "an id of the nodes file"]),
        (NODES, EDGES + "7,x1,sees\n", ["edges.csv, line 6: its source is '7'"]),
        (NODES, EDGES + ",x1,sees\n", ["edges.csv, line 6: it has no source; allowed: an id of the nodes file"]),
        (NODES, EDGES + "x4,x1,\n", ["edges.csv, line 6: it has no type"]),
        (NODES, "from,to\nx1,x2\n", ["edges.csv: it has no column 'source'", "'from', 'to'"]),
        (NODES, "source,target,km\n", ["edges.csv: it has a column 'km'; allowed: source, target, type, weight"]),
        (NODES, "source,target,km\n", ["try --ignore km, or the name feature:km for a feature"]),
        (NODES, "source,target,weight\nx1,x2,\n", ["edges.csv, line 2: it has no weight; allowed: 0, which is no"]),
        (NODES, "source,target,weight\nx1,x2,1\nx1,x2,nan\n", ["edges.csv, line 3: column 'weight' is nan"]),
        (NODES, "source,target,weight\nx1,x2,1\nx1,x2,-1\n", ["edges.csv, line 3: its weight is negative"]),
        (NODES, "source,target,weight\nx1,x2,much\n", ["edges.csv, line 2: column 'weight' is 'much', not a number"]),
    ],
)
def test_a_wrong_table_is_one_line_with_its_place(folder: Path, nodes: str, edges: str, words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"\S") as caught:
        load_node_data(str(write(folder, nodes, edges)))
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    half = write_texts(tmp_path / "half", ".csv", nodes=NODES)
    (folder / "nodes.parquet").touch()
    for path, words in {
        tmp_path / "empty": "empty: it has no data of a known form; allowed: nodes.csv and edges.csv",
        folder / "nodes.csv": "it is not a folder; allowed: a folder",
        tmp_path / "nowhere": "it does not exist; allowed: a folder",
        half: r"none of edges\.csv, edges\.tsv or edges\.parquet",
        folder: r"it has nodes\.csv and nodes\.parquet; allowed: one",
    }.items():
        with pytest.raises(ValueError, match=words):
            load_user_graph(path)
    with pytest.raises(ValueError, match=r"allowed: digits, cora, .* or the path of a folder"):
        load_node_data(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("lines", [0, 5_000], ids=["few", "more than one block of the decoder"])
def test_text_that_is_not_utf8_is_refused(folder: Path, lines: int) -> None:
    (folder / "nodes.csv").write_bytes(b"id,x\n" + b"a,1\n" * lines + b"f\xfcr,1\n" + b"b,1\n" * lines)
    with pytest.raises(ValueError, match=rf"nodes\.csv, line {lines + 2}: it is not UTF-8; allowed: text in UTF-8"):
        load_user_graph(folder)


def test_too_few_labels_for_a_split(folder: Path) -> None:
    path = str(write(folder, "id,x,label\na,1,u\nb,1,v\nc,1,\n", "source,target\na,b\n"))
    report = audit_nodes(load_node_data(path))  # the place to learn of it
    assert set(report["splits"].values()) == {0} and "too few labels to draw one" in report["notes"][-1]
    config = Config(data=NodeDataOptions(name=path))
    with pytest.raises(ValueError, match="2 labelled nodes in 2 classes"):
        make_task(config, None, torch.device("cpu"))


@pytest.mark.slow
def test_a_million_edges_take_seconds(folder: Path) -> None:
    nodes = "id,x\n" + "".join(f"node{i},{i}\n" for i in range(100_000))
    edges = "source,target\n" + "".join(f"node{i % 100_000},node{i * 7919 % 100_000}\n" for i in range(1_000_000))
    write(folder, nodes, edges)
    start = time.process_time()
    assert load_user_graph(folder).edge_index.size(1) == 1_000_000
    # About two seconds on an idle machine; a search per edge would take hours.
    assert time.process_time() - start < 60


def test_parquet_says_the_same_as_csv(folder: Path, tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    csv = load_user_graph(folder)
    nodes: dict[str, list[Any]] = {
        "id": ["007", "x1", "x2", "x3", "x4"],
        "height": [1.5, 0.0, 1e3, 2.0, 3.0],
        "width": [2, -1, 0, 2, 3],
        "label": ["cat", "dog", "dog", "cat", None],
        "split": ["train", "train", "val", "test", None],
    }
    edges = [line.split(",") for line in EDGES.split()]
    other = tmp_path / "columns" / "pets"
    other.mkdir(parents=True)

    columns = {name: [row[at] for row in edges[1:]] for at, name in enumerate(edges[0])}
    parquet.write_table(arrow.table(columns), other / "edges.parquet")

    def load(**changes: list[Any]) -> NodeData:
        parquet.write_table(arrow.table(nodes | changes), other / "nodes.parquet")
        return load_user_graph(other)

    data = load()
    assert data.x is not None and (data.node_ids, data.schema) == (csv.node_ids, csv.schema)
    assert all(torch.equal(getattr(data, part), getattr(csv, part)) for part in ("x", "edge_index", "y"))
    # Some programs save text as bytes, and whole numbers with gaps as floats.
    assert load(id=[name.encode() for name in nodes["id"]]).node_ids == csv.node_ids
    assert load(label=[0.0, 1.0, 1.0, 0.0, None]).schema.class_names == ("0", "1")
    for column, values, words in (
        ("width", [1.0, 2, 3, float("inf"), 5], "nodes.parquet, row 4: column 'width' is inf"),
        ("width", [1.0, 2, 3, 1e300, 5], r"nodes.parquet, row 4: column 'width' is 1e\+300"),
        ("label", [b"cat", b"dog", b"dog", b"\xff", None], "column 'label' has bytes that are not UTF-8"),
        ("width", ["1", "2", "b", "4", "5"], "nodes.parquet, row 3: column 'width' is 'b', not a number"),
    ):
        with pytest.raises(ValueError, match=words):
            load(**{column: values})
    filled = load(width=[1, 3, None, 4, 5], height=["a", "b", None, "a", "a"])
    assert filled.schema.feature_names == ("height=a", "height=b", "width", "width is empty")
    assert filled.x is not None and filled.x[:3].tolist() == [[1, 0, 1, 0], [0, 1, 3, 0], [0, 0, 2, 1]]
    (other / "nodes.parquet").write_text("no table")
    with pytest.raises(ValueError, match="it is not a Parquet file"):
        load_user_graph(other)


@pytest.mark.parametrize(
    ("package", "file", "extra"), [("pyarrow", "nodes.parquet", "parquet"), ("torch_geometric", "data.pt", "pyg")]
)
def test_a_missing_package_names_the_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch, package: str, file: str, extra: str
) -> None:
    (folder / "nodes.csv").rename(folder / file)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"\[{extra}\]"):
        load_user_graph(folder)


def test_names_that_look_the_same_are_the_same(folder: Path) -> None:
    composed, decomposed = "\u0141\u00f3d\u017a", "\u0141o\u0301dz\u0301"
    data = load_user_graph(write(folder, f"id,x\n{composed},1\nb,2\n", f"source,target\n{decomposed},b\n"))
    assert data.edge_index.tolist() == [[0], [1]] and data.index_of([decomposed]).tolist() == [0]


cells = st.text(st.sampled_from('a1.,"\n\r; -eé\x00'), max_size=12)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(cells, max_size=6), st.lists(cells, max_size=4))
def test_whatever_the_tables_hold_they_are_read_or_refused(nodes: list[str], edges: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = write(Path(place) / "any", HEAD + "\n".join(nodes), "source,target\n" + "\n".join(edges))
        with contextlib.suppress(DataError):
            assert load_user_graph(folder).num_nodes >= 1

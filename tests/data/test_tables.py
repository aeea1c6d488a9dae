"""Tables as people have them: separators, names of columns, decimal commas, and mixed columns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.data import write_texts

from magna.config.tables import NodeDataOptions
from magna.data import load_user_graph
from magna.data.text import separator_of

NODES = "worker,age,note,team\nann,1,hello there,red\nbob,2,what?,blue\ncat,3,no,red\n"
EDGES = "from,to,amount\nann,bob,2\n"
NAMES = "id=worker, label=team, source=from, target=to, weight=amount"


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_comma_semicolon_and_tab_say_the_same(tmp_path: Path, separator: str, suffix: str) -> None:
    texts = {"nodes": NODES.replace(",", separator), "edges": EDGES.replace(",", separator)}
    data = load_user_graph(
        write_texts(tmp_path, suffix, **texts), options=NodeDataOptions(columns=NAMES, ignore="note")
    )
    assert data.x is not None and data.x.tolist() == [[1], [2], [3]] and data.node_ids == ("ann", "bob", "cat")
    assert data.schema.class_names == ("blue", "red") and data.y.tolist() == [1, 0, 1]
    assert data.edge_weight is not None and data.edge_weight.tolist() == [2] and data.edge_index.tolist() == [[0], [1]]
    said = {",": (), ";": ("is separated by semicolons",), "\t": ("is separated by tabs",)}[separator]
    assert [note for note in data.notes if said and said[0] in note] == [
        f"{name}{suffix} {said[0]}" for name in ("nodes", "edges") if said
    ]


@pytest.mark.parametrize(
    ("first", "separator"),
    [("id", ","), ("id,a;b,c", ","), ("id;a,b;c", ";"), ('id\t"a,b,c"', "\t"), ('"a;b;c",id', ","), ("id,a;b", ",")],
)
def test_the_first_line_tells_the_separator(tmp_path: Path, first: str, separator: str) -> None:
    (tmp_path / "any.csv").write_text(f"\n{first}\n1;2;3;4;5\n")
    assert separator_of(tmp_path / "any.csv") == separator


def test_empty_cells_between_tabs_stay_where_they_are(tmp_path: Path) -> None:
    folder = write_texts(tmp_path, ".csv", nodes="id\tp\tq\na\t\t 2\nb\t1\t3\n", edges="source\ttarget\na\tb\n")
    data = load_user_graph(folder)
    assert data.x is not None and data.x.tolist() == [[1, 1, 2], [1, 0, 3]]


def test_decimal_commas_where_commas_separate_nothing(tmp_path: Path) -> None:
    edges = "source;target\n"
    data = load_user_graph(write_texts(tmp_path, ".csv", nodes="id;km\na;1,5\nb;2\nc;-0,25\n", edges=edges))
    assert data.x is not None and data.x.tolist() == [[1.5], [2], [-0.25]]
    assert "nodes.csv has 2 numbers with a decimal comma" in data.notes
    data = load_user_graph(write_texts(tmp_path, ".csv", nodes='id,km\na,"1,5"\nb,"2,5"\n', edges="source,target\n"))
    assert data.schema.feature_names == ("km=1,5", "km=2,5")


def test_text_that_begins_with_numbers_is_read_again(tmp_path: Path) -> None:
    nodes = "id,code,n\na,01,1\nb,1,2\nc,x1,3\nd,x2,4\n"  # 01 is another text than 1
    data = load_user_graph(write_texts(tmp_path, ".csv", nodes=nodes, edges="source,target\n"))
    assert data.schema.feature_names == ("code=01", "code=1", "code=x1", "code=x2", "n")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"columns": NAMES, "ignore": "nota"},
            "data.ignore is 'nota'; allowed: a column of nodes.csv or edges.csv; try 'note'",
        ),
        ({"columns": "id=workers"}, "it has no column 'id' (it has 'worker', 'age', 'note', 'team')"),
        ({"columns": f"{NAMES},split=fold"}, "data.columns is 'fold'; allowed: a column of nodes.csv"),
        ({"columns": "id=worker,label=id"}, "no column 'source'"),
        ({"columns": "lable=team"}, "columns is 'lable=team'; allowed: before the = one of id, label"),
        ({"columns": "label:=team"}, "before the = one of"),
        ({"columns": "id"}, "columns is 'id'; allowed: MEANING=COLUMN with commas between, such as id=worker"),
        ({"columns": "id=worker,id=team"}, "each meaning and each column once"),
        ({"columns": "id=worker,label=worker"}, "each meaning and each column once"),
    ],
)
def test_wrong_names_of_columns_are_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        load_user_graph(write_texts(tmp_path, ".csv", nodes=NODES, edges=EDGES), options=NodeDataOptions(**settings))


def test_a_name_that_is_taken_must_be_ignored_first(tmp_path: Path) -> None:
    nodes, edges = "id,worker\n1,ann\n2,bob\n", "source,target\nann,bob\n"
    folder = write_texts(tmp_path, ".csv", nodes=nodes, edges=edges)
    with pytest.raises(ValueError, match="it has two columns 'id'; allowed: each name once; try --ignore id"):
        load_user_graph(folder, options=NodeDataOptions(columns="id=worker"))
    data = load_user_graph(folder, options=NodeDataOptions(columns="id=worker", ignore="id"))
    assert data.node_ids == ("ann", "bob") and data.x is None

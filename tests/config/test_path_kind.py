"""Kinds of data that a path may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from magna.config.path_kind import PathKind, kind_of


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (["nodes.csv"], "graph"),
        (["nodes.parquet", "edges.parquet", "train.tsv"], "graph"),  # a split beside a table of nodes lists its nodes
        (["edges.csv"], "graph"),  # reading it names the missing table of nodes
        (["train.txt.gz"], "triples"),
        (["test.tsv"], "triples"),  # reading it names the missing train file
        (["data.pt"], "graph"),
        (["data.pt", "test.tsv"], "graph"),
        (["data.pt", "train.tsv"], "triples"),
        (["triples.csv"], "triples"),
        (["train.csv", "valid.csv", "test.csv"], "triples"),
        (["nodes.csv", "triples.csv"], "graph"),
        (["config.toml", "summary.json"], "run"),
        (["config.toml", "nodes.csv"], "graph"),
        (["config.toml", "train.tsv"], "triples"),
        (["train.txt.bak", "notes.md"], None),
        ([], None),
    ],
)
def test_file_names_tell_the_kind(tmp_path: Path, files: list[str], kind: PathKind | None) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert kind_of(tmp_path) == kind


def test_a_saved_graph_is_a_file_and_no_folder(tmp_path: Path) -> None:
    (tmp_path / "cora.pt").touch()
    (tmp_path / "folder.pt").mkdir()
    assert kind_of(tmp_path / "cora.pt") == "graph"
    assert kind_of(tmp_path / "folder.pt") is None
    assert kind_of(tmp_path / "missing.pt") is None

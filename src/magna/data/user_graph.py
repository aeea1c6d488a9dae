"""Graphs of users: a folder with nodes and edges as CSV or Parquet, or a saved PyG `Data`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from magna.config.columns import FEATURE, LABEL, listed_names, new_names
from magna.config.path_kind import PYG_FILE, TENSORS_FILE
from magna.config.tables import NodeDataOptions
from magna.data.columns import Columns, Table
from magna.data.features import Features, in_order, read_features, repeat_features
from magna.data.labels import numbered, read_labels, read_splits
from magna.data.node_data import NodeData, Schema
from magna.data.pyg import load_pyg
from magna.data.tables import read_table
from magna.errors import ArgumentError, DataError, listed, nearest

_NODE_TEXT, _EDGE_TEXT = ("id", "label", "split"), ("source", "target", "type")


def load_user_graph(path: str | Path, like: Schema | None = None, options: NodeDataOptions | None = None) -> NodeData:
    """Read a user's graph as its files have it: no direction is added, no split is drawn.

    Ids, labels and types are text, so leading zeros stay. Text columns become one feature for each value, empty cells
    of numbers the mean of the training nodes, and edges of weight 0 are left out; `notes` says so.

    Args:
        path: a folder with `nodes.csv` (`id`, feature columns, optional `label` or `label:NAME`, and `split`) and
            `edges.csv` (`source`, `target`, optional `type`, `weight`, `feature:NAME`), each also as TSV or Parquet; a
            folder with `data.pt`; or a file that ends in .pt, a PyG `Data` saved with `torch.save`.
        like: the schema of a training; columns are encoded as there, in its order, and nothing else is accepted.
        options: new names of columns, those that are left out, and the kind of the labels.
    """
    path, options = Path(path), options or NodeDataOptions()
    if path.suffix == ".pt" and not path.is_dir():
        return load_pyg(path, path.stem, like, options.target)
    for name in (PYG_FILE, TENSORS_FILE):
        if (path / name).is_file():
            return load_pyg(path / name, path.name, like, options.target)
    if not path.is_dir():
        fault = "it is not a folder" if path.exists() else "it does not exist"
        raise DataError(path, fault, allowed="a folder with nodes.csv and edges.csv, or triples, or a .pt file")
    if not any(path.glob("nodes.*")) and not any(path.glob("edges.*")):
        allowed = f"nodes.csv and edges.csv, or {PYG_FILE}, or triples as train.tsv, valid.tsv and test.tsv"
        raise DataError(path, "it has no data of a known form", allowed=allowed)
    return _load_tables(path, like, options)


@dataclass(frozen=True)
class _Edges:
    """Edges between nodes by number, and what they have."""

    edge_index: Tensor
    edge_type: Tensor | None
    relation_names: tuple[str, ...] | None
    weight: Tensor | None
    features: Features


def _load_tables(folder: Path, like: Schema | None, options: NodeDataOptions) -> NodeData:
    nodes, table = _read_tables(folder, like, options)
    ids = nodes.text["id"]
    if not ids:
        raise DataError(nodes.path, "it has no node", allowed="at least one line after the first")
    position = _positions(nodes)
    members, split_notes = read_splits(nodes, new=like is not None)
    train = members["train"]
    meanings = {meaning: name for name, meaning in new_names(options.columns).items()}
    labels = read_labels(nodes, train, options.target, meanings.get("label", "label"), like)
    names = [name for name in nodes.names if name not in _NODE_TEXT and not name.startswith(LABEL)]
    known = None if like is None else like.node_columns
    features = read_features(nodes, names, "", train) if known is None else repeat_features(nodes, names, "", known)
    edges = _read_edges(table, position, like)
    schema = Schema(
        features.names,
        labels.names,
        edges.relation_names,
        columns=features.columns,
        edge_columns=edges.features.columns or None,
        target=labels.target,
    )
    splits = {split: torch.tensor(rows, dtype=torch.int64) for split, rows in members.items()}
    return NodeData(
        folder.resolve().name,
        edges.edge_index,
        labels.y,
        labels.num_classes,
        **splits,
        x=features.values,
        edge_type=edges.edge_type,
        num_relations=None if edges.relation_names is None else len(edges.relation_names),
        edge_weight=edges.weight,
        edge_attr=edges.features.values,
        target=labels.target,
        node_ids=tuple(ids),
        schema=schema if like is None else like,
        notes=(*nodes.notes, *features.notes, *labels.notes, *split_notes, *table.notes, *edges.features.notes),
    ).without_absent_edges()


def _read_tables(folder: Path, like: Schema | None, options: NodeDataOptions) -> tuple[Table, Table]:
    """The tables of nodes and edges, with the columns that the settings name and that a training had."""
    meanings, ignored = new_names(options.columns), listed_names("ignore", options.ignore)
    known, known_edges = (like.node_columns or (), like.edge_columns or ()) if like is not None else ((), ())
    nodes = read_table(
        folder,
        "nodes",
        Columns(
            required=("id",),
            text=frozenset([*_NODE_TEXT, *(column.name for column in known if column.values is not None)]),
            numbers=frozenset(column.name for column in known if column.values is None),
            prefix=LABEL,
            meanings=meanings,
            ignored=ignored,
        ),
    )
    edges = read_table(
        folder,
        "edges",
        Columns(
            required=("source", "target"),
            text=frozenset(
                [*_EDGE_TEXT, *(FEATURE + column.name for column in known_edges if column.values is not None)]
            ),
            numbers=frozenset(["weight", *(FEATURE + column.name for column in known_edges if column.values is None)]),
            feature_prefix=FEATURE,
            meanings=meanings,
            ignored=ignored,
        ),
    )
    if like is None:
        for setting, names in (("columns", meanings), ("ignore", ignored)):
            for name in names:
                if name not in nodes.header and name not in edges.header:
                    near = nearest(name, [*nodes.header, *edges.header])
                    allowed = f"a column of {nodes.path.name} or {edges.path.name}"
                    raise ArgumentError(f"data.{setting}", name, allowed, repr(near) if near else "")
    return nodes, edges


def _read_edges(table: Table, position: dict[str, int], like: Schema | None) -> _Edges:
    """The edges of a table, with those of weight 0."""
    ends = [numbered(table, end, position, "an id of the nodes file") for end in ("source", "target")]
    edge_type, relation_names = _types(table, like)
    names = [name for name in table.names if name.startswith(FEATURE)]
    if like is None or like.node_columns is None:
        features = read_features(table, names, FEATURE, ())
    else:
        features = repeat_features(table, names, FEATURE, like.edge_columns or ())
    return _Edges(torch.stack(ends), edge_type, relation_names, _weights(table), features)


def _weights(edges: Table) -> Tensor | None:
    """The weights of all edges; None without a column of them."""
    if "weight" not in edges.names:
        return None
    # An empty column has no text either, so it is one of numbers.
    weight = edges.number("weight")
    for bad, fault in ((np.isnan(weight), "it has no weight"), (weight < 0, "its weight is negative")):
        if bad.any():
            raise edges.error(int(bad.argmax()), fault, "0, which is no edge, or more")
    return torch.from_numpy(weight.copy())


def _positions(nodes: Table) -> dict[str, int]:
    position: dict[str, int] = {}
    for row, name in enumerate(nodes.text["id"]):
        if not name:
            raise nodes.error(row, "it has no id", "a different text for each node")
        if position.setdefault(name, row) != row:
            fault = f"it has the id {name!r} of line {nodes.lines[position[name]]}"
            raise nodes.error(row, fault, "each id once")
    return position


def _types(edges: Table, like: Schema | None) -> tuple[Tensor | None, tuple[str, ...] | None]:
    kinds, known = edges.text.get("type"), None if like is None else like.relation_names
    if like is not None and (known is None) != (kinds is None):
        fault = "it has no column 'type'" if kinds is None else "it has a column 'type'"
        trained = "without it" if known is None else f"with {listed(known)}"
        raise DataError(edges.path, fault, allowed=f"edges as in training, which was {trained}")
    if kinds is None or (not kinds and like is None):  # a graph without edges has no types, whatever its columns
        return None, None
    known = in_order(kinds) if known is None else known
    at = {name: number for number, name in enumerate(known)}
    return numbered(edges, "type", at, listed(known) or "a type for every edge"), known

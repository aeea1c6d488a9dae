"""Graphs of users: a folder with nodes and edges as CSV or Parquet, or a saved PyG `Data`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from magna.config.path_kind import PYG_FILE, SPLITS, TENSORS_FILE
from magna.data.node_data import UNLABELLED, NodeData, Schema
from magna.data.pyg import load_pyg
from magna.data.tables import Table, read_table
from magna.errors import DataError, listed, shortened

_SPLIT_WORDS = {split: split for split in SPLITS} | {"val": "valid"}


def load_user_graph(path: str | Path, like: Schema | None = None) -> NodeData:
    """Read a user's graph as its files have it: no edge is added or left out, no split is drawn.

    Args:
        path: a folder with `nodes.csv` (`id`, feature columns, optional `label` and `split`) and `edges.csv` (`source`,
            `target`, optional `type`), each also as Parquet; a folder with `data.pt`; or a file that ends in .pt, a PyG
            `Data` saved with `torch.save`. Ids, labels and types are text, so leading zeros stay.
        like: the names a model was trained with; columns come in its order, and nothing else is accepted.
    """
    path = Path(path)
    if path.suffix == ".pt" and not path.is_dir():
        return load_pyg(path, path.stem, like)
    for name in (PYG_FILE, TENSORS_FILE):
        if (path / name).is_file():
            return load_pyg(path / name, path.name, like)
    if not path.is_dir():
        fault = "it is not a folder" if path.exists() else "it does not exist"
        raise DataError(path, fault, allowed="a folder with nodes.csv and edges.csv, or triples, or a .pt file")
    if not any(path.glob("nodes.*")) and not any(path.glob("edges.*")):
        allowed = f"nodes.csv and edges.csv, or {PYG_FILE}, or triples as train.tsv, valid.tsv and test.tsv"
        raise DataError(path, "it has no data of a known form", allowed=allowed)
    return _load_tables(path, like)


def _load_tables(folder: Path, like: Schema | None) -> NodeData:
    nodes = read_table(folder, "nodes", ["id"], ["label", "split"], numbers=True)
    edges = read_table(folder, "edges", ["source", "target"], ["type"], numbers=False)
    ids = nodes.text["id"]
    if not ids:
        raise DataError(nodes.path, "it has no node", allowed="at least one line after the first")
    position = _positions(nodes)
    train, valid, test = _splits(nodes, check=like is None)
    y, class_names = _labels(nodes, train, like)
    feature_names, x = _features(nodes, like)
    edge_type, relation_names = _types(edges, like)
    return NodeData(
        folder.resolve().name,
        torch.stack([_numbered(edges, end, position, "an id of the nodes file") for end in ("source", "target")]),
        *(y, len(class_names or ()), train, valid, test),
        x=x,
        edge_type=edge_type,
        num_relations=None if relation_names is None else len(relation_names),
        node_ids=tuple(ids),
        schema=Schema(feature_names, class_names, relation_names) if like is None else like,
    )


def _positions(nodes: Table) -> dict[str, int]:
    position: dict[str, int] = {}
    for row, name in enumerate(nodes.text["id"]):
        if not name:
            raise nodes.error(row, "it has no id", "a different text for each node")
        if position.setdefault(name, row) != row:
            fault = f"it has the id {name!r} of line {nodes.lines[position[name]]}"
            raise nodes.error(row, fault, "each id once")
    return position


def _numbered(table: Table, column: str, at: Mapping[str, int], allowed: str) -> Tensor:
    """The number of each cell of a column; a text without a number is refused."""
    texts = table.text[column]
    if unknown := set(texts) - at.keys():
        row = next(row for row, text in enumerate(texts) if text in unknown)
        fault = f"its {column} is {shortened(texts[row])}" if texts[row] else f"it has no {column}"
        raise table.error(row, fault, allowed)
    return torch.tensor([at[text] for text in texts], dtype=torch.int64)


def _splits(nodes: Table, check: bool) -> list[Tensor]:
    """The nodes of training, validation and test; all empty without a column `split`."""
    members: dict[str, list[int]] = {split: [] for split in SPLITS}
    labels = nodes.text.get("label", [""] * len(nodes.text["id"]))
    for row, word in enumerate(nodes.text.get("split", [])):
        if not word:
            continue
        if word not in _SPLIT_WORDS:
            raise nodes.error(row, f"its split is {shortened(word)}", "train, valid (or val), test, or nothing")
        if not labels[row]:
            raise nodes.error(row, f"it is in the {word} split and has no label", "a label, or no split")
        members[_SPLIT_WORDS[word]].append(row)
    if check and "split" in nodes.text and not members["train"]:
        raise DataError(nodes.path, "it has no node with split 'train'", allowed="at least one, or no column 'split'")
    return [torch.tensor(rows, dtype=torch.int64) for rows in members.values()]


def _labels(nodes: Table, train: Tensor, like: Schema | None) -> tuple[Tensor, tuple[str, ...] | None]:
    """The class of each node. Classes are the labels that training can learn: those of the training nodes."""
    labels = nodes.text.get("label")
    known = like.class_names if like is not None else None
    if labels is None:
        return torch.full((len(nodes.text["id"]),), UNLABELLED), known
    if known is None:
        known = _in_order([labels[row] for row in train.tolist()] or labels)
    at = {name: number for number, name in enumerate(known)} | {"": UNLABELLED}
    return _numbered(nodes, "label", at, f"the training nodes' {listed(known)}"), known


def _features(nodes: Table, like: Schema | None) -> tuple[tuple[str, ...] | None, Tensor | None]:
    names, x = nodes.number_names, nodes.numbers
    if like is not None and like.feature_names is not None:
        known, allowed = like.feature_names, f"the {len(like.feature_names)} columns of training"
        if missing := [name for name in known if name not in names]:
            raise DataError(nodes.path, f"it has no column {shortened(missing[0])}", allowed=allowed)
        if new := [name for name in names if name not in known]:
            raise DataError(nodes.path, f"its column {shortened(new[0])} was not in training", allowed=allowed)
        names, x = known, x[:, [names.index(name) for name in known]]
    return (names, torch.from_numpy(np.ascontiguousarray(x))) if names else (None, None)


def _types(edges: Table, like: Schema | None) -> tuple[Tensor | None, tuple[str, ...] | None]:
    kinds, known = edges.text.get("type"), None if like is None else like.relation_names
    if like is not None and (known is None) != (kinds is None):
        fault = "it has no column 'type'" if kinds is None else "it has a column 'type'"
        trained = "without it" if known is None else f"with {listed(known)}"
        raise DataError(edges.path, fault, allowed=f"edges as in training, which was {trained}")
    if kinds is None or (not kinds and like is None):  # a graph without edges has no types, whatever its columns
        return None, None
    known = _in_order(kinds) if known is None else known
    at = {name: number for number, name in enumerate(known)}
    return _numbered(edges, "type", at, listed(known) or "a type for every edge"), known


def _in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Each name once: by number if all are whole numbers, else by the alphabet."""
    distinct = set(names) - {""}
    numeric = all(name.removeprefix("-").isdecimal() for name in distinct)
    return tuple(sorted(distinct, key=lambda name: (int(name) if numeric else 0, name)))

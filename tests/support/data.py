"""Public data sets in tests, and small data of every kind."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from magna.data import DATASETS, KnowledgeGraph, NodeData, Triples
from magna.data.triples import Row, triples_from


class Harm:
    """A pickle that makes a folder where it is read."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


def needs(name: str) -> None:
    """Skip the test if the data folder does not have the files of a data set."""
    if not DATASETS[name].is_present():
        pytest.skip(f"{name} is not in the data folder (MAGNA_DATA_DIR)")


def node_graph(edges: Sequence[tuple[int, int]], y: list[int], **parts: Any) -> NodeData:
    """A graph of these edges and labels; its splits are empty unless they are given."""
    edge_index = torch.tensor(edges, dtype=torch.int64).view(-1, 2).T.contiguous()
    splits = {split: torch.zeros(0, dtype=torch.int64) for split in ("train", "valid", "test")}
    return NodeData("drawn", edge_index, torch.tensor(y), max(y) + 1, **(splits | parts))


def named_triples(train: Sequence[Row], valid: Sequence[Row] = (), test: Sequence[Row] = ()) -> Triples:
    """Triples of these rows, under the name drawn."""
    return triples_from("drawn", {"train": train, "valid": valid, "test": test})


def names_of(data: Triples, split: str) -> list[Row]:
    """The triples of a split by name."""
    return [(data.entities[h], data.relations[r], data.entities[t]) for h, r, t in data.split(split).tolist()]


def knowledge_graph(train: Sequence[Row], valid: Sequence[Row] = (), test: Sequence[Row] = ()) -> KnowledgeGraph:
    """The graph of `named_triples`."""
    return KnowledgeGraph.from_triples(named_triples(train, valid, test))


def printed_audit(report: dict[str, Any], width: int = 100) -> str:
    """An audit as the command line prints it."""
    from rich.console import Console

    from magna.cli.audit import show_audit

    out = io.StringIO()
    show_audit(report, Console(file=out, width=width))
    return out.getvalue()


def write_texts(folder: Path, suffix: str, **texts: str) -> Path:
    """Write files with a suffix, such as train.tsv, as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}{suffix}").write_bytes(text.encode())
    return folder

"""Kind of data at a path, by the names of its files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

PathKind = Literal["graph", "triples", "run"]

SPLITS = ("train", "valid", "test")
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
TRIPLE_SUFFIXES = (".txt", ".tsv", ".csv", ".txt.gz", ".tsv.gz", ".csv.gz")
UNSPLIT = "triples"  # name of one file of triples without splits
PYG_FILE, TENSORS_FILE = "data.pt", "data.safetensors"  # a saved PyG `Data`, and one that came in memory


def kind_of(path: str | Path) -> PathKind | None:
    """A graph of nodes, triples, a run, or None.

    A folder with a table of nodes is a graph, whatever its other files. One file of a split is enough for triples, so
    that the error of reading them names the missing ones.
    """
    path = Path(path)
    if path.suffix == ".pt" and path.is_file():
        return "graph"
    if _has(path, [f"nodes{suffix}" for suffix in TABLE_SUFFIXES]):
        return "graph"
    splits = ("train",) if _has(path, [PYG_FILE]) else (*SPLITS, UNSPLIT)
    if _has(path, [f"{split}{suffix}" for split in splits for suffix in TRIPLE_SUFFIXES]):
        return "triples"
    if _has(path, [PYG_FILE, TENSORS_FILE, *(f"edges{suffix}" for suffix in TABLE_SUFFIXES)]):
        return "graph"
    return "run" if _has(path, ["config.toml"]) else None


def _has(folder: Path, names: Iterable[str]) -> bool:
    return any((folder / name).is_file() for name in names)

"""Knowledge graphs as `train`, `valid` and `test` files of tab-separated triples, plain or gzipped."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from magna.datasets.store import locate

PUBLIC_NAMES = ("wn18rr", "fb15k-237")
_SPLITS = ("train", "valid", "test")
_SUFFIXES = (".txt", ".tsv", ".txt.gz", ".tsv.gz")


@dataclass(frozen=True, eq=False)
class Triples:
    """A knowledge graph; each split is [T, 3]: head, relation, tail as positions in `entities` and `relations`."""

    name: str
    entities: tuple[str, ...]
    relations: tuple[str, ...]
    train: Tensor
    valid: Tensor
    test: Tensor

    @property
    def num_entities(self) -> int:
        return len(self.entities)

    @property
    def num_relations(self) -> int:
        return len(self.relations)


def load_triples(name_or_folder: str | Path, data_dir: str | Path | None = None) -> Triples:
    """Read `wn18rr`, `fb15k-237`, or a folder of your own.

    Names stay strings, and the vocabulary covers all three files, so that an entity that training never sees still
    takes its place in the ranking.

    Args:
        name_or_folder: a public name, or a folder with train, valid and test as .txt or .tsv, plain or .gz.
        data_dir: the data folder, for public names.
    """
    if name_or_folder in PUBLIC_NAMES:
        files = [locate(f"{name_or_folder}/{split}.txt.gz", data_dir) for split in _SPLITS]
    else:
        files = [_split_file(Path(name_or_folder), split) for split in _SPLITS]
    rows = [read_tsv(file) for file in files]
    entities = tuple(sorted({name for split in rows for head, _, tail in split for name in (head, tail)}))
    relations = tuple(sorted({relation for split in rows for _, relation, _ in split}))
    entity_at = {name: position for position, name in enumerate(entities)}
    relation_at = {name: position for position, name in enumerate(relations)}
    train, valid, test = (
        torch.tensor([(entity_at[h], relation_at[r], entity_at[t]) for h, r, t in split], dtype=torch.int64).view(-1, 3)
        for split in rows
    )
    return Triples(Path(name_or_folder).name, entities, relations, train, valid, test)


def read_tsv(path: Path) -> list[tuple[str, str, str]]:
    """The triples of one file, as strings; line ends may be LF or CRLF."""
    opener = gzip.open if path.suffix == ".gz" else open
    triples = []
    with opener(path, "rt", encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            columns = line.rstrip("\r\n").split("\t")
            if len(columns) != 3:
                raise ValueError(
                    f"{path} line {number} has {len(columns)} tab-separated columns; allowed: head, relation, tail"
                )
            triples.append((columns[0], columns[1], columns[2]))
    return triples


def _split_file(folder: Path, split: str) -> Path:
    for suffix in _SUFFIXES:
        if (folder / f"{split}{suffix}").is_file():
            return folder / f"{split}{suffix}"
    raise ValueError(
        f"{folder} has no {split} file; allowed: {', '.join(split + suffix for suffix in _SUFFIXES)} "
        f"in a folder, or a public name: {', '.join(PUBLIC_NAMES)}"
    )

"""Knowledge graphs as `train`, `valid` and `test` files of tab-separated triples, plain or gzipped."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from magna.config.path_kind import SPLITS, TRIPLE_SUFFIXES
from magna.data.store import locate
from magna.data.tables import text_of
from magna.errors import similar

PUBLIC_NAMES = ("wn18rr", "fb15k-237")
_COLUMNS = ("head", "relation", "tail")
# A file of queries may lack the third column.
_HEADERS = [names[:count] for names in (_COLUMNS, ("subject", "predicate", "object")) for count in (3, 2)]

Row = tuple[str, str, str]
Line = tuple[int, list[str]]  # its number and its columns
NumberedRow = tuple[int, Row]  # a line's number and its triple


@dataclass(frozen=True, eq=False)
class Triples:
    """A knowledge graph; each split is [T, 3]: head, relation, tail as positions in `entities` and `relations`.

    A triple is in a split once; `duplicates` says how often one was listed again.
    """

    name: str
    entities: tuple[str, ...]
    relations: tuple[str, ...]
    train: Tensor
    valid: Tensor
    test: Tensor
    duplicates: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    notes: tuple[str, ...] = ()

    @property
    def num_entities(self) -> int:
        return len(self.entities)

    @property
    def num_relations(self) -> int:
        return len(self.relations)

    def split(self, name: str) -> Tensor:
        if name not in SPLITS:
            raise ValueError(f"split is {name!r}; allowed: {', '.join(SPLITS)}")
        chosen: Tensor = getattr(self, name)
        return chosen

    def entity_id(self, name: str) -> int:
        """The position of an entity; an unknown name is an error that offers the nearest ones."""
        return _position(name, self._entity_at, "entity", self.name)

    def relation_id(self, name: str) -> int:
        """The position of a relation; an unknown name is an error that offers the nearest ones."""
        return _position(name, self._relation_at, "relation", self.name)

    def fingerprints(self) -> dict[str, str]:
        """What tells the triples of each split from others, whatever their order, among the same names."""

        def fingerprint(triples: Tensor) -> str:
            numbers = codes(triples, self.num_entities, self.num_relations).sort().values.numpy()
            return hashlib.sha256(numbers.tobytes()).hexdigest()[:16]

        return {split: fingerprint(self.split(split)) for split in SPLITS}

    def with_train_file(self, path: Path) -> Triples:
        """The same knowledge graph with the triples of a file, which has no other names, in training.

        Triples that are there already count once; `notes` says how many, and of a header.
        """
        more, notes = _known_rows(path, self)
        train, again = _once(torch.cat([self.train, more]), self.num_entities, self.num_relations)
        if again:
            notes.append(f"{path.name} lists {again:,} triples again, its own or those of train; each was kept once")
        return replace(self, train=train, notes=(*self.notes, *notes))

    @cached_property
    def _entity_at(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.entities)}

    @cached_property
    def _relation_at(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.relations)}


def load_triples(name_or_folder: str | Path, data_dir: str | Path | None = None) -> Triples:
    """Read `wn18rr`, `fb15k-237`, or a folder of your own.

    Names stay strings, and the vocabulary covers all three files, so that an entity that training never sees still
    takes its place in the ranking. A first line that names the columns is no triple, and a note says so. Valid and test
    may be empty here, though a model is not trained then; training must have a triple.

    Args:
        name_or_folder: a public name, or a folder with train, valid and test as .txt or .tsv, plain or .gz.
        data_dir: the data folder, for public names.
    """
    if name_or_folder in PUBLIC_NAMES:
        files = [locate(f"{name_or_folder}/{split}.txt.gz", data_dir) for split in SPLITS]
    else:
        files = [_split_file(Path(name_or_folder), split) for split in SPLITS]
    rows: dict[str, list[Row]] = {}
    notes: list[str] = []
    for split, file in zip(SPLITS, files, strict=True):
        numbered, found = _rows(file)
        rows[split] = [row for _, row in numbered]
        notes += found
    if not rows["train"]:
        raise ValueError(f"{files[0]} has no triple; allowed: lines with {', '.join(_COLUMNS)}, separated by tabs")
    return triples_from(Path(name_or_folder).resolve().name, rows, tuple(notes))


def triples_from(name: str, rows: Mapping[str, Sequence[Row]], notes: tuple[str, ...] = ()) -> Triples:
    """Named triples of each split as positions; names are sorted, a triple that is listed again is kept once.

    >>> triples_from("two", {"train": [("b", "r", "a")], "valid": [], "test": [("a", "r", "c")]}).test.tolist()
    [[0, 0, 2]]
    """
    columns = {split: list(zip(*rows[split], strict=True)) or [()] * 3 for split in SPLITS}
    entities = tuple(sorted(set().union(*(names for heads, _, tails in columns.values() for names in (heads, tails)))))
    relations = tuple(sorted(set().union(*(names for _, names, _ in columns.values()))))
    entity_at = {entity: position for position, entity in enumerate(entities)}
    relation_at = {relation: position for position, relation in enumerate(relations)}
    parts, duplicates, found = {}, {}, []
    for split in SPLITS:
        places = zip(columns[split], (entity_at, relation_at, entity_at), strict=True)
        listed = [torch.tensor([at[name] for name in names], dtype=torch.int64) for names, at in places]
        parts[split], duplicates[split] = _once(torch.stack(listed, dim=1), len(entities), len(relations))
        if duplicates[split]:
            found.append(f"{split} lists {duplicates[split]:,} triples again; each was kept once")
    return Triples(name, entities, relations, **parts, duplicates=duplicates, notes=(*notes, *found))


def read_lines(path: Path) -> list[Line]:
    """The tab-separated columns of each line; a CR at its end is no part of it, empty lines say nothing."""
    with text_of(path) as file:
        lines = [line.rstrip("\r") for line in file.read().split("\n")]
    return [(number, line.split("\t")) for number, line in enumerate(lines, start=1) if line]


def without_header(lines: list[Line]) -> tuple[list[Line], list[str]]:
    """The lines after a first one that names the columns, and that one's columns; none where it does not.

    >>> without_header([(1, ["Subject", "Predicate", "Object"]), (2, ["a", "r", "b"])])
    ([(2, ['a', 'r', 'b'])], ['Subject', 'Predicate', 'Object'])
    """
    if lines and tuple(name.lower() for name in lines[0][1]) in _HEADERS:
        return lines[1:], lines[0][1]
    return lines, []


def codes(triples: Tensor, num_entities: int, num_relations: int) -> Tensor:
    """[T]: one number for each triple."""
    head, relation, tail = triples.unbind(1)
    return (head * num_relations + relation) * num_entities + tail


def _rows(path: Path) -> tuple[list[NumberedRow], list[str]]:
    """The triples of a file, and a note where it begins with a header."""
    lines, header = without_header(read_lines(path))
    notes = [f"{path.name} begins with a header ({', '.join(header)}), which was not read as a triple"]
    return [(line[0], _row(path, line)) for line in lines], notes if header else []


def _known_rows(path: Path, triples: Triples) -> tuple[Tensor, list[str]]:
    """[T, 3]: the triples of a file, and notes; a name that `triples` does not know is an error."""
    numbered, notes = _rows(path)
    rows = []
    for number, (head, relation, tail) in numbered:
        try:
            rows.append((triples.entity_id(head), triples.relation_id(relation), triples.entity_id(tail)))
        except ValueError as error:
            raise ValueError(f"{path} line {number}: {error}") from None
    return torch.tensor(rows, dtype=torch.int64).view(-1, 3), notes


def _row(path: Path, line: Line) -> Row:
    number, columns = line
    if len(columns) != 3:
        raise ValueError(
            f"{path} line {number} has {len(columns)} tab-separated columns; allowed: {', '.join(_COLUMNS)}"
        )
    empty = next((name for name, column in zip(_COLUMNS, columns, strict=True) if not column.strip()), None)
    if empty:
        raise ValueError(f"{path} line {number} has an empty {empty}; allowed: a name in each column")
    head, relation, tail = columns
    return head, relation, tail


def _position(name: str, at: Mapping[str, int], kind: str, dataset: str) -> int:
    if name in at:
        return at[name]
    near = similar(name, at)
    names = ", ".join(map(repr, near or list(at)[:3]))
    hint = f"nearest: {names}" if near else f"for example {names}"
    raise ValueError(f"{kind} is {name!r}; allowed: one of the {len(at):,} of {dataset}, {hint}")


def _once(triples: Tensor, num_entities: int, num_relations: int) -> tuple[Tensor, int]:
    """Each row once, where it came first, and how many rows went."""
    distinct, group = torch.unique(codes(triples, num_entities, num_relations), return_inverse=True)
    rows = torch.arange(len(triples))
    first = torch.full_like(distinct, len(triples)).scatter_reduce(0, group, rows, "amin").sort().values
    return triples[first], len(triples) - len(first)


def _split_file(folder: Path, split: str) -> Path:
    names = [f"{split}{suffix}" for suffix in TRIPLE_SUFFIXES]
    found = [folder / name for name in names if (folder / name).is_file()]
    if len(found) == 1:
        return found[0]
    problem = f"several {split} files ({', '.join(file.name for file in found)})" if found else f"no {split} file"
    raise ValueError(
        f"{folder} has {problem}; allowed: one of {', '.join(names)} in a folder, "
        f"or a public name: {', '.join(PUBLIC_NAMES)}"
    )

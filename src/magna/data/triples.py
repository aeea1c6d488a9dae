"""Knowledge graphs as `train`, `valid` and `test` files of tab-separated triples, plain or gzipped."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from magna.config.path_kind import SPLITS as SPLITS
from magna.config.path_kind import TRIPLE_SUFFIXES, UNSPLIT
from magna.data.split_triples import HELD_OUT, split_triples
from magna.data.store import PublicFile, public_files
from magna.data.text import csv_rows, is_csv, nfc, text_of
from magna.errors import ArgumentError, DataError, listed, similar

_ARCHIVES = {
    "wn18rr": "https://raw.githubusercontent.com/TimDettmers/ConvE/HEAD/WN18RR.tar.gz",
    "fb15k-237": "https://raw.githubusercontent.com/TimDettmers/ConvE/HEAD/FB15k-237.tar.gz",
}
# The training graphs of two inductive benchmarks (Teru et al. 2020) are small knowledge graphs by themselves.
_GRAIL = "https://raw.githubusercontent.com/kkteru/grail/HEAD/data"
_FOLDERS = {"wn18rr-v1": f"{_GRAIL}/WN18RR_v1", "fb15k-237-v1": f"{_GRAIL}/fb237_v1"}
PUBLIC_NAMES = (*_ARCHIVES, *_FOLDERS)
_PLACES = {name: name for name in _ARCHIVES} | {name: f"inductive/{name}/train_graph" for name in _FOLDERS}
FILES = public_files(
    {f"{name}/{split}.txt.gz": url for name, url in _ARCHIVES.items() for split in SPLITS}
    | {f"{_PLACES[name]}/{split}.txt.gz": f"{url}/{split}.txt" for name, url in _FOLDERS.items() for split in SPLITS}
)
_COLUMNS = ("head", "relation", "tail")
# A file of queries may lack the third column.
_NAMES = (_COLUMNS, ("subject", "predicate", "object"), ("source", "relation", "target"), ("h", "r", "t"))
_HEADERS = [names[:count] for names in _NAMES for count in (3, 2)]

Row = tuple[str, str, str]
Line = tuple[int, list[str]]  # its number and its columns


@dataclass(frozen=True, eq=False)
class Triples:
    """A knowledge graph; each split is [T, 3]: head, relation, tail as positions in `entities` and `relations`.

    A split has each triple once; `duplicates` counts the repetitions in its file.
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
        """The triples of `train`, `valid` or `test`."""
        if name not in SPLITS:
            raise ArgumentError("split", name, SPLITS)
        chosen: Tensor = getattr(self, name)
        return chosen

    def entity_id(self, name: str) -> int:
        """The position of an entity; the refusal of an unknown name offers the nearest ones."""
        return _position(name, self._entity_at, "entity", self.name)

    def relation_id(self, name: str) -> int:
        """The position of a relation, likewise."""
        return _position(name, self._relation_at, "relation", self.name)

    def fingerprints(self) -> dict[str, str]:
        """A hash of the triples of each split, whatever their order, for comparison among the same names."""

        def fingerprint(triples: Tensor) -> str:
            numbers = codes(triples, self.num_entities, self.num_relations).sort().values.numpy()
            return hashlib.sha256(numbers.tobytes()).hexdigest()[:16]

        return {split: fingerprint(self.split(split)) for split in SPLITS}

    def with_train_file(self, path: Path) -> Triples:
        """The same knowledge graph with the triples of a file, which has no other names, in training.

        Triples that training has already count once; `notes` says how many, and of a header.
        """
        numbered, notes = _rows(path)
        rows = []
        for number, (head, relation, tail) in numbered:
            try:
                rows.append((self.entity_id(head), self.relation_id(relation), self.entity_id(tail)))
            except ArgumentError as error:
                raise DataError(path, str(error), number) from None
        added = torch.tensor(rows, dtype=torch.int64).view(-1, 3)
        train, repeated = _once(torch.cat([self.train, added]), self.num_entities, self.num_relations)
        if repeated:
            notes.append(f"{path.name} repeats {repeated:,} triples, its own or those of train; each was kept once")
        return replace(self, train=train, notes=(*self.notes, *notes))

    @cached_property
    def _entity_at(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.entities)}

    @cached_property
    def _relation_at(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.relations)}


def files_of(name: str) -> tuple[PublicFile, ...]:
    """The files of a public knowledge graph: train, valid and test."""
    return tuple(FILES[f"{_PLACES[name]}/{split}.txt.gz"] for split in SPLITS)


def load_triples(
    name_or_folder: str | Path,
    data_dir: str | Path | None = None,
    *,
    valid_share: float | None = None,
    split_seed: int = 0,
) -> Triples:
    """Read a public knowledge graph, or a folder of your own: train, valid and test as text or CSV, plain or .gz.

    One file `triples` in their place is split by `valid_share` and `split_seed`, 90/5/5 by default. Names stay strings,
    and the vocabulary covers all three files, so that an entity without a training triple still takes its place in the
    ranking. A first line that names the columns is no triple, and a note says so. Valid and test may be empty, though
    no model is trained then.
    """
    folder = Path(name_or_folder)
    if name_or_folder not in PUBLIC_NAMES and not any(_files(folder, split) for split in SPLITS):
        if _files(folder, UNSPLIT):
            return _load_unsplit(folder, HELD_OUT if valid_share is None else valid_share, split_seed)
    for setting, value, default in (("valid_share", valid_share, None), ("split_seed", split_seed, 0)):
        if value != default:
            words = "none" if default is None else str(default)
            raise ArgumentError(f"data.{setting}", value, f"{words}, because {folder.name} has a split")
    if name_or_folder in PUBLIC_NAMES:
        files = [file.locate(data_dir) for file in files_of(str(name_or_folder))]
    else:
        files = [_one_file(folder, split) for split in SPLITS]
    rows: dict[str, list[Row]] = {}
    notes: list[str] = []
    for split, file in zip(SPLITS, files, strict=True):
        numbered, header_notes = _rows(file)
        rows[split] = [row for _, row in numbered]
        notes += header_notes
    if not rows["train"]:
        raise DataError(files[0], "it has no triple", allowed=f"lines with {', '.join(_COLUMNS)}")
    return triples_from(folder.resolve().name, rows, tuple(notes))


def _load_unsplit(folder: Path, share: float, seed: int) -> Triples:
    """The triples of one file, with a split that is drawn."""
    file = _one_file(folder, UNSPLIT)
    numbered, notes = _rows(file)
    rows = [row for _, row in numbered]
    parts = split_triples(rows, share, seed)
    sizes = {split: len(part) for split, part in parts.items()}
    if not all(sizes.values()):
        fault = f"it has {sum(sizes.values()):,} triples, too few to draw validation and test of names in training"
        raise DataError(file, fault, allowed="two or more whose names other triples have too")
    if repeated := len(rows) - sum(sizes.values()):
        notes.append(f"{file.name} repeats {repeated:,} triples; each was kept once")
    words = ", ".join(f"{size:,} {split}" for split, size in sizes.items())
    notes.append(f"{file.name} was split at random, seed {seed}: {words}; every name is in training")
    return triples_from(folder.resolve().name, parts, tuple(notes))


def triples_from(name: str, rows: Mapping[str, Sequence[Row]], notes: tuple[str, ...] = ()) -> Triples:
    """Named triples of each split as positions; names are sorted, and each triple of a split is kept once.

    >>> triples_from("two", {"train": [("b", "r", "a")], "valid": [], "test": [("a", "r", "c")]}).test.tolist()
    [[0, 0, 2]]
    """
    columns = {split: list(zip(*rows[split], strict=True)) or [()] * 3 for split in SPLITS}
    entities = tuple(sorted(set().union(*(names for heads, _, tails in columns.values() for names in (heads, tails)))))
    relations = tuple(sorted(set().union(*(names for _, names, _ in columns.values()))))
    entity_at = {entity: position for position, entity in enumerate(entities)}
    relation_at = {relation: position for position, relation in enumerate(relations)}
    parts, duplicates = {}, {}
    for split in SPLITS:
        places = zip(columns[split], (entity_at, relation_at, entity_at), strict=True)
        listed_rows = [torch.tensor([at[name] for name in names], dtype=torch.int64) for names, at in places]
        parts[split], duplicates[split] = _once(torch.stack(listed_rows, dim=1), len(entities), len(relations))
    repeated = (f"{split} repeats {n:,} triples; each was kept once" for split, n in duplicates.items() if n)
    return Triples(name, entities, relations, **parts, duplicates=duplicates, notes=(*notes, *repeated))


def read_lines(path: Path) -> list[Line]:
    """The tab-separated columns of each line that is not empty; a CR at its end is not part of it."""
    with text_of(path) as file:
        lines = [line.rstrip("\r") for line in nfc(file.read()).split("\n")]
    return [(number, line.split("\t")) for number, line in enumerate(lines, start=1) if line]


def without_header(lines: list[Line]) -> tuple[list[Line], list[str]]:
    """The lines after a header that names the columns, and the columns of that header; [] without one.

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


def _rows(path: Path) -> tuple[list[tuple[int, Row]], list[str]]:
    """The triples of a file with their lines, and a note if it begins with a header."""
    if is_csv(path):
        read = [(number, [nfc(cell.strip()) for cell in cells]) for number, cells in csv_rows(path)]
    else:
        read = read_lines(path)
    lines, header = without_header(read)
    rows = []
    for number, columns in lines:
        if len(columns) != 3:
            raise DataError(path, f"it has {len(columns)} columns", number, allowed=", ".join(_COLUMNS))
        for name, column in zip(_COLUMNS, columns, strict=True):
            if not column.strip():
                raise DataError(path, f"the {name} is empty", number, allowed="a name in each column")
        rows.append((number, (columns[0], columns[1], columns[2])))
    note = f"{path.name} begins with a header ({', '.join(header)}), which was not read as a triple"
    return rows, [note] if header else []


def _position(name: str, at: Mapping[str, int], kind: str, dataset: str) -> int:
    if nfc(name) not in at:
        near = similar(name, at)
        words = f"nearest: {listed(near)}" if near else f"for example {listed(list(at)[:3])}"
        raise ArgumentError(kind, name, f"one of the {len(at):,} of {dataset}, {words}")
    return at[nfc(name)]


def _once(triples: Tensor, num_entities: int, num_relations: int) -> tuple[Tensor, int]:
    """Each row once, at its first place, and the number of repetitions."""
    distinct, group = torch.unique(codes(triples, num_entities, num_relations), return_inverse=True)
    rows = torch.arange(len(triples))
    first = torch.full_like(distinct, len(triples)).scatter_reduce(0, group, rows, "amin").sort().values
    return triples[first], len(triples) - len(first)


def _files(folder: Path, stem: str) -> list[Path]:
    return [file for suffix in TRIPLE_SUFFIXES if (file := folder / f"{stem}{suffix}").is_file()]


def _one_file(folder: Path, stem: str) -> Path:
    present = _files(folder, stem)
    if len(present) == 1:
        return present[0]
    names = ", ".join(file.name for file in present)
    fault = f"it has several {stem} files ({names})" if present else f"it has no {stem} file"
    allowed = ", ".join(f"{stem}{suffix}" for suffix in TRIPLE_SUFFIXES)
    raise DataError(folder, fault, allowed=f"one of {allowed}, or a public name: {', '.join(PUBLIC_NAMES)}")

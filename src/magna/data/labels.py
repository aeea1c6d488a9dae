"""Labels and splits of a table of nodes: classes, several labels for each node, or a number."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from magna.config.columns import LABEL
from magna.config.path_kind import SPLITS
from magna.data.columns import Table
from magna.data.features import in_order
from magna.data.node_data import UNLABELLED, Schema, Target
from magna.errors import DataError, listed, shortened

LabelKind = Literal["auto", "classes", "number"]
MOST_NUMBERS = 20  # different numbers that are classes
_AS_CLASSES, _AS_NUMBER = "(--target classes: classes)", "(--target number: a number)"
_SPLIT_WORDS = {split: split for split in SPLITS} | {"val": "valid"}
_KNOWN = {"": math.nan, "0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, "false": 0.0, "true": 1.0}
_LIST = re.compile(r"\[.*\]|\(.*\)|\{.*\}|[^;]+(;[^;]*)+|[^|]+(\|[^|]*)+", re.DOTALL)
_PARTS = re.compile(r"[\[\](){};|,'\"]+")


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of nodes as `NodeData` has them, their names, and sentences for the user."""

    target: Target
    y: Tensor
    names: tuple[str, ...] | None
    notes: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        """Number of outputs of a model; of classes without names, the largest number and 1."""
        return len(self.names) if self.names is not None else int(self.y.max()) + 1


def read_splits(nodes: Table, new: bool) -> tuple[dict[str, list[int]], tuple[str, ...]]:
    """The rows of training, validation and test that have a label; all empty without a column `split`."""
    members: dict[str, list[int]] = {split: [] for split in SPLITS}
    unlabelled = dict.fromkeys(SPLITS, 0)
    columns = _label_columns(nodes)
    for row, word in enumerate(nodes.text.get("split", [])):
        if not word:
            continue
        if word.lower() not in _SPLIT_WORDS:
            raise nodes.error(row, f"its split is {shortened(word)}", "train, valid (or val), test, or nothing")
        split = _SPLIT_WORDS[word.lower()]
        if any(nodes.text[name][row] for name in columns):
            members[split].append(row)
        else:
            unlabelled[split] += 1
    if not new and "split" in nodes.text and not members["train"]:
        without = " and a label" if unlabelled["train"] else ""
        fault = f"it has no node with split 'train'{without}"
        raise DataError(nodes.path, fault, allowed="at least one, or no column 'split'")
    notes = (f"{n:,} nodes of the {split} split have no label and are not in it" for split, n in unlabelled.items())
    return members, tuple(note for note, n in zip(notes, unlabelled.values(), strict=True) if n)


def read_labels(nodes: Table, train: Sequence[int], kind: LabelKind, name: str, like: Schema | None) -> Labels:
    """The labels of a table; `name` is that of the column `label` in the file, and `like` the schema of a training."""
    several = [column for column in nodes.text if column.startswith(LABEL)]
    if several and "label" in nodes.text:
        fault = f"it has both a column 'label' and a column {several[0]!r}"
        raise DataError(nodes.path, fault, allowed="one of them", hint="--ignore label")
    if like is not None:
        return _labels_like(nodes, several, like)
    if several:
        if kind != "auto":
            raise DataError(nodes.path, f"it has a column {several[0]!r}", allowed=f"a column 'label' for {kind}")
        return _several(nodes, [column.removeprefix(LABEL) for column in several])
    labels = nodes.text.get("label")
    if labels is None:
        return Labels("classes", torch.full((len(nodes.lines),), UNLABELLED), None)
    _refuse_lists(nodes)
    numbers = {number for number in map(_number, {*labels} - {""}) if number is not None}
    numeric = numbers and all(_number(label) is not None for label in {*labels} - {""})
    many = len(numbers) > MOST_NUMBERS
    if kind == "number" or (kind == "auto" and numeric and many):
        notes = () if kind == "number" else (f"{_different(name, len(numbers))} a number {_AS_CLASSES}",)
        return Labels("number", _numbers(nodes), (name,), notes)
    notes = (f"{_different(name, len(numbers))} classes {_AS_NUMBER}",) if numeric and kind == "auto" else ()
    known = in_order([labels[row] for row in train] or labels)
    return Labels("classes", _classes(nodes, known), known, notes + _alone(labels, known))


def labels_of_tensor(name: str, y: Any, num_nodes: int, kind: LabelKind, like: Schema | None) -> Labels:
    """The labels of a PyG `Data`: whole numbers are classes, below 0 for none; others as in a table, NaN for none."""
    if y is None:
        return Labels("classes", torch.full((num_nodes,), UNLABELLED), None)
    y = y.squeeze(-1) if isinstance(y, Tensor) and y.dim() == 2 and y.size(1) == 1 else y
    if not isinstance(y, Tensor) or y.is_complex() or y.dim() not in (1, 2) or y.size(0) != num_nodes:
        allowed = f"a label for each of its {num_nodes} nodes, or a row of labels"
        raise DataError(name, "its y is of another kind", allowed=allowed)
    y = y.detach()
    if y.dim() == 2:
        several = y.float() if y.is_floating_point() else y.float().masked_fill(y < 0, math.nan)
        if not (several.isnan() | (several == 0) | (several == 1)).all():
            raise DataError(name, "its y has several labels a node", allowed="0, 1, or NaN where one is unknown")
        return Labels("labels", several, tuple(map(str, range(y.size(1)))))
    target = kind if like is None else "number" if like.target == "number" else "classes"
    if target != "number" and not y.is_floating_point():
        return Labels("classes", y.long().clamp(min=UNLABELLED), None)
    numbers = y.float()
    if numbers.isinf().any():
        raise DataError(name, "its y is not finite", allowed="finite numbers, or NaN for none")
    distinct = numbers[~numbers.isnan()].unique()
    if target == "number" or (target == "auto" and len(distinct) > MOST_NUMBERS):
        notes = () if target == "number" else (f"{_different('y', len(distinct))} a number {_AS_CLASSES}",)
        return Labels("number", numbers, ("y",), notes)
    notes = () if target == "classes" else (f"{_different('y', len(distinct))} classes {_AS_NUMBER}",)
    names = tuple(f"{value:g}" for value in distinct.tolist())
    known = names if like is None else like.class_names or ()
    if new := [each for each in names if each not in known]:
        raise DataError(name, f"it has the label {new[0]}", allowed=f"{listed(known)}, as in training")
    place = torch.tensor([known.index(each) for each in names] + [UNLABELLED])
    at = torch.where(numbers.isnan(), len(distinct), torch.searchsorted(distinct, numbers).clamp(max=len(distinct)))
    return Labels("classes", place[at], known, notes)


def _labels_like(nodes: Table, several: Sequence[str], like: Schema) -> Labels:
    """Labels of a new table, whose names are those of training."""
    known, size = like.class_names, len(nodes.lines)
    if like.target == "labels":
        names = known or ()
        if new := [column for column in several if column.removeprefix(LABEL) not in names]:
            raise DataError(nodes.path, f"its column {new[0]!r} was not in training", allowed=listed(names))
        return _several(nodes, names)
    if like.target == "number":
        numbers = _numbers(nodes) if "label" in nodes.text else torch.full((size,), math.nan)
        return Labels("number", numbers, known)
    if "label" not in nodes.text:
        return Labels("classes", torch.full((size,), UNLABELLED), known)
    return Labels("classes", _classes(nodes, known or ()), known)


def _classes(nodes: Table, known: Sequence[str]) -> Tensor:
    """The class of each node. Classes are the labels that training can learn: those of the training nodes."""
    at = {name: number for number, name in enumerate(known)} | {"": UNLABELLED}
    return numbered(nodes, "label", at, f"the training nodes' {listed(known)}")


def _several(nodes: Table, names: Sequence[str]) -> Labels:
    """[N, L]: 0, 1 or NaN for each label; a label without a column is unknown."""
    y = torch.full((len(nodes.lines), len(names)), math.nan)
    for place, name in enumerate(names):
        cells = nodes.text.get(LABEL + name)
        if cells is None:
            continue
        for row, cell in enumerate(cells):
            if cell.lower() not in _KNOWN:
                fault = f"its {LABEL}{name} is {shortened(cell)}"
                raise nodes.error(row, fault, "0, 1, or nothing where it is unknown")
        y[:, place] = torch.tensor([_KNOWN[cell.lower()] for cell in cells])
    return Labels("labels", y, tuple(names))


def _numbers(nodes: Table) -> Tensor:
    """[N]: the number of each node, NaN without one."""
    values = []
    for row, label in enumerate(nodes.text["label"]):
        number = _number(label) if label else math.nan
        if number is None:
            raise nodes.error(row, f"its label is {shortened(label)}", "a finite number, or nothing")
        values.append(number)
    return torch.tensor(values, dtype=torch.float32)


def _number(label: str) -> float | None:
    """The finite number that a text is, in single precision, or None."""
    try:
        number = float(label)
    except ValueError:
        return None
    return number if abs(number) <= torch.finfo(torch.float32).max else None


def _refuse_lists(nodes: Table) -> None:
    for row, label in enumerate(nodes.text["label"]):
        if _LIST.fullmatch(label):
            parts = [part.strip() for part in _PARTS.split(label) if part.strip()]
            written = " and ".join(repr(LABEL + part) for part in parts[:2]) or repr(f"{LABEL}NAME")
            allowed = f"one class, or a column for each label, such as {written}, of 0, 1 or nothing"
            raise nodes.error(row, f"its label is a list, {shortened(label)}", allowed)


def _different(name: str, count: int) -> str:
    return f"{name!r} has {count:,} different numbers: they are"


def _alone(labels: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """A note on classes with one node, whose scores say little."""
    counts = dict.fromkeys(known, 0)
    for label in labels:
        if label:
            counts[label] += 1
    single = [name for name, count in counts.items() if count == 1]
    words = f"class {listed(single)} has" if len(single) == 1 else f"the classes {listed(single)} have"
    return (f"{words} one labelled node",) if single else ()


def _label_columns(nodes: Table) -> list[str]:
    return [name for name in nodes.text if name == "label" or name.startswith(LABEL)]


def numbered(table: Table, column: str, at: dict[str, int], allowed: str) -> Tensor:
    """The number of each cell of a column; a text without a number is refused."""
    texts = table.text[column]
    if unknown := set(texts) - at.keys():
        row = next(row for row, text in enumerate(texts) if text in unknown)
        fault = f"its {column} is {shortened(texts[row])}" if texts[row] else f"it has no {column}"
        raise table.error(row, fault, allowed)
    return torch.tensor([at[text] for text in texts], dtype=torch.int64)

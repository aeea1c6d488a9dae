"""Columns of a table as features: numbers as they are, text as one column for each value, empty cells filled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from magna.data.columns import Table
from magna.errors import DataError, listed, shortened

MOST_VALUES = 50  # of a text column
_SAID_ALONE = 3  # more columns than these share a note


@dataclass(frozen=True)
class FeatureColumn:
    """A column of a table, as the features that a model was trained with.

    >>> FeatureColumn("team", values=("blue", "red")).feature_names, FeatureColumn("age", flag=True).feature_names
    (('team=blue', 'team=red'), ('age', 'age is empty'))
    """

    name: str
    values: tuple[str, ...] | None = None  # of a text column
    mean: float | None = None  # of a column of numbers, for its empty cells
    flag: bool = False  # training has empty cells

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features."""
        if self.values is not None:
            return tuple(f"{self.name}={value}" for value in self.values)
        return (self.name, f"{self.name} is empty") if self.flag else (self.name,)

    def to_dict(self) -> dict[str, Any]:
        """The values that differ from their defaults, ready for JSON."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {name: value for name, value in values.items() if value is not None and value is not False}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> FeatureColumn:
        """The column of `to_dict`."""
        parts: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in values.items()}
        return FeatureColumn(**parts)


class Features(NamedTuple):
    """Features of the rows of a table, and sentences on what was made of its columns."""

    columns: tuple[FeatureColumn, ...]
    values: Tensor | None  # [rows, features]; None without a feature
    notes: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the features; None without one."""
        return feature_names(self.columns) or None


def feature_names(columns: Iterable[FeatureColumn]) -> tuple[str, ...]:
    """Names of the features of all columns.

    >>> feature_names([FeatureColumn("age"), FeatureColumn("team", values=("red",))])
    ('age', 'team=red')
    """
    return tuple(name for column in columns for name in column.feature_names)


def read_features(table: Table, names: Sequence[str], prefix: str, rows: Sequence[int]) -> Features:
    """The features of some columns; means are those of `rows`, the training nodes, or of all where there are none."""
    columns, notes = [], []
    filled: list[FeatureColumn] = []
    for name in names:
        column = _text_column(table, name, prefix) if name in table.text else _number_column(table, name, prefix, rows)
        if column is None:
            notes.append(f"column {name!r} is empty and was left out")
            continue
        columns.append(column)
        if column.flag:
            filled.append(column)
        if column.values is not None:
            count = len(column.values)
            notes.append(f"column {name!r} is text: {count} feature{'s' * (count > 1)}, one for each value")
    return Features(tuple(columns), _encoded(table, columns, prefix)[0], (*notes, *_filling(filled)))


def repeat_features(table: Table, names: Sequence[str], prefix: str, known: Sequence[FeatureColumn]) -> Features:
    """The features that a model was trained with, of new rows; another column is refused."""
    allowed = f"the {len(known)} columns of training"
    trained = [prefix + column.name for column in known]
    if missing := [name for name in trained if name not in names]:
        raise DataError(table.path, f"it has no column {shortened(missing[0])}", allowed=allowed)
    if new := [name for name in names if name not in trained]:
        fault, hint = f"its column {shortened(new[0])} was not in training", f"--ignore {new[0]}"
        raise DataError(table.path, fault, allowed=allowed, hint=hint)
    values, notes = _encoded(table, known, prefix)
    return Features(tuple(known), values, notes)


def _text_column(table: Table, name: str, prefix: str) -> FeatureColumn | None:
    cells = table.text[name]
    values = in_order(cells)
    if len(values) > MOST_VALUES:
        row = next(row for row, cell in enumerate(cells) if cell)
        fault = f"column {name!r} is text with {len(values):,} different values, such as {shortened(cells[row])}"
        raise DataError(table.path, fault, allowed=f"up to {MOST_VALUES}", hint=f"--ignore {name}")
    return FeatureColumn(name.removeprefix(prefix), values=values) if values else None


def _number_column(table: Table, name: str, prefix: str, rows: Sequence[int]) -> FeatureColumn | None:
    numbers = table.number(name)
    empty = np.isnan(numbers)
    if empty.all() and len(empty):
        return None
    chosen = numbers[list(rows)] if len(rows) else numbers
    chosen = chosen[~np.isnan(chosen)] if not np.isnan(chosen).all() else numbers[~empty]
    # Rounded, so that the mean is the same on every machine.
    mean = float(f"{chosen.mean(dtype=np.float64):.6g}") if len(chosen) else None
    return FeatureColumn(name.removeprefix(prefix), mean=mean, flag=bool(empty.any()))


def _encoded(table: Table, columns: Sequence[FeatureColumn], prefix: str) -> tuple[Tensor | None, tuple[str, ...]]:
    """The features of all rows, and notes on cells that training did not have."""
    if not columns:
        return None, ()
    x = np.zeros((len(table.lines), len(feature_names(columns))), dtype=np.float32)
    notes, at = [], 0
    for column in columns:
        name, width = prefix + column.name, len(column.feature_names)
        if column.values is None:
            x[:, at] = numbers = table.number(name)
            if (empty := np.isnan(numbers)).any():
                if column.mean is None:
                    row = int(empty.argmax())
                    raise table.error(row, f"column {name!r} is empty", "a number in every row, as in training")
                x[empty, at] = column.mean
                if column.flag:
                    x[:, at + 1] = empty
                else:
                    notes.append(f"column {name!r} is empty in {int(empty.sum()):,} rows, filled by {column.mean:g}")
        else:
            place = {value: number for number, value in enumerate(column.values)}
            cells = [place.get(cell, -1) for cell in table.text[name]]
            hit = np.array(cells) >= 0
            x[np.flatnonzero(hit), at + np.array(cells)[hit]] = 1
            if unseen := sorted({cell for cell in table.text[name] if cell} - place.keys()):
                notes.append(f"column {name!r} has values that training did not have: {listed(unseen)}")
        at += width
    return torch.from_numpy(x), tuple(notes)


def _filling(columns: Sequence[FeatureColumn]) -> Iterator[str]:
    """Notes on columns with empty cells."""
    if len(columns) > _SAID_ALONE:
        names = listed(column.name for column in columns)
        yield f"{len(columns)} columns have empty cells, filled by their means and flagged by 'NAME is empty': {names}"
        return
    for column in columns:
        flag = column.feature_names[1]
        yield f"column {column.name!r} has empty cells, filled by its mean {column.mean:g} and flagged by {flag!r}"


def in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Each name once, without the empty one: by number if all are whole numbers, else by the alphabet.

    >>> in_order(["10", "9", "", "9"])
    ('9', '10')
    """
    distinct = set(names) - {""}
    numeric = all(name.removeprefix("-").isdecimal() for name in distinct)
    return tuple(sorted(distinct, key=lambda name: (int(name) if numeric else 0, name)))

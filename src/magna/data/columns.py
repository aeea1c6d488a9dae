"""Tables in memory: columns of text and of numbers, and which of them a reader takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from magna.errors import DataError, listed, shortened


@dataclass(frozen=True, eq=False)
class Table:
    """Columns as text, or as numbers [rows, columns] with NaN for an empty cell; `lines` are those of the rows.

    `header` has the names of all columns in the file, `names` those of the ones that are read, in the same order, under
    the names that the settings give them. `notes` are sentences for the user.
    """

    path: Path
    names: tuple[str, ...]
    text: dict[str, list[str]]
    number_names: tuple[str, ...]
    numbers: np.ndarray
    lines: Sequence[int]
    header: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def error(self, row: int, fault: str, allowed: str, hint: str = "") -> DataError:
        """The refusal of a row, with its line."""
        return DataError(self.path, fault, self.lines[row], allowed=allowed, hint=hint)

    def number(self, name: str) -> np.ndarray:
        """The numbers of a column."""
        column: np.ndarray = self.numbers[:, self.number_names.index(name)]
        return column


@dataclass(frozen=True)
class Columns:
    """The columns that a table must and may have.

    `text` are read as text and `numbers` must be numbers; every other one may be either, or is refused where
    `only_known`. `meanings` are new names by the name in the file. `is_text` is asked about names with a prefix.
    """

    required: tuple[str, ...]
    text: frozenset[str]
    numbers: frozenset[str] = frozenset()
    prefix: str = ""  # of further columns that are read as text
    feature_prefix: str = ""  # of features; a column without it is then refused
    meanings: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def named(self, path: Path, header: Sequence[str]) -> dict[str, int]:
        """The columns of a file by their new names, with their place, after a look at all of them."""
        places = {place: name for place, name in enumerate(header) if name not in self.ignored}
        places = {place: self.meanings.get(name, name) for place, name in places.items()}
        names = list(places.values())
        for name in self.required:
            if name not in names:
                fault = f"it has no column {name!r} (it has {listed(header) or 'nothing'})"
                hint = f"--columns {name}=COLUMN" if header else ""
                raise DataError(path, fault, allowed=self._known(), hint=hint)
        for name in names:
            if not name:
                raise DataError(path, "it has a column without a name", allowed="each name once")
            if names.count(name) > 1:
                fault = f"it has two columns {name!r}"
                raise DataError(path, fault, allowed="each name once", hint=f"--ignore {name}")
            if not self._allows(name):
                hint = f"--ignore {name}, or the name {self.feature_prefix}{name} for a feature"
                raise DataError(path, f"it has a column {name!r}", allowed=self._known(), hint=hint)
        return {name: place for place, name in places.items()}

    def is_text(self, name: str) -> bool:
        """True for a column that is text whatever it holds."""
        return name in self.text or bool(self.prefix and name.startswith(self.prefix))

    def _allows(self, name: str) -> bool:
        known = self.is_text(name) or name in self.numbers
        return known or not self.feature_prefix or name.startswith(self.feature_prefix)

    def _known(self) -> str:
        others = [*sorted(self.text - {*self.required}), *sorted(self.numbers)]
        ends = f"{self.feature_prefix}NAME" if self.feature_prefix else "columns of features"
        return ", ".join([*self.required, *others, ends])


def number_of(cell: str, separator: str = ",") -> tuple[float | None, bool]:
    """The number of a cell, None for another one, and true for a decimal comma, which other separators leave free."""
    try:
        return float(cell), False
    except ValueError:
        if separator == "," or cell.count(",") != 1:
            return None, False
    try:
        return float(cell.replace(",", ".")), True
    except ValueError:
        return None, False


def check_text(table: Table, columns: Columns) -> None:
    """Refuse a column of text in which most cells are numbers: the others are probably faults."""
    for name, cells in table.text.items():
        if columns.is_text(name):
            continue
        filled = [row for row, cell in enumerate(cells) if cell]
        wrong = [row for row in filled if number_of(cells[row])[0] is None]
        if 2 * len(wrong) < len(filled):
            fault = f"column {name!r} is {shortened(cells[wrong[0]])}, not a number" if wrong else ""
            allowed = "a number or nothing, as most rows have, or text in most rows"
            raise table.error(wrong[0], fault, allowed, f"--ignore {name}")


def in_single_precision(path: Path, names: Sequence[str], values: np.ndarray, lines: Sequence[int]) -> np.ndarray:
    """The numbers in single precision; those that are not finite then are refused."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32, copy=False)
    bad = np.argwhere(~np.isfinite(single))
    if len(bad):
        row, column = bad[0]
        fault = f"column {names[column]!r} is {values[row, column]}"
        raise DataError(path, fault, lines[row], allowed="finite numbers of single precision")
    return single

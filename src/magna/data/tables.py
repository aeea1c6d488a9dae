"""CSV and Parquet files → columns of text and of numbers; an error names the place of the fault."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from magna.config.path_kind import TABLE_SUFFIXES
from magna.data.columns import Columns, Table, check_text, in_single_precision, number_of
from magna.data.text import SEPARATORS, csv_rows, nfc, separator_of
from magna.errors import DataError, shortened


def read_table(folder: Path, stem: str, columns: Columns) -> Table:
    """Read the one table of this name in a folder."""
    names = [f"{stem}{suffix}" for suffix in TABLE_SUFFIXES]
    present = [folder / name for name in names if (folder / name).is_file()]
    if len(present) != 1:
        fault = f"it has {' and '.join(file.name for file in present) or f'none of {listed_or(names)}'}"
        raise DataError(folder, fault, allowed="one of them")
    if present[0].suffix == ".parquet":
        from magna.data.parquet import read_parquet

        return read_parquet(present[0], columns)
    return _read_csv(present[0], columns)


def listed_or(names: Sequence[str]) -> str:
    """Names as "a, b or c"."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


class _TextColumns(Exception):
    """Columns that turn out to be text while they are read as numbers."""


def _read_csv(path: Path, columns: Columns) -> Table:
    separator = separator_of(path)
    header = [nfc(name.strip()) for name in next(csv_rows(path, separator), (1, []))[1]]
    places = columns.named(path, header)
    reader = _CSVReader(path, separator, header, places, columns)
    text = {name for name in places if columns.is_text(name)}
    while True:
        try:
            return reader.read(text)
        except _TextColumns as error:
            text |= error.args[0]


@dataclass
class _CSVReader:
    """One CSV file; each pass reads some columns as text and all others as numbers."""

    path: Path
    separator: str
    header: Sequence[str]
    places: Mapping[str, int]
    columns: Columns

    def read(self, text: set[str]) -> Table:
        """Read the file with these columns of text; stop at another column that is text."""
        as_text, as_numbers = ([n for n in self.places if (n in text) == kind] for kind in (True, False))
        text_at, number_at = ([self.places[name] for name in names] for names in (as_text, as_numbers))
        cells: list[list[str]] = [[] for _ in as_text]
        # A wide table takes the memory of its numbers, not of its text.
        lines, values, empty, decimal_commas = [], array("d"), array("q"), 0
        rows = csv_rows(self.path, self.separator)
        next(rows, None)
        for line, row in rows:
            if len(row) != len(self.header):
                allowed = f"{len(self.header)}, as the first line"
                raise DataError(self.path, f"it has {len(row)} cells", line, allowed=allowed)
            lines.append(line)
            for column, place in zip(cells, text_at, strict=True):
                column.append(nfc(row[place].strip()))
            try:
                values.extend([float(row[place]) for place in number_at])
            except ValueError:
                numbers, commas = self._numbers(line, [row[place] for place in number_at], as_numbers)
                empty.extend(len(values) + place for place, number in enumerate(numbers) if number is None)
                values.extend(0.0 if number is None else number for number in numbers)
                decimal_commas += commas
        flat = np.array(values)
        numbers_read = flat.reshape(len(lines), len(as_numbers))
        single = in_single_precision(self.path, as_numbers, numbers_read, lines)
        single.reshape(-1)[np.frombuffer(empty, dtype=np.int64) if empty else []] = np.nan
        table = Table(
            self.path,
            tuple(self.places),
            dict(zip(as_text, cells, strict=True)),
            tuple(as_numbers),
            single,
            lines,
            tuple(self.header),
            tuple(self._notes(decimal_commas)),
        )
        check_text(table, self.columns)
        return table

    def _numbers(self, line: int, cells: Sequence[str], names: Sequence[str]) -> tuple[list[float | None], int]:
        """The numbers of a row, None for an empty cell, and how many have a decimal comma."""
        numbers: list[float | None] = []
        commas, text = 0, set()
        for name, cell in zip(names, cells, strict=True):
            number, comma = number_of(cell, self.separator)
            commas += comma
            numbers.append(number)
            if number is None and cell.strip():
                if name in self.columns.numbers:
                    fault = f"column {name!r} is {shortened(cell)}, not a number"
                    raise DataError(self.path, fault, line, allowed="numbers")
                text.add(name)
        if text:
            raise _TextColumns(text)
        return numbers, commas

    def _notes(self, decimal_commas: int) -> Iterator[str]:
        if self.separator != ",":
            yield f"{self.path.name} is separated by {SEPARATORS[self.separator]}"
        if decimal_commas:
            yield f"{self.path.name} has {decimal_commas:,} numbers with a decimal comma"

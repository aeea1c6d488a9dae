"""One CSV or Parquet file → columns; whatever is wrong in it is named with its place."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from magna.config.path_kind import TABLE_SUFFIXES
from magna.errors import MissingExtra

_BLOCK = 4096  # rows that are text at a time: a wide table takes the memory of its numbers, not of its digits


@dataclass(frozen=True, eq=False)
class Table:
    """The columns asked for as text ("" where a cell is empty), and all others as numbers [rows, columns]."""

    path: Path
    text: dict[str, list[str]]
    number_names: tuple[str, ...]
    numbers: np.ndarray
    lines: Sequence[int]

    def place(self, row: int) -> str:
        """Where a row is, for messages: `nodes.csv line 7`."""
        return _place(self.path, self.lines[row])


def find_table(folder: Path, stem: str) -> Path:
    """The one file of this name in a folder."""
    found = [folder / f"{stem}{suffix}" for suffix in TABLE_SUFFIXES if (folder / f"{stem}{suffix}").is_file()]
    if len(found) == 1:
        return found[0]
    problem = "both of" if found else "none of"
    raise ValueError(f"{folder} has {problem} {stem}.csv and {stem}.parquet; allowed: one of them")


def read_table(path: Path, required: Sequence[str], optional: Sequence[str], *, numbers: bool) -> Table:
    """Read a table with the named text columns; other columns must be numbers, or are refused (`numbers=False`)."""
    read = _read_parquet if path.suffix == ".parquet" else _read_csv
    return read(path, required, optional, numbers)


def is_csv(path: Path) -> bool:
    """By its name, plain or .gz."""
    return path.name.lower().removesuffix(".gz").endswith(".csv")


@contextmanager
def text_of(path: Path) -> Iterator[TextIO]:
    """A file of UTF-8, unpacked where its name ends in .gz, with its line ends as they are; what is wrong with it as
    text is said where it is found.
    """
    opener: Callable[..., Any] = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opener(path, "rt", newline="", encoding="utf-8-sig") as file:
            yield file
    except UnicodeDecodeError:
        # How far a decoder came that reads block by block, it does not say.
        with opener(path, "rb") as file:
            number = next(number for number, line in enumerate(file, start=1) if not _is_text(line))
        raise ValueError(f"{_place(path, number)} is not UTF-8; allowed: text in UTF-8") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise ValueError(f"{path} is not a whole gzip file; pack it again, or give it without .gz") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); allowed: a text file, plain or .gz") from None


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number of each line that is not empty, and its cells, still with the blanks behind them; plain or .gz."""
    with text_of(path) as file:
        rows = csv.reader(file, strict=True, skipinitialspace=True)
        try:
            for row in rows:
                if row:
                    yield rows.line_num, row
        except csv.Error as error:
            raise ValueError(f"{_place(path, rows.line_num)} is not CSV: {error}") from None


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read_csv(path: Path, required: Sequence[str], optional: Sequence[str], numbers: bool) -> Table:
    rows = csv_rows(path)
    header = [name.strip() for name in next(rows, (1, []))[1]]
    as_text = _text_columns(path, header, required, optional, numbers)
    as_numbers = tuple(name for name in header if name not in as_text)
    text_at, number_at = ([header.index(name) for name in names] for names in (as_text, as_numbers))
    columns: list[list[str]] = [[] for _ in as_text]
    blocks, lines, waiting = [], [], []
    for line, row in rows:
        if len(row) != len(header):
            place = _place(path, line)
            raise ValueError(f"{place} has {len(row)} cells; allowed: {len(header)}, as in its first line")
        lines.append(line)
        for column, position in zip(columns, text_at, strict=True):
            column.append(row[position].strip())
        if number_at:
            waiting.append([row[position] for position in number_at])
            if len(waiting) == _BLOCK:
                blocks.append(_parsed(path, as_numbers, waiting, lines))
                waiting = []
    blocks.append(_parsed(path, as_numbers, waiting, lines))
    return Table(path, dict(zip(as_text, columns, strict=True)), as_numbers, np.concatenate(blocks), lines)


def _read_parquet(path: Path, required: Sequence[str], optional: Sequence[str], numbers: bool) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MissingExtra(f"the Parquet file {path}", "pyarrow", "parquet") from None
    try:
        # A plain file is meant: names such as year=2020 in the path are no columns.
        table = pyarrow.parquet.ParquetFile(path).read()
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path} is not a Parquet file that can be read ({error})") from None
    as_text = _text_columns(path, table.column_names, required, optional, numbers)
    as_numbers = tuple(name for name in table.column_names if name not in as_text)
    single = np.empty((table.num_rows, len(as_numbers)), dtype=np.float32)
    lines = range(1, table.num_rows + 1)
    for position, name in enumerate(as_numbers):
        column = table[name]
        kind = column.type
        if not (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_boolean(kind)):
            raise ValueError(f"{path.name} column {name!r} is of type {kind}; {_allowed_numbers(as_text)}")
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise ValueError(f"{_place(path, lines[row])} column {name!r} is empty; {_allowed_numbers(as_text)}")
        single[:, position] = _single(path, [name], column.to_numpy()[:, None], lines)[:, 0]
    text = {name: _as_texts(path, name, table[name].to_pylist()) for name in as_text}
    return Table(path, text, as_numbers, single, lines)


def _text_columns(
    path: Path, header: Sequence[str], required: Sequence[str], optional: Sequence[str], numbers: bool
) -> list[str]:
    """The text columns that a file has, after a look at all its columns."""
    known = [*required, *optional]
    there = ", ".join(map(repr, header)) or "nothing"
    for name in required:
        if name not in header:
            raise ValueError(f"{path} has no column {name!r}; it has {there}; allowed: {', '.join(known)}")
    for name in header:
        if header.count(name) > 1 or not name:
            problem = f"two columns {name!r}" if name else "a column without a name"
            raise ValueError(f"{path} has {problem}; allowed: each name once")
        if not numbers and name not in known:
            raise ValueError(f"{path} has a column {name!r}; allowed: {', '.join(known)}; leave the others out")
    return [name for name in known if name in header]


def _parsed(path: Path, names: Sequence[str], rows: list[list[str]], lines: Sequence[int]) -> np.ndarray:
    """A block of rows, the last ones read, as numbers."""
    lines = lines[len(lines) - len(rows) :]
    try:
        values = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
    except ValueError:
        for row, line in zip(rows, lines, strict=True):
            for name, cell in zip(names, row, strict=True):
                if not _is_number(cell):
                    found = f"{cell!r}, not a number" if cell.strip() else "empty"
                    raise ValueError(
                        f"{_place(path, line)} column {name!r} is {found}; {_allowed_numbers(['id', 'label', 'split'])}"
                    ) from None
        raise
    return _single(path, names, values, lines)


def _single(path: Path, names: Sequence[str], values: np.ndarray, lines: Sequence[int]) -> np.ndarray:
    """The numbers in single precision; what is not finite there is refused."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32, copy=False)
    bad = np.argwhere(~np.isfinite(single))
    if len(bad):
        row, column = bad[0]
        place, number = _place(path, lines[row]), values[row, column]
        raise ValueError(f"{place} column {names[column]!r} is {number}; allowed: finite numbers of single precision")
    return single


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _allowed_numbers(text: Iterable[str]) -> str:
    return f"allowed: a number in every column but {', '.join(text)}"


def _as_texts(path: Path, name: str, cells: list[Any]) -> list[str]:
    try:
        return [_as_text(cell) for cell in cells]
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} column {name!r} holds bytes that are not UTF-8; try saving it as text") from None


def _as_text(cell: Any) -> str:
    if cell is None or cell != cell:
        return ""
    if isinstance(cell, bytes):  # text that a program has saved without saying so
        cell = cell.decode()
    # A column of whole numbers with gaps comes as floats out of many programs.
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


def _place(path: Path, line: int) -> str:
    return f"{path} {'row' if path.suffix == '.parquet' else 'line'} {line}"

"""CSV and Parquet files → columns; an error names the place of the fault."""

from __future__ import annotations

import csv
import gzip
import unicodedata
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from magna.config.path_kind import TABLE_SUFFIXES
from magna.errors import DataError, MissingExtra, listed

_NUMBERS = "a number in every column but id, label, split"


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns as text, all others as numbers [rows, columns]; `lines` are the line numbers of the rows."""

    path: Path
    text: dict[str, list[str]]
    number_names: tuple[str, ...]
    numbers: np.ndarray
    lines: Sequence[int]

    def error(self, row: int, fault: str, allowed: str) -> DataError:
        """The refusal of a row, with its line."""
        return DataError(self.path, fault, self.lines[row], allowed=allowed)


def read_table(folder: Path, stem: str, required: Sequence[str], optional: Sequence[str], *, numbers: bool) -> Table:
    """Read the one table of this name in a folder.

    It has the named text columns; its other columns must be numbers, or are refused (`numbers=False`).
    """
    files = [file for suffix in TABLE_SUFFIXES if (file := folder / f"{stem}{suffix}").is_file()]
    if len(files) != 1:
        fault = f"it has {'both' if files else 'none'} of {stem}.csv and {stem}.parquet"
        raise DataError(folder, fault, allowed="one of them")
    read = _read_parquet if files[0].suffix == ".parquet" else _read_csv
    return read(files[0], required, optional, numbers)


def is_csv(path: Path) -> bool:
    """True for the name of a CSV file, plain or .gz."""
    return path.name.lower().removesuffix(".gz").endswith(".csv")


@contextmanager
def text_of(path: Path) -> Iterator[TextIO]:
    """An open file of UTF-8, unpacked if its name ends in .gz, with its line ends as they are.

    Faults of the file as text become a `DataError`, also while it is read.
    """
    opener: Callable[..., Any] = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opener(path, "rt", newline="", encoding="utf-8-sig") as file:
            yield file
    except UnicodeDecodeError:
        # The decoder reads blocks, so the line is looked for again.
        with opener(path, "rb") as file:
            number = next(number for number, line in enumerate(file, start=1) if _fails(bytes.decode, line))
        raise DataError(path, "it is not UTF-8", number, allowed="text in UTF-8") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise DataError(path, "it is not a whole gzip file", hint="to pack it again, or without .gz") from None
    except OSError as error:
        fault = f"it cannot be read ({error.strerror})"
        raise DataError(path, fault, allowed="a text file, plain or .gz") from None


def nfc(name: str) -> str:
    """A name in Unicode's composed form, so that names that look the same are the same.

    >>> nfc("L" + chr(0x6F) + chr(0x301)) == "Ló"
    True
    """
    return unicodedata.normalize("NFC", name)


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of each line that is not empty, plain or .gz; blanks after a cell stay."""
    with text_of(path) as file:
        rows = csv.reader(file, strict=True, skipinitialspace=True)
        try:
            for row in rows:
                if row:
                    yield rows.line_num, row
        except csv.Error as error:
            raise DataError(path, f"it is not CSV: {error}", rows.line_num) from None


def _fails(parse: Callable[[Any], Any], value: Any) -> bool:
    try:
        parse(value)
    except ValueError:
        return True
    return False


def _read_csv(path: Path, required: Sequence[str], optional: Sequence[str], numbers: bool) -> Table:
    rows = csv_rows(path)
    header = [nfc(name.strip()) for name in next(rows, (1, []))[1]]
    as_text = _text_columns(path, header, required, optional, numbers)
    as_numbers = tuple(name for name in header if name not in as_text)
    text_at, number_at = ([header.index(name) for name in names] for names in (as_text, as_numbers))
    columns: list[list[str]] = [[] for _ in as_text]
    lines, values = [], array("d")  # a wide table takes the memory of its numbers, not of its text
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(path, f"it has {len(row)} cells", line, allowed=f"{len(header)}, as the first line")
        lines.append(line)
        for column, position in zip(columns, text_at, strict=True):
            column.append(nfc(row[position].strip()))
        try:
            values.extend([float(row[position]) for position in number_at])
        except ValueError:
            position = next(position for position in number_at if _fails(float, row[position]))
            fault = f"is {row[position]!r}, not a number" if row[position].strip() else "is empty"
            raise DataError(path, f"column {header[position]!r} {fault}", line, allowed=_NUMBERS) from None
    single = _single(path, as_numbers, np.array(values).reshape(len(lines), len(as_numbers)), lines)
    return Table(path, dict(zip(as_text, columns, strict=True)), as_numbers, single, lines)


def _read_parquet(path: Path, required: Sequence[str], optional: Sequence[str], numbers: bool) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MissingExtra(f"the Parquet file {path}", "pyarrow", "parquet") from None
    try:
        # As one file, not a partitioned data set: year=2020 in its path is not a column.
        table = pyarrow.parquet.ParquetFile(path).read()
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(path, f"it is not a Parquet file that can be read ({error})") from None
    as_text = _text_columns(path, table.column_names, required, optional, numbers)
    as_numbers = tuple(name for name in table.column_names if name not in as_text)
    single = np.empty((table.num_rows, len(as_numbers)), dtype=np.float32)
    lines = range(1, table.num_rows + 1)
    for position, name in enumerate(as_numbers):
        column, kind = table[name], table[name].type
        if not (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_boolean(kind)):
            raise DataError(path, f"column {name!r} is of type {kind}", allowed=_NUMBERS)
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise DataError(path, f"column {name!r} is empty", lines[row], allowed=_NUMBERS)
        single[:, position] = _single(path, [name], column.to_numpy()[:, None], lines)[:, 0]
    text = {}
    for name in as_text:
        try:
            text[name] = [_as_text(cell) for cell in table[name].to_pylist()]
        except UnicodeDecodeError:
            raise DataError(path, f"column {name!r} has bytes that are not UTF-8", hint="to save it as text") from None
    return Table(path, text, as_numbers, single, lines)


def _text_columns(
    path: Path, header: Sequence[str], required: Sequence[str], optional: Sequence[str], numbers: bool
) -> list[str]:
    """The text columns that a file has, after a look at all its columns."""
    known = [*required, *optional]
    for name in required:
        if name not in header:
            fault = f"it has no column {name!r} (it has {listed(header) or 'nothing'})"
            raise DataError(path, fault, allowed=", ".join(known))
    for name in header:
        if header.count(name) > 1 or not name:
            fault = f"it has two columns {name!r}" if name else "it has a column without a name"
            raise DataError(path, fault, allowed="each name once")
        if not numbers and name not in known:
            raise DataError(path, f"it has a column {name!r}", allowed=", ".join(known), hint="to leave it out")
    return [name for name in known if name in header]


def _single(path: Path, names: Sequence[str], values: np.ndarray, lines: Sequence[int]) -> np.ndarray:
    """The numbers in single precision; those that are not finite then are refused."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32, copy=False)
    bad = np.argwhere(~np.isfinite(single))
    if len(bad):
        row, column = bad[0]
        fault = f"column {names[column]!r} is {values[row, column]}"
        raise DataError(path, fault, lines[row], allowed="finite numbers of single precision")
    return single


def _as_text(cell: Any) -> str:
    if cell is None or cell != cell:
        return ""
    if isinstance(cell, bytes):  # text without the type of text
        cell = cell.decode()
    # Many programs save whole numbers with gaps as floats.
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else nfc(str(cell).strip())

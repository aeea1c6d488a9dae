"""Parquet files → columns of text and of numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from magna.data.columns import Columns, Table, check_text, in_single_precision
from magna.data.text import nfc
from magna.errors import DataError, MissingExtra, shortened


def read_parquet(path: Path, columns: Columns) -> Table:
    """Read a Parquet file; a column of numbers stays one, every other is text."""
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
    header = [nfc(name.strip()) for name in table.column_names]
    places = columns.named(path, header)
    lines, text, numbers = range(1, table.num_rows + 1), {}, {}
    for name, place in places.items():
        column = table.column(place)
        if _is_number(pyarrow.types, column.type) and not columns.is_text(name):
            numbers[name] = _numbers(path, name, column, lines)
        else:
            text[name] = _text(path, name, column)
            if name in columns.numbers:
                row = next((row for row, cell in enumerate(text[name]) if cell), None)
                if row is not None:
                    fault = f"column {name!r} is {shortened(text[name][row])}, not a number"
                    raise DataError(path, fault, lines[row], allowed="numbers")
    single = np.empty((table.num_rows, len(numbers)), dtype=np.float32)
    for at, values in enumerate(numbers.values()):
        single[:, at] = values
    result = Table(path, tuple(places), text, tuple(numbers), single, lines, tuple(header))
    check_text(result, columns)
    return result


def _is_number(types: Any, kind: Any) -> bool:
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
        or types.is_null(kind)
    )


def _numbers(path: Path, name: str, column: Any, lines: range) -> np.ndarray:
    """The numbers of a column in single precision, NaN for an empty cell; a NaN in the file is refused."""
    import pyarrow

    doubles = column.cast(pyarrow.float64(), safe=False)
    empty = np.asarray(doubles.is_null().to_numpy())
    values = doubles.fill_null(0.0).to_numpy()
    single = in_single_precision(path, [name], values[:, None], lines)[:, 0].copy()
    single[empty] = np.nan
    return single


def _text(path: Path, name: str, column: Any) -> list[str]:
    try:
        return [_as_text(cell) for cell in column.to_pylist()]
    except UnicodeDecodeError:
        raise DataError(path, f"column {name!r} has bytes that are not UTF-8", hint="to save it as text") from None


def _as_text(cell: Any) -> str:
    if cell is None or cell != cell:
        return ""
    if isinstance(cell, bytes):  # text without the type of text
        cell = cell.decode()
    # Many programs save whole numbers with gaps as floats.
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else nfc(str(cell).strip())

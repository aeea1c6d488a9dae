"""Answers as CSV, TSV, JSON or Parquet, and files of ids."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

from magna.config.atomic_files import write_whole
from magna.data.text import csv_rows, is_csv, text_of
from magna.errors import ArgumentError, DataError, MissingExtra, listed

FORMATS = ("csv", "tsv", "json", "parquet")


def file_format(path: str | Path, form: str | None = None) -> str:
    """`form`, or the ending of a file's name.

    >>> file_format("answers.csv")
    'csv'
    """
    form = form or Path(path).suffix.removeprefix(".").lower()
    if form not in FORMATS:
        raise ArgumentError("form", form, FORMATS, f"a name with such an ending instead of {Path(path).name}")
    return form


def check_format(path: str | Path, form: str | None = None) -> None:
    """Refuse a format that is unknown, or whose package is missing, before answers are computed."""
    if file_format(path, form) == "parquet":
        _import_pyarrow()


def to_json(value: Any) -> str:
    """A line of JSON, with null for NaN and infinity, which JSON does not have.

    >>> to_json({"score": float("nan"), "ranks": [1, 2.5]})
    '{"score": null, "ranks": [1, 2.5]}'
    """
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_answers(path: str | Path, form: str | None, columns: dict[str, list[Any]], whole: dict[str, Any]) -> None:
    """Write columns as a table, or everything as JSON, in the format `form` or that of the name's ending."""
    form = file_format(path, form)
    if form == "json":
        content = (to_json(whole) + "\n").encode()
    elif form == "parquet":
        content = _parquet(columns)
    else:
        table = io.StringIO(newline="")
        writer = csv.writer(table, delimiter="\t" if form == "tsv" else ",")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        content = table.getvalue().encode()
    write_whole(Path(path), content, again="the same command")


def _parquet(columns: dict[str, list[Any]]) -> bytes:
    pyarrow, parquet = _import_pyarrow()
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("Parquet", "pyarrow", "parquet") from error
    return pyarrow, parquet


def read_ids(path: str | Path) -> list[str]:
    """The ids of a file: the `id` column of a CSV, or one id a line; blanks around them go, as in nodes.csv."""
    path = Path(path)
    if is_csv(path):
        rows = csv_rows(path)
        header = [name.strip() for name in next(rows, (1, []))[1]]
        if "id" not in header:
            raise DataError(path, f"it has the columns {listed(header)}", allowed="one of them is id")
        at = header.index("id")
        ids = [row[at].strip() for _, row in rows if len(row) > at]
    else:
        with text_of(path) as file:
            ids = [line.strip() for line in io.StringIO(file.read(), newline=None)]
    nodes = [id for id in ids if id]
    if not nodes:
        raise DataError(path, "it has no id of a node", allowed="one a line, or a .csv with a column id")
    return nodes

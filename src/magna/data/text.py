"""Files of text: plain or packed, as lines of cells."""

from __future__ import annotations

import csv
import gzip
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from magna.errors import DataError

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_QUOTED = re.compile(r'"[^"]*"')


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


def csv_rows(path: Path, separator: str | None = None) -> Iterator[tuple[int, list[str]]]:
    """Number and cells of each line that is not empty, plain or .gz; blanks after a cell stay."""
    separator = separator or separator_of(path)
    with text_of(path) as file:
        # A blank after a tab belongs to a cell that is cut anyway; the reader would also skip the next tab.
        rows = csv.reader(file, strict=True, skipinitialspace=separator != "\t", delimiter=separator)
        try:
            for row in rows:
                if row:
                    yield rows.line_num, row
        except csv.Error as error:
            raise DataError(path, f"it is not CSV: {error}", rows.line_num) from None


def separator_of(path: Path) -> str:
    """The one of comma, semicolon and tab that the first line has most often outside quotes; a comma if none."""
    with text_of(path) as file:
        first = _QUOTED.sub("", next((line for line in file if line.strip("\r\n")), ""))
    return max(SEPARATORS, key=first.count)


def _fails(parse: Callable[[Any], Any], value: Any) -> bool:
    try:
        parse(value)
    except ValueError:
        return True
    return False

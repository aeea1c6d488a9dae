"""Tables as Markdown or on a terminal, and the text of their figures."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from magna.tasks.metrics import Spread, difference

if TYPE_CHECKING:
    from rich.console import Console

EMPTY = "—"
# Among fifty comparisons, a difference of two standard errors is often chance.
CLEAR = 3.0


class TextTable(NamedTuple):
    """A header and rows of texts."""

    header: list[str]
    rows: list[list[str]]

    @property
    def width(self) -> int:
        """Characters of a line on a terminal."""
        return sum(2 + max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)) - 2

    def without(self, titles: Collection[str]) -> TextTable:
        """The table without the columns of these titles."""
        places = [place for place, title in enumerate(self.header) if title not in titles]
        return TextTable([self.header[at] for at in places], [[row[at] for at in places] for row in self.rows])

    def markdown(self) -> str:
        """The table in Markdown, or a sentence for one without rows."""
        if not self.rows:
            return "Nothing has been recorded yet."
        lines = [f"| {' | '.join(row)} |" for row in (self.header, *self.rows)]
        return "\n".join([lines[0], "|" + "---|" * len(self.header), *lines[1:]])

    def show(self, console: Console) -> None:
        """Print the table without marks of Markdown."""
        from rich import box
        from rich.table import Table

        marks = str.maketrans({"*": None, "`": None})
        table = Table(*self.header, box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        for column in table.columns:
            column.overflow = "fold"
        for row in self.rows:
            table.add_row(*(text.translate(marks).replace(" ± ", "\u00a0±\u00a0") for text in row))
        console.print(table)


def spread_text(values: Spread | None, digits: int = 1, *, dispersed: bool = True) -> str:
    """Mean ± deviation; the mean alone for a single value, a dash for none."""
    if values is None:
        return EMPTY
    mean = f"{values.mean:.{digits}f}"
    return f"{mean} ± {values.std:.{digits}f}" if dispersed and values.size > 1 else mean


def difference_text(part: Spread | None, whole: Spread | None, digits: int = 1) -> str:
    """Difference ± standard error, which single runs do not have; bold above `CLEAR` standard errors."""
    if part is None or whole is None:
        return EMPTY
    by, error = difference(part, whole)
    if min(part.size, whole.size) < 2:
        return signed(by, digits)
    text = f"{signed(by, digits)} ± {error:.{digits}f}"
    return f"**{text}**" if abs(by) > CLEAR * error else text


def paired_text(by: Spread | None) -> str:
    """Mean of paired differences ± standard error; bold above `CLEAR` standard errors, a dash for none."""
    if by is None:
        return EMPTY
    text = f"{signed(by.mean)} ± {by.standard_error:.1f}" if by.size > 1 else signed(by.mean)
    return f"**{text}**" if by.size > 1 and abs(by.mean) > CLEAR * by.standard_error else text


def signed(number: float, digits: int = 1) -> str:
    """A number with its sign.

    >>> signed(-0.25, 2)
    '−0.25'
    """
    return f"{number:+.{digits}f}".replace("-", "−")


def short(text: str) -> str:
    """Shares without the zero before the point.

    >>> short("0.502 ± 0.001")
    '.502 ± .001'
    """
    return text.replace("0.", ".")


def digits(number: float) -> str:
    """Three digits, or all whole ones.

    >>> digits(0.0623), digits(1234.5)
    ('0.0623', '1,234')
    """
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def count_text(count: float) -> str:
    """A count in thousands or millions.

    >>> count_text(933), count_text(142_087), count_text(51_146_247)
    ('933', '142 k', '51.1 M')
    """
    if count < 999.5:
        return f"{count:.0f}"
    return f"{digits(count / 1e3)} k" if count < 999_500 else f"{digits(count / 1e6)} M"


def seconds_text(seconds: float) -> str:
    """A short time in milliseconds, or in seconds.

    >>> seconds_text(0.00123), seconds_text(2.5)
    ('1.23 ms', '2.5 s')
    """
    return f"{digits(1e3 * seconds)} ms" if seconds < 0.9995 else f"{digits(seconds)} s"


def bytes_text(size: float) -> str:
    """A size in memory.

    >>> bytes_text(40 << 20), bytes_text(3 << 30)
    ('40 MiB', '3 GiB')
    """
    return f"{digits(size / (1 << 20))} MiB" if size < 1000 << 20 else f"{digits(size / (1 << 30))} GiB"

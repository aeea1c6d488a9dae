"""Studies: experiments of the paper that one function measures, without cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from magna.paper.render import TextTable

Rows = Sequence[Mapping[str, str]]  # lines of a figure's CSV file, as `csv.DictReader` reads them


class Missing(NamedTuple):
    """A cell without a result, the command that makes it, and the seconds that it will take."""

    cell: str
    command: str
    forecast_s: float | None = None
    device: str | None = None  # of the forecast


@dataclass(frozen=True)
class StudyJob:
    """Options of a study."""

    run_dir: Path  # keeps the runs that a study trains
    results: Path | None = None  # folder of the committed results; None: none are read
    quick: bool = False
    seeds: int | None = None  # None: those of the study
    datasets: Sequence[str] | None = None  # None: those of the paper
    data_dir: str | Path | None = None
    device: str = "auto"
    say: Callable[[str], None] = lambda line: None

    def count(self, full: int, quick: int) -> int:
        """The number of seeds: as asked for, else that of the study or of its quick form."""
        return self.seeds if self.seeds is not None else quick if self.quick else full


@dataclass(frozen=True)
class Outcome:
    """Results of a study.

    Args:
        table: lines of the CSV file; of a figure, everything that it shows.
        caption: one or two sentences, without the word "quick".
        summary: what a terminal shows in place of the table; None: the table.
        missing: what could not be measured.
    """

    table: TextTable
    caption: str
    summary: TextTable | None = None
    missing: Sequence[Missing] = ()

    @property
    def shown(self) -> TextTable:
        return self.summary or self.table


def as_rows(table: TextTable) -> list[dict[str, str]]:
    """Lines of a table by column.

    >>> as_rows(TextTable(["K", "accuracy"], [["1", "80.0"]]))
    [{'K': '1', 'accuracy': '80.0'}]
    """
    return [dict(zip(table.header, row, strict=True)) for row in table.rows]


def column(rows: Rows, name: str, **where: Any) -> list[float]:
    """Numbers of a column, in the lines whose other columns have these values.

    >>> column([{"K": "1", "ms": "2.5"}, {"K": "2", "ms": "4"}], "ms", K=1)
    [2.5]
    """
    return [float(row[name]) for row in rows if all(row[key] == str(value) for key, value in where.items())]

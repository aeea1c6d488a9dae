"""Searches of the cells that have one: run, found again, and their committed form, one line a row."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch

from magna.config.atomic_files import write_whole
from magna.config.schema import Config
from magna.errors import ArgumentError
from magna.paper.cell import Cell
from magna.paper.node_systems import SYSTEMS, Space, space_of
from magna.paper.records import PROTOCOL
from magna.paper.tuning import NodeSearch, read_node_search, search_key, search_settings
from magna.tasks import NodeClassification, make_task

FILE, TRIALS = "search.csv", "trials.csv.gz"
_COLUMNS = ("dataset", "row", "key", "trials", "valid", "widened", "seconds", "device", "commit", "date", "settings")
_TRIAL_COLUMNS = ("dataset", "row", "number", "valid", "epochs", "stopped", "refused", "seconds", "draw")


@dataclass(frozen=True)
class SearchStore:
    """Chosen settings of cells, from files that searches write and from the committed results."""

    out: Path | None = None  # folder of the files, `searches/TABLE/DATASET/ROW.json`
    results: Path | None = None  # folder of the committed results
    _committed: dict[str, dict[tuple[str, str], dict[str, str]]] = field(default_factory=dict)

    def chosen(self, cell: Cell) -> Cell | None:
        """The cell with the settings that its search chose; None before its end."""
        chosen = self._chosen(cell)
        if not chosen:
            return None
        config = cell.config.with_values(chosen, drop_idle=True)
        return replace(cell, config=config, changes=(*cell.changes, *chosen), is_settled=True)

    def run(
        self, cell: Cell, task_of: Callable[[Config], NodeClassification], origin: Mapping[str, Any], say: Any
    ) -> Cell:
        """Search the settings of a cell, or continue its search, and return the settled cell."""
        assert cell.effort is not None
        space = _space(cell)
        place = cell.config, space, cell.effort, f"{cell.table}/{cell.dataset}/{cell.row}", self._path(cell)
        search_settings(*place, task_of, origin, PROTOCOL, say)
        settled = self.chosen(cell)
        assert settled is not None
        return settled

    def collect(self, table: str, cells: Iterable[Cell]) -> None:
        """Add the finished searches of a table to its committed results."""
        assert self.results is not None
        committed, collected = dict(self._lines(table)), False
        trials = list(_read_trials(self.results / table / TRIALS))
        for cell in cells:
            search = read_node_search(self._path(cell)) if not cell.is_settled else None
            if search is None or search.key != _key(cell) or not search.chosen:
                continue
            collected = True
            committed[cell.dataset, cell.row] = _line(cell, search)
            trials = [line for line in trials if (line["dataset"], line["row"]) != (cell.dataset, cell.row)]
            trials += _trial_lines(cell, search)
        if collected:
            folder = self.results / table
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / FILE, _csv(_COLUMNS, committed.values()).encode(), again="the same command")
            packed = gzip.compress(_csv(_TRIAL_COLUMNS, trials).encode(), mtime=0)
            write_whole(folder / TRIALS, packed, again="the same command")
            self._committed.pop(table, None)

    def seconds(self, table: str, dataset: str) -> dict[str, list[float]]:
        """Seconds of the committed searches of a table on a data set, by device."""
        seconds: dict[str, list[float]] = {}
        for (name, _), line in self._lines(table).items():
            if name == dataset:
                seconds.setdefault(line["device"], []).append(float(line["seconds"]))
        return seconds

    def _chosen(self, cell: Cell) -> tuple[str, ...]:
        key = _key(cell)
        search = None if self.out is None else read_node_search(self._path(cell))
        if search is not None and search.key == key and search.chosen:
            return tuple(search.chosen)
        line = self._lines(cell.table).get((cell.dataset, cell.row), {})
        return tuple(shlex.split(line["settings"])) if line.get("key") == key else ()

    def _path(self, cell: Cell) -> Path:
        if self.out is None:
            raise ArgumentError("out", None, "a folder, as searches are written to it")
        return self.out / "searches" / cell.path

    def _lines(self, table: str) -> dict[tuple[str, str], dict[str, str]]:
        if table not in self._committed:
            file = None if self.results is None else self.results / table / FILE
            lines = [] if file is None or not file.is_file() else list(_rows(file.read_text(encoding="utf-8")))
            self._committed[table] = {(line["dataset"], line["row"]): line for line in lines}
        return self._committed[table]


class Tasks:
    """The task of each form of a data set, read once; all forms of one data set at a time."""

    def __init__(self, data_dir: str | Path | None, device: torch.device) -> None:
        self.data_dir, self.device = data_dir, device
        self._tasks: dict[Any, NodeClassification] = {}

    def __call__(self, config: Config) -> NodeClassification:
        data: Any = config.data.with_defaults(["split_seed"])
        if data not in self._tasks:
            self._tasks = {key: task for key, task in self._tasks.items() if key.name == data.name}
            self._tasks[data] = cast(NodeClassification, make_task(config, self.data_dir, self.device))
        return self._tasks[data]


def _key(cell: Cell) -> str:
    """Fingerprint of the search of a cell that has no settings yet."""
    assert cell.effort is not None
    return search_key(cell.config, _space(cell), cell.effort, PROTOCOL)


def _space(cell: Cell) -> Space:
    return space_of(cell.config, cell.table, SYSTEMS[cell.row].fixed)


def _line(cell: Cell, search: NodeSearch) -> dict[str, Any]:
    best = search.best
    values = cell.dataset, cell.row, search.key, len(search.trials), f"{fmean(best.valid):.4f}"
    origin = (search.origin.get(name) for name in ("device", "commit", "date"))
    rest = " ".join(search.widened).replace(", ", ","), round(search.seconds, 1), *origin, shlex.join(search.chosen)
    return dict(zip(_COLUMNS, (*values, *rest), strict=True))


def _trial_lines(cell: Cell, search: NodeSearch) -> Iterator[dict[str, Any]]:
    for number, trial in enumerate(search.trials):
        valid = " ".join(f"{value:.4f}" for value in trial.valid)
        draw = json.dumps(trial.draw, ensure_ascii=False)
        values = cell.dataset, cell.row, number, valid, trial.epochs, int(trial.stopped), trial.refused, trial.seconds
        yield dict(zip(_TRIAL_COLUMNS, (*values, draw), strict=True))


def _read_trials(file: Path) -> Iterator[dict[str, str]]:
    return _rows(gzip.decompress(file.read_bytes()).decode()) if file.is_file() else iter(())


def _rows(text: str) -> Iterator[dict[str, str]]:
    return csv.DictReader(io.StringIO(text, newline=""))


def _csv(columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()

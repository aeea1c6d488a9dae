"""Cells of a table on disk: one JSON file a cell while they are trained, and their committed form."""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import torch

from magna.config.atomic_files import write_whole
from magna.config.schema import Config, load_recipe, recipe_names
from magna.errors import DataError
from magna.paper.claims import claimed
from magna.paper.experiments import Cell, cell_path
from magna.paper.node_search import SearchStore
from magna.paper.records import PROTOCOL, Record, read_records, settings_of, write_records
from magna.paper.searches import Search, read_search, read_searches, write_search, write_searches
from magna.training.environment import environment

PROGRESS_SECONDS = 10  # at least, between two lines about the same training

Say = Callable[[str], None]
Records = Mapping[tuple[str, str], Sequence[Record]]  # (row, data set) → its records, one a random split


@dataclass(frozen=True)
class CellStore:
    """Records of cells, from files that training writes and from the committed results."""

    out: Path | None = None  # folder of the files, `TABLE/DATASET/ROW.json`
    results: Path | None = None  # folder of the committed results
    _committed: dict[str, dict[Any, Record]] = field(default_factory=dict)

    def runs(self, cell: Cell) -> list[dict[str, Any]]:
        """Runs of a cell by seed; none of other settings or of an older protocol, or of an unfinished search."""
        chosen = self.chosen(cell)
        current = [record for record in self._of(cell) if chosen is not None and record.is_current(chosen.config)]
        return list(reduce(Record.joined, current).runs) if current else []

    def is_outdated(self, cell: Cell) -> bool:
        """True if all runs of a cell are of other settings or of an older protocol."""
        return bool(self._of(cell)) and not self.runs(cell)

    def chosen(self, cell: Cell) -> Cell | None:
        """The cell with the settings to train: its own, or those that its search has chosen; None before its end."""
        if cell.is_settled:
            return cell
        if cell.config.task.SHARES_BATCH:
            return self.node_searches.chosen(cell)
        return self.search(cell).chosen(cell)

    def settled(self, cell: Cell) -> Cell:
        """The cell with its chosen settings, or as it is before the end of its search."""
        return self.chosen(cell) or cell

    @cached_property
    def node_searches(self) -> SearchStore:
        return SearchStore(self.out, self.results)

    def search(self, cell: Cell) -> Search:
        """The search of a cell so far."""
        searches = [Search.start(cell)]
        if self.results is not None:
            searches += [
                each for each in [read_searches(self.results, cell.table).get((cell.dataset, cell.row))] if each
            ]
        if self.out is not None and self._search_path(cell).is_file():
            with suppress(DataError):  # a damaged file is made again, and replaced
                searches.append(read_search(self._search_path(cell)))
        return max((each for each in searches if each.is_current(cell)), key=lambda each: len(each.trials))

    def add_trial(self, cell: Cell, search: Search, trial: Mapping[str, Any]) -> Search:
        """Write the search of a cell with one more trial, and return it."""
        search = replace(search, trials=[*search.trials, trial])
        write_search(self._search_path(cell), search)
        return search

    def write(self, cell: Cell, runs: Sequence[dict[str, Any]], machine: Mapping[str, Any]) -> None:
        """Write the file of a cell."""
        if self.out is None:
            raise ValueError("a store without a folder cannot be written")
        record = Record(
            dataset=cell.dataset,
            row=cell.row,
            recipe=cell.config.recipe,
            changes=cell.changes,
            settings=settings_of(cell.config),
            protocol=PROTOCOL,
            machine=machine,
            runs=runs,
            split=cell.split,
        )
        text = json.dumps(asdict(record), indent=1, ensure_ascii=False) + "\n"
        write_whole(self.out / cell.path, text.encode(), again="the same command")

    def read(self, table: str, expected: Mapping[str, Config] | None = None, without: Collection[str] = ()) -> Records:
        """Records of a table, without those whose settings are not the `expected` ones of their path."""
        joined: dict[str, Record] = {}
        files = [] if self.out is None else sorted((self.out / table).rglob("*.json"))
        for record in (*self._read_committed(table).values(), *map(_read_file, files)):
            path = cell_path(table, record.dataset, record.row, record.split)
            config = (expected or {}).get(path)
            if path not in without and (config is None or record.is_current(config)):
                joined[path] = joined[path].joined(record) if path in joined else record
        records: dict[tuple[str, str], list[Record]] = {}
        for record in joined.values():
            records.setdefault((record.row, record.dataset), []).append(record)
        return records

    def collect(self, table: str, cells: Iterable[Cell]) -> list[str]:
        """Add the files of the cells of a table to its committed results; return the paths of the files."""
        cells = list(cells)
        self.node_searches.collect(table, [cell for cell in cells if cell.config.task.SHARES_BATCH])
        if self.out is None or self.results is None:
            raise ValueError("cells are collected from one folder into another; one of them is missing")
        records, collected = dict(self._read_committed(table)), list[str]()
        searches = read_searches(self.results, table)
        for cell in cells:
            path, chosen = self.out / cell.path, self.chosen(cell)
            if cell.table != table or not path.is_file() or chosen is None:
                continue
            record = _read_file(path)
            if not record.is_current(chosen.config):
                continue
            if unclean := [run["seed"] for run in record.runs if (run.get("commit") or "-dirty").endswith("-dirty")]:
                fault = f"the code that trained seeds {', '.join(map(str, unclean))} is no commit"
                raise DataError(path, fault, hint="the same training from a clean checkout")
            before = records.get(record.place)
            joined = before.joined(record) if before is not None and before.is_current(chosen.config) else record
            records[record.place] = _as_changes(replace(joined, machine=record.machine))
            collected.append(cell.path)
            if cell.trials and not cell.config.task.SHARES_BATCH:
                searches[cell.dataset, cell.row] = self.search(cell)
        if searches:
            write_searches(self.results, table, searches.values())
        if collected:
            write_records(self.results, table, records.values())
            self._committed.pop(table)
        return collected

    def _search_path(self, cell: Cell) -> Path:
        if self.out is None:
            raise ValueError("a store without a folder keeps no search")
        return self.out / "searches" / cell.path

    def _of(self, cell: Cell) -> list[Record]:
        committed = self._read_committed(cell.table).get((cell.dataset, cell.row, cell.split))
        records = [] if committed is None else [committed]
        if self.out is not None and (self.out / cell.path).is_file():
            with suppress(DataError):  # a damaged file is trained again, and replaced
                records.append(_read_file(self.out / cell.path))
        return records

    def _read_committed(self, table: str) -> dict[Any, Record]:
        if table not in self._committed:
            self._committed[table] = {} if self.results is None else read_records(self.results, table)
        return self._committed[table]


class Job:
    """Options that all cells of one command share, with the machine, the commit and the date of its start."""

    def __init__(
        self, store: CellStore, seeds: int, data_dir: str | Path | None, device: torch.device, say: Say
    ) -> None:
        self.store, self.seeds, self.data_dir, self.device, self.say = store, seeds, data_dir, device, say
        self.machine = environment(device)
        date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
        self.busy: list[str] = []  # paths of cells that other processes train
        self.origin = {"device": self.machine["device"], "commit": _commit(), "date": date}

    def seeds_of(self, cell: Cell) -> int:
        """Number of report seeds of a cell."""
        return self.seeds if cell.effort is None else min(self.seeds, cell.effort.seeds)

    @contextmanager
    def claim(self, cells: Iterable[Cell]) -> Iterator[list[Cell]]:
        """Those of the cells that no other process trains, and that none trains meanwhile."""
        if self.store.out is None:
            raise ValueError("a store without a folder cannot be written")
        with ExitStack() as claims:
            free = []
            for cell in cells:
                if claims.enter_context(claimed(self.store.out / cell.path)):
                    free.append(cell)
                else:
                    self.busy.append(cell.path)
                    self.say(f"{cell.dataset}, {cell.row}: left out, as another process trains it")
            yield free

    def one_by_one(self, cells: Iterable[Cell]) -> Iterator[Cell]:
        """The cells that no other process trains, each claimed until the next."""
        for cell in cells:
            with self.claim([cell]) as free:
                yield from free


def _read_file(path: Path) -> Record:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        tuples = {key: tuple(content[key]) for key in ("changes", "settings")}
        return Record(**content | tuples)
    except (ValueError, KeyError, TypeError):
        raise DataError(path, "is no cell of a table", hint="to delete it, then it is trained again") from None


def _as_changes(record: Record) -> Record:
    """The record with the settings of its recipe alone, where recipe and changes give the same training."""
    if record.recipe not in recipe_names():
        return record
    of_recipe = replace(record, settings=settings_of(load_recipe(record.recipe)))
    return of_recipe if of_recipe.trained_settings == record.trained_settings else record


def _commit() -> str | None:
    """The commit of this source, or None for a package that is installed without its history."""
    file = Path(__file__)
    try:
        # A package inside another repository is none of its files.
        for command in (["ls-files", "--error-unmatch", file.name], ["describe", "--always", "--dirty"]):
            done = subprocess.run(["git", *command], cwd=file.parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()

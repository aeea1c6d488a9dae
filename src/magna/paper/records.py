"""Committed results: per table one `runs.csv`, a line a run, and one `cells.toml`, a line a cell."""

from __future__ import annotations

import csv
import io
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from magna.config.atomic_files import write_whole
from magna.config.schema import Config
from magna.config.toml import parse, toml, toml_key
from magna.errors import DataError

# Raised when the training or the scoring of a cell changes in a way that its settings do not show.
PROTOCOL = 1
RUNS, CELLS = "runs.csv", "cells.toml"

_TRAINED = ("data", "model", "task", "train")  # the tables of a config that training reads
_PER_RUN = ("train.seed", "data.split_seed")  # columns of `runs.csv`
_PLACE = ("dataset", "row", "split")
_COLUMNS: dict[str, type] = {
    **{"seed": int, "epochs": int, "best_epoch": int, "seconds": float},
    **{"parameters": int, "peak_bytes": int},
}
_ORIGIN = ("device", "commit", "date")
_REPEAT = "the same command"

Place = tuple[str, str, int | None]  # data set, row and split
Runs = list[dict[str, Any]]


@dataclass(frozen=True)
class Record:
    """The runs of a cell, with everything that is needed to repeat them."""

    dataset: str
    row: str
    recipe: str
    changes: tuple[str, ...]  # of the recipe, as `key=value`
    settings: tuple[str, ...]  # of the recipe, other than the defaults
    protocol: int  # `PROTOCOL` at the time of the runs
    machine: Mapping[str, Any]  # that trained the last runs
    runs: Sequence[dict[str, Any]]  # seed, epochs, seconds, metrics by split, device, commit and date
    split: int | None = None  # number of the random split, None for the public one

    @property
    def place(self) -> Place:
        return self.dataset, self.row, self.split

    @property
    def trained_settings(self) -> tuple[str, ...]:
        """Settings of the recipe with its changes, other than the defaults."""
        recipe = Config().with_values(self.settings, drop_idle=True)
        return settings_of(recipe.with_values(self.changes, drop_idle=True))

    def is_current(self, config: Config) -> bool:
        """True if the cell, trained today from `config`, would be trained the same way."""
        try:
            return self.protocol == PROTOCOL and self.trained_settings == settings_of(config)
        except ValueError:  # a setting that no longer exists
            return False

    def joined(self, other: Record) -> Record:
        """The cell with the seeds of another record that it lacks."""
        runs = {run["seed"]: run for run in (*other.runs, *self.runs)}
        return replace(self, runs=[runs[seed] for seed in sorted(runs)])


def settings_of(config: Config) -> tuple[str, ...]:
    """Settings of a config other than the defaults, as `key=value`, without the seeds.

    >>> settings_of(Config().with_values(["train.epochs=40", "model.top_k=5", "train.seed=3"]))
    ('model.top_k=5', 'train.epochs=40')
    """
    names = {f"{part}.name": getattr(config, part).name for part in ("model", "task")}
    changed = {key: name for key, name in names.items() if name != getattr(Config(), key.partition(".")[0]).name}
    for part in _TRAINED:
        changed |= {f"{part}.{name}": value for name, value in getattr(config, part).changes().items()}
    return tuple(f"{key}={_text(value)}" for key, value in changed.items() if key not in _PER_RUN)


def read_records(results: Path, table: str) -> dict[Place, Record]:
    """Committed cells of a table by data set, row and split."""
    folder = results / table
    if not (folder / CELLS).is_file():
        return {}
    try:
        content = tomllib.loads((folder / CELLS).read_text(encoding="utf-8"))
        runs = _read_runs(folder / RUNS)
        records = [record for cell in content["cells"] for record in _cell_records(cell, content, runs)]
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise DataError(folder, f"the results of this table cannot be read ({error})", hint="git checkout") from error
    return {record.place: record for record in records}


def write_records(results: Path, table: str, records: Iterable[Record]) -> None:
    """Write `runs.csv` and `cells.toml` of a table."""
    folder, records = results / table, list(records)
    recipes: dict[str, tuple[str, ...]] = {}
    machines: dict[str, Mapping[str, Any]] = {}
    cells: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in records:
        cell: dict[str, Any] = {
            "dataset": record.dataset,
            "row": record.row,
            "recipe": _numbered(recipes, record.recipe, record.settings),
            "changes": list(record.changes),
            "protocol": record.protocol,
            "machine": _numbered(machines, str(record.machine["device"]), record.machine),
        }
        cell = cells.setdefault(tuple(map(str, cell.values())), cell | {"splits": []})
        cell["splits"] += [] if record.split is None else [record.split]
    filled = ({key: value for key, value in cell.items() if value != []} for cell in cells.values())
    lines = ["cells = [", *(f"  {toml(cell)}," for cell in filled), "]", "", "[recipes]"]
    for name, settings in recipes.items():
        line = f"{toml_key(name)} = {toml(list(settings))}"
        lines += textwrap.wrap(line, 160, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    lines += ["", "[machines]", *(f"{toml_key(name)} = {toml(machine)}" for name, machine in machines.items())]
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / RUNS, _runs_text(records).encode(), again=_REPEAT)
    write_whole(folder / CELLS, ("\n".join(lines) + "\n").encode(), again=_REPEAT)


def _text(value: Any) -> str:
    """A value as `--set` reads it: a text without quotes, unless that is another value."""
    return value if isinstance(value, str) and parse(value) == value else toml(value)


def _numbered(named: dict[str, Any], name: str, content: Any) -> str:
    """The name of a content in a list: `name`, or `name (2)` if it already names another."""
    for number in count(1):
        key = name if number == 1 else f"{name} ({number})"
        if named.setdefault(key, content) == content:
            return key
    raise AssertionError


def _cell_records(cell: Mapping[str, Any], content: Mapping[str, Any], runs: Mapping[Place, Runs]) -> Iterator[Record]:
    for split in cell.get("splits", [None]):
        yield Record(
            dataset=cell["dataset"],
            row=cell["row"],
            recipe=cell["recipe"].partition(" (")[0],
            changes=tuple(cell.get("changes", ())),
            settings=tuple(content["recipes"][cell["recipe"]]),
            protocol=cell["protocol"],
            machine=content["machines"][cell["machine"]],
            runs=runs[cell["dataset"], cell["row"], split],
            split=split,
        )


def _read_runs(path: Path) -> dict[Place, Runs]:
    runs: dict[Place, Runs] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            run: dict[str, Any] = {key: kind(line[key]) for key, kind in _COLUMNS.items() if line.get(key)}
            for column, text in line.items():
                part, point, metric = column.partition(".")
                if point and text:
                    run.setdefault(part, {})[metric] = float(text)
            run |= {key: line.get(key) or None for key in _ORIGIN}
            split = int(line["split"]) if line["split"] else None
            runs.setdefault((line["dataset"], line["row"], split), []).append(run)
    return runs


def _runs_text(records: Iterable[Record]) -> str:
    lines = []
    for record in records:
        for run in record.runs:
            parts = {part: table for part, table in run.items() if isinstance(table, Mapping)}
            scores = {f"{part}.{metric}": value for part, table in parts.items() for metric, value in table.items()}
            line = dict(zip(_PLACE, record.place, strict=True)) | {key: run.get(key) for key in (*_COLUMNS, *_ORIGIN)}
            lines.append(line | scores)
    columns = list(dict.fromkeys(key for line in lines for key in line))
    used = [column for column in columns if column in _PLACE or any(line.get(column) is not None for line in lines)]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, used, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()

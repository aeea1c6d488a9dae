"""The list of experiments: how much of each is done, what is missing, and what it costs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from magna.paper.cell import Cell
from magna.paper.cells import CellStore
from magna.paper.experiments import EXPERIMENTS, cells
from magna.paper.link_search import LIMIT_SECONDS
from magna.paper.node_search import SearchStore
from magna.paper.published import PAPER_LINK_BASELINES
from magna.paper.records import Record, read_records
from magna.paper.registry import ALSO_CALLED, REGISTRY, Entry
from magna.paper.study import Missing

BASELINES = {"table3": PAPER_LINK_BASELINES}
TRAINING = "training"  # the committed runs of `magna train`


def list_experiments(results: str | Path, work: str | Path) -> dict[str, Any]:
    """Every experiment: its name, what it measures, what it costs, and how much of it is done."""
    store = CellStore(Path(work), Path(results))
    other_names = {name: other for other, name in ALSO_CALLED.items()}
    listed = []
    for name, entry in REGISTRY.items():
        line: dict[str, Any] = {"name": name, "kind": entry.kind, "measures": entry.measures}
        line |= {"also_called": other_names.get(name), "seconds": entry.seconds}
        line |= {"quick_seconds": entry.quick_seconds, "device": "cpu" if entry.study else None}
        line |= {"cells": 0, "done": 0, "missing": [], "quoted": [], "on_request": None}
        if entry.cells:
            line |= _progress(name, entry, Path(results), store)
        listed.append(line | {"state": _state(line)})
    return {"experiments": listed}


def _progress(name: str, entry: Entry, results: Path, store: CellStore) -> dict[str, Any]:
    """Cells of a table, the done ones, those that lack seeds, and the committed seconds of training."""
    chosen = [store.settled(cell) for cell in cells(entry.cells)]
    records = read_records(results, entry.cells).values()
    missing = [cell for cell in chosen if len(store.runs(cell)) < cell.seeds_of(EXPERIMENTS[entry.cells].seeds)]
    runs = [run for record in records for run in record.runs]
    return {
        "cells": len(chosen),
        "done": len(chosen) - len(missing),
        "missing": [each._asdict() for each in as_missing(name, missing, EXPERIMENTS[entry.cells].seeds, results)],
        "on_request": _on_request(name, entry, results, store),
        "quoted": _quoted(entry.cells, chosen),
        "seconds": round(sum(run["seconds"] for run in runs)) if runs else None,
        "device": ", ".join(dict.fromkeys(run["device"] for run in runs)) or None,
    }


def _on_request(name: str, entry: Entry, results: Path, store: CellStore) -> dict[str, Any] | None:
    """Cells on the data sets that the paper does not have, the done ones, and the seconds of the others; None: none."""
    experiment = EXPERIMENTS[entry.cells]
    chosen = cells(entry.cells, experiment.also)
    missing = as_missing(name, [cell for cell in chosen if not store.runs(cell)], experiment.seeds, results)
    forecasts = [each.forecast_s for each in missing if each.forecast_s is not None]
    counts = {
        "cells": len(chosen),
        "done": len(chosen) - len(missing),
        "without_forecast": len(missing) - len(forecasts),
    }
    return {"datasets": list(experiment.also)} | counts | {"forecast_s": sum(forecasts)} if chosen else None


def _quoted(table: str, chosen: Sequence[Cell]) -> list[str]:
    """Baselines of the paper's table that have no cell here."""
    measured = {cell.row for cell in chosen}
    return [model for model in BASELINES.get(table, ()) if model not in measured]


def _state(line: Mapping[str, Any]) -> str:
    if not line["cells"]:
        return "measured when asked for"
    return "done" if line["done"] == line["cells"] else f"{line['done']} of {line['cells']} cells"


def as_missing(name: str, chosen: Sequence[Cell], seeds: int, results: Path | None) -> list[Missing]:
    """The command of each cell, and its seconds by the committed runs of its recipe.

    A searched node model takes what the committed searches and reports of other rows of its table took on its data.
    Without runs of the recipe, the trials and seeds of a searched link model take their limit at most; others are
    forecast by the seconds of an epoch in the runs of other recipes on their data.
    """
    searches = SearchStore(results=results)
    tables = (*EXPERIMENTS, TRAINING) if results is not None and chosen else ()
    records = [record for table in tables for record in read_records(Path(results or ""), table).values()]
    missing = []
    for cell in chosen:
        command = f"magna reproduce {name} --dataset {cell.dataset} --row {shlex.quote(cell.row)}"
        seconds, devices = _seconds_of_run(cell, records)
        forecast = None if seconds is None else round((cell.seeds_of(seeds) + cell.trials) * seconds, 1)
        if cell.effort is not None and (known := searches.seconds(cell.table, cell.dataset)):
            forecast, devices = _seconds_of_searched(cell, cell.seeds_of(seeds), known, results)
        missing.append(Missing(cell.path, command, forecast, devices))
    return missing


def _seconds_of_searched(
    cell: Cell, seeds: int, searches: Mapping[str, Sequence[float]], results: Path | None
) -> tuple[float, str]:
    """Seconds of the search, unless it has ended, and of the report, by the other rows of a table; their device."""
    device = max(searches, key=lambda each: len(searches[each]))
    records = read_records(Path(results or ""), cell.table).values()
    runs = [run for record in records if record.dataset == cell.dataset for run in record.runs]
    report = [run["seconds"] for run in runs if run["device"] == device]
    search = fmean(searches[device]) if cell.trials else 0.0
    return round(search + seeds * (fmean(report) if report else 0.0), 1), device


def _seconds_of_run(cell: Cell, records: Sequence[Record]) -> tuple[float | None, str | None]:
    """Seconds of one run of a cell, and the devices of the runs that they were learned from."""
    runs = [run for record in records if record.recipe == cell.config.recipe for run in record.runs]
    seconds = [run["seconds"] for run in runs]
    if not runs and cell.trials and not cell.config.task.SHARES_BATCH:
        return LIMIT_SECONDS, "one CPU core, at most"
    if not runs:
        data = f"data.name={cell.config.data.name}"
        runs = [run for record in records if data in record.settings for run in record.runs]
        seconds = [cell.config.train.epochs * run["seconds"] / run["epochs"] for run in runs]
    return (fmean(seconds) if runs else None), ", ".join(dict.fromkeys(run["device"] for run in runs)) or None

"""`magna reproduce`: train the missing cells of a table, and continue after a stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import torch

from magna.config.atomic_files import make_folder
from magna.config.schema import REPORT_SEEDS
from magna.errors import ArgumentError, DataError, Diverged
from magna.paper.cell import Cell
from magna.paper.cell_runs import Failed, train_cells
from magna.paper.cells import PROGRESS_SECONDS, CellStore, Job, Records
from magna.paper.experiments import EXPERIMENTS, cells, quick_cells
from magna.paper.node_search import Tasks
from magna.paper.records import RUNS
from magna.paper.render import TextTable
from magna.paper.tables import make_table
from magna.tasks import NodeClassification, make_task
from magna.tasks.metrics import import_stats
from magna.training.loop import TrialResult
from magna.training.progress import seldom
from magna.training.run_folder import pick_device
from magna.training.trials import structure, train_trials

QUICK_SEEDS = 2


def reproduce(
    name: str,
    *,
    work: str | Path,
    results: str | Path | None = None,
    seeds: int | None = None,
    quick: bool = False,
    datasets: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    data_dir: str | Path | None = None,
    run_dir: str | Path | None = None,
    device: str = "auto",
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Train the cells of a table that neither `work` nor `results` holds, and return the table.

    Cells are written to `work`, a file each. `results` is the folder of the committed cells; None: none are read. Link
    prediction trains in `run_dir`; None: runs/reproduce[-quick]. `seeds` counts the report seeds of each cell, from 0;
    None: those of the table. With `rows`, several processes can share a table. `quick` trains two seeds of a few rows
    on one data set, with a short patience. Without `datasets`, those whose files are missing are named and left out.

    Returns:
        The table, and in `cells` the files that hold them. `diverged` names the cells without a result, because the
        loss of a seed was not finite, `unavailable` those whose package is not installed, `without_data` those whose
        data is missing, and `busy` those that another process trains. `outdated` names the cells whose recipe or
        protocol has changed since they were trained.
    """
    if name == "random-splits":
        import_stats()  # refuses a missing package before hours of training
    chosen = _cells(name, quick, datasets, rows)
    experiment = EXPERIMENTS[name]
    if run_dir is not None and chosen and all(cell.config.task.SHARES_BATCH for cell in chosen):
        raise ArgumentError("run_dir", str(run_dir), f"with table3 alone, as {name} keeps no run")
    count = seeds if seeds is not None else QUICK_SEEDS if quick else experiment.seeds
    if not 1 <= count <= len(REPORT_SEEDS):
        raise ArgumentError("seeds", count, f"1 to {len(REPORT_SEEDS)}")
    store = CellStore(make_folder(work, "work"), None if results is None else Path(results))
    job = Job(store, count, data_dir, torch.device(pick_device(device)), say, needs_data=datasets is not None)
    chosen = [store.settled(cell) for cell in chosen]
    missing = [cell for cell in chosen if len(store.runs(cell)) < job.seeds_of(cell)]
    figures = f"{len(chosen)} figure{'s' * (len(chosen) != 1)} of {count} seed{'s' * (count != 1)} each"
    say(f"{name}: {figures}, {len(chosen) - len(missing)} of them done before")
    failed = _train_missing(missing, job, Path(run_dir or f"runs/reproduce{'-quick' * quick}"))
    without = {*failed.diverged, *failed.unavailable, *job.without_data, *job.busy}
    # A quick table shows what was asked for, not what other quick runs have left.
    every = chosen if quick else [store.settled(cell) for cell in _cells(name, quick, experiment.every)]
    table = _table(name, store, every, [*failed.diverged, *failed.unavailable], alone=quick)
    return {
        "table": name,
        "quick": quick,
        "datasets": list(dict.fromkeys(cell.dataset for cell in every)),
        "work": str(work),
        "seeds": count,
        "device": job.machine["device"],
        "trained": len(missing) - len(without),
        "busy": job.busy,
        **failed._asdict(),
        "without_data": job.without_data,
        "outdated": [cell.path for cell in every if store.is_outdated(cell)],
        "cells": list(dict.fromkeys(_file(cell, store) for cell in chosen if cell.path not in without)),
        **table._asdict(),
    }


def collect(name: str, *, work: str | Path, results: str | Path) -> dict[str, Any]:
    """Add the finished cells in `work` to the committed `results`, and return the table.

    A cell of other settings than its recipe, or of a changed checkout, is not added.
    """
    store = CellStore(Path(work), Path(results))
    collected = store.collect(name, cells(name, EXPERIMENTS[name].every))
    committed = CellStore(results=Path(results))
    return {"table": name, "results": str(results), "collected": collected} | make_table(name, committed.read)._asdict()


def _table(name: str, store: CellStore, every: Sequence[Cell], without: Sequence[str], *, alone: bool) -> TextTable:
    """The table from the records of its cells; `alone`: without other records in the folders."""
    chosen = {cell.path: store.chosen(cell) for cell in every}
    expected = {path: cell.config for path, cell in chosen.items() if cell is not None}
    without = [*without, *(path for path, cell in chosen.items() if cell is None)]
    wanted = {(cell.row, cell.dataset) for cell in every}

    def read(part: str) -> Records:
        records = store.read(part, expected, without)
        return {place: each for place, each in records.items() if not alone or place in wanted}

    return make_table(name, read)


def _file(cell: Cell, store: CellStore) -> str:
    """File of a cell below `work`, or the table of the committed results that holds it."""
    if store.out is not None and (store.out / cell.path).is_file():
        return cell.path
    return f"{store.results}/{cell.table}/{RUNS}"


def _cells(name: str, quick: bool, datasets: Sequence[str] | None, rows: Sequence[str] | None = None) -> Sequence[Cell]:
    """Cells of a table, in their quick form with `quick`."""
    return quick_cells(name, datasets, rows) if quick else cells(name, datasets, rows)


def _train_missing(missing: Sequence[Cell], job: Job, run_dir: Path) -> Failed:
    """Train cells: those of nodes in batches, first those with a search, and those of links one by one in `run_dir`."""
    nodes = [cell for cell in missing if cell.config.task.SHARES_BATCH]
    diverged = _train_searched([cell for cell in nodes if cell.effort is not None], job)
    diverged += _train_groups([cell for cell in nodes if cell.effort is None], job)
    links = train_cells([cell for cell in missing if not cell.config.task.SHARES_BATCH], job, run_dir)
    return links._replace(diverged=diverged + links.diverged)


def _train_searched(missing: Sequence[Cell], job: Job) -> list[str]:
    """Search the settings of cells that lack them, and train each with its own, one cell after the other."""
    tasks, diverged = Tasks(job.data_dir, job.device), list[str]()
    for cell in job.one_by_one(missing):
        job.say(f"{missing.index(cell) + 1} of {len(missing)}: {cell.dataset}, {cell.row}")
        try:
            if not cell.is_settled:
                cell = job.store.node_searches.run(cell, tasks, job.origin, job.say)
            diverged += _train([cell], tasks(cell.config), job)
        except DataError as error:
            job.pass_over([cell], error)
        except Diverged as error:
            diverged.append(cell.path)
            job.say(f"{cell.dataset}, {cell.row}: {error}")
    return diverged


def _train_groups(missing: Sequence[Cell], job: Job) -> list[str]:
    """Train cells, those of one structure in one batch, and return the paths of those that diverged."""
    groups: dict[Hashable, list[Cell]] = {}
    for cell in missing:
        groups.setdefault(structure(cell.config), []).append(cell)
    done, diverged = 0, list[str]()
    task: NodeClassification | None = None
    data = None
    for members in groups.values():
        rows = list(dict.fromkeys(cell.row for cell in members))
        title = f"{rows[0]} and {len(rows) - 1} more" if len(rows) > 1 else rows[0]
        last, data = data, members[0].config.data.with_defaults(["split_seed"])
        if task is None or data != last:  # data that differ only in the split are read once
            try:
                task = cast(NodeClassification, make_task(members[0].config, job.data_dir, job.device))
            except DataError as error:
                task = None
                job.pass_over(members, error)
                continue
        job.say(f"{members[0].dataset}, {title}: training")
        started = time.perf_counter()
        with job.claim(members) as free:
            diverged += _train(free, task, job)
        done += len(members)
        job.say(f"{done} of {len(missing)}: {members[0].dataset}, {title} ({time.perf_counter() - started:.0f} s)")
    return diverged


def _train(members: Sequence[Cell], task: NodeClassification, job: Job) -> list[str]:
    """Train the missing seeds of cells of one structure, and return the paths of the cells that diverged.

    Runs are written when they leave their batch, so that a stop loses only the running ones. A cell with a diverged
    seed is not written.
    """
    say = seldom(job.say, PROGRESS_SECONDS)
    runs_of = {cell.path: job.store.runs(cell) for cell in members}
    missing = [
        (cell, seed)
        for cell in members
        for seed in REPORT_SEEDS[: job.seeds_of(cell)]
        if seed not in {run["seed"] for run in runs_of[cell.path]}
    ]
    diverged: list[str] = []

    def on_report(epoch: int, running: list[int], _scores: list[float]) -> Collection[int]:
        say(f"  epoch {epoch} of {missing[0][0].config.train.epochs}, {len(running)} runs at once")
        return ()

    def on_results(results: dict[int, TrialResult]) -> None:
        for cell in members:
            ended = [result for index, result in results.items() if missing[index][0] is cell]
            if not ended or cell.path in diverged:
                continue
            try:
                for result in ended:
                    result.check()
            except Diverged as error:
                # A mean over the other seeds would be too good.
                diverged.append(cell.path)
                job.say(f"{cell.dataset}, {cell.row}: {error}")
            else:
                runs = [*runs_of[cell.path], *(_run(result) | job.origin for result in ended)]
                runs_of[cell.path] = sorted(runs, key=itemgetter("seed"))
                job.store.write(cell, runs_of[cell.path], job.machine)

    configs = [cell.config.with_seed(seed) for cell, seed in missing]
    train_trials(configs, task, read_test=True, on_report=on_report, on_results=on_results)
    return diverged


def _run(result: TrialResult) -> dict[str, Any]:
    return {
        "seed": result.config.train.seed,
        "epochs": result.epochs,
        "best_epoch": result.best_epoch,
        "seconds": round(result.seconds, 3),
        "parameters": result.parameters,
        "peak_bytes": result.peak_bytes,
        "valid": result.valid,
        "test": result.test,
    }

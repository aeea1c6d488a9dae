"""`magna reproduce`: trains the cells of a table, one file each, and goes on where it was stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import torch

from magna.config.atomic_files import make_folder
from magna.config.schema import REPORT_SEEDS, Config
from magna.errors import Diverged
from magna.paper import experiments
from magna.paper.cell_runs import train_cells
from magna.paper.cells import Job, is_done, make_stamp, recorded_runs, write_cell
from magna.paper.experiments import EXPERIMENTS, Cell, cells
from magna.tasks import NodeClassification, make_task
from magna.training.run_folder import pick_device
from magna.training.trial_batch import TrialResult
from magna.training.trials import structure, train_trials

QUICK_SEEDS = 2


def reproduce(
    name: str,
    *,
    out: str | Path,
    seeds: int | None = None,
    quick: bool = False,
    datasets: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    data_dir: str | Path | None = None,
    run_dir: str | Path | None = None,
    device: str = "auto",
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Train every cell of a table that is not yet in `out`, and say which files hold it.

    A cell with a seed that diverged has no result (`diverged`). What `out` holds of the table from other settings than
    those of the recipes now is none of its figures (`outdated`): such cells were not asked for, or diverged.

    Args:
        name: table1, ablations, switches, random-splits or table3.
        out: results folder.
        seeds: report seeds of each cell, 0, 1, …; as many as `EXPERIMENTS` says where none are given.
        quick: 2 seeds, few epochs and, of link prediction, small models, to see the form of the table.
        datasets: some of those that the table has; None: those of the paper.
        rows: some of those that the table has, so that several processes can share it; None: all.
        run_dir: where link prediction keeps the run that is under way; None: runs/reproduce, or with `quick`
            runs/reproduce-quick, so that neither takes the other's place.
        say: gets a line about what happens.
    """
    chosen = _cells(name, quick, datasets, rows)
    experiment = EXPERIMENTS[name]
    if run_dir is not None and all(cell.config.task.name == "node_classification" for cell in chosen):
        raise ValueError(f"--run-dir is {run_dir}; allowed: with table3 alone, as {name} keeps no run; try without it")
    count = seeds if seeds is not None else QUICK_SEEDS if quick else experiment.seeds
    if not 1 <= count <= len(REPORT_SEEDS):
        raise ValueError(f"seeds is {count}; allowed: 1 to {len(REPORT_SEEDS)}")
    where = torch.device(pick_device(device))
    job = Job(make_folder(out, "--out"), count, data_dir, where, make_stamp(where), say)
    missing = [cell for cell in chosen if not is_done(job.out / cell.path, cell.config, count)]
    figures = f"{len(chosen)} figure{'s' * (len(chosen) != 1)} of {count} seed{'s' * (count != 1)} each"
    say(f"{name}: {figures}, {len(chosen) - len(missing)} of them done before")
    diverged = _train_groups([cell for cell in missing if cell.config.task.name == "node_classification"], job)
    links = [cell for cell in missing if cell.config.task.name == "link_prediction"]
    diverged += train_cells(links, job, Path(run_dir or ("runs/reproduce-quick" if quick else "runs/reproduce")))
    everything = _cells(name, quick, (*experiment.datasets, *experiment.also))
    there = [cell for cell in everything if (job.out / cell.path).is_file()]
    return {
        "table": name,
        "out": str(out),
        "seeds": count,
        "device": job.stamp["environment"]["device"],
        "trained": len(missing) - len(diverged),
        "diverged": diverged,
        "outdated": [cell.path for cell in there if not recorded_runs(job.out / cell.path, cell.config)],
        "files": [path for path in dict.fromkeys(cell.path for cell in chosen) if path not in diverged],
    }


def _cells(name: str, quick: bool, datasets: Sequence[str] | None, rows: Sequence[str] | None = None) -> Sequence[Cell]:
    """Cells of a table, with `quick` as it trains them."""
    chosen = cells(name, datasets, rows)
    return [replace(cell, config=experiments.quick(name, cell.config)) for cell in chosen] if quick else chosen


def _train_groups(missing: Sequence[Cell], job: Job) -> list[str]:
    """Train cells, those of one structure together, and return the files of those that diverged."""
    groups: dict[Hashable, list[Cell]] = {}
    for cell in missing:
        groups.setdefault(structure(cell.config), []).append(cell)
    task, done, diverged = None, 0, list[str]()
    for members in groups.values():
        rows = list(dict.fromkeys(cell.row for cell in members))
        words = f"{rows[0]} and {len(rows) - 1} more" if len(rows) > 1 else rows[0]
        job.say(f"{members[0].dataset}, {words}: training")
        task = _task(members[0].config, job, task)
        started = time.perf_counter()
        diverged += _train(members, task[1], job)
        done += len(members)
        job.say(f"{done} of {len(missing)}: {members[0].dataset}, {words} ({time.perf_counter() - started:.0f} s)")
    return diverged


Placed = tuple[Hashable, NodeClassification]


def _task(config: Config, job: Job, before: Placed | None) -> Placed:
    """The task of a config; that of the group before where its data is the same but for the split."""
    data = replace(config.data, split_seed=0)
    if before is not None and before[0] == data:
        return before
    return data, cast(NodeClassification, make_task(config, job.data_dir, job.device))


def _train(members: Sequence[Cell], task: NodeClassification, job: Job) -> list[str]:
    """Train what the files of cells of one structure lack, together, and return the files of those that diverged.

    Runs are recorded when their batch ends or goes on without them, so that a stop costs no more than those under way;
    those of a cell with a seed that diverged are not.
    """
    say = job.seldom()
    held = {cell.path: recorded_runs(job.out / cell.path, cell.config) for cell in members}
    missing = [
        (cell, seed)
        for cell in members
        for seed in REPORT_SEEDS[: job.seeds]
        if seed not in {run["seed"] for run in held[cell.path]}
    ]
    diverged: list[str] = []

    def on_report(epoch: int, running: list[int], scores: list[float]) -> Collection[int]:
        say(f"  epoch {epoch} of {members[0].config.train.epochs}, {len(running)} runs at once")
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
                # A mean over the seeds that are left would say too much of it.
                diverged.append(cell.path)
                job.say(f"{cell.dataset}, {cell.row}: {error}")
            else:
                runs = [*held[cell.path], *(_run(result) | job.origin for result in ended)]
                held[cell.path] = sorted(runs, key=itemgetter("seed"))
                write_cell(job.out / cell.path, cell, held[cell.path], job.stamp)

    configs = [cell.config.with_seed(seed) for cell, seed in missing]
    train_trials(configs, task, read_test=True, on_report=on_report, on_results=on_results)
    return diverged


def _run(result: TrialResult) -> dict[str, Any]:
    return {
        "seed": result.config.train.seed,
        "epochs": result.epochs,
        "best_epoch": result.best_epoch,
        "seconds": round(result.seconds, 3),
        "valid": result.valid,
        "test": result.test,
    }

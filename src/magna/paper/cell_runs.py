"""Cells of link prediction: one run a seed, recorded when it ends."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from magna.config.schema import REPORT_SEEDS, Config
from magna.errors import DataError, Diverged, MissingExtra
from magna.paper.cell import Cell
from magna.paper.cells import PROGRESS_SECONDS, Job
from magna.paper.link_search import test_scores, train_searched
from magna.paper.trained import remove_other
from magna.tasks.metrics import headline
from magna.training.loop import Epoch
from magna.training.memory import peak_bytes
from magna.training.progress import seldom
from magna.training.run_folder import RunFolder
from magna.training.train import train
from magna.use.predict import evaluate


class Failed(NamedTuple):
    """Paths of the cells without a result."""

    diverged: list[str]
    unavailable: list[str]  # a package that the system needs is not installed


def train_cells(cells: Sequence[Cell], job: Job, run_dir: Path) -> Failed:
    """Train the missing trials and seeds of cells one by one; a cell that fails is named, and the others go on.

    A stopped run continues from its checkpoint in `run_dir`, where it has one. Its folder is removed when the result
    is in the file of the cell.
    """
    failed = Failed([], [])
    for number, cell in enumerate(job.one_by_one(cells), start=1):
        started = time.perf_counter()
        try:
            (_train_cell if cell.effort is None else train_searched)(cell, job, run_dir)
        except DataError as error:
            job.pass_over([cell], error)
        except (Diverged, MissingExtra) as error:
            (failed.diverged if isinstance(error, Diverged) else failed.unavailable).append(cell.path)
            job.say(f"{cell.dataset}, {cell.row}: {error}")
        else:
            job.say(f"{number} of {len(cells)}: {cell.dataset}, {cell.row} ({time.perf_counter() - started:.0f} s)")
    return failed


def _train_cell(cell: Cell, job: Job, run_dir: Path) -> None:
    runs = job.store.runs(cell)
    for seed in REPORT_SEEDS[: job.seeds]:
        if seed in {run["seed"] for run in runs}:
            continue
        job.say(f"{cell.dataset}, {cell.row}, seed {seed}: training")
        folder = run_dir / f"{cell.path.removesuffix('.json').replace('/', '-')}-seed-{seed}"
        runs.append(_train_seed(cell.config.with_seed(seed), folder, job) | job.origin)
        job.store.write(cell, runs, job.machine)
        shutil.rmtree(folder)


def _train_seed(config: Config, folder: Path, job: Job) -> dict[str, Any]:
    """Train or resume one run, and rank the test triples on both sides."""
    run, say = RunFolder(folder), seldom(job.say, PROGRESS_SECONDS)
    remove_other(folder, config)

    def on_epoch(epoch: Epoch) -> None:
        best = "" if epoch.best is None else f", best validation {headline(epoch.best)}"
        say(f"  epoch {epoch.number} of {epoch.of}{best}")

    options: dict[str, Any] = {"data_dir": job.data_dir, "device": job.device.type}
    with peak_bytes(job.device) as peak:
        train(config, run_dir=folder, resume=True, on_epoch=on_epoch, **options)
        most = peak()
    summary, report = run.summary, evaluate(folder, **options)
    assert summary is not None
    return {
        "seed": config.train.seed,
        "epochs": summary["epochs"],
        "best_epoch": summary["best_epoch"],
        "seconds": round(summary["seconds"], 3),
        "parameters": summary["parameters"],
        "peak_bytes": most,
        "valid": summary["valid"],
        **test_scores(report),
    }

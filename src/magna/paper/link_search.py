"""Searched cells of link prediction: short trials choose the settings, then the report seeds train with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from magna.config.schema import REPORT_SEEDS, Config
from magna.errors import Diverged
from magna.paper.cell import Cell
from magna.paper.cells import PROGRESS_SECONDS, Job
from magna.paper.searches import SEED, drawn_changes, tried
from magna.tasks import make_task
from magna.tasks.metrics import headline
from magna.training.capture import matmul_precision, own_stream
from magna.training.loop import Epoch, fit
from magna.training.memory import peak_bytes
from magna.training.progress import seldom
from magna.training.run_folder import RunFolder

LIMIT_SECONDS = 120.0  # of training, for each trial and each seed; the best validation until then counts
PARTS = ("head", "tail", "encoder", "skip")  # of a report on a split


def train_searched(cell: Cell, job: Job, run_dir: Path) -> None:
    """Train the missing trials of a cell, then the missing seeds of the settings with the best validation MRR.

    The result of each is written when it ends, so that a stop loses the running one alone. The folder in `run_dir`
    is the lock of the cell.
    """
    run = RunFolder(run_dir / cell.path.removesuffix(".json").replace("/", "-"))
    with run.alone():
        _warm_up(cell.config, job)
        chosen = job.store.chosen(cell) or _searched(cell, job)
        runs = job.store.runs(chosen)
        for seed in REPORT_SEEDS[: job.seeds_of(cell)]:
            if seed not in {run["seed"] for run in runs}:
                job.say(f"{cell.dataset}, {cell.row}, seed {seed}: training")
                runs.append(_train(chosen.config.with_seed(seed), job, ("valid", "test")) | job.origin)
                job.store.write(chosen, runs, job.machine)
    run.path.rmdir()


def _searched(cell: Cell, job: Job) -> Cell:
    """The cell with the settings that its trials choose; only the validation split is read."""
    search = job.store.search(cell)
    for number in range(len(search.trials), cell.trials):
        changes = drawn_changes(cell, number)
        job.say(f"{cell.dataset}, {cell.row}, trial {number + 1} of {cell.trials}: {' '.join(changes) or 'the recipe'}")
        try:
            run = _train(tried(cell, changes).config.with_seed(SEED), job, ("valid",))
        except Diverged as error:
            job.say(f"  {error}")
            run = {"valid": None}
        search = job.store.add_trial(cell, search, {"changes": list(changes)} | run | job.origin)
    if (chosen := search.chosen(cell)) is None:
        raise Diverged(f"the loss of all {cell.trials} trials is not finite; try a smaller train.lr")
    return chosen


def _warm_up(config: Config, job: Job) -> None:
    """Train an epoch, so that libraries that load on their first use do not count as memory of the first run."""
    with own_stream(job.device), suppress(Diverged):
        task = make_task(config, job.data_dir, job.device, ("valid",))
        fit(config, task, task.make_model(config.model).to(job.device), lambda epoch: None, seconds=0.0)


def _train(config: Config, job: Job, splits: Sequence[str]) -> dict[str, Any]:
    """Train a config for `LIMIT_SECONDS` at most, and rank the test split on both sides if it is one of `splits`."""
    say = seldom(job.say, PROGRESS_SECONDS)

    def on_epoch(epoch: Epoch) -> None:
        best = "" if epoch.best is None else f", best validation {headline(epoch.best)}"
        say(f"  epoch {epoch.number} of {epoch.of}{best}")

    with own_stream(job.device), matmul_precision(config.train.precision):
        torch.manual_seed(config.train.seed)
        with peak_bytes(job.device) as peak:
            task = make_task(config, job.data_dir, job.device, splits)
            network = task.make_model(config.model).to(job.device)
            progress = fit(config, task, network, on_epoch, seconds=LIMIT_SECONDS)
            most = peak()
        assert progress.best is not None
        run = {
            "seed": config.train.seed,
            "epochs": progress.epoch,
            "best_epoch": progress.best_epoch,
            "seconds": round(progress.seconds, 3),
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "peak_bytes": most,
            "valid": progress.best,
        }
        return run if "test" not in splits else run | test_scores(task.report(network, "test"))


def test_scores(report: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics on the test split, and those of its sides and of the model's parts."""
    return {"test": report["metrics"]} | {f"test_{part}": report[part] for part in PARTS if part in report}

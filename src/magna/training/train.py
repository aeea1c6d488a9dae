"""Train one seed or several and leave their run folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from magna.config.registry import model_settings
from magna.config.schema import Config, make_config
from magna.data import from_anywhere
from magna.data.in_memory import writer_of
from magna.errors import ArgumentError, DataError
from magna.nn.custom import CUSTOM
from magna.tasks import Task, make_task
from magna.tasks.base import can_share_batch
from magna.training.progress import shown
from magna.training.run_folder import RunFolder, pick_device
from magna.training.session import OnEpoch, SeedRun, Session
from magna.training.tensorboard import Board

_MOST_SEEDS = 10_000


def train(
    what: Any = None,
    /,
    *,
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    model: nn.Module | None = None,
    start: str | Path | None = None,
    seeds: int = 1,
    run_dir: str | Path | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    resume: bool = False,
    test: bool = True,
    tensorboard: bool = False,
    together: bool | None = None,
    progress: bool = False,
    on_epoch: OnEpoch = lambda epoch: None,
    on_start: Callable[[Config, Task, torch.device], None] = lambda config, task, device: None,
) -> dict[str, Any]:
    """Train a recipe, a config or your own data with several seeds and return the metrics of the runs.

    One seed leaves its run folder at `run_dir`, several leave theirs at `run_dir/seed-0` and so on.

    Args:
        what: a recipe's name, a TOML file, a config, the path of your own data, or a graph in memory, which is stored
            beside the run: a PyG `Data`, a pair of pandas tables (nodes, edges), or a networkx graph. None: the default
            recipe, or the settings of the run that is resumed.
        recipe: the recipe whose settings serve your own data.
        settings: values by their keys, such as `{"train.epochs": 40}`.
        model: your own module for node classification, called as `model(x, edge_index)`; one seed starts from its
            weights and leaves the best ones in it, several call its `reset_parameters`.
        start: the folder of a finished run whose weights of equal names and shapes the training starts from; those of
            entities and relations are found by their names.
        seeds: number of seeds; the first one is that of the settings.
        run_dir: where the run folder is made; None: a new folder `runs/RECIPE`.
        data_dir: the data folder.
        device: "auto", "cpu" or "cuda".
        resume: continue the runs in the folder; a run that has ended is reported as it is.
        test: score the test split at the end; False: it is never read, and its metrics are None.
        tensorboard: each run folder holds TensorBoard's event files as well.
        together: several seeds of node classification in one batch, without checkpoints; None: on a GPU.
        progress: show the epochs on stderr, as the command line does.
        on_epoch: called after each epoch.
        on_start: called once the data is loaded.

    Raises:
        Diverged: the loss of a seed is not finite any more; the other seeds have left their results.
    """
    if not 1 <= seeds <= _MOST_SEEDS:
        raise ArgumentError("seeds", seeds, f"1 to {_MOST_SEEDS:,}")
    if writer_of(what) is not None:
        run_dir = Path(run_dir) if run_dir is not None else default_folder("data", resume)
        what = store_data(what, run_dir, resume)
    resumed = resume and run_dir is not None and what is None and recipe is None and not settings
    config = None if resumed else make_config(what, recipe, settings)
    if config is not None and model is not None:
        config = replace(config, model=model_settings(config.task.name, CUSTOM), search={})
    run_dir = Path(run_dir) if run_dir is not None else default_folder((config or make_config()).recipe, resume)
    opened = _opened(run_dir, seeds, resume)
    config = _settings(config, opened, run_dir)
    if together and not config.task.SHARES_BATCH:
        raise ArgumentError("together", together, f"False for {config.task.title()}, whose seeds train in turn")
    if tensorboard:
        Board(run_dir)  # refuses a missing package before the data is read
    where, begun = pick_device(device), None if start is None else RunFolder.open(start)
    jobs = _jobs(config, opened, run_dir, seeds)
    task = make_task(config, data_dir, where, ("valid", "test") if test else ("valid",))
    for job in jobs:
        if job.goes_on:
            job.run.check_schema(task.schema)
    with shown(progress, on_start, on_epoch) as (started, ended):
        started(config, task, where)
        session = Session(jobs, task, test, tensorboard, ended, model, begun)
        if model is None and start is None and can_share_batch(task) and shares_batch(seeds, where, together):
            session.train_together(task)
        session.train_in_turn()
    return session.result()


def default_folder(name: str, resume: bool = False) -> Path:
    """The first of `runs/NAME`, `runs/NAME-2`, … that does not exist; to resume, the last one that does."""
    folder, number = Path("runs") / name, 1
    while folder.exists():
        last, number = folder, number + 1
        folder = folder.with_name(f"{name}-{number}")
    return last if resume and number > 1 else folder


def shares_batch(seeds: int, device: torch.device, together: bool | None = None) -> bool:
    """True if several seeds train in one batch: where that is asked for, else on a GPU."""
    return seeds > 1 and (device.type == "cuda" if together is None else together)


def store_data(data: Any, run_dir: Path, resume: bool) -> Path:
    """Write a graph in memory beside its run, so that the run can be resumed, evaluated and used; return its folder."""
    if not resume and next(run_dir.glob("**/config.toml"), None) is not None:
        raise DataError(run_dir, "it holds a run already", hint="resume=True, or another run_dir")
    write = writer_of(data)
    assert write is not None
    write(run_dir / "data")
    return run_dir / "data"


def _opened(folder: Path, seeds: int, resume: bool) -> dict[Path, RunFolder]:
    """The runs to continue, by their folders; one run and several seeds do not share a folder."""
    single, several = RunFolder(folder).exists(), sorted(folder.glob("seed-*/config.toml"))
    if seeds > 1 and single and not several:
        raise DataError(folder, "it holds one run, not several seeds", hint="1 seed, or another run_dir")
    if seeds == 1 and several and not single:
        hint = "the number of seeds that it was started with, or another run_dir"
        raise DataError(folder, "it holds runs of several seeds", hint=hint)
    folders = [file.parent for file in several] if seeds > 1 else [folder] * single
    return {each: RunFolder.open(each) for each in folders} if resume else {}


def _settings(config: Config | None, opened: Mapping[Path, RunFolder], folder: Path) -> Config:
    """The settings of the first seed, with the path of the data as it is known from anywhere."""
    if config is None:
        if not opened:
            raise DataError(folder, "it holds no run to resume (no config.toml)", hint="a recipe")
        config = min((run.config for run in opened.values()), key=lambda each: each.train.seed)
    return replace(config, data=from_anywhere(config.data))


def _jobs(config: Config, opened: Mapping[Path, RunFolder], run_dir: Path, seeds: int) -> list[SeedRun]:
    jobs = []
    for seed in range(config.train.seed, config.train.seed + seeds):
        folder, settings = run_dir if seeds == 1 else run_dir / f"seed-{seed}", config.with_seed(seed)
        run = opened.get(folder)
        if run is not None:
            run.check_data("to move it back, or to put a link there")
            if replace(run.config, data=from_anywhere(run.config.data)) != settings:
                hint = "to resume without a recipe and settings, or another run_dir"
                raise DataError(folder, "its run was started with other settings", hint=hint)
        jobs.append(SeedRun(settings, run or RunFolder(folder), run is not None))
    return jobs

"""Trainings that leave run folders: one seed or several, in turn or in one batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import nn

from magna.config.registry import model_settings
from magna.config.schema import Config, make_config
from magna.data import from_anywhere
from magna.errors import ArgumentError, DataError, Diverged
from magna.nn.custom import CUSTOM
from magna.tasks import Task, make_task
from magna.tasks.base import BatchTask, can_share_batch
from magna.training.capture import matmul_precision, own_stream
from magna.training.in_memory import is_pyg_data, module_of_seed, store_data
from magna.training.loop import Epoch, Progress, fit
from magna.training.run_folder import RunFolder, pick_device
from magna.training.schedule import check_loss
from magna.training.tensorboard import Board
from magna.training.trial_result import TrialResult
from magna.training.trials import train_trials

OnEpoch = Callable[[Epoch], None]
_MOST_SEEDS = 10_000
_REPORTED = ("seed", "run_dir", "seconds", "epochs", "valid", "test")


def train(
    what: Any = None,
    /,
    *,
    recipe: str | None = None,
    settings: Mapping[str, Any] | None = None,
    model: nn.Module | None = None,
    seeds: int = 1,
    run_dir: str | Path | None = None,
    data_dir: str | Path | None = None,
    device: str = "auto",
    resume: bool = False,
    test: bool = True,
    tensorboard: bool = False,
    together: bool | None = None,
    on_epoch: OnEpoch = lambda epoch: None,
    on_start: Callable[[Config, Task, torch.device], None] = lambda config, task, device: None,
) -> dict[str, Any]:
    """Train a recipe, a config or your own data with several seeds and return the metrics of the runs.

    One seed leaves its run folder at `run_dir`, several leave theirs at `run_dir/seed-0` and so on.

    Args:
        what: a recipe's name, a TOML file, a config, the path of your own data, or a PyG `Data`, which is stored beside
            the run. None: the default recipe, or the settings of the run that is resumed.
        recipe: the recipe whose settings serve your own data.
        settings: values by their keys, such as `{"train.epochs": 40}`.
        model: your own module for node classification, called as `model(x, edge_index)`; one seed starts from its
            weights and leaves the best ones in it, several call its `reset_parameters`.
        seeds: number of seeds; the first one is that of the settings.
        run_dir: where the run folder is made; None: a new folder `runs/RECIPE`.
        data_dir: the data folder.
        device: "auto", "cpu" or "cuda".
        resume: continue the runs in the folder; a run that has ended is reported as it is.
        test: score the test split at the end; False: it is never read, and its metrics are None.
        tensorboard: each run folder holds TensorBoard's event files as well.
        together: several seeds of node classification in one batch, without checkpoints; None: on a GPU.
        on_epoch: called after each epoch.
        on_start: called once the data is loaded.

    Raises:
        Diverged: the loss of a seed is not finite any more; the other seeds have left their results.
    """
    if not 1 <= seeds <= _MOST_SEEDS:
        raise ArgumentError("seeds", seeds, f"1 to {_MOST_SEEDS:,}")
    if is_pyg_data(what):
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
    where = pick_device(device)
    jobs = _jobs(config, opened, run_dir, seeds)
    task = make_task(config, data_dir, where, ("valid", "test") if test else ("valid",))
    for job in jobs:
        if job.goes_on:
            job.run.check_schema(task.schema)
    on_start(config, task, where)
    session = _Session(jobs, task, test, tensorboard, on_epoch, model)
    if model is None and can_share_batch(task) and shares_batch(seeds, where, together):
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


@dataclass(frozen=True)
class _Job:
    config: Config  # of one seed
    run: RunFolder
    goes_on: bool  # the folder holds a run of these settings already

    @property
    def is_new(self) -> bool:
        return not (self.goes_on and self.run.has_begun())


def _jobs(config: Config, opened: Mapping[Path, RunFolder], run_dir: Path, seeds: int) -> list[_Job]:
    jobs = []
    for seed in range(config.train.seed, config.train.seed + seeds):
        folder, settings = run_dir if seeds == 1 else run_dir / f"seed-{seed}", config.with_seed(seed)
        run = opened.get(folder)
        if run is not None:
            run.check_data("to move it back, or to put a link there")
            if replace(run.config, data=from_anywhere(run.config.data)) != settings:
                hint = "to resume without a recipe and settings, or another run_dir"
                raise DataError(folder, "its run was started with other settings", hint=hint)
        jobs.append(_Job(settings, run or RunFolder(folder), run is not None))
    return jobs


@dataclass
class _Session:
    """The seeds of one call, on the data of one task."""

    jobs: Sequence[_Job]
    task: Task
    test: bool
    tensorboard: bool
    on_epoch: OnEpoch
    module: nn.Module | None = None  # the user's, in place of the model of the settings
    ended: dict[int, dict[str, Any]] = field(default_factory=dict)  # summaries by the index of the job
    diverged: dict[int, str] = field(default_factory=dict)

    def train_in_turn(self) -> None:
        """Train the seeds that have neither ended nor diverged, one after the other."""
        for index, job in enumerate(self.jobs):
            if index in {*self.ended, *self.diverged}:
                continue
            with own_stream(self.task.device), matmul_precision(job.config.train.precision):
                try:
                    self.ended[index] = self._train(job, self._listener(index))
                except Diverged as error:
                    self.diverged[index] = str(error)

    def _train(self, job: _Job, on_epoch: OnEpoch) -> dict[str, Any]:
        parts = {} if self.module is None else {"module": self.module}
        if job.goes_on and job.run.is_done(**parts):
            return {**(job.run.summary or {}), "run_dir": str(job.run.path)}
        torch.manual_seed(job.config.train.seed)
        if self.module is not None:
            parts = {"module": module_of_seed(self.module, len(self.jobs))}
        network = self.task.make_model(job.config.model, **parts).to(self.task.device)
        # Only now: settings that give no model leave no folder behind.
        with job.run.alone():
            if not job.goes_on:
                job.run.begin(job.config, self.task.device, self.task.schema)
            return self._finish(job, network, fit(job.config, self.task, network, on_epoch, job.run))

    def train_together(self, task: BatchTask) -> None:
        """Train the seeds that have not begun in one batch; each leaves what a run alone leaves."""
        new = {index: job for index, job in enumerate(self.jobs) if job.is_new}
        if not new:
            return
        network, epochs = task.make_model(self.jobs[0].config.model).to(task.device), self.jobs[0].config.train.epochs
        with ExitStack() as locks:
            for job in new.values():
                locks.enter_context(job.run.alone())
                if not job.goes_on:
                    job.run.begin(job.config, task.device, task.schema)

            def on_report(number: int, running: list[int], best: list[float]) -> Collection[int]:
                if running:
                    label, metrics = f"{len(new)} seeds together", {task.METRIC: fmean(best)}
                    self.on_epoch(Epoch(label, number, epochs, None, None, metrics))
                return ()

            configs = [job.config for job in new.values()]
            results = train_trials(configs, task, keep_weights=True, report_every=10, on_report=on_report)
            for (index, job), result in zip(new.items(), results, strict=True):
                self._log_all(job, result)
                try:
                    result.check()
                except Diverged as error:
                    self.diverged[index] = str(error)
                    continue
                network.load_state_dict(result.weights or {})
                progress = Progress(result.epochs, result.seconds, [result.best_epoch])
                with matmul_precision(job.config.train.precision):
                    self.ended[index] = self._finish(job, network, progress, together=len(new))

    def _log_all(self, job: _Job, result: TrialResult) -> None:
        """Write the metrics of all epochs of a run at once."""
        rows: list[dict[str, Any]] = []
        for epoch, metrics in enumerate(result.finite_history):
            valid = {name.removeprefix("valid_"): value for name, value in metrics.items() if name != "loss"}
            rows.append({"epoch": epoch, "loss": metrics["loss"]} | ({"valid": valid} if valid else {}))
        job.run.keep_metrics(0)
        job.run.log(*rows)
        if self.tensorboard:
            board = Board(job.run.path)
            for row in rows:
                board.write(row["epoch"] + 1, row["loss"], row.get("valid"))

    def _finish(self, job: _Job, network: Any, progress: Progress, together: int = 1) -> dict[str, Any]:
        """Score and save the chosen weights."""
        calibrated = self.task.calibrate(network)
        for value in calibrated.values():
            check_loss(value, progress.best_epoch)  # the last step may have diverged
        summary = {
            "recipe": job.config.recipe,
            "task": job.config.task.name,
            "dataset": self.task.dataset,
            "device": self.task.device.type,
            "seed": job.config.train.seed,
            "together": together,  # seeds that share a batch draw from one generator
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "seconds": progress.seconds,
            "epochs": progress.epoch,
            "best_epoch": progress.best_epoch,
            **calibrated,
            "valid": self.task.evaluate(network, "valid"),
            "test": self.task.evaluate(network, "test") if self.test else None,
        }
        job.run.finish(network, summary)
        return {**summary, "run_dir": str(job.run.path)}

    def _listener(self, index: int) -> OnEpoch:
        """Listener for one run that also writes the curves for TensorBoard."""
        board = Board(self.jobs[index].run.path) if self.tensorboard else None

        def listen(epoch: Epoch) -> None:
            if board is not None:
                board.write(epoch.number, epoch.loss, epoch.valid)
            self.on_epoch(replace(epoch, run=index, runs=len(self.jobs)))

        return listen

    def _reason(self) -> str:
        """The seeds that diverged, and the reason of the first one; of a single run, the reason alone."""
        failed, first = sorted(self.diverged), self.diverged[min(self.diverged)]
        if len(self.jobs) == 1:
            return first
        seeds = ", ".join(str(self.jobs[index].config.train.seed) for index in failed)
        others = "" if len(failed) == len(self.jobs) else "; the other seeds have left their results"
        return f"seed{'s' * (len(failed) > 1)} {seeds}: {first}{others}"

    def result(self) -> dict[str, Any]:
        """Everything that `magna train --json` prints."""
        config = self.jobs[0].config
        if self.diverged:
            raise Diverged(self._reason())
        runs = [{name: self.ended[index][name] for name in _REPORTED} for index in range(len(self.jobs))]
        runs = runs if self.test else [run | {"test": None} for run in runs]
        test = [run["test"] for run in runs]
        return {
            "task": config.task.name,
            "dataset": self.task.dataset,
            "recipe": config.recipe,
            "device": self.task.device.type,
            "runs": runs,
            "mean": {"valid": _over([run["valid"] for run in runs], fmean), "test": _over(test, fmean)},
            "std": {"test": _over(test, lambda values: stdev(values) if len(values) > 1 else 0.0)},
        }


def _over(metrics: Sequence[Any], statistic: Callable[[list[float]], float]) -> dict[str, float] | None:
    """A statistic of each metric over the runs; None if one of them was not scored."""
    return None if None in metrics else {name: statistic([each[name] for each in metrics]) for name in metrics[0]}

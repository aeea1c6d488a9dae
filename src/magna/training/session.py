"""The seeds of one call of `train`: their runs, in turn or in one batch, and the result of all."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

import torch
from torch import nn

from magna.config.schema import Config
from magna.errors import ArgumentError, Diverged
from magna.tasks import Task
from magna.tasks.base import BatchTask
from magna.training.capture import matmul_precision, own_stream
from magna.training.loop import Epoch, Progress, TrialResult, fit
from magna.training.run_folder import RunFolder
from magna.training.schedule import check_loss
from magna.training.tensorboard import Board
from magna.training.trials import train_trials
from magna.training.warm_start import take_weights

OnEpoch = Callable[[Epoch], None]
_REPORTED = ("seed", "run_dir", "seconds", "epochs", "valid", "test")


@dataclass(frozen=True)
class SeedRun:
    """One seed: its settings and its run folder."""

    config: Config  # of one seed
    run: RunFolder
    goes_on: bool  # the folder holds a run of these settings already

    @property
    def is_new(self) -> bool:
        return not (self.goes_on and self.run.has_begun())


@dataclass
class Session:
    """The seeds of one call, on the data of one task."""

    jobs: Sequence[SeedRun]
    task: Task
    test: bool
    tensorboard: bool
    on_epoch: OnEpoch
    module: nn.Module | None = None  # the user's, in place of the model of the settings
    start: RunFolder | None = None  # whose weights new runs start from
    started: str = ""  # the sentence on them
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

    def _train(self, job: SeedRun, on_epoch: OnEpoch) -> dict[str, Any]:
        parts = {} if self.module is None else {"module": self.module}
        if job.goes_on and job.run.is_done(**parts):
            return {**(job.run.summary or {}), "run_dir": str(job.run.path)}
        torch.manual_seed(job.config.train.seed)
        if self.module is not None:
            parts = {"module": _module_of_seed(self.module, len(self.jobs))}
        network = self.task.make_model(job.config.model, **parts).to(self.task.device)
        if self.start is not None and job.is_new:
            self.started = take_weights(network, self.task.schema, self.start, **parts)
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
                    label, metrics = f"{len(new)} seeds together", {task.metric: fmean(best)}
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

    def _log_all(self, job: SeedRun, result: TrialResult) -> None:
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

    def _finish(self, job: SeedRun, network: Any, progress: Progress, together: int = 1) -> dict[str, Any]:
        """Score and save the chosen weights."""
        calibrated = self.task.calibrate(network)
        check_loss(calibrated.get("temperature", 1.0), progress.best_epoch)  # the last step may have diverged
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
            "valid": self.task.evaluate(network, "valid", calibrated),
            "test": self.task.evaluate(network, "test", calibrated) if self.test else None,
        }
        job.run.finish(network, summary, self.task.scaling)
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
            **({"start": self.started} if self.started else {}),
            "std": {"test": _over(test, lambda values: stdev(values) if len(values) > 1 else 0.0)},
        }


def _module_of_seed(module: nn.Module, seeds: int) -> nn.Module:
    """The module that a seed trains: itself, or of several seeds a copy with new starting values."""
    if seeds == 1:
        return module
    module = copy.deepcopy(module)
    reset: Any = getattr(module, "reset_parameters", None)
    if reset is None:
        raise ArgumentError("seeds", seeds, "1 for a module without reset_parameters()")
    reset()
    return module


def _over(metrics: Sequence[Any], statistic: Callable[[list[float]], float]) -> dict[str, float] | None:
    """A statistic of each metric over the runs; None if one of them was not scored."""
    if None in metrics:
        return None
    # A random split may leave a metric undefined.
    names = [name for name in metrics[0] if all(name in each for each in metrics)]
    return {name: statistic([each[name] for each in metrics]) for name in names}

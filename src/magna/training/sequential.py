"""Trainings one after the other, for a task whose trials share no batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from magna.config.schema import Config
from magna.errors import Diverged
from magna.tasks import Task
from magna.training.capture import matmul_precision, own_stream
from magna.training.loop import Epoch, fit
from magna.training.trial_result import OnReport, OnResults, TrialResult
from magna.training.trials import free_memory, shortage


class _Stopped(Exception):
    pass


def train_in_turn(
    configs: Sequence[Config],
    task: Task,
    *,
    report_every: int = 25,
    on_report: OnReport | None = None,
    on_results: OnResults | None = None,
    too_large: dict[int, str] | None = None,
) -> list[TrialResult]:
    """Train all configs one after the other, as `train_trials` does; no file is written and no test split is read.

    Args:
        configs: what to train, on the data of the task.
        task: the data.
        report_every: epochs between two calls of `on_report`.
        on_report: gets the epoch, the index of the config and its best validation MRR so far, in lists, and returns
            the indices of those that are to stop there.
        on_results: gets each result, by the index of its config, when it is there.
        too_large: gets the index of each config that does not fit in memory, with the reason; it has no result. None:
            that is an error.
    """
    results = []
    for index, config in enumerate(configs):
        try:
            result = _train(index, config, task, report_every, on_report)
        except torch.OutOfMemoryError as error:
            if too_large is None:
                raise
            too_large[index] = shortage(error)
        else:
            results.append(result)
            if on_results is not None:
                on_results({index: result})
            continue
        free_memory()
    return results


def _train(index: int, config: Config, task: Task, report_every: int, on_report: OnReport | None) -> TrialResult:
    epochs: list[Epoch] = []

    def on_epoch(epoch: Epoch) -> None:
        epochs.append(epoch)
        if on_report is None or epoch.number % report_every or epoch.best is None:
            return
        if index in on_report(epoch.number, [index], [epoch.best[task.METRIC]]):
            raise _Stopped

    started = time.perf_counter()
    with own_stream(task.device), matmul_precision(config.train.precision):
        torch.manual_seed(config.train.seed)
        network = task.make_model(config.model).to(task.device)
        with suppress(_Stopped):
            try:
                fit(config, task, network, on_epoch)
            except Diverged:
                # What it had reached before is nothing that a run of its own would leave.
                epochs = [replace(epoch, best=None) for epoch in epochs]
    best = next((epoch.best for epoch in reversed(epochs) if epoch.best is not None), {task.METRIC: 0.0})
    return TrialResult(
        config=config,
        epochs=len(epochs),
        best_epoch=next((epoch.number - 1 for epoch in epochs if epoch.valid == best), -1),
        seconds=time.perf_counter() - started,
        valid=best,
        test=None,
        history=[{"loss": epoch.loss} for epoch in epochs if epoch.loss is not None],
        weights=None,
    )

"""Runs of the trials of a search: their configs, their training, and settings that cannot be trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from magna.config.schema import Config
from magna.tasks import Task
from magna.training.trial_result import OnReport, TrialResult
from magna.training.trials import train_trials

OnTrial = Callable[[int, list[TrialResult] | str], None]


def with_seeds(config: Config, settings: Iterable[Mapping[str, Any]], seeds: Sequence[int]) -> list[Config]:
    trials = [config.with_settings(each, drop_idle=True) for each in settings]
    return [trial.with_seed(seed) for trial in trials for seed in seeds]


def fault_of(config: Config, settings: Mapping[str, Any], task: Any) -> str | None:
    """Reason why settings give no model, or None."""
    try:
        changed = config.with_settings(settings, drop_idle=True)
        with torch.device("meta"):  # takes no memory, draws no number
            model: Any = task.make_model(changed.model)
        task.objective(changed.task, model)
    except ValueError as error:
        return str(error)
    return None


def train_runs(
    configs: Sequence[Config],
    task: Task,
    runs_per_trial: int,
    on_trial: OnTrial,
    report_every: int = 25,
    on_report: OnReport | None = None,
) -> None:
    """Train the runs of each trial.

    `on_trial` gets the runs of a trial, or the reason why they do not fit in memory, as soon as all have ended, so
    that a stop loses only running trials.
    """
    ended: dict[int, TrialResult] = {}
    too_large: dict[int, str] = {}

    def runs_of(place: int) -> range:
        return range(place * runs_per_trial, (place + 1) * runs_per_trial)

    def on_results(results: dict[int, TrialResult]) -> None:
        ended.update(results)
        for place in sorted({number // runs_per_trial for number in results}):
            runs = [ended[number] for number in runs_of(place) if number in ended]
            if len(runs) == runs_per_trial:
                on_trial(place, runs)

    options: dict[str, Any] = {"report_every": report_every, "on_report": on_report, "on_results": on_results}
    train_trials(configs, task, **options, too_large=too_large)
    for place in sorted({number // runs_per_trial for number in too_large}):
        on_trial(place, next(too_large[number] for number in runs_of(place) if number in too_large))

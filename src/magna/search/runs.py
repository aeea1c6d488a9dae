"""Runs of the trials of a search: settings that cannot be trained, training, and early stops of the worse trials."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from magna.config.schema import Config
from magna.config.tables import TrainOptions
from magna.search.study import Study
from magna.tasks import Task
from magna.tasks.metrics import METRIC_FORMS
from magna.training.loop import OnReport, TrialResult
from magna.training.progress import seldom
from magna.training.trials import train_trials

if TYPE_CHECKING:
    from optuna.trial import Trial

OnTrial = Callable[[int, list[TrialResult] | str], None]

# Reports of a trial. After the first, the second and the fourth of them only the better half continues.
REPORTS, RUNGS = 8, (1, 2, 4)
FEWEST_PEERS = 8  # pruning starts with this many trials
SAY_SECONDS = 5.0


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

    train_trials(
        configs, task, report_every=report_every, on_report=on_report, on_results=on_results, too_large=too_large
    )
    for place in sorted({number // runs_per_trial for number in too_large}):
        on_trial(place, next(too_large[number] for number in runs_of(place) if number in too_large))


@dataclass
class Watch:
    """Reports of the runs of a batch to the study; successive halving by validation stops trials at the rungs."""

    study: Study
    trials: Sequence[Trial]
    runs_per_trial: int  # they follow one another
    epochs: int  # of a whole run
    prune: bool  # stop the worse half at each rung
    say: Callable[[str], None]
    metric: str
    stopped: set[int] = field(default_factory=set)  # places in the batch
    seen: dict[int, dict[int, float]] = field(default_factory=dict)  # run → epoch → score

    def __post_init__(self) -> None:
        self.say = seldom(self.say, SAY_SECONDS)

    @property
    def every(self) -> int:
        """Epochs between two reports."""
        return _every(self.epochs)

    def __call__(self, epoch: int, which: list[int], values: list[float]) -> list[int]:
        form = METRIC_FORMS[self.metric]
        scores = [form.score(value) for value in values]  # larger is better
        for run, score in zip(which, scores, strict=True):
            self.seen.setdefault(run, {})[epoch] = score
        running = {run // self.runs_per_trial for run in which} - self.stopped
        means = {place: mean for place in running if (mean := self._mean(place, epoch)) is not None}
        for place, mean in means.items():
            self.study.report(self.trials[place], mean, epoch)
        if self.prune and epoch in [rung * self.every for rung in RUNGS]:
            peers = self.study.values_at(epoch)
            self.stopped |= {place for place, mean in means.items() if not continues(mean, peers)}
        # Patience may have ended every run.
        if scores:
            self.say(f"epoch {epoch} · {len(running)} running · best {form.text(form.score(max(scores)))}")
        return [run for run in which if run // self.runs_per_trial in self.stopped]

    def _mean(self, place: int, epoch: int) -> float | None:
        """Mean over the runs of a trial, with the last score of ended ones; None before each has one."""
        first = place * self.runs_per_trial
        runs = [self.seen[run] for run in range(first, first + self.runs_per_trial) if run in self.seen]
        if len(runs) < self.runs_per_trial:
            return None
        return statistics.fmean(run.get(epoch, max(run.values())) for run in runs)


def note_on_validation(config: TrainOptions) -> str | None:
    """Note for settings that validate too seldom for the first rung, else None."""
    first = RUNGS[0] * _every(config.epochs)
    if config.eval_every <= first:
        return None
    return (
        f"trials may stop from epoch {first} of {config.epochs}, but train.eval_every is {config.eval_every}, and no "
        f"trial stops before its first validation; try train.eval_every={first}"
    )


def _every(epochs: int) -> int:
    return max(1, round(epochs / REPORTS))


def continues(score: float, peers: Sequence[float]) -> bool:
    """True for a score in the better half of its peers (successive halving), with ties, or of few peers.

    Optuna's own pruners take one trial after the other, so that the first of a batch would always pass.

    >>> [continues(score, range(10)) for score in (4, 5)]
    [False, True]
    >>> [continues(0.1, [0.1] * 20), continues(0.1, [0.5] * 20), continues(0.1, [0.5] * 6)]
    [True, False, True]
    """
    better = sum(peer > score for peer in peers)
    return len(peers) < FEWEST_PEERS or better < math.ceil(len(peers) / 2)

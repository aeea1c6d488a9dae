"""Which trials of a search stop early: successive halving, by validation."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from magna.config.schema import TrainConfig
from magna.search.study import Study
from magna.tasks.metrics import headline

if TYPE_CHECKING:
    from optuna.trial import Trial

# A trial reports this often on its way. After an eighth, a quarter and half of it only the better half goes on.
REPORTS, RUNGS = 8, (1, 2, 4)
FEWEST_PEERS = 8  # fewer than these are no measure for a trial
SAY_SECONDS = 5.0


@dataclass
class Watch:
    """Hears the runs of a batch on their way and stops trials at the rungs.

    Args:
        study: where trials report to.
        trials: those of the batch.
        runs_per_trial: runs of each, one beside the other.
        epochs: of a run that goes to its end.
        prune: whether any is stopped.
        say: gets a line now and then.
        metric: what the scores are.
    """

    study: Study
    trials: Sequence[Trial]
    runs_per_trial: int
    epochs: int
    prune: bool
    say: Callable[[str], None]
    metric: str
    stopped: set[int] = field(default_factory=set)  # places in the batch
    seen: dict[int, dict[int, float]] = field(default_factory=dict)  # run → epoch → score
    last_said: float = field(default_factory=time.monotonic)

    @property
    def every(self) -> int:
        """Epochs from one report to the next."""
        return _every(self.epochs)

    def __call__(self, epoch: int, which: list[int], scores: list[float]) -> list[int]:
        for run, score in zip(which, scores, strict=True):
            self.seen.setdefault(run, {})[epoch] = score
        running = {run // self.runs_per_trial for run in which} - self.stopped
        means = {place: mean for place in running if (mean := self._mean(place, epoch)) is not None}
        for place, mean in means.items():
            self.study.report(self.trials[place], mean, epoch)
        if self.prune and epoch in [rung * self.every for rung in RUNGS]:
            peers = self.study.values_at(epoch)
            self.stopped |= {place for place, mean in means.items() if not goes_on(mean, peers)}
        # Where patience has ended every run, there is nothing to say.
        if scores and time.monotonic() - self.last_said >= SAY_SECONDS:
            self.last_said = time.monotonic()
            self.say(f"epoch {epoch} · {len(running)} running · best {headline({self.metric: max(scores)})}")
        return [run for run in which if run // self.runs_per_trial in self.stopped]

    def _mean(self, place: int, epoch: int) -> float | None:
        """Over the runs of a trial; of one that ended earlier, its last. None while one has not begun."""
        runs = [self.seen.get(place * self.runs_per_trial + i) for i in range(self.runs_per_trial)]
        if any(run is None for run in runs):
            return None
        return statistics.fmean(run.get(epoch, max(run.values())) for run in runs if run is not None)


def validated_seldom(config: TrainConfig) -> str | None:
    """What is to be said where validation is looked at too seldom for the first rung; None where it is not."""
    first = RUNGS[0] * _every(config.epochs)
    if config.eval_every <= first:
        return None
    return (
        f"train.eval_every is {config.eval_every} and trials may stop from epoch {first} of {config.epochs}: none does "
        f"before it was validated; try --set train.eval_every={first}"
    )


def _every(epochs: int) -> int:
    return max(1, round(epochs / REPORTS))


def goes_on(score: float, peers: Sequence[float]) -> bool:
    """Whether a score is in the better half of all that came as far (successive halving); equal ones are.

    Optuna's own pruners take one trial after the other, so that the first of a batch would always pass.

    >>> [goes_on(score, range(10)) for score in (4, 5)]
    [False, True]
    """
    better = sum(peer > score for peer in peers)
    return len(peers) < FEWEST_PEERS or better < math.ceil(len(peers) / 2)

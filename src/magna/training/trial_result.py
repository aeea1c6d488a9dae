"""Results of trials, whether they train in one batch or in turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import takewhile

from torch import Tensor

from magna.config.schema import Config
from magna.training.schedule import check_loss

# Gets the epoch, the indices of the running trials and their best validation scores; returns those to stop.
OnReport = Callable[[int, list[int], list[float]], Collection[int]]


@dataclass(frozen=True)
class TrialResult:
    """The best epoch of a trial by validation and, if asked for, the test at that epoch."""

    config: Config
    epochs: int
    best_epoch: int
    seconds: float  # of the batch, divided by its trials
    valid: dict[str, float]  # a trial that diverged scores 0
    test: dict[str, float] | None
    history: list[dict[str, float]]  # of each epoch: loss, and accuracy and loss of validation if it was due
    weights: dict[str, Tensor] | None  # the state dict of the best epoch

    @property
    def finite_history(self) -> list[dict[str, float]]:
        """The epochs before a loss was not finite, as a run alone logs them."""
        return list(takewhile(is_finite, self.history))

    def check(self) -> None:
        """Raise `Diverged` if a loss was not finite: a run alone ends there, without a result."""
        epoch = len(self.finite_history)
        for value in self.history[epoch].values() if epoch < len(self.history) else ():
            check_loss(value, epoch)


OnResults = Callable[[dict[int, TrialResult]], None]


def is_finite(row: dict[str, float]) -> bool:
    return all(map(math.isfinite, row.values()))

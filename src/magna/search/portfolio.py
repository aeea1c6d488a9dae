"""The portfolio: members trained one after the other within a time, and the files that keep their results."""

from __future__ import annotations

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from magna.config.atomic_files import write_whole
from magna.config.schema import Config
from magna.errors import DataError, Diverged
from magna.search.members import Member
from magna.tasks import Task
from magna.training.loop import Epoch
from magna.training.run_folder import RunFolder
from magna.training.session import SeedRun, Session

FILE = "portfolio.json"
CHECK_AFTER = 3  # a member that is far behind stops after this part of its epochs

Say = Callable[[str], None]


class PortfolioStep(NamedTuple):
    """A training of a member: on all training data, or without that of one fold."""

    member: Member
    fold: int | None = None

    @property
    def key(self) -> str:
        return self.member.name if self.fold is None else f"{self.member.name}, fold {self.fold + 1}"


@dataclass
class Result:
    """The end of a step: its validation score, or the reason for none."""

    valid: float | None
    seconds: float
    epochs: int = 0
    fault: str = ""  # stopped early, or diverged


@dataclass(frozen=True)
class Budget:
    """Options of a portfolio.

    Args:
        minutes: time for training; None: as the size of the graph says.
        steps: number of steps of the list, in place of a time.
        single: keep the best member alone.
        test: score the test split once, at the end.
        seed: seed of starting values, dropout and folds.
    """

    minutes: float | None = None
    steps: int | None = None
    single: bool = False
    test: bool = True
    seed: int = 0

    def seconds(self, default_minutes: float) -> float:
        """Seconds of training; with a number of steps there is no end of time."""
        return math.inf if self.steps is not None else 60 * (self.minutes or default_minutes)


class Late(Exception):
    """The time is over during a step; its result is not used."""


class Behind(Exception):
    """A member is too far behind the best one."""


@dataclass
class Portfolio(ABC):
    """The members of a run and their results so far; a subclass trains its steps."""

    folder: Path
    members: Sequence[Member]
    budget: Budget
    device: torch.device
    say: Say
    results: dict[str, Result] = field(default_factory=dict, kw_only=True)
    walked: int = field(default=0, kw_only=True)  # steps of the list that are done or not needed

    @property
    @abstractmethod
    def default_minutes(self) -> float:
        """Time for training where none is asked for."""

    @abstractmethod
    def facts_of_data(self) -> Mapping[str, Any]:
        """Facts by which a run that goes on knows its data again."""

    def steps(self) -> Iterator[PortfolioStep]:
        """Every step in its order, which depends on the data alone."""
        for member in self.members:
            yield PortfolioStep(member)

    @abstractmethod
    def train(self, step: PortfolioStep, deadline: float) -> tuple[float, int]:
        """Train a step; its validation score, and its epochs."""

    @abstractmethod
    def is_behind(self, score: float) -> bool:
        """True for a score so far below the best one that chance does not explain it."""

    def shown(self, score: float) -> str:
        """A score in words."""
        return f"{100 * score:.1f} %"

    def path(self, member: Member) -> Path:
        """The run folder of a member."""
        return self.folder / "members" / f"{self.members.index(member) + 1:02d}-{member.name}"

    def run(self) -> None:
        """Train step by step until the time or the number of steps is over; the first step always ends."""
        deadline = time.monotonic() + self.budget.seconds(self.default_minutes)
        for number, step in enumerate(self.steps(), start=1):
            if self.budget.steps is not None and number > self.budget.steps:
                break
            without = step.fold is not None and self.results[step.member.name].fault  # its folds are not needed
            if step.key not in self.results and not without:
                if self.results and time.monotonic() >= deadline:
                    break
                started = time.monotonic()
                try:
                    valid, epochs = self.train(step, deadline if self.results else math.inf)
                    result = Result(valid, 0.0, epochs)
                except Late:
                    break
                except (Behind, Diverged) as error:
                    result = Result(None, 0.0, fault="stopped early" if isinstance(error, Behind) else "diverged")
                result.seconds = round(time.monotonic() - started, 2)
                self.results[step.key] = result
                self.save({"state": "running"})
                self._say(step, result, deadline)
            self.walked = number

    def _say(self, step: PortfolioStep, result: Result, deadline: float) -> None:
        if step.fold is not None:
            return
        shown = result.fault or f"validation {self.shown(result.valid or 0.0)}"
        left = deadline - time.monotonic()
        in_time = f", {max(0.0, left):.0f} s left" if math.isfinite(left) else ""
        self.say(
            f"{step.key}: {shown} after {result.seconds:.0f} s, best so far {self.shown(self.best_valid)}{in_time}"
        )

    @property
    def best_valid(self) -> float:
        """The best validation score of a member that was trained on all training data; 0 before the first."""
        results = (self.results.get(member.name) for member in self.members)
        scores = [result.valid for result in results if result is not None and result.valid is not None]
        best = scores[0] if scores else 0.0
        for score in scores:
            best = score if self.is_better(score, best) else best
        return best

    def is_better(self, score: float, other: float) -> bool:
        """True if a score beats another one."""
        return score > other

    def listener(self, deadline: float, task: Task, *, checks: bool = True) -> Callable[[Epoch], None]:
        """Calls at each epoch, which end a step that is late or, with `checks`, far behind."""

        def on_epoch(epoch: Epoch) -> None:
            if time.monotonic() >= deadline:
                raise Late
            if checks and epoch.best is not None and epoch.number == epoch.of // CHECK_AFTER:
                if self.results and self.is_behind(epoch.best[task.metric]):
                    raise Behind

        return on_epoch

    def train_run(self, step: PortfolioStep, config: Config, task: Task, deadline: float) -> tuple[float, int]:
        """Train a member in its run folder, from its checkpoint if it has one; its validation score, and its epochs."""
        run = RunFolder(self.path(step.member))
        goes_on = run.exists()
        if goes_on:
            run = RunFolder.open(run.path)
        session = Session([SeedRun(config, run, goes_on)], task, False, False, self.listener(deadline, task))
        session.train_in_turn()
        if session.diverged:
            raise Diverged(session.diverged[0])
        return float(session.ended[0]["valid"][task.metric]), session.ended[0]["epochs"]

    def save(self, content: dict[str, Any]) -> None:
        results = {key: vars(result) for key, result in self.results.items()}
        budget = {"minutes": self.budget.minutes, "seed": self.budget.seed, "single": self.budget.single}
        text = json.dumps(
            {"format": 1, "budget": budget, "facts": self.facts_of_data(), "steps": results} | content, indent=1
        )
        write_whole(self.folder / FILE, (text + "\n").encode(), again="the same command with --resume")

    def resume(self) -> None:
        """Take the finished steps of an earlier call."""
        try:
            stored = json.loads((self.folder / FILE).read_text(encoding="utf-8"))
            steps, facts = stored["steps"], stored["facts"]
        except (OSError, ValueError, KeyError):
            raise DataError(self.folder / FILE, "it is no portfolio", hint="another run_dir") from None
        if facts != json.loads(json.dumps(self.facts_of_data())) or stored["budget"]["seed"] != self.budget.seed:
            raise DataError(self.folder, "it was started on other data or with another seed", hint="another run_dir")
        self.results = {key: Result(**result) for key, result in steps.items()}

"""The portfolio: members trained one after the other within a time, judged on validation, the best few averaged."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from magna.config.atomic_files import write_whole
from magna.config.schema import Config
from magna.config.tables import NodeDataOptions
from magna.data import NodeData
from magna.errors import DataError, Diverged
from magna.search.facts import FOLDS, Facts
from magna.search.members import Member
from magna.tasks import NodeClassification
from magna.training.capture import matmul_precision
from magna.training.loop import Epoch, fit
from magna.training.run_folder import RunFolder
from magna.training.session import SeedRun, Session

FILE, PROBABILITIES = "portfolio.json", "probabilities.safetensors"
MINUTES, LARGE_MINUTES, LARGE_EDGES = 5.0, 30.0, 1_000_000
# A member stops after a third of its epochs if it is worse than the best by this and three standard errors.
_BEHIND, _CHECK_AFTER = 0.03, 3

Say = Callable[[str], None]


class PortfolioStep(NamedTuple):
    """A training of a member: on all training nodes, or without those of one fold."""

    member: Member
    fold: int | None = None

    @property
    def key(self) -> str:
        return self.member.name if self.fold is None else f"{self.member.name}, fold {self.fold + 1}"


@dataclass
class Result:
    """The end of a step: validation accuracy, and why it has none."""

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

    def seconds(self, facts: Facts) -> float:
        if self.steps is not None:
            return math.inf
        minutes = self.minutes or (LARGE_MINUTES if facts.edges > LARGE_EDGES else MINUTES)
        return 60 * minutes


class _Late(Exception):
    """The time is over during a step; its result is not used."""


class _Behind(Exception):
    """A member is too far behind the best one."""


@dataclass
class Portfolio:
    """The members of a run, their results so far, and the files that keep them."""

    folder: Path
    options: NodeDataOptions
    data: NodeData  # as read, without scaling
    facts: Facts
    members: Sequence[Member]
    budget: Budget
    device: torch.device
    say: Say
    results: dict[str, Result] = field(default_factory=dict)
    walked: int = 0  # steps of the list that are done or not needed
    _tasks: dict[tuple[Any, ...], NodeClassification] = field(default_factory=dict)

    def steps(self) -> Iterator[PortfolioStep]:
        """Every step in its order, which depends on the data alone."""
        for member in self.members:
            yield PortfolioStep(member)
            if self.facts.divides_training:
                yield from (PortfolioStep(member, fold) for fold in range(FOLDS))

    def config(self, member: Member) -> Config:
        return member.config(self.options, self.facts.feature_kind, member.name, self.budget.seed)

    def path(self, member: Member) -> Path:
        return self.folder / "members" / f"{self.members.index(member) + 1:02d}-{member.name}"

    def task(self, step: PortfolioStep) -> NodeClassification:
        """The task of a step: the features in its scaling, and its training nodes."""
        config = self.config(step.member)
        assert isinstance(config.data, NodeDataOptions)
        key = step.member.scaling_for(self.facts.feature_kind), config.data.edge_types, step.fold
        if key not in self._tasks:
            data = self.data if step.fold is None else replace(self.data, train=self.kept(step.fold))
            scaled = data.with_standardised_features() if config.data.standardise_features else data
            self._tasks = {other: task for other, task in self._tasks.items() if other[-1] is None}
            self._tasks[key] = NodeClassification(scaled, config, self.device, ("train", "valid"))
        return self._tasks[key]

    def held_out(self, fold: int) -> Tensor:
        """The training nodes of a fold, drawn class by class by the seed."""
        draw = torch.Generator().manual_seed(self.budget.seed)
        parts = []
        for label in range(self.data.num_classes):
            nodes = self.data.train[self.data.y[self.data.train] == label]
            parts.append(nodes[torch.randperm(nodes.numel(), generator=draw)][fold::FOLDS])
        return torch.cat(parts).sort().values

    def kept(self, fold: int) -> Tensor:
        train = self.data.train
        return train[~torch.isin(train, self.held_out(fold))]

    def run(self) -> None:
        """Train step by step until the time or the number of steps is over; the first step always ends."""
        deadline = time.monotonic() + self.budget.seconds(self.facts)
        for number, step in enumerate(self.steps(), start=1):
            if self.budget.steps is not None and number > self.budget.steps:
                break
            without = step.fold is not None and self.results[step.member.name].fault  # its folds are not needed
            if step.key not in self.results and not without:
                if self.results and time.monotonic() >= deadline:
                    break
                started = time.monotonic()
                try:
                    valid, epochs = self._train(step, deadline if self.results else math.inf)
                    result = Result(valid, 0.0, epochs)
                except _Late:
                    break
                except (_Behind, Diverged) as error:
                    result = Result(None, 0.0, fault="stopped early" if isinstance(error, _Behind) else "diverged")
                result.seconds = round(time.monotonic() - started, 2)
                self.results[step.key] = result
                self.save({"state": "running"})
                self._say(step, result, deadline)
            self.walked = number

    def _say(self, step: PortfolioStep, result: Result, deadline: float) -> None:
        if step.fold is not None:
            return
        shown = result.fault or f"validation {100 * (result.valid or 0):.1f} %"
        left = deadline - time.monotonic()
        in_time = f", {max(0.0, left):.0f} s left" if math.isfinite(left) else ""
        self.say(
            f"{step.key}: {shown} after {result.seconds:.0f} s, best so far {100 * self.best_valid:.1f} %{in_time}"
        )

    @property
    def best_valid(self) -> float:
        """The best accuracy of a member on validation, trained on all training nodes."""
        results = (self.results.get(member.name) for member in self.members)
        return max((result.valid for result in results if result is not None and result.valid is not None), default=0.0)

    def _train(self, step: PortfolioStep, deadline: float) -> tuple[float, int]:
        """Train a step and store the probabilities of all nodes; the accuracy on validation, and its epochs."""
        config, task = self.config(step.member), self.task(step)
        folder = self.path(step.member)

        def on_epoch(epoch: Epoch) -> None:
            if time.monotonic() >= deadline:
                raise _Late
            if epoch.best is not None and step.fold is None and epoch.number == epoch.of // _CHECK_AFTER:
                self._check(epoch.best[task.metric])

        if step.fold is None:
            run = RunFolder(folder)
            session = Session([SeedRun(config, run, run.exists())], task, False, False, on_epoch)
            if run.exists():
                RunFolder.open(folder)
            session.train_in_turn()
            if session.diverged:
                raise Diverged(session.diverged[0])
            summary = session.ended[0]
            model, valid, epochs = RunFolder.open(folder).load_model(), summary["valid"], summary["epochs"]
        else:
            torch.manual_seed(config.train.seed)
            model = task.make_model(config.model).to(self.device)
            progress = fit(config, task, model, on_epoch)
            assert progress.best is not None
            valid, epochs = progress.best, progress.epoch
        with matmul_precision(config.train.precision):
            probabilities = task.finite_scores(model.to(self.device)).softmax(1).cpu().contiguous()
        name = PROBABILITIES if step.fold is None else f"fold-{step.fold + 1}.safetensors"
        folder.mkdir(parents=True, exist_ok=True)
        save_file({"probabilities": probabilities}, folder / name)
        return float(valid[task.metric]), epochs

    def _check(self, accuracy: float) -> None:
        size = self.data.valid.numel() + 2
        best = (self.best_valid * (size - 2) + 1) / size  # as if one more node were right and one wrong
        if accuracy < best - _BEHIND - 3 * math.sqrt(best * (1 - best) / size):
            raise _Behind

    def complete(self) -> list[Member]:
        """The members with all their steps."""
        folds = range(FOLDS) if self.facts.divides_training else ()

        def has(step: PortfolioStep) -> bool:
            return step.key in self.results and not self.results[step.key].fault

        every = [member for member in self.members if has(PortfolioStep(member))]
        whole = [member for member in every if all(has(PortfolioStep(member, fold)) for fold in folds)]
        return whole or every

    def has_folds(self, members: Sequence[Member]) -> bool:
        """True if every member was also trained on all folds, so that training nodes can judge."""
        last = f"fold-{FOLDS}.safetensors"
        return self.facts.divides_training and all((self.path(member) / last).is_file() for member in members)

    def judging_nodes(self, folds: bool) -> Tensor:
        """The validation nodes, and with `folds` the held-out training nodes."""
        held_out = [self.held_out(fold) for fold in range(FOLDS)] if folds else []
        return torch.cat([self.data.valid, *held_out])

    def judged(self, member: Member, folds: bool) -> Tensor:
        """Probabilities of the nodes that judge a member, none of which trained it."""
        probabilities = self.probabilities(member)
        parts = [probabilities[self.data.valid]]
        for fold in range(FOLDS) if folds else ():
            file = self.path(member) / f"fold-{fold + 1}.safetensors"
            parts.append(load_file(file)["probabilities"][self.held_out(fold)])
        return torch.cat(parts)

    def probabilities(self, member: Member) -> Tensor:
        return load_file(self.path(member) / PROBABILITIES)["probabilities"]

    def save(self, content: dict[str, Any]) -> None:
        results = {key: vars(result) for key, result in self.results.items()}
        budget = {"minutes": self.budget.minutes, "seed": self.budget.seed, "single": self.budget.single}
        text = json.dumps(
            {"format": 1, "budget": budget, "facts": self.facts.to_dict(), "steps": results} | content, indent=1
        )
        write_whole(self.folder / FILE, (text + "\n").encode(), again="the same command with --resume")

    def resume(self) -> None:
        """Take the finished steps of an earlier call."""
        try:
            stored = json.loads((self.folder / FILE).read_text(encoding="utf-8"))
            steps, facts = stored["steps"], stored["facts"]
        except (OSError, ValueError, KeyError):
            raise DataError(self.folder / FILE, "it is no portfolio", hint="another run_dir") from None
        if facts != json.loads(json.dumps(self.facts.to_dict())) or stored["budget"]["seed"] != self.budget.seed:
            raise DataError(self.folder, "it was started on other data or with another seed", hint="another run_dir")
        self.results = {key: Result(**result) for key, result in steps.items()}

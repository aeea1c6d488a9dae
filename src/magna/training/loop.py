"""The training loop of one run, top to bottom, and what a training reports."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import takewhile
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from magna.config.schema import Config
from magna.config.tables import TrainOptions
from magna.errors import DataError
from magna.graph.torch_internals import scale_each
from magna.nn.dropout import seeds_at_once
from magna.nn.ensemble import members_of
from magna.nn.hub import Saved
from magna.tasks import Task
from magna.training.capture import captured, step_precision
from magna.training.checkpoint import WITHOUT_CHECKPOINT, Groups, load_checkpoint, save_checkpoint
from magna.training.run_folder import RunFolder
from magna.training.schedule import BestEpochs, Schedule, check_loss

CHECKPOINT_SECONDS = 10.0
CHECKPOINT_WRITE = 0.5  # seconds; a model that takes longer to save is saved less often in proportion
Metrics = dict[str, float]
# Gets the epoch, the indices of the running trials and their best validation scores; returns those to stop.
OnReport = Callable[[int, list[int], list[float]], Collection[int]]


@dataclass(frozen=True)
class Epoch:
    """The state of a training after epoch `number` of `of`, in run `run` (from 0) of `runs`."""

    label: str
    number: int
    of: int
    loss: float | None
    valid: Metrics | None  # None: not validated in this epoch
    best: Metrics | None
    run: int = 0
    runs: int = 1


@dataclass
class Progress:
    """The progress of a run; with the tensors, everything that a checkpoint holds."""

    epoch: int = 0
    seconds: float = 0.0
    best_epochs: list[int] = field(default_factory=list)  # of each member of an ensemble, or of the model
    bests: list[Metrics] = field(default_factory=list)

    @property
    def best_epoch(self) -> int:
        return max(self.best_epochs, default=-1)

    @property
    def best(self) -> Metrics | None:
        return mean_metrics(self.bests) if self.bests else None


@dataclass(frozen=True)
class TrialResult:
    """The best epoch of a trial by validation and, if asked for, the test at that epoch."""

    config: Config
    epochs: int
    best_epoch: int
    seconds: float  # of the batch, divided by its trials
    valid: Metrics  # a trial that diverged has the worst value of the metric
    test: Metrics | None
    history: list[Metrics]  # of each epoch: loss, and metric and loss of validation if it was due
    weights: dict[str, Tensor] | None  # the state dict of the best epoch
    parameters: int | None = None  # of the model, of all members of an ensemble
    peak_bytes: int | None = None  # of training, where the test was asked for: see `train_trials`

    @property
    def finite_history(self) -> list[Metrics]:
        """The epochs before a loss was not finite, as a run alone logs them."""
        return list(takewhile(is_finite, self.history))

    def check(self) -> None:
        """Raise `Diverged` if a loss was not finite: a run alone ends there, without a result."""
        epoch = len(self.finite_history)
        for value in self.history[epoch].values() if epoch < len(self.history) else ():
            check_loss(value, epoch)


OnResults = Callable[[dict[int, TrialResult]], None]


class Request(NamedTuple):
    """Parts of the results, and the calls on the way, that a caller of `train_trials` asks for."""

    read_test: bool
    keep_weights: bool
    report_every: int
    on_report: OnReport | None
    on_results: OnResults


def is_finite(row: Metrics) -> bool:
    return all(map(math.isfinite, row.values()))


def fit(
    config: Config,
    task: Task,
    network: Saved,
    on_epoch: Callable[[Epoch], None],
    run: RunFolder | None = None,
    seconds: float = math.inf,
) -> Progress:
    """Train a network from the checkpoint of its run, or from the start.

    It ends with the weights that validation chose; each member of an ensemble has its own best epoch. After `seconds`
    of training the running epoch is the last one.
    """
    training = Training(config, task, network)
    if run is not None:
        training.restore(run)
        run.keep_metrics(training.progress.epoch)
    training.prepare()
    progress, train = training.progress, config.train
    started, save_at = time.perf_counter() - progress.seconds, time.perf_counter() + CHECKPOINT_SECONDS
    training.deadline = started + seconds
    while not training.is_late and progress.epoch <= min(train.epochs - 1, progress.best_epoch + train.patience):
        row = training.run_epoch()
        if run is not None:
            run.log(row)
        progress.seconds = time.perf_counter() - started
        label = f"seed {train.seed}"
        on_epoch(Epoch(label, progress.epoch, train.epochs, row["loss"], row.get("valid"), progress.best))
        if run is not None and (now := time.perf_counter()) >= save_at:
            training.save(run)
            taken = time.perf_counter() - now
            save_at = now + taken + CHECKPOINT_SECONDS * max(1.0, taken / CHECKPOINT_WRITE)
    if run is not None:
        training.save(run)
    # The weights that validation chose are the ones that are tested and saved; nothing has read the test split so far.
    network.load_state_dict(training.best_weights)
    return progress


class Training:
    """A network in training: its optimiser, schedule, best weights and progress."""

    def __init__(self, config: Config, task: Task, network: Saved) -> None:
        self.config, self.task, self.network, self.device = config, task, network, task.device
        self.members: list[Any] = members_of(network)
        self.objective = task.objective(config.task, network)
        groups = parameter_groups(network)
        # Each group is clipped alone, as it has its own loss.
        self.schedule = Schedule([_with_rate(config.train, group["shallow"]) for group in groups], self.device)
        self.adam = self.schedule.adam(groups)
        self.best = BestEpochs([config.train] * len(self.members))
        self.best_weights = _copy(network)
        self.progress = Progress(best_epochs=self.best.epoch.tolist())
        self.deadline = math.inf  # of `time.perf_counter`; the epoch that ends after it is the last one
        self.is_late = False
        self._epoch = torch.tensor(0, device=self.device)

    def prepare(self) -> None:
        """Capture the step on a GPU and draw the first batches."""
        self.network.train()
        changed = [*self.network.parameters(), *self.network.buffers()]
        example = next(iter(self.objective.batches()))
        self._step = captured(self._plain_step, [example], self.adam, changed, self.config.model)
        self.batches = self.objective.batches(self.progress.epoch, self.config.train.seed)

    def step(self, number: int, batch: Tensor) -> Tensor:
        """Take a step of the epoch and return its loss."""
        self.schedule.set_rates(self.adam, self.progress.epoch + number / self.objective.num_batches)
        return self._step(batch).clone()  # a captured step returns the same tensor each time

    def _plain_step(self, batch: Tensor) -> Tensor:
        with step_precision(self.config.train.precision, self.device, self.network), seeds_at_once():
            loss: Tensor = self.objective.loss(self.network, batch, self._epoch)
        self.adam.zero_grad()
        loss.backward()
        if self.config.train.clip > 0:
            self._clip()
        self.adam.step()
        return loss.detach()

    def _clip(self) -> None:
        grads = [[p.grad for p in group["params"] if p.grad is not None] for group in self.adam.param_groups]
        factors = self.schedule.factors(torch.stack([nn.utils.get_total_norm(group) for group in grads]))
        for group, factor in zip(grads, factors, strict=True):
            scale_each(group, factor)

    def run_epoch(self) -> dict[str, Any]:
        """Train an epoch, validate if it is due, and return the line of `metrics.jsonl`."""
        train, number = self.config.train, self.progress.epoch
        self._epoch.fill_(number)
        self.network.train()
        losses = [self.step(*each) for each in enumerate(self.batches)]
        # Drawn while the device is still at work on this epoch.
        self.batches = self.objective.batches(number + 1, train.seed)
        loss = float(torch.stack(losses).mean())
        check_loss(loss, number)
        row: dict[str, Any] = {"epoch": number, "loss": loss}
        self.is_late = time.perf_counter() >= self.deadline
        if (number + 1) % train.eval_every == 0 or number + 1 == train.epochs or self.is_late:
            row["valid"] = self._validate(loss)
        self.progress.epoch += 1
        return row

    def _validate(self, loss: float) -> Metrics:
        """Metrics on the validation split, the mean over the members; weights better than ever are copied."""
        progress = self.progress
        metrics = [self.task.evaluate(member, "valid") for member in self.members]
        mean = mean_metrics(metrics)
        check_loss(mean.get("loss", loss), progress.epoch)  # the last step may have diverged
        score = torch.tensor([self.task.score(each) for each in metrics], dtype=torch.float64)
        better = self.best.update(score, progress.epoch).tolist()
        progress.best_epochs = self.best.epoch.tolist()
        progress.bests = progress.bests or metrics
        for number in (number for number, is_better in enumerate(better) if is_better):
            progress.bests[number] = metrics[number]
            self.best_weights |= _copy(self.network, "" if len(better) == 1 else f"members.{number}.")
        return mean

    def save(self, run: RunFolder) -> None:
        """Write a checkpoint: weights, best weights, moments of the optimiser, generators, progress."""
        moments = self.adam.state_dict()["state"]
        random = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.device)
        groups = {
            "model": self.network.state_dict(),
            "best": self.best_weights,
            "adam": {f"{i}.{name}": value for i, state in moments.items() for name, value in state.items()},
            "random": random,
        }
        save_checkpoint(run.checkpoint, groups, asdict(self.progress))

    def restore(self, run: RunFolder) -> None:
        """Go back to the checkpoint of a run, if it has one."""
        stored = load_checkpoint(run.checkpoint)
        if stored is None:
            return
        try:
            self._put_back(*stored)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            fault = f"it is of another model, or damaged ({str(error).splitlines()[0]})"
            raise DataError(run.checkpoint, fault, hint=WITHOUT_CHECKPOINT) from error

    def _put_back(self, groups: Groups, progress: dict[str, Any]) -> None:
        self.progress = Progress(**progress)
        self.best.epoch.copy_(torch.tensor(self.progress.best_epochs))
        if self.progress.bests:
            score = [self.task.score(each) for each in self.progress.bests]
            self.best.score.copy_(torch.tensor(score, dtype=torch.float64))
        self.network.load_state_dict(groups["model"])
        for name, value in groups["best"].items():
            self.best_weights[name].copy_(value)
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in groups["adam"].items():
            index, name = key.split(".", 1)
            moments.setdefault(int(index), {})[name] = value
        self.adam.load_state_dict({"state": moments, "param_groups": self.adam.state_dict()["param_groups"]})
        self.schedule.link(self.adam)
        torch.set_rng_state(groups["random"]["cpu"])
        if self.device.type == "cuda" and "cuda" in groups["random"]:  # a run that comes from a CPU has none
            torch.cuda.set_rng_state(groups["random"]["cuda"], self.device)


def mean_metrics(metrics: Sequence[Metrics]) -> Metrics:
    """The mean of each metric."""
    return metrics[0] if len(metrics) == 1 else {name: fmean(each[name] for each in metrics) for name in metrics[0]}


def parameter_groups(network: nn.Module) -> list[dict[str, Any]]:
    """Groups of parameters: those of the network or of each member of an ensemble, then the shallow embeddings."""
    scorer = getattr(network, "shallow", None)
    shallow = [] if scorer is None else list(scorer.parameters())
    parts = [[p for p in part.parameters() if all(p is not other for other in shallow)] for part in members_of(network)]
    if shallow:
        parts.append(shallow)
    return [{"params": part, "row": row, "shallow": part is shallow} for row, part in enumerate(parts)]


def _with_rate(train: TrainOptions, shallow: bool) -> TrainOptions:
    """The settings of a group, with its own learning rate."""
    return replace(train, lr=train.skip_lr) if shallow and train.skip_lr is not None else train


def _copy(network: nn.Module, part: str = "") -> dict[str, Tensor]:
    """Copies of the weights whose names begin with `part`."""
    state = network.state_dict()
    return {name: value.detach().clone() for name, value in state.items() if name.startswith(part)}

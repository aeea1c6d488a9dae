"""One batch of trainings: every parameter carries a leading trial axis, and an epoch steps all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from magna.config.schema import Config
from magna.nn import MAGNAConv
from magna.nn.dropout import is_zero
from magna.nn.hops import Hops
from magna.ops import geometric_weights
from magna.tasks import NodeClassification
from magna.tasks.models import averaged, members_of
from magna.tasks.nodes import scored
from magna.training.capture import captured, step_precision
from magna.training.schedule import BestEpochs, Schedule, check_loss

OnReport = Callable[[int, list[int], list[float]], Collection[int]]

# Settings of the task that may differ from trial to trial.
TASK_BATCHED = ("consistency", "temperature", "confidence", "ramp")
_LARGE = 1 << 27  # parameters of a batch
FILLER = -1  # in place of a trial's number: a copy of another one, whose result nobody wants


@dataclass(frozen=True)
class TrialResult:
    """What a trial leaves: its best epoch by validation and, where it was asked for, the test at that epoch."""

    config: Config
    epochs: int
    best_epoch: int
    seconds: float  # of the batch, divided by the trials that were in it
    valid: dict[str, float]
    test: dict[str, float] | None
    history: list[dict[str, float]]  # per epoch: loss, and accuracy and loss of validation where it was looked at
    weights: dict[str, Tensor] | None  # the state dict of the best epoch

    @property
    def finite_history(self) -> list[dict[str, float]]:
        """The epochs before a loss was no number any more: what a run of its own would have logged."""
        return list(takewhile(_is_finite, self.history))

    @property
    def score(self) -> dict[str, float]:
        """What validation says of it; nothing where it diverged, as a run of its own would then leave nothing."""
        return self.valid if len(self.finite_history) == len(self.history) else dict.fromkeys(self.valid, 0.0)

    def check(self) -> None:
        """Raise `Diverged` where a loss was no number: a run of its own would have ended there, without a result."""
        epoch = len(self.finite_history)
        for value in self.history[epoch].values() if epoch < len(self.history) else ():
            check_loss(value, epoch)


OnResults = Callable[[dict[int, TrialResult]], None]


def _is_finite(row: dict[str, float]) -> bool:
    return all(map(math.isfinite, row.values()))


def batch_size_for(trials: int) -> int:
    """The size of a batch of so many trials on a GPU: kernels are compiled for a number of heads, so that only a few
    sizes are used; the places that are left repeat the first trial.

    >>> [batch_size_for(trials) for trials in (1, 5, 9, 20, 100)]
    [1, 5, 10, 20, 112]
    """
    step = max(1, (1 << (trials - 1).bit_length()) // 8)
    return -(-trials // step) * step


class TrialHops(Hops):
    """The hops of each trial of a batch, as weights and rates of the most hops that one of them walks."""

    most: int
    heads: int

    def forward(self) -> dict[str, Any]:
        schedule = super().forward()
        if not isinstance(self.K, Tensor):
            return schedule
        # Not `as_tensor`: a number copied to a GPU cannot be part of a CUDA graph.
        alpha = schedule["alpha"] * torch.ones(self.heads, device=self.K.device)
        rate = schedule["feature_dropout"]
        if not is_zero(rate):
            # Where K is smaller, the first hops only bring the features to its start: nothing is dropped there.
            number = torch.arange(self.most, 0, -1, device=self.K.device)
            rate = torch.where(number <= self.K, rate, 0.0)[:, None]
        theta = geometric_weights(alpha, self.K, self.most)
        return {"memory": schedule["memory"], "theta": theta, "feature_dropout": rate}


class Batch:
    """S trainings of one structure, their parameters side by side in `weights` [S, P].

    An ensemble is as many of them as it has members, under one number.
    """

    def __init__(self, configs: list[Config], numbers: list[int], task: NodeClassification) -> None:
        self.task, self.device = task, task.device
        self.since, self.seconds = time.perf_counter(), 0.0  # of a trial, up to `since`
        models: list[nn.Module] = []
        for config in configs:
            torch.manual_seed(config.train.seed)
            with self.device:
                models += members_of(task.make_model(config.model))
        members = len(models) // len(configs)
        configs = [config for config in configs for _ in range(members)]
        numbers = [number for number in numbers for _ in range(members)]
        # The model that runs for all: the one with most hops, its other settings replaced by one value per trial.
        self.network = max(models, key=_most_hops)
        self.names, self.shapes = zip(*((name, p.shape) for name, p in self.network.named_parameters()), strict=True)
        self.sizes = [shape.numel() for shape in self.shapes]
        weights = torch.stack([nn.utils.parameters_to_vector(model.parameters()).detach() for model in models])
        self.settings = _differing(models)
        for conv in self.network.modules():
            if isinstance(conv, MAGNAConv):
                hops: Any = conv.hops
                hops.__class__, hops.most, hops.heads = TrialHops, hops.K, conv.heads
        # How much smaller it becomes at once: a GPU compiles and captures a batch of another size anew, which takes as
        # long as many epochs of small models.
        small = weights.numel() < _LARGE
        self.shrinks_by = 4 if self.device.type == "cuda" and small else 2
        self.train_config = configs[0].train
        self._place(configs, numbers, weights, {})
        torch.manual_seed(configs[0].train.seed)

    def _place(
        self,
        configs: list[Config],
        numbers: list[int],
        weights: Tensor,
        state: dict[str, Tensor],
        best: BestEpochs | None = None,
    ) -> None:
        """Everything that an epoch reads and writes, one entry per trial."""
        self.configs, self.numbers, self.weights = configs, numbers, weights
        count = len(configs)
        self.nodes = {
            split: torch.stack([self._nodes_of(config, split) for config in configs]) for split in ("train", "valid")
        }
        self.task_settings = {
            key: self._tensor([getattr(config.task, key) for config in configs]) for key in TASK_BATCHED
        }
        train = [config.train for config in configs]
        self.schedule = Schedule(train, self.device)
        self.best = best or BestEpochs(train, self.device)
        self.state = state or {
            "epoch": torch.zeros((), dtype=torch.int64, device=self.device),
            "best": weights.clone(),
            "record": torch.zeros(self.train_config.epochs, count, 3, dtype=torch.float64, device=self.device),
        }
        self.grad = torch.zeros_like(weights)
        rows = []
        for row, grad in zip(weights.unbind(), self.grad.unbind(), strict=True):
            row.grad = grad
            rows.append(row)
        groups = [
            {"params": [rows[s] for s in members], "row": members[0], "weight_decay": decay}
            for (_, _, decay), members in _alike(configs).items()
        ]
        self.adam = self.schedule.adam(groups)

    def _nodes_of(self, config: Config, split: str) -> Tensor:
        return self.task.nodes(split, config.data.split_seed if config.data.split == "random" else None)

    def _tensor(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self.device)

    def _scorer(self, row: Tensor, values: tuple[Tensor, ...]) -> Callable[..., Tensor]:
        """One trial's model as a function, inside `vmap`."""
        parts = row.split(self.sizes)
        parameters = {n: part.view(s) for n, part, s in zip(self.names, parts, self.shapes, strict=True)}
        for (module, name, _), value in zip(self.settings, values, strict=True):
            setattr(module, name, value)
        return lambda *inputs, **named: functional_call(self.network, parameters, inputs, named)

    def _losses(self) -> Tensor:
        """The loss of each trial, [S], and its gradient in `grad`."""
        self.network.train()
        weights = self.weights.detach().requires_grad_()

        def loss(row: Tensor, values: tuple[Tensor, ...], settings: dict[str, Tensor], nodes: Tensor) -> Tensor:
            common = self.configs[0].task
            if common.consistency > 0:
                common = SimpleNamespace(**vars(common) | settings)  # type: ignore[assignment]
            return self.task.loss(self._scorer(row, values), nodes, self.state["epoch"], common)

        values = tuple(value for _, _, value in self.settings)
        with step_precision(self.train_config.precision, self.device):
            losses = torch.vmap(loss, randomness="different")(weights, values, self.task_settings, self.nodes["train"])
        self.grad.copy_(torch.autograd.grad(losses.sum(), weights)[0])
        return losses.detach()

    @torch.no_grad()
    def _measure(self, weights: Tensor, nodes: Tensor) -> dict[str, Tensor]:
        self.network.eval()

        def measure(row: Tensor, values: tuple[Tensor, ...], nodes: Tensor) -> dict[str, Tensor]:
            return self.task.measure(self._scorer(row, values), nodes)

        values = tuple(value for _, _, value in self.settings)
        return torch.vmap(measure)(weights, values, nodes)

    def step(self) -> Tensor:
        """One step of every trial; nothing here waits for the device. Gives the losses, [S]."""
        losses = self._losses()
        self.grad.mul_(self.schedule.factors(self.grad.norm(dim=1))[:, None])
        self.adam.step()
        self._write_record(0, losses[:, None])
        return losses

    def look(self) -> Tensor:
        """Validation after a step; trials that are better than ever are kept. Gives the accuracies, [S]."""
        valid = self._measure(self.weights, self.nodes["valid"])
        accuracy, loss = valid["accuracy"], valid["loss"]
        better = self.best.update(torch.stack([accuracy, -loss.double()], dim=1), self.state["epoch"])
        self.state["best"].copy_(torch.where(better[:, None], self.weights, self.state["best"]))
        self._write_record(1, torch.stack([accuracy, loss], dim=1))
        return accuracy

    def _write_record(self, first: int, values: Tensor) -> None:
        """Put values [S, n] into the columns of the record from `first` on, for this epoch."""
        columns = self.state["record"][:, :, first : first + values.size(1)]
        columns.index_copy_(0, self.state["epoch"][None], values.double()[None])

    def _looks(self, epoch: int) -> bool:
        """Whether validation is looked at after an epoch: after every `eval_every`-th one, and after the last."""
        after, last = epoch + 1, self.train_config.epochs
        return after % self.train_config.eval_every == 0 or after == last

    def run(
        self,
        report_every: int,
        on_report: OnReport | None,
        on_results: OnResults,
        read_test: bool,
        keep_weights: bool,
    ) -> None:
        """Train to the end; `on_results` gets the trials that have ended whenever the others go on without them."""
        stopped = {FILLER}
        step, look = self._captured()
        for number in range(1, self.train_config.epochs + 1):
            self._begin_epoch(number - 1)
            step()
            if self._looks(number - 1):
                look()
            if number % report_every:
                continue
            patient = self.best.patient(number).tolist()
            stopped |= {n for n, rows in self._rows.items() if not any(patient[i] for i in rows)}
            if on_report is not None:
                best = self._best_accuracy.tolist()
                running = [n for n in self._rows if n not in stopped]
                stopped |= set(on_report(number, running, [fmean(best[i] for i in self._rows[n]) for n in running]))
            left = [n not in stopped for n in self.numbers]
            if not any(left):
                break
            if self.shrinks_by * sum(left) <= len(left) and number < self.train_config.epochs:
                # Much of the batch has nothing left to do: the others go on without it.
                on_results(self._results(number, [not keep for keep in left], read_test, keep_weights))
                self._keep(left)
                step, look = self._captured()
        on_results(self._results(number, [True] * len(self.numbers), read_test, keep_weights))

    def _begin_epoch(self, epoch: int) -> None:
        self.state["epoch"].fill_(epoch)
        self.schedule.set_rates(self.adam, epoch)

    @property
    def _best_accuracy(self) -> Tensor:
        return self.best.score[:, 0].clamp(min=0)  # before the first validation: 0

    @property
    def _rows(self) -> dict[int, list[int]]:
        """The rows of each trial: one, or one for each member of an ensemble."""
        rows: dict[int, list[int]] = {}
        for row, number in enumerate(self.numbers):
            if number != FILLER:
                rows.setdefault(number, []).append(row)
        return rows

    def _captured(self) -> list[Callable[[], object]]:
        """`step` and `look`, each a CUDA graph of its own, as a batch may step more often than it looks."""
        changed = [self.weights, *self.state.values(), self.best.epoch, self.best.score]
        return [captured(part, (), self.adam, changed, self.configs[0].model) for part in (self.step, self.look)]

    def _keep(self, kept: list[bool]) -> None:
        """Go on with some of the trials alone."""
        places = [i for i, keep in enumerate(kept) if keep]
        numbers = [self.numbers[i] for i in places]
        if self.device.type == "cuda":
            fillers = batch_size_for(len(places)) - len(places)
            places, numbers = places + places[:1] * fillers, numbers + [FILLER] * fillers
        moments: dict[int, dict[str, Tensor]] = {}
        for group, members in zip(self.adam.param_groups, _alike(self.configs).values(), strict=True):
            moments |= {i: self.adam.state[row] for i, row in zip(members, group["params"], strict=True)}
        index = torch.tensor(places, device=self.device)
        state = {
            name: value if value.dim() == 0 else value.index_select(1 if name == "record" else 0, index)
            for name, value in self.state.items()
        }
        self.settings = [(module, name, value[index]) for module, name, value in self.settings]
        self._place([self.configs[i] for i in places], numbers, self.weights[index], state, self.best.rows(index))
        for group, members in zip(self.adam.param_groups, _alike(self.configs).values(), strict=True):
            for i, row in zip(members, group["params"], strict=True):
                self.adam.state[row] = {name: value.clone() for name, value in moments[places[i]].items()}

    def _results(self, number: int, chosen: list[bool], read_test: bool, keep_weights: bool) -> dict[int, TrialResult]:
        s = self.state
        ensembles = self.configs[0].model.members > 1
        scores = self._scores_of_best() if read_test or ensembles else None
        now = time.perf_counter()
        self.seconds += (now - self.since) / len(self._rows)
        self.since = now
        record, trained = s["record"].cpu(), self.best.trained(number).tolist()
        accuracies, losses = self._best_accuracy.tolist(), (-self.best.score[:, 1]).tolist()
        results = {}
        for number, rows in self._rows.items():
            if not chosen[rows[0]]:
                continue
            config, epochs = self.configs[rows[0]], max(trained[row] for row in rows)
            kept = record[:epochs, rows]
            # The loss of an ensemble is the sum over its members, as in a run of its own.
            kept = torch.cat([kept[:, :, :1].sum(1), kept[:, :, 1:].mean(1)], dim=1)
            history = [
                dict(zip(("loss", "valid_accuracy", "valid_loss"), row if self._looks(e) else row[:1], strict=False))
                for e, row in enumerate(kept.tolist())
            ]
            finite = all(map(_is_finite, history))
            valid = {"accuracy": accuracies[rows[0]], "loss": losses[rows[0]]}
            if ensembles:
                valid = self._score_of(rows, scores, "valid")
            results[number] = TrialResult(
                config=config,
                epochs=epochs,
                best_epoch=int(self.best.epoch[rows].max()),
                seconds=self.seconds,
                # A run alone that diverges leaves no result, whatever it had reached before.
                valid=valid | {"accuracy": valid["accuracy"] * finite},
                test=self._score_of(rows, scores, "test") if read_test else None,
                history=history,
                weights=self._weights_of(rows) if keep_weights else None,
            )
        return results

    @torch.no_grad()
    def _scores_of_best(self) -> Tensor:
        """What each row says of all nodes at its best epoch, [S, N, C]."""
        self.network.eval()
        values = tuple(value for _, _, value in self.settings)
        return torch.vmap(lambda row, values: self.task.scores(self._scorer(row, values)))(self.state["best"], values)

    def _score_of(self, rows: list[int], scores: Tensor | None, split: str) -> dict[str, float]:
        """Accuracy and loss of a trial at its best epoch; of an ensemble those of its members together."""
        assert scores is not None
        nodes = self._nodes_of(self.configs[rows[0]], split)
        found = scored(averaged(scores[rows])[nodes], self.task.labels(nodes))
        return {name: float(value) for name, value in found.items()}

    def _weights_of(self, rows: list[int]) -> dict[str, Tensor]:
        """The state dict of a trial at its best epoch."""
        weights: dict[str, Tensor] = {}
        for member, row in enumerate(rows):
            prefix = f"members.{member}." if len(rows) > 1 else ""
            parts = zip(self.names, self.state["best"][row].split(self.sizes), self.shapes, strict=True)
            weights |= {prefix + name: part.view(shape).clone() for name, part, shape in parts}
        return weights


def _alike(configs: list[Config]) -> dict[tuple[float, float, float], list[int]]:
    """The trials that one group of the optimiser can serve: same rate, same decay."""
    groups: dict[tuple[float, float, float], list[int]] = {}
    for s, config in enumerate(configs):
        key = (config.train.lr, config.train.min_lr, config.train.weight_decay)
        groups.setdefault(key, []).append(s)
    return groups


def _differing(models: Sequence[nn.Module]) -> list[tuple[nn.Module, str, Tensor]]:
    """The settings in which models of one structure differ, one value per trial; the modules are those of the model
    with most hops.
    """
    network = max(models, key=_most_hops)
    device = next(network.parameters()).device
    found = []
    for own, *alike in zip(network.modules(), *(model.modules() for model in models), strict=True):
        for name in getattr(own, "PER_TRIAL", ()):
            values = [getattr(module, name) for module in alike]
            if any(value != values[0] for value in values):
                found.append((own, name, torch.tensor(values, device=device)))
    return found


def _most_hops(model: nn.Module) -> int:
    return max((module.K for module in model.modules() if isinstance(module, Hops)), default=0)

"""One batch of trainings: every parameter carries a leading trial axis, and an epoch steps all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import stack_module_state

from magna.config.schema import Config
from magna.config.tables import NodeDataOptions, NodeTask
from magna.nn.ensemble import members_of
from magna.tasks.base import BatchTask
from magna.tasks.metrics import METRIC_FORMS
from magna.training.capture import batch_size_for, captured, step_precision
from magna.training.loop import Request, TrialResult, is_finite
from magna.training.schedule import BestEpochs, Schedule
from magna.training.trial_buffers import TrialModel, register_differences

_LARGE = 1 << 27  # parameters of a batch
FILLER = -1  # in place of a trial's number: a copy of another trial, whose result is dropped
State = tuple[dict[str, Tensor], BestEpochs]


class Batch:
    """S trainings of one structure, their parameters side by side in `weights` [S, P].

    An ensemble is as many of them as it has members, under one number.
    """

    def __init__(self, configs: list[Config], numbers: list[int], task: BatchTask) -> None:
        self.task, self.device, self.form = task, task.device, METRIC_FORMS[task.metric]
        self.since, self.seconds = time.perf_counter(), 0.0  # of a trial, up to `since`
        models: list[nn.Module] = []
        for config in configs:
            torch.manual_seed(config.train.seed)
            with self.device:
                models += members_of(task.make_model(config.model))
        members = len(models) // len(configs)
        configs = [config for config in configs for _ in range(members)]
        numbers = [number for number in numbers for _ in range(members)]
        register_differences(models)
        self.network = models[0]
        parameters, self.buffers = stack_module_state(models)
        self.names, self.shapes = list(parameters), [value.shape[1:] for value in parameters.values()]
        self.sizes = [shape.numel() for shape in self.shapes]
        weights = torch.cat([value.detach().flatten(1) for value in parameters.values()], dim=1)
        # How much smaller it becomes at once: a GPU compiles and captures a batch of another size anew, which takes as
        # long as many epochs of small models.
        small = weights.numel() < _LARGE
        self.shrinks_by = 4 if self.device.type == "cuda" and small else 2
        self.train_config = configs[0].train
        self._place(configs, numbers, weights)
        torch.manual_seed(configs[0].train.seed)

    def _place(self, configs: list[Config], numbers: list[int], weights: Tensor, state: State | None = None) -> None:
        """Make everything that an epoch reads and writes, one entry per trial."""
        self.configs, self.numbers, self.weights = configs, numbers, weights
        self.nodes = {
            split: torch.stack([self._nodes_of(config, split) for config in configs]) for split in ("train", "valid")
        }
        self.task_settings = {
            key: torch.tensor(
                [getattr(config.task, key) for config in configs], dtype=torch.float32, device=self.device
            )
            for key in NodeTask.per_trial()
        }
        train = [config.train for config in configs]
        self.schedule = Schedule(train, self.device)
        start = {
            "epoch": torch.zeros((), dtype=torch.int64, device=self.device),
            "best": weights.clone(),
            "record": torch.zeros(self.train_config.epochs, len(train), 3, dtype=torch.float64, device=self.device),
        }
        self.state, self.best = state or (start, BestEpochs(train, self.device))
        self.grad = torch.zeros_like(weights)
        rows = weights.unbind()
        for row, grad in zip(rows, self.grad.unbind(), strict=True):
            row.grad = grad
        groups = [
            {"params": [rows[s] for s in members], "row": members[0], "weight_decay": decay}
            for (_, _, decay), members in _alike(configs).items()
        ]
        self.adam = self.schedule.adam(groups)

    def _nodes_of(self, config: Config, split: str) -> Tensor:
        data = config.data
        assert isinstance(data, NodeDataOptions)
        return self.task.nodes(split, data.split_seed if data.split == "random" else None)

    def _scorer(self, row: Tensor, buffers: dict[str, Tensor]) -> TrialModel:
        """One trial's model, inside `vmap`."""
        parts = torch.split(row, self.sizes)
        state = {n: part.view(s) for n, part, s in zip(self.names, parts, self.shapes, strict=True)} | buffers
        return TrialModel(self.network, state)

    def _losses(self) -> Tensor:
        """The loss of each trial, [S], and its gradient in `grad`."""
        self.network.train()
        weights = self.weights.detach().requires_grad_()

        def loss(row: Tensor, buffers: dict[str, Tensor], settings: dict[str, Tensor], nodes: Tensor) -> Tensor:
            common: Any = self.configs[0].task
            if common.consistency > 0:
                common = SimpleNamespace(**vars(common) | settings)
            return self.task.loss(self._scorer(row, buffers), nodes, self.state["epoch"], common)

        with step_precision(self.train_config.precision, self.device):
            losses = torch.vmap(loss, randomness="different")(
                weights, self.buffers, self.task_settings, self.nodes["train"]
            )
        self.grad.copy_(torch.autograd.grad(losses.sum(), weights)[0])
        return losses.detach()

    @torch.no_grad()
    def _measure(self, weights: Tensor, nodes: Tensor) -> dict[str, Tensor]:
        self.network.eval()

        def measure(row: Tensor, buffers: dict[str, Tensor], nodes: Tensor) -> dict[str, Tensor]:
            return self.task.measure(self.task.scores(self._scorer(row, buffers)), nodes)

        metrics: dict[str, Tensor] = torch.vmap(measure)(weights, self.buffers, nodes)
        return metrics

    def step(self) -> Tensor:
        """One step of every trial; nothing here waits for the device. Gives the losses, [S]."""
        losses = self._losses()
        self.grad.mul_(self.schedule.factors(self.grad.norm(dim=1))[:, None])
        self.adam.step()
        self._write_record(0, losses[:, None])
        return losses

    def look(self) -> Tensor:
        """Validation after a step; trials that are better than ever are kept. Gives the values of the metric, [S]."""
        valid = self._measure(self.weights, self.nodes["valid"])
        value, loss = valid[self.task.metric], valid["loss"]
        score = self.form.score(value)
        better = self.best.update(torch.stack([score, -loss.double()], dim=1), self.state["epoch"])
        self.state["best"].copy_(torch.where(better[:, None], self.weights, self.state["best"]))
        self._write_record(1, torch.stack([value, loss], dim=1))
        return value

    def _write_record(self, first: int, values: Tensor) -> None:
        """Put values [S, n] into the columns of the record from `first` on, for this epoch."""
        columns = self.state["record"][:, :, first : first + values.size(1)]
        columns.index_copy_(0, self.state["epoch"][None], values.double()[None])

    def _looks(self, epoch: int) -> bool:
        """True if validation is due after an epoch: every `eval_every` epochs and after the last."""
        after, last = epoch + 1, self.train_config.epochs
        return after % self.train_config.eval_every == 0 or after == last

    def run(self, request: Request) -> None:
        """Train to the end; `on_results` gets the trials that have ended whenever the others go on without them."""
        stopped = {FILLER}
        step, look = self._captured()
        for number in range(1, self.train_config.epochs + 1):
            self.state["epoch"].fill_(number - 1)
            self.schedule.set_rates(self.adam, number - 1)
            step()
            if self._looks(number - 1):
                look()
            if number % request.report_every:
                continue
            patient = self.best.patient(number).tolist()
            stopped |= {n for n, rows in self._rows.items() if not any(patient[i] for i in rows)}
            if request.on_report is not None:
                best = self._best_values.tolist()
                running = [n for n in self._rows if n not in stopped]
                scores = [fmean(best[i] for i in self._rows[n]) for n in running]
                stopped |= set(request.on_report(number, running, scores))
            left = [n not in stopped for n in self.numbers]
            if not any(left):
                break
            if self.shrinks_by * sum(left) <= len(left) and number < self.train_config.epochs:
                # Much of the batch has nothing left to do: the others go on without it.
                request.on_results(self._results(number, [not keep for keep in left], request))
                self._keep(left)
                step, look = self._captured()
        request.on_results(self._results(number, [True] * len(self.numbers), request))

    @property
    def _best_values(self) -> Tensor:
        """The best value of the metric so far, [S]; before the first validation the worst one."""
        return self.form.score(self.best.score[:, 0].clamp(min=self.form.score(self.form.worst)))

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

    def _keep(self, left: list[bool]) -> None:
        """Continue with some of the rows alone."""
        places = [i for i, is_left in enumerate(left) if is_left]
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
        self.buffers = {name: value[index] for name, value in self.buffers.items()}
        self._place([self.configs[i] for i in places], numbers, self.weights[index], (state, self.best.rows(index)))
        for group, members in zip(self.adam.param_groups, _alike(self.configs).values(), strict=True):
            for i, row in zip(members, group["params"], strict=True):
                self.adam.state[row] = {name: value.clone() for name, value in moments[places[i]].items()}

    def _results(self, number: int, chosen: list[bool], request: Request) -> dict[int, TrialResult]:
        s = self.state
        ensembles = self.configs[0].model.members > 1
        scores = self._scores_of_best() if request.read_test or ensembles else None
        now = time.perf_counter()
        self.seconds += (now - self.since) / len(self._rows)
        self.since = now
        record, trained = s["record"].cpu(), self.best.trained(number).tolist()
        values, losses = self._best_values.tolist(), (-self.best.score[:, 1]).tolist()
        results = {}
        for number, rows in self._rows.items():
            if not chosen[rows[0]]:
                continue
            config, epochs = self.configs[rows[0]], max(trained[row] for row in rows)
            history = self._history(record[:epochs, rows])
            finite = all(map(is_finite, history))
            valid = {self.task.metric: values[rows[0]], "loss": losses[rows[0]]}
            if ensembles:
                valid = self._score_of(rows, scores, "valid")
            results[number] = TrialResult(
                config=config,
                epochs=epochs,
                best_epoch=int(self.best.epoch[rows].max()),
                seconds=self.seconds,
                # A run alone that diverges leaves no result, whatever it had reached before.
                valid=valid if finite else valid | {self.task.metric: self.form.worst},
                test=self._score_of(rows, scores, "test") if request.read_test else None,
                history=history,
                weights=self._weights_of(rows) if request.keep_weights else None,
                parameters=len(rows) * sum(self.sizes),
            )
        return results

    def _history(self, record: Tensor) -> list[dict[str, float]]:
        """Metrics of each epoch by the record [epochs, members, 3] of a trial."""
        # The loss of an ensemble is the sum over its members, as in a run alone.
        rows = torch.cat([record[:, :, :1].sum(1), record[:, :, 1:].mean(1)], dim=1).tolist()
        names = ("loss", f"valid_{self.task.metric}", "valid_loss")
        return [dict(zip(names, row if self._looks(e) else row[:1], strict=False)) for e, row in enumerate(rows)]

    @torch.no_grad()
    def _scores_of_best(self) -> Tensor:
        """Scores of all nodes by each row at its best epoch, [S, N, C]."""
        self.network.eval()
        scores: Tensor = torch.vmap(lambda row, buffers: self.task.scores(self._scorer(row, buffers)))(
            self.state["best"], self.buffers
        )
        return scores

    def _score_of(self, rows: list[int], scores: Tensor | None, split: str) -> dict[str, float]:
        """Metric and loss of a trial at its best epoch; of an ensemble those of its members together."""
        assert scores is not None
        nodes = self._nodes_of(self.configs[rows[0]], split)
        metrics = self.task.measure(self.task.averaged(scores[rows]), nodes)
        return {name: float(value) for name, value in metrics.items()}

    def _weights_of(self, rows: list[int]) -> dict[str, Tensor]:
        """The state dict of a trial at its best epoch."""
        weights: dict[str, Tensor] = {}
        for member, row in enumerate(rows):
            prefix = f"members.{member}." if len(rows) > 1 else ""
            parts = zip(self.names, torch.split(self.state["best"][row], self.sizes), self.shapes, strict=True)
            weights |= {prefix + name: part.view(shape).clone() for name, part, shape in parts}
        return weights


def _alike(configs: list[Config]) -> dict[tuple[float, float, float], list[int]]:
    """The trials that one group of the optimiser can serve: same rate, same decay."""
    groups: dict[tuple[float, float, float], list[int]] = {}
    for s, config in enumerate(configs):
        key = (config.train.lr, config.train.min_lr, config.train.weight_decay)
        groups.setdefault(key, []).append(s)
    return groups

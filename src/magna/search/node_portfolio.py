"""The portfolio for nodes: features scaled for each member, folds of the training nodes, stored answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from magna.config.schema import Config
from magna.config.tables import NodeDataOptions
from magna.data import NodeData
from magna.search.facts import FOLDS, Facts
from magna.search.judging import Judge
from magna.search.members import Member
from magna.search.portfolio import Portfolio, PortfolioStep
from magna.tasks import NodeClassification
from magna.training.capture import matmul_precision
from magna.training.loop import fit
from magna.training.run_folder import RunFolder

ANSWERS = "answers.safetensors"
MINUTES, LARGE_MINUTES, LARGE_EDGES = 5.0, 30.0, 1_000_000
_BEHIND = 0.03  # below the best, with three standard errors


@dataclass
class NodePortfolio(Portfolio):
    """Members for a graph; where validation has few labels, folds of the training nodes judge them, too."""

    options: NodeDataOptions
    data: NodeData  # as read, without scaling
    facts: Facts
    task_settings: Mapping[str, Any] = field(default_factory=dict)  # of [task], such as the metric
    _tasks: dict[tuple[Any, ...], NodeClassification] = field(default_factory=dict)

    @property
    def default_minutes(self) -> float:
        return LARGE_MINUTES if self.facts.edges > LARGE_EDGES else MINUTES

    def facts_of_data(self) -> Mapping[str, Any]:
        return self.facts.to_dict()

    def steps(self) -> Iterator[PortfolioStep]:
        """Every step in its order, which depends on the data alone."""
        for member in self.members:
            yield PortfolioStep(member)
            if self.facts.divides_training:
                yield from (PortfolioStep(member, fold) for fold in range(FOLDS))

    def config(self, member: Member) -> Config:
        """The member as settings for the graph."""
        config = member.config(self.options, self.facts.feature_kind, member.name, self.budget.seed)
        return config.with_settings({f"task.{name}": value for name, value in self.task_settings.items()})

    @cached_property
    def judge(self) -> Judge:
        """The comparison of members, by the metric of the task."""
        task = self.task(PortfolioStep(self.members[0]))
        return Judge(self.data.target, task.metric)

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

    def train(self, step: PortfolioStep, deadline: float) -> tuple[float, int]:
        """Train a step and store the calibrated answers on all nodes; the score on validation, and its epochs."""
        config, task = self.config(step.member), self.task(step)
        folder = self.path(step.member)
        if step.fold is None:
            valid, epochs = self.train_run(step, config, task, deadline)
            run = RunFolder.open(folder)
            model: Any = run.load_model().to(self.device)
            calibration = run.calibration
        else:
            torch.manual_seed(config.train.seed)
            model = task.make_model(config.model).to(self.device)
            progress = fit(config, task, model, self.listener(deadline, task, checks=False))
            assert progress.best is not None
            valid, epochs, calibration = progress.best[task.metric], progress.epoch, task.calibrate(model)
        with matmul_precision(config.train.precision):
            answers = task.answers(task.finite_scores(model), calibration).cpu().contiguous()
        name = ANSWERS if step.fold is None else f"fold-{step.fold + 1}.safetensors"
        folder.mkdir(parents=True, exist_ok=True)
        save_file({"answers": answers}, folder / name)
        return valid, epochs

    def is_behind(self, score: float) -> bool:
        form, size = self.judge.form, self.data.valid.numel() + 2
        if form.unit != "%":  # no share of nodes: a metric between 0 and 1 has at most this standard error
            return form.score(score) < form.score(self.best_valid) - _BEHIND - 1.5 / math.sqrt(size)
        best = (self.best_valid * (size - 2) + 1) / size  # as if one more node were right and one wrong
        return score < best - _BEHIND - 3 * math.sqrt(best * (1 - best) / size)

    def is_better(self, score: float, other: float) -> bool:
        return self.judge.form.score(score) > self.judge.form.score(other)

    def shown(self, score: float) -> str:
        return self.judge.form.text(score)

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
        """Answers on the nodes that judge a member, none of which trained it."""
        answers = self.answers(member)
        parts = [answers[self.data.valid]]
        for fold in range(FOLDS) if folds else ():
            file = self.path(member) / f"fold-{fold + 1}.safetensors"
            parts.append(load_file(file)["answers"][self.held_out(fold)])
        return torch.cat(parts)

    def answers(self, member: Member) -> Tensor:
        return load_file(self.path(member) / ANSWERS)["answers"]

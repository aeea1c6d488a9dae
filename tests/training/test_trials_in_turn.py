"""Trials of link prediction, one after the other: nothing is written, the test split stays closed, some stop early."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.support.graphs import ring_triples

from magna.config.schema import Config
from magna.data import KnowledgeGraph
from magna.data.triples import triples_from
from magna.nn.link_model import LinkModel
from magna.tasks import LinkPrediction
from magna.tasks.link_objective import LinkObjective
from magna.training.trials import train_trials

CONFIG = Config.from_dict(
    {
        "model": {"hidden_channels": 8, "num_layers": 1, "heads": 2, "K": 2, "entity_channels": 8},
        "task": {"name": "link_prediction", "batch_size": 8},
        "train": {"epochs": 6, "eval_every": 2, "lr": 0.02},
    }
)


@pytest.fixture(scope="module")
def task() -> LinkPrediction:
    rows = ring_triples(30)
    splits = {"train": rows[10:50], "valid": rows[:10], "test": rows[50:]}
    return LinkPrediction(KnowledgeGraph.from_triples(triples_from("ring", splits)), torch.device("cpu"))


def test_each_trial_has_its_own_settings(task: LinkPrediction, monkeypatch: pytest.MonkeyPatch) -> None:
    splits, sizes = list[tuple[str, int]](), list[int]()
    evaluate, loss = LinkPrediction.evaluate, LinkObjective.loss

    def evaluated(self: LinkPrediction, model: LinkModel, split: str) -> dict[str, float]:
        splits.append((split, sizes[-1]))
        return evaluate(self, model, split)

    def recorded(self: LinkObjective, model: LinkModel, batch: torch.Tensor, *rest: Any) -> torch.Tensor:
        sizes.append(len(batch))
        return loss(self, model, batch, *rest)

    monkeypatch.setattr(LinkPrediction, "evaluate", evaluated)
    monkeypatch.setattr(LinkObjective, "loss", recorded)
    configs = [CONFIG, CONFIG.with_values(["task.batch_size=4", "task.label_smoothing=0.4"]), CONFIG]
    results = train_trials(configs, task)
    assert splits == [("valid", 8)] * 3 + [("valid", 4)] * 3 + [("valid", 8)] * 3
    assert [result.config for result in results] == configs
    assert results[0].history == results[2].history != results[1].history
    assert all(result.epochs == 6 and result.best_epoch in (1, 3, 5) for result in results)


def test_a_trial_is_stopped_when_it_is_told(task: LinkPrediction) -> None:
    heard = []

    def on_report(epoch: int, which: list[int], scores: list[float]) -> list[int]:
        heard.append((epoch, *which))
        return which if which == [0] and epoch == 4 else []

    first, second = train_trials([CONFIG, CONFIG.with_seed(1)], task, report_every=2, on_report=on_report)
    assert (first.epochs, second.epochs) == (4, 6)
    assert heard == [(2, 0), (4, 0), (2, 1), (4, 1), (6, 1)]


@pytest.mark.parametrize("last", [0, 4])
def test_a_trial_that_diverges_has_no_score(task: LinkPrediction, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    loss = LinkObjective.loss

    def diverging(self: LinkObjective, model: LinkModel, batch: torch.Tensor, epoch: Any = 0) -> torch.Tensor:
        return loss(self, model, batch, epoch) * (math.nan if int(epoch) == last else 1.0)

    monkeypatch.setattr(LinkObjective, "loss", diverging)
    heard: list[float] = []

    def on_report(epoch: int, which: list[int], scores: list[float]) -> list[int]:
        heard.extend(scores)
        return []

    (result,) = train_trials([CONFIG], task, report_every=2, on_report=on_report)
    assert len(heard) == last // 2 and min(heard, default=1) > 0, "validated before it diverged"
    assert (result.valid, result.epochs, result.best_epoch) == ({"mrr": 0.0}, last, -1)

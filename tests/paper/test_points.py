"""Points of a figure: the choice on validation, the report, and what a stop or other settings change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from magna.config.schema import REPORT_SEEDS, SEARCH_SEEDS, Config
from magna.paper import points
from magna.paper.points import Measured, Point, measure_point, report_count
from magna.paper.study import StudyJob
from magna.tasks import NodeClassification, make_task

CONFIG = Config().with_values(["model.hidden_channels=8", "model.num_layers=1", "model.heads=2", "train.epochs=8"])
POINT = Point("fig/digits.json", CONFIG, (("train.lr=0.0",), ("train.lr=0.02",)))
Trained = list[tuple[list[tuple[float, int]], bool]]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Trained:
    """Rates and seeds of each batch, and whether it reads the test split."""
    batches: Trained = []
    whole = vars(points)["train_trials"]

    def train_trials(configs: Any, task: Any, **options: Any) -> Any:
        batches.append(([(config.train.lr, config.train.seed) for config in configs], options["read_test"]))
        return whole(configs, task, **options)

    monkeypatch.setattr(points, "train_trials", train_trials)
    return batches


def task() -> NodeClassification:
    made = make_task(CONFIG, None, torch.device("cpu"))
    assert isinstance(made, NodeClassification)
    return made


def measure(folder: Path, point: Point = POINT, seeds: int = 2) -> Measured:
    return measure_point(point, task, StudyJob(folder), search_seeds=2, seeds=seeds)


def test_validation_chooses_and_the_test_is_read_once(tmp_path: Path, trained: Trained) -> None:
    measured = measure(tmp_path)
    search, report = trained
    assert search == ([(rate, seed) for rate in (0.0, 0.02) for seed in SEARCH_SEEDS[:2]], False)
    assert report == ([(0.02, seed) for seed in REPORT_SEEDS[:2]], True)
    assert measured.choice == 1 and measured.valid[1] > measured.valid[0]
    assert measured.accuracy is not None and measured.accuracy.size == 2 and measured.accuracy.mean > 15
    assert {"seed", "epochs", "best_epoch", "seconds", "valid", "test"} == set(measured.runs[0])


def test_a_stopped_point_goes_on_and_other_settings_replace_it(tmp_path: Path, trained: Trained) -> None:
    first = measure(tmp_path)
    assert measure(tmp_path) == first and len(trained) == 2, "it is done"
    more = measure(tmp_path, seeds=3)
    assert more.runs[:2] == first.runs and trained[2:] == [([(0.02, REPORT_SEEDS[2])], True)], "one seed more"
    assert measure(tmp_path, seeds=1).runs == first.runs[:1] and len(trained) == 3
    path = tmp_path / POINT.path
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"runs": []}))  # a stop after the search
    assert measure(tmp_path).accuracy == first.accuracy and len(trained) == 4
    other = Point(POINT.path, CONFIG.with_values(["model.alpha=0.5"]), POINT.choices)
    measure(tmp_path, other)
    assert len(trained) == 6, "other settings"
    path.write_text("{")
    measure(tmp_path)
    assert len(trained) == 8, "a damaged file"
    assert list(path.parent.iterdir()) == [path]


def test_a_diverged_report_run_leaves_no_mean(tmp_path: Path) -> None:
    hot = CONFIG.with_values(["train.clip=0.0", "train.lr=1e30", "model.norm=none"])
    measured = measure(tmp_path, Point("fig/hot.json", hot, (("train.weight_decay=0.0",),)))
    assert measured.valid == (0.0,) and measured.accuracy is None
    assert [run["test"] for run in measured.runs] == [None, None]


def test_more_seeds_than_there_are_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seeds is 101; allowed: 1 to 100"):
        report_count(StudyJob(tmp_path, seeds=101), 10, 2)

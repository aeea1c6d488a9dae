"""Searched cells of link prediction: trials, the choice by validation, and the continuation after a stop."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from magna.config.schema import REPORT_SEEDS, Config, load_recipe
from magna.config.toml import Range
from magna.errors import DataError, Diverged, MissingExtra
from magna.nn.ensemble import make_model
from magna.paper import link_search, searches
from magna.paper.cell import Cell
from magna.paper.cell_runs import train_cells
from magna.paper.cells import CellStore, Job
from magna.paper.experiments import EXPERIMENTS, LINK_EFFORT, Experiment, cells
from magna.paper.listing import list_experiments
from magna.paper.node_systems import Effort
from magna.paper.published import PAPER_LINK_BASELINES
from magna.paper.reproduce import reproduce
from magna.paper.rows import SEARCHED_GRAPHS
from magna.paper.searches import Search, drawn_changes, read_searches, tried
from magna.training.run_folder import RunFolder

SETTINGS = [
    *("model.channels=8", "model.negatives=4", "task.batch_size=64"),
    *("train.epochs=4", "train.eval_every=2", "train.patience=4"),
]


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """A table of two searched cells on a graph with 30 entities."""
    chance = random.Random(0)
    rows = sorted({(chance.randrange(30), chance.randrange(2), chance.randrange(30)) for _ in range(150)})
    chance.shuffle(rows)
    graph = tmp_path / "graph"
    graph.mkdir()
    for split, part in (("train", rows[40:]), ("valid", rows[:20]), ("test", rows[20:40])):
        (graph / f"{split}.tsv").write_text("".join(f"e{h}\tr{r}\te{t}\n" for h, r, t in part))
    recipe = load_recipe("families-transe").with_values([f"data.name={graph}", *SETTINGS])
    chosen = [
        Cell("table3", "families", row, recipe, effort=Effort(3, 20), is_settled=False) for row in ("TransE", "OTE")
    ]

    def of(dataset: str) -> Iterator[Cell]:
        yield from chosen

    monkeypatch.setitem(EXPERIMENTS, "table3", Experiment(of, (), also=("families",), seeds=2))
    return chosen


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, tuple[str, ...]]]:
    """Seed and splits of every training."""
    started: list[tuple[int, tuple[str, ...]]] = []
    whole = vars(link_search)["_train"]

    def noted(config: Config, job: Job, splits: tuple[str, ...]) -> dict[str, Any]:
        started.append((config.train.seed, splits))
        run: dict[str, Any] = whole(config, job, splits)
        return run

    monkeypatch.setattr(link_search, "_train", noted)
    return started


def _reproduce(folder: Path, lines: list[str] | None = None, **options: Any) -> dict[str, Any]:
    say = (lines if lines is not None else []).append
    options = {"rows": ["TransE"], "seeds": 2, "device": "cpu", "datasets": ["families"], **options}
    return reproduce("table3", work=folder / "work", run_dir=folder / "runs", say=say, **options)


def _read(folder: Path, file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "work" / file).read_text(encoding="utf-8"))
    return content


TRIAL, REPORT = (searches.SEED, ("valid",)), [(seed, ("valid", "test")) for seed in REPORT_SEEDS[:2]]


def test_the_best_trial_by_validation_is_trained_with_the_report_seeds(
    tmp_path: Path, trained: list[tuple[int, tuple[str, ...]]]
) -> None:
    result = _reproduce(tmp_path)
    assert trained == [TRIAL] * 3 + REPORT, "the test split is not loaded before the choice"
    search, record = (
        _read(tmp_path, "searches/table3/families/transe.json"),
        _read(tmp_path, "table3/families/transe.json"),
    )
    scores = [trial["valid"]["mrr"] for trial in search["trials"]]
    best = max(range(3), key=scores.__getitem__)
    assert record["changes"] == search["trials"][best]["changes"] and len(set(scores)) == 3
    assert search["trials"][0]["changes"] == [] and not any("test" in trial for trial in search["trials"])
    for run in record["runs"]:
        assert {"mr", "mrr", "hits@1", "hits@3", "hits@10"} <= run["test"].keys()
        assert run["parameters"] > 0 and run["peak_bytes"] > 0 and run["epochs"] == 4
        assert (run["test_head"]["mrr"] + run["test_tail"]["mrr"]) / 2 == pytest.approx(run["test"]["mrr"])
    assert [row[:2] for row in result["rows"]] == [["families", "TransE (ours)"]]
    assert result["trained"] == 1 and list((tmp_path / "runs").iterdir()) == []


def test_a_stop_loses_the_running_trial_alone(
    tmp_path: Path, trained: list[tuple[int, tuple[str, ...]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = vars(link_search)["_train"]
    for steps in (2, 1, 1):

        def stopped(*arguments: Any, left: list[int] = [steps]) -> Any:  # noqa: B006 (a counter of this function)
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            return noted(*arguments)

        monkeypatch.setattr(link_search, "_train", stopped)
        with pytest.raises(KeyboardInterrupt):
            _reproduce(tmp_path)
    monkeypatch.setattr(link_search, "_train", noted)
    assert _reproduce(tmp_path)["trained"] == 1
    assert trained == [TRIAL] * 3 + REPORT
    trained.clear()
    assert _reproduce(tmp_path)["trained"] == 0
    assert trained == []


def test_another_recipe_is_searched_again(
    tmp_path: Path, table: list[Cell], trained: list[tuple[int, tuple[str, ...]]]
) -> None:
    _reproduce(tmp_path)
    store = CellStore(tmp_path / "work")
    assert len(store.runs(table[0])) == 2
    other = replace(table[0], config=table[0].config.with_values(["train.epochs=6"]))
    narrower = replace(table[0], config=replace(table[0].config, search={"train.lr": Range(0.01, 0.02)}))
    for cell in (other, narrower):
        assert store.runs(cell) == [] and store.is_outdated(cell) and store.search(cell).trials == ()


def test_training_ends_after_the_limit_with_a_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_search, "LIMIT_SECONDS", 0.0)
    _reproduce(tmp_path)
    runs = _read(tmp_path, "table3/families/transe.json")["runs"]
    assert [(run["epochs"], run["best_epoch"]) for run in runs] == [(1, 0)] * 2
    assert all(run["valid"]["mrr"] > 0 for run in runs), "validation is due after two epochs only"


def test_a_missing_package_stops_its_row_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = link_search.train_searched

    def missing(cell: Cell, job: Job, run_dir: Path) -> None:
        if cell.row == "TransE":
            raise MissingExtra("the interaction RotatE", "PyKEEN", "baselines")
        whole(cell, job, run_dir)

    monkeypatch.setattr("magna.paper.cell_runs.train_searched", missing)
    lines: list[str] = []
    result = _reproduce(tmp_path, lines, rows=None)
    path = "table3/families/transe.json"
    assert (result["unavailable"], result["diverged"], result["trained"]) == ([path], [], 1)
    assert path not in result["cells"] and [row[1] for row in result["rows"]] == ["OTE (ours)"]
    (line,) = [line for line in lines if "PyKEEN" in line]
    assert line.startswith("families, TransE: the interaction RotatE") and "\n" not in line


def test_pykeen_is_missed_when_a_trial_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pykeen.nn", "pykeen.nn.modules"):
        monkeypatch.setitem(sys.modules, name, None)
    cell = next(cell for cell in EXPERIMENTS["table3"].cells("families"))
    rotate = load_recipe("families-rotate").with_values([f"data.name={cell.config.data.name}", "train.epochs=1"])
    lines: list[str] = []
    job = Job(CellStore(tmp_path / "work"), 1, None, torch.device("cpu"), lines.append)
    failed = train_cells([replace(cell, row="RotatE", config=rotate), cell], job, tmp_path / "runs")
    assert failed.unavailable == ["table3/families/rotate.json"] and failed.diverged == []
    assert any("PyKEEN" in line for line in lines) and len(job.store.runs(cell)) == 1


def test_a_trial_that_diverges_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = vars(link_search)["_train"]

    def diverging(config: Config, job: Job, splits: tuple[str, ...]) -> Any:
        if config.train.seed == searches.SEED and config.train.lr != load_recipe("families-transe").train.lr:
            raise Diverged("the loss is nan after epoch 1; try a smaller train.lr")
        return whole(config, job, splits)

    monkeypatch.setattr(link_search, "_train", diverging)
    _reproduce(tmp_path)
    assert _read(tmp_path, "table3/families/transe.json")["changes"] == []

    def always(*_: Any) -> Any:
        raise Diverged("the loss is nan")

    monkeypatch.setattr(link_search, "_train", always)
    assert _reproduce(tmp_path, rows=["OTE"])["diverged"] == ["table3/families/ote.json"]


def test_a_cell_has_one_trainer(tmp_path: Path) -> None:
    lock = RunFolder(tmp_path / "runs" / "table3-families-transe").alone()
    with lock, pytest.raises(DataError, match="it is being trained by another process"):
        _reproduce(tmp_path)


def test_collected_searches_stand_beside_their_runs(
    tmp_path: Path, table: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magna.paper.cells._commit", lambda: "abc")
    _reproduce(tmp_path)
    store = CellStore(tmp_path / "work", tmp_path / "results")
    assert store.collect("table3", table) == [table[0].path]
    committed = CellStore(results=tmp_path / "results")
    assert len(committed.runs(table[0])) == 2 and committed.runs(table[1]) == []
    (search,) = read_searches(tmp_path / "results", "table3").values()
    assert search == store.search(table[0]) and len(search.trials) == 3
    assert len((tmp_path / "results/table3/searches.jsonl").read_text().splitlines()) == 1
    again = _reproduce(tmp_path / "other", results=tmp_path / "results")
    assert again["trained"] == 0, "what is committed is not searched again"


def test_the_list_bounds_the_hours_of_searched_cells(tmp_path: Path) -> None:
    def on_request() -> Any:
        listed = list_experiments(tmp_path / "results", tmp_path / "work")["experiments"]
        return next(line for line in listed if line["name"] == "table3")["on_request"]

    counts = {"datasets": ["families"], "cells": 2, "done": 0, "without_forecast": 0}
    assert on_request() == counts | {"forecast_s": 2 * (3 + 2) * link_search.LIMIT_SECONDS}
    _reproduce(tmp_path)
    assert on_request() == counts | {"done": 1, "forecast_s": (3 + 2) * link_search.LIMIT_SECONDS}


def test_a_damaged_search_is_made_again(tmp_path: Path, table: list[Cell]) -> None:
    _reproduce(tmp_path)
    (tmp_path / "work/searches" / table[0].path).write_text('{"trials": 3')
    assert CellStore(tmp_path / "work").search(table[0]) == Search.start(table[0])


@pytest.mark.parametrize("dataset", SEARCHED_GRAPHS)
def test_every_trial_of_the_small_graphs_has_a_model(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    chosen = [cell for cell in cells("table3", [dataset]) if cell.trials]
    assert {cell.row for cell in chosen} == {"MAGNA + DistMult", "MAGNA + ComplEx", *PAPER_LINK_BASELINES}
    drawn = set()
    for cell in chosen:
        assert cell.trials == LINK_EFFORT.trials and tried(cell, ()).config == cell.config
        for number in range(1, cell.trials):
            trial = tried(cell, drawn_changes(cell, number))
            drawn.add((cell.row, trial.changes))
            for change in drawn_changes(cell, number):
                key, _, text = change.partition("=")
                space = cell.config.search[key]
                assert not isinstance(space, Range) or space.low <= float(text) <= space.high
            with torch.device("meta"):
                make_model(trial.config.model, num_entities=100, num_relations=10)
    assert len(drawn) == len(chosen) * (LINK_EFFORT.trials - 1), "no trial is drawn twice"


def test_draws_depend_on_the_cell_and_the_number_alone() -> None:
    cell = Cell("table3", "families", "TransE", load_recipe("families-transe"))
    assert drawn_changes(cell, 1) == drawn_changes(cell, 1) != drawn_changes(cell, 2)
    assert drawn_changes(replace(cell, row="OTE"), 1) != drawn_changes(cell, 1)
    assert drawn_changes(replace(cell, dataset="wn18rr-v1"), 1) != drawn_changes(cell, 1)

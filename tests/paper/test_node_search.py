"""Searched cells of node models: the settings that they train with, their record, and their committed form."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magna.config.schema import SEARCH_SEEDS, Config, load_recipe
from magna.errors import ArgumentError, DataError
from magna.paper import experiments, node_search, reproduce, tuning
from magna.paper.cell import Cell
from magna.paper.cells import CellStore
from magna.paper.experiments import EXPERIMENTS, Experiment, cells, quick_cells
from magna.paper.listing import as_missing
from magna.paper.node_search import FILE, TRIALS, SearchStore
from magna.paper.node_systems import QUICK_EFFORT, WITH, WITHOUT, Effort, assignments, settings_of_draw
from magna.paper.queue import Forecasts, Step
from magna.paper.records import PROTOCOL
from magna.training.loop import TrialResult
from magna.training.trials import train_trials

EFFORT = Effort(3, 2, confirmed=1, widenings=0)
CONFIG = load_recipe("digits").with_values(["train.epochs=8", "train.patience=8", "model.heads=4"])


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[list[Config]]:
    """Configs of every batch; a test table whose two rows are searched on digits with tiny models."""
    batches: list[list[Config]] = []

    def counted(configs: list[Config], *arguments: Any, **options: Any) -> list[TrialResult]:
        batches.append(list(configs))
        return train_trials(configs, *arguments, **options)

    def of(dataset: str) -> Iterator[Cell]:
        for row in ("MAGNA", "MAGNA, one hop"):
            changes = ("model.K=1",) if row != "MAGNA" else ()
            config = CONFIG.with_values(changes)
            yield Cell(WITHOUT, dataset, row, config, changes, effort=EFFORT, is_settled=False)

    monkeypatch.setattr("magna.paper.node_systems.WIDTHS", (8, 16))
    monkeypatch.setattr("magna.paper.node_systems.DEPTHS", (1, 2))
    for module in (tuning, reproduce):
        monkeypatch.setattr(module, "train_trials", counted)
    monkeypatch.setattr("magna.paper.cells._commit", lambda: "abc")
    monkeypatch.setitem(EXPERIMENTS, WITHOUT, Experiment(of, ("digits",), seeds=20))
    return batches


def run(out: Path, results: Path | None = None, **options: Any) -> dict[str, Any]:
    return reproduce.reproduce(WITHOUT, work=out, results=results, device="cpu", **options)


def test_the_chosen_settings_reach_the_trained_cell_and_its_record(trained: list[list[Config]], tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result["trained"] == 2 and result["cells"] == [cell.path for cell in cells(WITHOUT)]
    assert [len(batch) for batch in trained] == [3, 2, 2] * 2, "trials, further seeds of the best, report seeds"
    for cell, batches in zip(cells(WITHOUT), (trained[:3], trained[3:]), strict=True):
        stored = json.loads((tmp_path / "searches" / cell.path).read_text())
        best = max((trial for trial in stored["trials"] if len(trial["valid"]) == 3), key=lambda each: each["valid"][0])
        chosen = cell.config.with_settings(settings_of_draw(best["draw"]), drop_idle=True)
        assert [config.train.seed for batch in batches[:2] for config in batch] == [1000] * 3 + [*SEARCH_SEEDS[1:3]]
        assert batches[2] == [chosen.with_seed(0), chosen.with_seed(1)], "the report has two seeds by the effort"
        record = json.loads((tmp_path / cell.path).read_text())
        assert record["changes"] == [*cell.changes, *assignments(settings_of_draw(best["draw"]))] and record["runs"]
        settled = CellStore(tmp_path).settled(cell)
        assert settled.config == chosen and settled.is_settled and settled.trials == 0
        assert f"model.hidden_channels={chosen.to_dict()['model']['hidden_channels']}" in settled.changes
    trained.clear()
    again = run(tmp_path)
    assert trained == [] and again["trained"] == 0 and again["outdated"] == []


def test_a_table_shows_no_cell_before_the_end_of_its_search(
    trained: list[list[Config]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tuning._Runner, "confirm", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    store, cell = CellStore(tmp_path), cells(WITHOUT)[0]
    assert store.chosen(cell) is None and store.settled(cell) is cell and cell.trials == 3 and store.runs(cell) == []
    assert len(trained) == 1
    run(tmp_path, rows=["MAGNA"])
    assert [len(batch) for batch in trained] == [3, 2, 2], "the trials are not trained again"


@pytest.mark.usefixtures("trained")
def test_collected_searches_are_read_back(tmp_path: Path) -> None:
    work, results = tmp_path / "work", tmp_path / "results"
    run(work)
    collected = reproduce.collect(WITHOUT, work=work, results=results)["collected"]
    assert collected == [cell.path for cell in cells(WITHOUT)]
    lines = list(csv.DictReader((results / WITHOUT / FILE).open(newline="")))
    assert [(line["dataset"], line["row"], line["trials"], line["commit"]) for line in lines] == [
        ("digits", "MAGNA", "3", "abc"),
        ("digits", "MAGNA, one hop", "3", "abc"),
    ]
    packed = (results / WITHOUT / TRIALS).read_bytes()
    trials = list(csv.DictReader(gzip.decompress(packed).decode().splitlines()))
    assert [trial["number"] for trial in trials] == ["0", "1", "2"] * 2
    drawn = CellStore(work).node_searches
    for cell in cells(WITHOUT):
        stored = json.loads((work / "searches" / cell.path).read_text())
        mine = [trial for trial in trials if trial["row"] == cell.row]
        assert [json.loads(trial["draw"]) for trial in mine] == [trial["draw"] for trial in stored["trials"]]
        settled = SearchStore(results=results).chosen(cell)
        assert settled is not None and settled == drawn.chosen(cell)
        assert len(CellStore(results=results).runs(cell)) == 2
    reproduce.collect(WITHOUT, work=work, results=results)
    assert (results / WITHOUT / TRIALS).read_bytes() == packed, "a search is collected once"
    reproduce.collect(WITHOUT, work=tmp_path, results=results)
    assert (results / WITHOUT / TRIALS).read_bytes() == packed, "without new searches the files stay"


def test_a_committed_search_is_not_made_again(
    trained: list[list[Config]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, results = tmp_path / "work", tmp_path / "results"
    run(work, rows=["MAGNA"])
    reproduce.collect(WITHOUT, work=work, results=results)
    trained.clear()
    assert run(tmp_path / "new", results, rows=["MAGNA"])["trained"] == 0 and trained == []
    cell = cells(WITHOUT)[0]
    begun = tmp_path / "begun" / "searches" / cell.path
    begun.parent.mkdir(parents=True)
    content = json.loads((work / "searches" / cell.path).read_text())
    begun.write_text(json.dumps(content | {"chosen": []}))
    assert SearchStore(tmp_path / "begun", results).chosen(cell) == SearchStore(results=results).chosen(cell)
    other = replace(cell, config=cell.config.with_values(["train.epochs=9"]))
    assert SearchStore(work, results).chosen(other) is None, "other settings have another search"
    monkeypatch.setattr(node_search, "PROTOCOL", PROTOCOL + 1)
    assert SearchStore(work, results).chosen(cell) is None, "and so has another protocol"


def test_settings_with_spaces_survive_their_file(tmp_path: Path, trained: list[list[Config]]) -> None:
    run(tmp_path / "work", rows=["MAGNA"])
    cell = cells(WITHOUT)[0]
    file = tmp_path / "work" / "searches" / cell.path
    content = json.loads(file.read_text())
    content["chosen"] += ["data.name=my digits"]
    file.write_text(json.dumps(content))
    SearchStore(tmp_path / "work", tmp_path).collect(WITHOUT, [cell])
    settled = SearchStore(results=tmp_path).chosen(cell)
    assert settled is not None and settled.config.data.name == "my digits" and len(trained) == 3


@pytest.mark.usefixtures("trained")
def test_a_search_that_fails_is_named_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = vars(tuning._Runner)["_train"]

    def refused(runner: Any, draws: Any) -> Any:
        trials = whole(runner, draws)
        if runner.config.to_dict()["model"]["K"] != 1:
            for trial in trials:
                trial.valid = [0.0]
        return trials

    monkeypatch.setattr(tuning._Runner, "_train", refused)
    lines: list[str] = []
    result = run(tmp_path, say=lines.append)
    first, second = (cell.path for cell in cells(WITHOUT))
    assert result["diverged"] == [first] and result["cells"] == [second]
    assert "digits, MAGNA: none of 3 trials has a result: no loss is finite" in lines


def test_searched_cells_without_data_are_passed_over(tmp_path: Path) -> None:
    options: dict[str, Any] = {"work": tmp_path, "data_dir": tmp_path, "device": "cpu", "rows": ["MAGNA", "GCN"]}
    result = reproduce.reproduce(WITHOUT, quick=True, **options)
    assert result["without_data"] == [cell.path for cell in quick_cells(WITHOUT)] and result["trained"] == 0
    assert not (tmp_path / "searches").exists(), "missing data are no trial"
    with pytest.raises(DataError):
        reproduce.reproduce(WITHOUT, quick=True, datasets=["cora"], **options)


def test_quick_searches_are_small() -> None:
    for table in (WITHOUT, WITH):
        chosen = quick_cells(table)
        assert [cell.row for cell in chosen] == ["MAGNA", "GCN"] and {cell.trials for cell in chosen} == {4}
        assert {cell.effort for cell in chosen} == {QUICK_EFFORT} and not any(cell.is_settled for cell in chosen)
    assert {cell.trials for cell in cells(WITH, ["pubmed"])} == {16}
    assert {cell.seeds_of(20) for cell in cells(WITH, ["pubmed"])} == {10}


def test_a_store_without_a_folder_makes_no_search(tmp_path: Path) -> None:
    cell = experiments.cells(WITHOUT, ["cora"])[0]
    with pytest.raises(ArgumentError, match="a folder, as searches are written to it"):
        SearchStore(results=tmp_path).run(cell, lambda config: None, {}, print)  # type: ignore[arg-type,return-value]
    assert SearchStore().chosen(cell) is None


@pytest.mark.parametrize("table", [WITHOUT, WITH])
def test_every_committed_search_is_that_of_today(table: str) -> None:
    """A change of the fingerprint would make all of them again."""
    results = Path(__file__).parents[2] / "results"
    store = SearchStore(results=results)
    with (results / table / FILE).open(newline="", encoding="utf-8") as file:
        committed = {(line["dataset"], line["row"]) for line in csv.DictReader(file)}
    assert committed == {(cell.dataset, cell.row) for cell in cells(table) if store.chosen(cell) is not None}


def test_a_searched_cell_is_forecast_by_searches_of_other_rows(trained: list[list[Config]], tmp_path: Path) -> None:
    work, results = tmp_path / "work", tmp_path / "results"
    run(work, rows=["MAGNA"])
    reproduce.collect(WITHOUT, work=work, results=results)
    store = CellStore(results=results)
    done, other = cells(WITHOUT)
    ((device, (search,)),) = store.node_searches.seconds(WITHOUT, "digits").items()
    report = sum(each["seconds"] for each in store.runs(done))
    (missing,) = as_missing(WITHOUT, [other], 20, results)
    assert missing.device == device and missing.forecast_s == pytest.approx(search + report, abs=0.1)
    (settled,) = as_missing(WITHOUT, [store.settled(done)], 20, results)
    assert settled.forecast_s == pytest.approx(report, abs=0.1), "its search has ended"
    forecasts = Forecasts(store, device)
    first, later = (
        forecasts.of_step(Step(WITHOUT, "digits", seeds, [(other, 1)]))[0].seconds or 0 for seeds in (5, 10)
    )
    assert first - later == pytest.approx(search), "the search is before the first seeds"

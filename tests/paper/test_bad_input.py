"""Bad input of `magna reproduce`: one line, nothing lost, no wrong cell."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.running import Program

from magna.config.schema import Config, load_recipe
from magna.errors import DataError, MissingExtra
from magna.paper import queue as queueing
from magna.paper import reproduce, runner
from magna.paper.cell import Cell
from magna.paper.claims import claimed
from magna.paper.experiments import EXPERIMENTS, Experiment, cells
from magna.paper.registry import REGISTRY
from magna.training.loop import TrialResult

CELL = "table1/cora/gat.json"


def two(dataset: str) -> Iterator[Cell]:
    yield Cell("table1", dataset, "MAGNA, tuned", load_recipe(dataset))
    yield Cell("table1", dataset, "GAT", load_recipe(f"{dataset}-gat"))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Configs that would have been trained, for a Table 1 of two rows and two seeds."""
    configs: list[Config] = []

    def train_trials(batch: Sequence[Config], task: object, *, on_results: Any, **_: Any) -> None:
        configs.extend(batch)
        scores = {"accuracy": 0.8, "loss": 1.0}
        on_results({at: TrialResult(each, 3, 2, 0.1, scores, scores, [], None) for at, each in enumerate(batch)})

    monkeypatch.setattr(reproduce, "train_trials", train_trials)
    monkeypatch.setattr(reproduce, "make_task", lambda config, data_dir, device: SimpleNamespace(data=config.data))
    monkeypatch.setattr("magna.paper.cells._commit", lambda: "abc")
    monkeypatch.setitem(EXPERIMENTS, "table1", Experiment(two, seeds=2))
    return configs


def _arguments(folder: Path, *more: str) -> list[str]:
    places = ["--work", str(folder / "cells"), "--results", str(folder / "results"), "--device", "cpu"]
    return ["reproduce", "table1", *places, *(more or ("--dataset", "cora"))]


def test_a_cell_of_an_older_protocol_is_shown_as_outdated_and_trained_again_when_asked_for(
    trained: list[Config], program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(*_arguments(tmp_path))
    trained.clear()
    for module in ("records", "cells"):
        monkeypatch.setattr(f"magna.paper.{module}.PROTOCOL", 2)
    out, _ = program(*_arguments(tmp_path, "--dataset", "cora", "--row", "MAGNA, tuned"))
    assert f"outdated, because recipe or protocol have changed since: {CELL}" in out
    assert {config.recipe for config in trained} == {"cora"}
    old = json.loads((tmp_path / "cells" / CELL).read_text())
    assert old["protocol"] == 1 and len(old["runs"]) == 2, "nothing is lost before it is asked for"
    out, _ = program(*_arguments(tmp_path, "--collect"))
    assert "1 figures are now in" in out, "no cell of another protocol is committed"
    program(*_arguments(tmp_path))
    assert json.loads((tmp_path / "cells" / CELL).read_text())["protocol"] == 2 and len(trained) == 4


@pytest.mark.usefixtures("trained")
def test_a_changed_checkout_commits_no_cell(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magna.paper.cells._commit", lambda: "abc-dirty")
    program(*_arguments(tmp_path))
    out, err = program(*_arguments(tmp_path, "--collect"), status=2)
    assert out == "" and err.count("\n") == 1 and "the code that trained seeds 0, 1 is no commit" in err
    assert not (tmp_path / "results").exists() and (tmp_path / "cells" / CELL).is_file()


def test_a_cell_that_another_process_trains_is_left_out(
    trained: list[Config], program: Program, tmp_path: Path
) -> None:
    with claimed(tmp_path / "cells" / CELL):
        out, err = program(*_arguments(tmp_path))
    assert "cora, GAT: left out, as another process trains it\n" in err
    assert f"left out, as another process trains them: {CELL}" in out and "1 file of 2 seeds" in out
    assert {config.recipe for config in trained} == {"cora"} and not (tmp_path / "cells" / CELL).exists()
    assert f"missing: {CELL}" in out
    trained.clear()
    program(*_arguments(tmp_path))
    assert {config.recipe for config in trained} == {"cora-gat"}


def test_a_cell_that_another_process_has_just_trained_is_not_trained_again(
    trained: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"work": tmp_path, "datasets": ["cora"], "device": "cpu"}
    reproduce.reproduce("table1", rows=["GAT"], **options)
    first = (tmp_path / CELL).read_bytes()
    (tmp_path / CELL).unlink()

    def make_task(config: Config, data_dir: object, device: object) -> object:
        (tmp_path / CELL).write_bytes(first)  # the other process ends while the data are read
        return SimpleNamespace(data=config.data)

    trained.clear()
    monkeypatch.setattr(reproduce, "make_task", make_task)
    reproduce.reproduce("table1", rows=["GAT"], **options)
    assert trained == [] and (tmp_path / CELL).read_bytes() == first


def test_missing_data_are_named(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.urlopen", _no_network)
    out, err = program(*_arguments(tmp_path), "--data-dir", tmp_path / "data", status=2)
    last = err.splitlines()[-1]
    assert out == "" and last.startswith("magna: ") and str(tmp_path / "data") in last


def _no_network(*_: object, **__: object) -> None:
    raise OSError("no network")


@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize(
    "error", [DataError("citeseer.x", "it is missing"), MissingExtra("a baseline", "PyKEEN", "baselines")]
)
def test_all_goes_on_without_what_is_missing(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def make_task(config: Config, data_dir: object, device: object) -> object:
        if config.recipe.startswith("citeseer"):
            raise error
        return SimpleNamespace(data=config.data)

    monkeypatch.setattr(reproduce, "make_task", make_task)
    for module in (runner, queueing):
        monkeypatch.setattr(module, "REGISTRY", {"table1": REGISTRY["table1"]})
    arguments = _arguments(tmp_path, "--json")
    arguments[1] = "all"
    out, err = program(*arguments)
    result = json.loads(out)
    assert [row[2] for row in result["rows"]] == [f"2 missing; {error}"]
    assert {cell["cell"] for cell in result["missing"]} == {cell.path for cell in cells("table1", ["citeseer"])}
    assert err.count(str(error)) == 1 and "table1, pubmed, to 2 seeds: left: " in err

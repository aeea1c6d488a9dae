"""`magna reproduce` by the registry: the list, cells of tables and figures, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.running import Program

from magna.config.schema import Config
from magna.errors import DataError
from magna.paper import queue as queueing
from magna.paper import reproduce, runner
from magna.paper.experiments import EXPERIMENTS, cells
from magna.paper.listing import list_experiments
from magna.paper.registry import REGISTRY
from magna.paper.rows import SWEPT_ALPHAS, SWEPT_HOPS
from magna.paper.runner import collect_cells, run_all, run_experiment
from magna.training.loop import TrialResult

ROOT = Path(__file__).parents[2]
CONTRACT = {"name", "kind", "rows", "files", "missing"}


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Configs that would have been trained; their accuracy is 0.8 and a hundredth of K."""
    configs: list[Config] = []

    def train_trials(batch: Sequence[Config], task: object, *, on_results: Any, **_: Any) -> None:
        configs.extend(batch)
        on_results({at: _result(config) for at, config in enumerate(batch)})

    monkeypatch.setattr(reproduce, "train_trials", train_trials)
    monkeypatch.setattr(reproduce, "make_task", lambda config, data_dir, device: SimpleNamespace(data=config.data))
    return configs


def _result(config: Config) -> TrialResult:
    accuracy = 0.8 + 0.01 * config.to_dict()["model"].get("K", 0) + 0.001 * config.train.seed
    valid, test = {"accuracy": 0.5, "loss": 1.0}, {"accuracy": accuracy, "loss": 1.0}
    return TrialResult(config, epochs=3, best_epoch=2, seconds=0.1, valid=valid, test=test, history=[], weights=None)


def test_the_list_is_the_registry() -> None:
    listed = list_experiments(ROOT / "results", ROOT / "no-cells")["experiments"]
    assert [line["name"] for line in listed] == list(REGISTRY)
    by_name = {line["name"]: line for line in listed}
    assert by_name["table6"]["state"] == "9 of 18 cells", "the plain models are those of Table 1"
    assert by_name["table7"]["also_called"] == "random-splits" and by_name["table7"]["done"] > 0
    assert by_name["table1"]["seconds"] > 1000 and by_name["table1"]["quoted"] == []
    assert by_name["propositions"]["state"] == "measured when asked for"
    for line in listed:
        assert line["done"] + len(line["missing"]) == line["cells"]
        for cell in line["missing"]:
            assert cell["command"].startswith(f"magna reproduce {line['name']} --dataset ")


def test_the_command_lists(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown, _ = program("reproduce", "--list")
    assert all(f"\n  {name} " in shown for name in REGISTRY)
    assert all(len(line) <= 80 for line in shown.splitlines()), "it fits on any terminal"
    assert shown.startswith("Tables\n  table1 ") and "\nFigures\n  fig4a " in shown
    assert "missing: cora/tuned-k-1, cora/tuned-k-2, cora/tuned-k-3 and" in shown
    assert [line["name"] for line in json.loads(program("reproduce", "--list", "--json")[0])["experiments"]] == [
        *REGISTRY
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("trained")
def test_a_table_leaves_its_files_and_names_missing_cells(tmp_path: Path) -> None:
    options: dict[str, Any] = {"work": tmp_path / "cells", "results": ROOT / "results", "out": tmp_path / "out"}
    result = run_experiment("random-splits", seeds=1, device="cpu", datasets=["cora"], **options)
    assert result.keys() >= CONTRACT and result["kind"] == "table"
    assert result["name"] == "table7", "the old name answers with the paper's"
    assert [Path(file).name for file in result["files"]] == ["table7.csv", "table7.tex"]
    other = run_experiment("table7", seeds=1, device="cpu", datasets=["cora"], **options | {"results": None})
    assert len(other["missing"]) == 2 * 5 * 10, "of the data sets that were not asked for"
    first = other["missing"][0]
    assert first["command"] == "magna reproduce table7 --dataset citeseer --row MAGNA"
    assert first["cell"] == "random-splits/citeseer/magna/split-0.json"


def test_a_sweep_is_a_figure_of_cells(trained: list[Config], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options: dict[str, Any] = {"work": tmp_path / "cells", "out": tmp_path / "out", "device": "cpu"}
    options["data_dir"] = tmp_path
    result = run_experiment("fig4c", quick=True, **options)
    assert {config.to_dict()["model"]["K"] for config in trained} == {1, 6} and len(trained) == 4
    assert result["rows"] == [["Cora", "tuned", "6 (6 to 6)", "—", "5.27", "—"]], "without the data no path length"
    lines = (tmp_path / "out" / "fig4c.csv").read_text().splitlines()
    assert lines[1].startswith("Cora,tuned,1,81.05,0.07,2,") and lines[1].endswith(",—")
    assert [Path(file).name for file in result["files"]] == ["fig4c.csv", "fig4c.svg", "fig4c.png"]
    words = "Quick form, no result: tuned, K=1 and tuned, K=6 on cora, 2 seeds, trained to patience with train."
    assert result["caption"].startswith(words) and result["missing"] == []


@pytest.mark.parametrize(("name", "values"), [("fig4c", SWEPT_HOPS), ("fig4d", SWEPT_ALPHAS)])
def test_a_sweep_has_a_cell_for_each_value_of_two_models(name: str, values: Sequence[float]) -> None:
    chosen = cells(name)
    datasets = {"fig4c": {"cora", "citeseer", "pubmed"}, "fig4d": {"cora"}}[name]
    assert len(chosen) == 2 * len(values) * len(datasets) and {cell.dataset for cell in chosen} == datasets
    blocks = [cell.config.to_dict()["model"] for cell in chosen if cell.row.startswith("paper's blocks")]
    assert {(model["hidden_channels"], model["head_form"]) for model in blocks} == {(64, "full")}
    assert set(EXPERIMENTS[name].quick_rows or ()) < {cell.row for cell in chosen}


def test_cells_alone_are_collected(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="experiment is 'fig5'; allowed: with cells to collect: table1, table2, table3, table6, table7"
    ):
        collect_cells("fig5", work=tmp_path, results=tmp_path)


def test_all_runs_in_the_order_of_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def run(name: str, **options: Any) -> dict[str, Any]:
        if options.get("datasets") != ():
            names.append(name)
        if name == "table3" and options["quick"]:
            raise DataError("wn18rr", "it is missing")
        missing = [{"cell": "x", "command": "y", "forecast_s": None, "device": None}] * (name == "fig4c")
        return {"files": [f"{name}.csv"], "missing": missing}

    monkeypatch.setattr(runner, "run_experiment", run)
    result = run_all(work=tmp_path, quick=True)
    assert names == list(REGISTRY)
    states = {row[0]: row[2] for row in result["rows"]}
    assert (states["table1"], states["fig4c"], states["table3"]) == ("complete", "1 missing", "wn18rr: it is missing")
    assert result.keys() >= CONTRACT and len(result["missing"]) == 1
    with pytest.raises(ValueError, match=r"datasets is \['cora'\]; allowed: with one experiment, not with all"):
        run_all(work=tmp_path, datasets=["cora"])


Asked = tuple[str, list[str], int | None]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """Names, data sets and seeds that `all` asks for. Citeseer is missing; the first row of fig4c diverges."""
    calls: list[Asked] = []

    def run(name: str, **options: Any) -> dict[str, Any]:
        if options.get("datasets") != ():
            calls.append((name, options.get("datasets") or [], options["seeds"]))
        if options.get("datasets") == ["citeseer"]:
            raise DataError("citeseer", "it is missing")
        if options.get("datasets") == ["cora"] and name == "fig4c" and options["seeds"] == 10:
            assert cells(name)[0].row not in options["rows"]
        return {"files": [], "missing": [], "diverged": [cells("fig4c")[0].path] if name == "fig4c" else []}

    monkeypatch.setattr(runner, "run_experiment", run)
    return calls


def test_all_works_by_the_queue(asked: list[Asked], tmp_path: Path) -> None:
    lines: list[str] = []
    options: dict[str, Any] = {"work": tmp_path, "results": ROOT / "results", "device": "cpu", "seeds": None}
    result = run_all(**options, say=lines.append)
    sweep = [(of, count) for name, of, count in asked if name == "fig4c"]
    assert sweep == [
        (["cora"], 5),
        (["citeseer"], 5),
        (["cora"], 10),
        (["pubmed"], 5),
        (["pubmed"], 10),
    ], "what is missing is not tried again"
    assert [name for name, of, _ in asked if not of] == [name for name, entry in REGISTRY.items() if entry.study]
    assert not any(of == ["wn18rr"] for _, of, _ in asked)
    assert "table3, wn18rr, to 3 seeds: left out on the CPU; try magna reproduce table3 --dataset wn18rr" in lines
    assert any(line.startswith("fig4c, cora, to 5 seeds: left: ") and "on NVIDIA H200" in line for line in lines)
    states = {row[0]: row[2] for row in result["rows"]}
    assert (states["switches"], states["fig4c"]) == ("complete", "citeseer: it is missing")


@pytest.mark.usefixtures("trained")
def test_all_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (runner, queueing):
        monkeypatch.setattr(module, "REGISTRY", {name: REGISTRY[name] for name in ("ablations", "fig4c", "fig4d")})
    options: dict[str, Any] = {"work": tmp_path, "results": ROOT / "results", "device": "cpu"}
    whole, calls = run_experiment, list[tuple[str, Any]]()

    def stopped(name: str, **more: Any) -> dict[str, Any]:
        calls.append((name, more.get("datasets")))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(name, **more)

    monkeypatch.setattr(runner, "run_experiment", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_all(**options)
    calls[:] = [("", None)] * 3
    result = run_all(**options)
    assert calls[3] == ("fig4d", ["cora"]), "fig4c on Cora and Citeseer is done"
    assert result["missing"] == [] and {row[2] for row in result["rows"]} == {"complete"}
    calls[:] = [("", None)] * 3
    run_all(**options)
    assert {datasets for _, datasets in calls[3:]} == {()}, "nothing is left to train"

"""The queue of the whole paper: its order, its forecasts and their devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.running import Program

from magna.cli.plan import _show_queue
from magna.config.schema import load_recipe
from magna.errors import DataError
from magna.paper import queue as queueing
from magna.paper.cell import Cell
from magna.paper.cells import CellStore
from magna.paper.experiments import EXPERIMENTS, Experiment, cells
from magna.paper.queue import FOR_GPU, Forecasts, queue, steps
from magna.paper.registry import REGISTRY

ROOT = Path(__file__).parents[2]


def _run(seed: int, seconds: float = 2.0, epochs: int = 50, device: str = "cpu") -> dict[str, Any]:
    return {"seed": seed, "epochs": epochs, "seconds": seconds, "device": device, "test": {"accuracy": 0.8}}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """Two rows of Table 1 on digits alone, with 7 seeds."""
    chosen = [
        Cell("table1", "digits", row, load_recipe("digits").with_values(list(changes)), changes)
        for row, changes in (("MAGNA, tuned", ()), ("GAT", ("model.alpha=0.5",)))
    ]
    monkeypatch.setattr(queueing, "REGISTRY", {"table1": REGISTRY["table1"]})
    monkeypatch.setitem(EXPERIMENTS, "table1", Experiment(lambda dataset: iter(chosen), ("digits",), seeds=7))
    return chosen


def test_the_order_gives_equal_terms() -> None:
    """Every row of a data set gets five seeds before any gets more; graphs for a GPU are last."""
    todo = [step for step in steps(CellStore()) if step.dataset]
    of_table = [(step.dataset, step.seeds) for step in todo if step.experiment == "table1"]
    both = [(dataset, seeds) for seeds in (5, 10, 15, 20) for dataset in ("cora", "citeseer")]
    assert of_table == [*both, *(("pubmed", seeds) for seeds in (5, 10, 15, 20))]
    first = next(step for step in todo if step.experiment == "table1")
    assert [cell.row for cell, _ in first.missing] == [cell.row for cell in cells("table1", ["cora"])]
    assert {count for step in todo for _, count in step.missing} <= {1, 3, 5}
    late = [step.dataset in FOR_GPU for step in todo]
    assert late == sorted(late) and any(late)
    lacking = sum(count for step in todo for cell, count in step.missing if cell.path == "table1/cora/magna-tuned.json")
    assert lacking == 20, "ablations and switches show the same cell, which is trained once"


def test_what_is_done_is_left_out(small: list[Cell], tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    store.write(small[0], [_run(seed) for seed in range(6)], {})
    todo = [(step.seeds, [(cell.row, count) for cell, count in step.missing]) for step in steps(store)]
    assert todo == [(5, [("GAT", 5)]), (7, [("MAGNA, tuned", 1), ("GAT", 2)])]
    assert [step.seeds for step in steps(store, seeds=5)] == [5]


def test_a_forecast_is_of_this_device_where_there_is_one(small: list[Cell], tmp_path: Path) -> None:
    tuned, other = small
    store = CellStore(tmp_path)
    assert Forecasts(store, "cpu").of_run(tuned) == (None, None)
    store.write(tuned, [_run(0, 3.0, device="NVIDIA H200"), _run(1, 5.0, device="NVIDIA H200")], {})
    assert Forecasts(store, "cpu").of_run(other) == (4.0, "NVIDIA H200"), "by its recipe"
    store.write(tuned, [_run(0, 3.0, device="NVIDIA H200"), _run(1, 60.0)], {})
    assert Forecasts(store, "cpu").of_run(other) == (60.0, "cpu")
    store.write(other, [_run(0, 8.0)], {})
    assert Forecasts(store, "cpu").of_run(other) == (8.0, "cpu"), "by its own runs"


def test_without_a_run_the_pace_of_this_machine_is_measured_once(
    small: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Any] = []

    def plan(config: Any, *, seeds: int, **_: Any) -> dict[str, Any]:
        plans.append(config)
        return {"time": {"seconds": 10.0 * seeds}}

    monkeypatch.setattr(queueing, "plan", plan)
    result = queue(work=tmp_path, results=None, device="cpu")
    assert len(plans) == 1, "alpha does not change the time of an epoch"
    assert [line["forecast_s"] for line in result["queue"]] == [50.0, 50.0, 20.0, 20.0]
    assert result["seconds"] == {"cpu": 140} and result["without_forecast"] == 0
    queue(work=tmp_path, results=None, device="cpu")
    assert len(plans) == 1
    epochs = small[0].config.train.epochs // 2
    CellStore(tmp_path).write(small[0], [_run(0, 1.0, epochs, "NVIDIA H200")], {})
    last = queue(work=tmp_path, results=None, device="cpu")["queue"][-1]
    assert (last["forecast_s"], last["device"]) == (10.0, "cpu"), "it ends after half of the epochs"


@pytest.mark.usefixtures("small")
def test_the_queue_says_where_the_hours_of_the_cpu_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(queueing, "plan", lambda config, *, seeds, **_: {"time": {"seconds": 3.5 * 3600 * seeds}})
    result = queue(work=tmp_path, results=None, device="cpu")
    assert [line["beyond_cap"] for line in result["queue"]] == [False, False, True, True]
    _show_queue(result)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "-- 36 hours of the CPU end in the next line --" and "2 to 7 seeds" in lines[2]


@pytest.mark.usefixtures("small")
def test_missing_data_leave_a_cell_without_a_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(*_: Any, **__: Any) -> dict[str, Any]:
        raise DataError("cora.csv", "it is missing")

    monkeypatch.setattr(queueing, "plan", plan)
    lines: list[str] = []
    result = queue(work=tmp_path, results=None, device="cpu", say=lines.append)
    assert result["without_forecast"] == 4 and "digits, GAT: cora.csv: it is missing" in lines


def test_the_command_prints_hours(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["plan", "--queue", "--no-measure", "--device", "cpu", "--results", str(ROOT / "results")]
    shown, _ = program(*arguments)
    assert "hours; the CPU may take 36 hours of both cores" in shown and "left on NVIDIA H200: " in shown
    assert any(line.startswith("fig4c             cora         14 to 5 seeds") for line in shown.splitlines())
    assert all(len(line) <= 80 for line in shown.splitlines())
    listed = json.loads(program(*arguments, "--json")[0])
    first = next(line for line in listed["queue"] if line["experiment"] == "fig4c")
    assert first["cell"] == "fig4c/cora/tuned-k-1.json" and first["seeds"] == 5 and first["forecast_s"] > 0
    assert list(tmp_path.iterdir()) == []
    _, err = program("plan", "cora", "--queue", status=2)
    assert "RECIPE is 'cora'; allowed: without --queue" in err

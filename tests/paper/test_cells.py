"""Files of cells: the seeds that they hold, and the commit that they name."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magna.config.schema import Config
from magna.paper import cells as cell_files
from magna.paper.cell import Cell
from magna.paper.cells import CellStore
from magna.paper.experiments import cells

MACHINE: dict[str, Any] = {"device": "cpu"}


def _run(seed: int) -> dict[str, Any]:
    mrr = 0.3 + 0.1 * seed
    return {"seed": seed, "valid": {"mrr": mrr, "loss": 1.0}, "test": {"mrr": mrr}, "test_head": {"mrr": mrr / 2}}


@pytest.fixture
def cell() -> Cell:
    return cells("table3", ["families"])[0]


def test_a_file_has_the_runs_and_the_settings_of_its_cell(cell: Cell, tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    store.write(cell, [_run(0), _run(1)], MACHINE)
    content = json.loads((tmp_path / cell.path).read_text(encoding="utf-8"))
    assert (content["dataset"], content["row"], content["recipe"]) == ("families", "MAGNA, tuned", "families")
    assert content["runs"] == [_run(0), _run(1)] == store.runs(cell)
    assert f"model.K={cell.config.model.K}" in content["settings"] or cell.config.model.K == Config().model.K


def test_a_file_of_other_settings_holds_no_run_of_the_cell(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CellStore(tmp_path)
    assert store.runs(cell) == [] and not store.is_outdated(cell)
    store.write(cell, [_run(0), _run(1)], MACHINE)
    assert len(store.runs(cell)) == 2 and not store.is_outdated(cell)
    assert len(store.runs(replace(cell, config=cell.config.with_seed(5)))) == 2
    changed = replace(cell, config=cell.config.with_values(["model.alpha=0.77"]))
    assert store.runs(changed) == [] and store.is_outdated(changed)
    monkeypatch.setattr("magna.paper.records.PROTOCOL", 2)
    assert store.runs(cell) == [] and store.is_outdated(cell), "it is of an older protocol"
    monkeypatch.undo()
    (tmp_path / cell.path).write_text("{")
    assert store.runs(cell) == []


def test_the_commit_of_another_repository_is_not_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(cell_files, "__file__", str(tmp_path / "cells.py"))
    assert cell_files._commit() is None

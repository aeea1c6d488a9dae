"""The file of a cell: whether it holds what is asked for, and where it says it comes from."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from magna.paper import cells as cell_file
from magna.paper.cells import SAY_SECONDS, Job, is_done, recorded_runs, write_cell
from magna.paper.experiments import Cell, cells

STAMP: dict[str, Any] = {"environment": {"device": "cpu"}, "commit": None, "date": "2026-01-01 12:00"}


def _run(seed: int) -> dict[str, Any]:
    mrr = 0.3 + 0.1 * seed
    return {"seed": seed, "valid": {"mrr": mrr, "loss": 1.0}, "test": {"mrr": mrr}, "test_head": {"mrr": mrr / 2}}


@pytest.fixture
def cell() -> Cell:
    return cells("table3", ["families"])[0]


def test_a_file_has_the_mean_and_deviation_of_its_runs(cell: Cell, tmp_path: Path) -> None:
    path = tmp_path / cell.path
    write_cell(path, cell, [_run(0), _run(1)], STAMP)
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["mean"] == {
        "valid": {"mrr": pytest.approx(0.35)},
        "test": {"mrr": pytest.approx(0.35)},
        "test_head": {"mrr": pytest.approx(0.175)},
    }
    assert record["std"]["test"]["mrr"] == pytest.approx(0.1 / 2**0.5)
    assert (record["dataset"], record["row"], record["recipe"]) == ("families", "MAGNA, tuned", "families")
    assert record["runs"] == [_run(0), _run(1)] == recorded_runs(path, cell.config)
    assert record["date"] == STAMP["date"] and record["config"]["model"]["K"] == cell.config.model.K


def test_a_cell_with_other_settings_or_fewer_seeds_is_not_done(cell: Cell, tmp_path: Path) -> None:
    path = tmp_path / cell.path
    assert not is_done(path, cell.config, 1)
    write_cell(path, cell, [_run(0), _run(1)], STAMP)
    assert is_done(path, cell.config, 2)
    assert is_done(path, cell.config.with_seed(5), 1)
    assert not is_done(path, cell.config, 3)
    assert not is_done(path, cell.config.with_values(["model.alpha=0.77"]), 2)
    path.write_text("{")
    assert not is_done(path, cell.config, 2)


def test_the_commit_of_another_repository_is_not_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(cell_file, "__file__", str(tmp_path / "cells.py"))
    assert cell_file._commit() is None


def test_what_goes_on_for_long_is_told_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, lines = 0.0, list[str]()
    monkeypatch.setattr(cell_file.time, "monotonic", lambda: now)
    say = Job(tmp_path, 1, None, torch.device("cpu"), STAMP, lines.append).seldom()
    for second in range(3 * SAY_SECONDS):
        now = float(second)
        say(str(second))
    assert lines == [str(SAY_SECONDS + 1), str(2 * SAY_SECONDS + 2)]

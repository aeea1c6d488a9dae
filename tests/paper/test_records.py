"""Committed results: written, read back and compared with the recipes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magna.config.schema import Config, load_recipe
from magna.paper.records import PROTOCOL, Record, read_records, settings_of, write_records


def _run(seed: int, **more: Any) -> dict[str, Any]:
    run: dict[str, Any] = {"seed": seed, "epochs": 3, "best_epoch": 2, "seconds": 0.1 + 0.2}
    run |= {"valid": {"accuracy": 1 / 3, "loss": 1e-9}, "test": {"accuracy": 2 / 3}}
    return run | {"device": "cpu", "commit": "abc", "date": "2026-01-01 12:00"} | more


def _record(**fields: Any) -> Record:
    settings = settings_of(load_recipe("cora"))
    plain = Record(
        "cora", "No Diffusion", "cora", ("model.diffusion=false",), settings, PROTOCOL, {"device": "cpu"}, []
    )
    return replace(plain, **({"runs": [_run(0), _run(1)]} | fields))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    machine = {"device": "cpu", "threads": 2, "packages": {"torch": "2", "torch-geometric": "3"}}
    records = [
        _record(),
        _record(row='a, "b"', changes=(), machine=machine),
        *(_record(row="GAT", split=split, settings=("data.name=cora",)) for split in range(3)),
        _record(
            row="links",
            runs=[_run(0, parameters=7, peak_bytes=9, test_head={"hits@10": 0.1}, commit=None)],
        ),
    ]
    write_records(tmp_path, "some", records)
    assert list(read_records(tmp_path, "some").values()) == records
    lines = (tmp_path / "some" / "runs.csv").read_text().splitlines()
    columns = "dataset,row,split,seed,epochs,best_epoch,seconds,parameters,peak_bytes,device,commit,date"
    assert lines[0].startswith(f"{columns},valid.")
    assert len(lines) == 1 + 2 + 2 + 6 + 1
    text = (tmp_path / "some" / "cells.toml").read_text()
    assert text.count("splits = [0, 1, 2]") == 1 and 'recipe = "cora (2)"' in text


def test_a_record_is_current_while_its_recipe_stands() -> None:
    config = load_recipe("cora").with_values(["model.diffusion=false"])
    assert _record().is_current(config) and _record().is_current(config.with_seed(7))
    assert not _record().is_current(config.with_values(["train.lr=0.5"]))
    assert not _record(protocol=PROTOCOL - 1).is_current(config)
    assert not _record(changes=("model.nonsense=1",)).is_current(config)


@pytest.mark.parametrize("recipe", ["cora", "pubmed-gat", "cora-diff-gcn", "wn18rr", "families", "digits"])
def test_settings_give_the_recipe_again(recipe: str) -> None:
    config = load_recipe(recipe)
    again = Config().with_values(settings_of(config))
    assert (again.data, again.model, again.task, again.train) == (config.data, config.model, config.task, config.train)


def test_joined_records_have_each_seed_once() -> None:
    first, second = _record(), _record(runs=[_run(2), _run(1, epochs=9)])
    assert [(run["seed"], run["epochs"]) for run in first.joined(second).runs] == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.parametrize("damage", ["cells = 3", "cells = [", 'cells = [{ dataset = "cora" }]'])
def test_damaged_results_are_named(tmp_path: Path, damage: str) -> None:
    write_records(tmp_path, "some", [_record()])
    (tmp_path / "some" / "cells.toml").write_text(damage)
    with pytest.raises(ValueError, match=r"some: the results of this table cannot be read .*; try"):
        read_records(tmp_path, "some")

"""The portfolio on a graph of one's own: order, stops, choice, resuming and its files."""

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import magna
from magna.config.tables import NodeDataOptions
from magna.data import load_digits
from magna.errors import ArgumentError, DataError
from magna.search import own_graph as module
from magna.search.facts import FOLDS, read_facts
from magna.search.members import Member, parse_members
from magna.search.node_portfolio import NodePortfolio
from magna.search.own_graph import train_portfolio
from magna.search.portfolio import FILE, Budget, Portfolio
from magna.search.train import is_own_data
from magna.use.nodes import predict_nodes

DIGITS = NodeDataOptions(name="digits")
CLUBS = Path(__file__).parents[2] / "examples" / "own_graph"


def _member(name: str, model: str, epochs: int = 12, **settings: Any) -> dict[str, Any]:
    table = {"name": model, "hidden_channels": 16, "num_layers": 2, **settings}
    train = {"epochs": epochs, "patience": epochs, "lr": 0.02, "min_lr": 0.02, "weight_decay": 5e-4}
    return {"name": name, "scaling": "first", "model": table, "train": train}


SMALL = parse_members([_member("alone", "mlp"), _member("gcn", "gcn"), _member("magna", "magna", heads=2, K=2)])


def _train(
    folder: Path, budget: Budget | None = None, members: list[Member] | None = None, **more: Any
) -> dict[str, Any]:
    return train_portfolio(DIGITS, budget or Budget(steps=3), folder, members=members or SMALL, **more)


def test_a_portfolio_leaves_a_run_folder_of_the_best_member(tmp_path: Path) -> None:
    result = _train(tmp_path / "run")
    rows = {row["member"]: row for row in result["members"]}
    best = max((row for row in rows.values() if not row["fault"]), key=lambda row: row["score"])
    assert rows[result["best"]]["score"] == best["score"]
    assert result["steps"] == 3 and result["judged_on"] == "500 nodes"
    assert sum(row["weight"] for row in rows.values()) == pytest.approx(1)
    run = result["runs"][0]
    assert run["valid"]["accuracy"] >= best["score"] - 1e-9, "the average is at least as good on validation"
    stored = json.loads((tmp_path / "run" / FILE).read_text())
    assert stored["state"] == "done" and sum(each["weight"] for each in stored["members"]) == pytest.approx(1)
    metrics = magna.evaluate(tmp_path / "run")["metrics"]
    assert metrics["accuracy"] == pytest.approx(run["test"]["accuracy"], abs=0.003), "evaluate averages as well"
    with (tmp_path / "run" / "predictions.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 1797 and {line["split"] for line in lines} == {"train", "valid", "test"}
    of_test = [line["label"] == line["true_label"] for line in lines if line["split"] == "test"]
    assert sum(of_test) / len(of_test) == pytest.approx(run["test"]["accuracy"])


def test_the_recipe_of_the_best_member_can_be_searched(tmp_path: Path) -> None:
    _train(tmp_path / "run")
    recipe = magna.load_recipe(str(tmp_path / "run" / "recipe.toml"))
    assert {"train.lr", "train.weight_decay"} <= recipe.search.keys()


def test_the_same_steps_give_the_same_result(tmp_path: Path) -> None:
    first, second = (_train(tmp_path / name) for name in ("one", "two"))
    assert [row | {"seconds": 0} for row in first["members"]] == [row | {"seconds": 0} for row in second["members"]]
    assert first["runs"][0]["test"] == second["runs"][0]["test"]


def test_the_printed_steps_repeat_a_run_in_time(tmp_path: Path) -> None:
    in_time = _train(tmp_path / "time", Budget(minutes=5.0))
    again = _train(tmp_path / "steps", Budget(steps=in_time["steps"]))
    assert again["runs"][0]["test"] == in_time["runs"][0]["test"] and in_time["steps"] == 3


def test_single_keeps_the_best_member_alone(tmp_path: Path) -> None:
    result = _train(tmp_path / "run", Budget(steps=3, single=True))
    assert {row["member"]: row["weight"] for row in result["members"]}[result["best"]] == 1


def test_without_the_test_split_nothing_is_scored_on_it(tmp_path: Path) -> None:
    result = _train(tmp_path / "run", Budget(steps=1, test=False))
    assert result["runs"][0]["test"] is None and result["std"]["test"] is None


def test_a_budget_too_small_for_a_member_trains_the_first_one(tmp_path: Path) -> None:
    result = _train(tmp_path / "run", Budget(minutes=1e-6))
    assert [row["member"] for row in result["members"]] == ["alone"]


def _dies_after(count: int, patched: pytest.MonkeyPatch) -> None:
    saved: Callable[[Portfolio, dict[str, Any]], None] = Portfolio.save

    def save(self: Portfolio, content: dict[str, Any]) -> None:
        saved(self, content)
        if len(self.results) == count:
            raise KeyboardInterrupt

    patched.setattr(Portfolio, "save", save)


def test_a_killed_portfolio_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _train(tmp_path / "whole")
    with monkeypatch.context() as patched:
        _dies_after(2, patched)
        with pytest.raises(KeyboardInterrupt):
            _train(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "members" / "03-magna", ignore_errors=True)
    trained: list[str] = []
    resumed = _train(tmp_path / "run", resume=True, say=trained.append)
    assert not [line for line in trained if line.startswith(("alone:", "gcn:"))], "finished steps are not repeated"
    assert resumed["runs"][0]["test"] == whole["runs"][0]["test"]
    with pytest.raises(DataError, match="another seed"):
        _train(tmp_path / "run", Budget(steps=3, seed=1), resume=True)


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    _train(tmp_path / "run", Budget(steps=1))
    with pytest.raises(DataError, match="it holds a run already"):
        _train(tmp_path / "run", Budget(steps=1))


def test_a_member_far_behind_stops_early(tmp_path: Path) -> None:
    slow = parse_members([_member("gcn", "gcn", 30), _member("still", "mlp", 30, input_dropout=0.99)])
    slow[1].tables["train"]["lr"] = 1e-6  # type: ignore[index]
    slow[1].tables["train"]["min_lr"] = 1e-6  # type: ignore[index]
    result = _train(tmp_path / "run", Budget(steps=2), slow)
    assert result["members"][1]["fault"] == "stopped early" and result["members"][1]["weight"] == 0


def test_few_validation_labels_divide_the_training_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_digits()
    few = replace(data, valid=data.valid[:60])
    monkeypatch.setattr(module, "load_node_data", lambda *_: few)
    result = _train(tmp_path / "run", Budget(steps=2 * (1 + FOLDS)))
    assert result["judged_on"] == f"{60 + data.train.numel()} nodes", "every training node was held out once"
    rows = {row["member"] for row in result["members"]}
    assert rows == {"alone", "gcn"} and result["steps"] == 8


def test_folds_cover_the_training_nodes_and_no_other(tmp_path: Path) -> None:
    data = load_digits()
    facts = read_facts(data)
    portfolio = NodePortfolio(tmp_path, SMALL, Budget(), torch.device("cpu"), lambda line: None, DIGITS, data, facts)
    folds = [portfolio.held_out(fold) for fold in range(FOLDS)]
    assert torch.equal(torch.cat(folds).sort().values, data.train.sort().values)
    for fold, held in enumerate(folds):
        assert not torch.isin(portfolio.kept(fold), held).any()
        assert not torch.isin(portfolio.kept(fold), torch.cat([data.valid, data.test])).any()


def test_no_weight_is_trained_on_validation_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, wrong = load_digits(), load_digits().y.clone()
    wrong[data.valid] = (wrong[data.valid] + 1) % 10
    weights = []
    for name, labels in (("right", data.y), ("wrong", wrong)):
        changed = replace(data, y=labels)
        monkeypatch.setattr(module, "load_node_data", lambda *_, changed=changed: changed)
        one_epoch = parse_members([_member("gcn", "gcn", 1)])
        _train(tmp_path / name, Budget(steps=1), one_epoch)
        weights.append((tmp_path / name / "model" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_own_graphs_are_told_from_recipes() -> None:
    assert is_own_data(CLUBS) and is_own_data(str(CLUBS))
    assert not is_own_data("cora") and not is_own_data(None) and not is_own_data(magna.load_recipe("digits"))


def test_a_folder_without_a_recipe_trains_the_portfolio(tmp_path: Path) -> None:
    result = magna.train(CLUBS, steps=1, run_dir=tmp_path / "run")
    assert result["recipe"] == "portfolio" and result["best"] == "mlp"
    assert predict_nodes(tmp_path / "run", ["001"]).ids == ["001"]


def test_settings_without_a_recipe_name_both_ways(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="allowed: with a recipe; try recipe='digits' with these settings"):
        magna.train(CLUBS, settings={"train.epochs": 3}, run_dir=tmp_path)
    with pytest.raises(ArgumentError, match="steps is 3; allowed: with data of your own, without a recipe"):
        magna.train("digits", steps=3, run_dir=tmp_path)
    with pytest.raises(ArgumentError, match="seeds is 2; allowed: with a recipe"):
        magna.train(CLUBS, seeds=2, run_dir=tmp_path)


def test_a_recipe_for_a_folder_trains_it_alone(tmp_path: Path) -> None:
    settings = {"train.epochs": 2}
    result = magna.train(CLUBS, recipe="digits", settings=settings, run_dir=tmp_path / "run")
    assert result["recipe"] != "portfolio" and not (tmp_path / "run" / FILE).exists()

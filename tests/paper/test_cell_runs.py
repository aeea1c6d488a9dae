"""Cells of link prediction: one run after the other, recorded when it ends, resumed after a stop."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magna.config.schema import Config, load_recipe
from magna.errors import Diverged
from magna.paper import cell_runs
from magna.paper.cell import Cell
from magna.paper.cells import CellStore
from magna.paper.experiments import EXPERIMENTS, Experiment
from magna.paper.reproduce import reproduce
from magna.training import loop, train
from magna.training.run_folder import RunFolder

SMALL = ["model.hidden_channels=8", "model.entity_channels=8", "model.heads=2", "model.num_layers=1", "model.K=2"]
EPOCHS = 4


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A table of two figures of a graph with 30 entities; its recipe."""
    chance = random.Random(0)
    rows = sorted({(chance.randrange(30), chance.randrange(2), chance.randrange(30)) for _ in range(150)})
    chance.shuffle(rows)
    graph = tmp_path / "graph"
    graph.mkdir()
    for split, part in (("train", rows[40:]), ("valid", rows[:20]), ("test", rows[20:40])):
        (graph / f"{split}.tsv").write_text("".join(f"e{h}\tr{r}\te{t}\n" for h, r, t in part))
    settings = [*SMALL, f"train.epochs={EPOCHS}", "train.eval_every=1", "task.batch_size=64"]
    recipe = load_recipe(str(graph)).with_values(settings)

    def cells(dataset: str) -> Iterator[Cell]:
        yield Cell("table3", dataset, "MAGNA, tuned", recipe)
        yield Cell("table3", dataset, "No propagation", recipe.with_values(["model.K=0"]), ("model.K=0",))

    monkeypatch.setitem(EXPERIMENTS, "table3", Experiment(cells, ("families",), seeds=3, quick=("train.epochs=1",)))
    return recipe


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """K and seed of every run."""
    started: list[tuple[int, int]] = []

    def noted(config: Config, **options: Any) -> dict[str, Any]:
        started.append((config.model.K, config.train.seed))
        return train.train(config, **options)

    monkeypatch.setattr(cell_runs, "train", noted)
    return started


def _reproduce(folder: Path, seeds: int = 1, lines: list[str] | None = None) -> dict[str, Any]:
    lines = [] if lines is None else lines
    results, runs = folder / "results", folder / "runs"
    return reproduce("table3", work=results, run_dir=runs, seeds=seeds, device="cpu", say=lines.append)


def _record(folder: Path, row: str = "magna-tuned") -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / f"results/table3/families/{row}.json").read_text(encoding="utf-8"))
    return record


def test_every_figure_is_a_file_and_no_run_folder_is_left(tmp_path: Path) -> None:
    lines: list[str] = []
    result = _reproduce(tmp_path, seeds=2, lines=lines)
    assert (result["trained"], result["diverged"], len(result["cells"])) == (2, [], 2)
    assert lines[0] == "table3: 2 figures of 2 seeds each, 0 of them done before"
    assert lines[-1].startswith("2 of 2: families, No propagation (")
    assert list((tmp_path / "runs").iterdir()) == []
    record = _record(tmp_path)
    assert [run["seed"] for run in record["runs"]] == [0, 1]
    first = record["runs"][0]
    for metric in ("mr", "mrr", "hits@1", "hits@3", "hits@10"):
        assert (first["test_head"][metric] + first["test_tail"][metric]) / 2 == pytest.approx(first["test"][metric])
    assert first["epochs"] == EPOCHS and first["parameters"] > 0 and first["device"] == "cpu"
    assert record["runs"][1]["test"]["mrr"] != first["test"]["mrr"] and record["machine"]["packages"]["torch"]
    assert _record(tmp_path, "no-propagation")["changes"] == ["model.K=0"]
    ours = result["rows"]
    assert [row[:2] for row in ours] == [["families", "MAGNA, tuned (ours)"], ["families", "No propagation (ours)"]]
    mean = sum(run["test"]["mrr"] for run in record["runs"]) / 2
    assert ours[0][3].startswith(f"{mean:.3f} ± ".removeprefix("0")), "over the two seeds"


def test_only_what_is_missing_is_trained(tmp_path: Path, trained: list[tuple[int, int]]) -> None:
    _reproduce(tmp_path, seeds=1)
    before = _record(tmp_path)["runs"][0]
    trained.clear()
    assert _reproduce(tmp_path, seeds=1)["trained"] == 0
    assert trained == []
    _reproduce(tmp_path, seeds=2)
    assert trained == [(2, 1), (0, 1)]
    assert _record(tmp_path)["runs"][0] == before


def test_a_run_that_was_stopped_goes_on(
    tmp_path: Path, trained: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _reproduce(tmp_path / "whole", seeds=2)
    trained.clear()
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    noted = vars(cell_runs)["train"]

    def stopped(config: Config, **options: Any) -> dict[str, Any]:
        def on_epoch(epoch: loop.Epoch) -> None:
            if (config.train.seed, epoch.number) == (1, 3):
                raise KeyboardInterrupt

        result: dict[str, Any] = noted(config, **options | {"on_epoch": on_epoch})
        return result

    monkeypatch.setattr(cell_runs, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        _reproduce(tmp_path / "stopped", seeds=2)
    (folder,) = (tmp_path / "stopped" / "runs").iterdir()
    assert folder.name == "table3-families-magna-tuned-seed-1"
    assert [run["seed"] for run in _record(tmp_path / "stopped")["runs"]] == [0]
    trained.clear()

    epochs: list[int] = []

    def counted(config: Config, **options: Any) -> dict[str, Any]:
        result: dict[str, Any] = noted(config, **options | {"on_epoch": lambda epoch: epochs.append(epoch.number)})
        return result

    monkeypatch.setattr(cell_runs, "train", counted)
    _reproduce(tmp_path / "stopped", seeds=2)
    assert trained == [(2, 1), (0, 0), (0, 1)], "the first seed was done"
    assert epochs[: EPOCHS - 2] == [3, 4], "from the checkpoint after two epochs"
    for whole, gone_on in zip(_record(tmp_path / "whole")["runs"], _record(tmp_path / "stopped")["runs"], strict=True):
        assert gone_on["test"] == whole["test"] and gone_on["test_head"] == whole["test_head"]


def test_a_run_that_ended_unrecorded_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError("no space left")

    write = CellStore.write
    monkeypatch.setattr(CellStore, "write", full)
    with pytest.raises(OSError, match="no space left"):
        _reproduce(tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    summary = RunFolder(folder).summary
    monkeypatch.setattr(CellStore, "write", write)
    _reproduce(tmp_path)
    assert summary is not None and _record(tmp_path)["runs"][0]["seconds"] == round(summary["seconds"], 3)


@pytest.mark.parametrize(
    ("setting", "lost"),
    [("train.epochs=1", ()), (f"train.epochs={EPOCHS}", ("config.toml", "summary.json"))],
    ids=["of another recipe", "incomplete"],
)
def test_a_run_that_cannot_be_resumed_starts_anew(
    tmp_path: Path, table: Config, setting: str, lost: tuple[str, ...]
) -> None:
    folder = tmp_path / "runs" / "table3-families-magna-tuned-seed-0"
    train.train(table.with_values([setting]), run_dir=folder, device="cpu")
    for name in lost:
        (folder / name).unlink()
    _reproduce(tmp_path)
    assert _record(tmp_path)["runs"][0]["epochs"] == EPOCHS
    assert not folder.exists()


def test_a_figure_that_diverges_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverging(config: Config, **options: Any) -> dict[str, Any]:
        if config.model.K == 2:
            raise Diverged("the loss is nan after epoch 2; try a smaller train.lr")
        return train.train(config, **options)

    monkeypatch.setattr(cell_runs, "train", diverging)
    lines: list[str] = []
    result = _reproduce(tmp_path, lines=lines)
    assert result["diverged"] == ["table3/families/magna-tuned.json"]
    assert (result["trained"], result["cells"]) == (1, ["table3/families/no-propagation.json"])
    assert "families, MAGNA, tuned: the loss is nan after epoch 2; try a smaller train.lr" in lines

"""Records of the studies of knowledge graphs."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def knowledge(monkeypatch: pytest.MonkeyPatch) -> Any:
    if not BENCHMARKS.is_dir():
        pytest.skip("benchmarks/ is not part of this install")
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("knowledge")


def test_loss(knowledge: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knowledge, "ENTITIES", {"small": 100})
    monkeypatch.setattr(knowledge, "QUERIES", 8)
    monkeypatch.setattr(knowledge.measure, "LEAST_TURNS", 1)
    knowledge.loss(["small"], torch.device("cpu"), tmp_path, {})
    (file,) = tmp_path.glob("loss-*.json")
    rows = json.loads(file.read_text())["rows"]
    assert [row["backend"] for row in rows] == ["blocked", "reference"]
    assert rows[0]["block"] == 128 and all(row["ms"] > 0 for row in rows)


def test_ranking(knowledge: Any, tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text("a\tr\tb\nb\tr\tc\nc\tr\ta\n")
    knowledge.ranking([str(tmp_path)], torch.device("cpu"), None, tmp_path, {})
    (file,) = tmp_path.glob("ranking-*.json")
    (row,) = json.loads(file.read_text())["rows"]
    assert row["targets"] == 6 and row["entities"] == 3 and row["seconds"] > 0
    knowledge.ranking(["families"], torch.device("cpu"), None, tmp_path, {})
    first, second = json.loads(file.read_text())["rows"]
    assert (first["of"], second["of"]) == ("512 random channels", "recipe families")
    assert first["targets"] == second["targets"] and second["mr"] < first["entities"]


@pytest.mark.slow
def test_steps(knowledge: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knowledge, "EPOCHS", 3)
    knowledge.steps(["families"], torch.device("cpu"), None, tmp_path, {})
    (file,) = tmp_path.glob("step-*.json")
    (row,) = json.loads(file.read_text())["rows"]
    assert row["recipe"] == "families" and row["ms"] > 0
    # At least the four products of the loss.
    assert row["tflop"] * 1e12 > 8 * row["batch"] * 64 * knowledge.load_knowledge_graph("families").num_entities


def test_the_authors_shapes_are_those_of_their_encoder(knowledge: Any) -> None:
    for name, shape in knowledge.AUTHORS.items():
        config = knowledge.load_recipe(name).with_values(shape)
        assert (config.model.hidden_channels, config.model.skip_channels, config.model.decoder) == (512, 0, "distmult")


def test_switch_off_replaces_each_piece_and_puts_it_back(
    knowledge: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch_off = importlib.import_module("switch_off")
    functions = {part[:2]: getattr(*part[:2]) for piece in switch_off.PIECES.values() for part in piece}
    replaced: list[int] = []

    def step_ms(*_: Any) -> float:
        replaced.append(sum(getattr(*key) is not function for key, function in functions.items()))
        return 1.0

    monkeypatch.setattr(knowledge, "step_ms", step_ms)
    switch_off.switch_off(torch.device("cpu"), None, tmp_path, {})
    assert replaced[: len(switch_off.PIECES)] == [len(piece) for piece in switch_off.PIECES.values()]
    assert all(getattr(*key) is function for key, function in functions.items())

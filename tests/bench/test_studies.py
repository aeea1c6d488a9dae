"""Studies in `benchmarks`: their records and tables."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Study = Callable[[str], Any]
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Study:
    if not BENCHMARKS.is_dir():
        pytest.skip("benchmarks/ is not part of this install")
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


def test_exponent_of_a_power_law(study: Study) -> None:
    exponent = study("studies").exponent
    assert exponent([(n, 3.0 * n**1.5) for n in (10, 100, 1000)]) == pytest.approx(1.5)


def test_records_are_appended_and_read_back(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = study("ledger")
    monkeypatch.setattr(ledger, "RECORDS", tmp_path)
    row = {"device": "some", "graph": "cora", "dtype": "float32", "backend": "cpu", "ms": 2.0, "note": ""}
    ledger.append(tmp_path / "some.csv", [row])
    ledger.append(tmp_path / "some.csv", [row | {"ms": 1.0 / 3}])
    assert (tmp_path / "some.csv").read_text().count("cora") == 2
    assert [measured["ms"] for measured in ledger.read_kernels()] == ["0.33333"]


def test_tables_are_written_between_their_markers(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, tables = study("ledger"), study("tables")
    document = tmp_path / "benchmarks.md"
    names = ("kernels", "epochs", "scaling", "memory", "steps", "switch_off", "loss", "ranking")
    places = "".join(f"<!-- {name}: begin -->old<!-- {name}: end -->\n" for name in names)
    document.write_text(f"before\n{places}after\n")
    stamp = {"device": "some", "date": "2026-01-02 03:04", "commit": "abc", "torch": "2", "pyg": "2"}
    rows = [{"graph": "cora", "variant": "save", "K": 2, "peak_bytes": 5_000_000, "ms": 12.3}]
    (tmp_path / "memory-some.json").write_text(json.dumps(stamp | {"rows": rows}))
    epoch = {"recipe": "cora-paper", "settings": [], "model": "6 × 512", "ms": 5, "peer_ms": 10, "share": 0.5}
    (tmp_path / "epoch-some.json").write_text(json.dumps({"rows": [stamp | epoch | {"difference": 1e-6}]}))
    step = {"recipe": "wn18rr", "set": ["model.K=3"], "batch": 4096, "ms": 9, "tflops": 300.0, "peak_bytes": 3e9}
    (tmp_path / "step-some.json").write_text(json.dumps(stamp | {"rows": [step]}))
    ranks = {"graph": "fb15k-237", "of": "some vectors", "targets": 40_932, "entities": 14_541, "seconds": 0.06}
    (tmp_path / "ranking-some.json").write_text(json.dumps(stamp | {"rows": [ranks]}))
    without = [{"shape": "Cora", "without": name, "ms": ms} for name, ms in (("nothing", [2.0, 3.0]), ("norm", [4, 3]))]
    (tmp_path / "switch-off-some.json").write_text(json.dumps(stamp | {"rows": without}))
    monkeypatch.setattr(ledger, "RECORDS", tmp_path)
    monkeypatch.setattr(ledger, "DOCS", document)
    tables.update()
    text = document.read_text()
    assert "old" not in text
    assert "| cora | save, peak MB | 5 |" in text and "| cora | save, ms | 12 |" in text
    assert "| Cora | norm | 4.00 | 3.00 | +50.0 |" in text
    assert "| wn18rr | model.K=3 | 4,096 | 9 | 300 | 3,000 |" in text
    assert "| fb15k-237 | some vectors | 40,932 | 14,541 | 0.06 |" in text and "Not measured yet." in text
    assert "| cora-paper | recipe's | 6 × 512 | 5 | 10 | 0.50 | 1e-06 |" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")


@pytest.fixture
def knowledge(study: Study) -> Any:
    return study("knowledge")


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

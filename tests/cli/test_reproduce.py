"""Tables as `magna reproduce` prints them: quick ones are marked."""

from __future__ import annotations

from typing import Any

import pytest

from magna.cli.reproduce import _show
from magna.paper.record_text import COST_HEADER

RESULT: dict[str, Any] = {
    "table": "table1",
    "quick": True,
    "datasets": ["cora"],
    "header": ["accuracy, %", "Cora", "Citeseer", "Citeseer, paper", "source"],
    "rows": [
        ["GAT (ours)", "21.8", "—", "—", "ours, 2 seeds, cpu"],
        ["Diff-GCN (ours)", "—", "—", "—", "not yet measured"],
        ["GAT", "83.0", "72.5", "72.5", "MAGNA paper, Table 1"],
    ],
    "cells": ["table1/cora/gat.json"],
    "seeds": 2,
    "work": "runs/quick",
    "diverged": [],
    "busy": [],
    "unavailable": [],
    "outdated": [],
}


def test_a_quick_table_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    _show(RESULT)
    out = capsys.readouterr().out
    assert "figures marked quick are no results" in out and "GAT (ours, quick)" in out
    assert "ours, quick, 2 seeds, cpu" in out and "83.0" in out
    assert "Citeseer" not in out and "Diff-GCN" not in out


def test_a_quick_table_compares_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    header = ["data", "model", "accuracy, %", "MAGNA is better by", "t-test, p", "Wilcoxon, p", "paper"]
    rows = [["Cora", "GAT", "45.5", "+1.0 ± 0.5", "0.03", "0.04", "82.2"], ["Pubmed", "GAT", "—", "", "", "", "78.3"]]
    _show(RESULT | {"header": header, "rows": rows})
    out = capsys.readouterr().out
    assert "accuracy, % (quick)" in out and "0.03" not in out and "Pubmed" not in out and "82.2" in out


@pytest.mark.parametrize("columns", [80, 120])
def test_costs_are_shown_where_they_fit(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    header = ["data", "model", "accuracy, %", *COST_HEADER, "source"]
    rows = [["Cora", "No LayerNorm", "69.1 ± 9.5", "142 k", "1.2 ms", "38 MiB", "ours, 20 seeds, NVIDIA H200"]]
    _show({"table": "ablations", "header": header, "rows": rows})
    out = capsys.readouterr().out
    assert "69.1" in out and ("142 k" in out) == ("NVIDIA H200" in out) == (columns == 120)
    assert ("on a terminal of 90 columns or more also: parameters" in out) == (columns == 80)

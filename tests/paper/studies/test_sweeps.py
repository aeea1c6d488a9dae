"""Fig. 4c: the best K with its error, and the mean path length that it may follow."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.data import needs

from magna.paper.render import TextTable
from magna.paper.studies import sweeps
from magna.paper.studies.sweeps import best_hops, compare_with_path_length, draw_hops_sweep, measured_path_length
from magna.paper.study import as_rows

HEADER = ["data", "model", "K", "accuracy, %", "SD", "seeds", "source"]


def table(deviation: float) -> TextTable:
    means = {1: 80.0, 3: 82.0, 6: 83.0, 10: 82.9}
    return TextTable(
        HEADER, [["Cora", "tuned", str(K), f"{mean}", f"{deviation}", "4", "ours"] for K, mean in means.items()]
    )


def test_the_range_of_the_best_k_follows_the_errors() -> None:
    assert best_hops(as_rows(table(0.01)), "Cora", "tuned") == (6, 6, 6)
    assert best_hops(as_rows(table(0.4)), "Cora", "tuned") == (6, 6, 10), "0.1 is half a standard error"
    assert best_hops(as_rows(table(3.0)), "Cora", "tuned") == (6, 3, 10)
    assert best_hops(as_rows(table(0.4)), "Cora", "paper's blocks") is None


@pytest.mark.parametrize(("length", "holds"), [(6.31, "yes"), (3.4, "no"), (None, "—")])
def test_the_rule_is_tested_on_the_measured_length(
    length: float | None, holds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(sweeps, "measured_path_length", lambda *_: length)
    outcome = compare_with_path_length(table(0.4), "Accuracy.", None)
    shown = "—" if length is None else f"{length:.2f}"
    assert outcome.shown.rows == [["Cora", "tuned", "6 (6 to 10)", shown, "5.27", holds]]
    assert {row["mean path length"] for row in as_rows(outcome.table)} == {shown}
    (panel,) = draw_hops_sweep(as_rows(outcome.table), outcome.caption).axes
    labels = panel.get_legend_handles_labels()[1]
    assert ("mean path length" in labels) == (length is not None) and "the paper's" in labels


def test_the_length_is_that_of_the_audit_and_none_without_the_data(tmp_path: Path) -> None:
    assert measured_path_length("cora", tmp_path) is None
    needs("cora")
    assert measured_path_length("cora", None) == pytest.approx(6.31, abs=0.005)

"""The tables show what the files hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from magna import experiments, published, tables
from magna.report import PAGES, with_tables

ROOT = Path(__file__).parents[1]


def put(results: Path, path: str, row: str, accuracies: list[float], split: int | None = None) -> None:
    file = results / path
    file.parent.mkdir(parents=True, exist_ok=True)
    runs = [{"test": {"accuracy": accuracy}} for accuracy in accuracies]
    record = {"row": row, "dataset": "cora", "split": split, "runs": runs, "environment": {"device": "cpu"}}
    file.write_text(json.dumps(record))


@pytest.mark.parametrize("name", ["table1", "ablations", "switches", "random-splits"])
def test_without_results_there_are_dashes(name: str, tmp_path: Path) -> None:
    table = tables.make_table(name, tmp_path)
    assert all(len(row) == len(table.header) for row in table.rows)
    assert table.markdown()


def test_table_1_has_ours_and_theirs(tmp_path: Path) -> None:
    put(tmp_path, "table1/cora/a.json", "MAGNA, tuned", [0.80, 0.82, 0.84])
    rows = tables.make_table("table1", tmp_path).rows
    assert rows[0] == ["MAGNA, tuned (ours)", "82.0 ± 2.0", "—", "—", "ours, 3 seeds, cpu"]
    assert rows[1] == ["MAGNA, paper (ours)", "—", "—", "—", "not yet measured"]
    assert rows[-1] == ["MAGNA, the paper", "85.4 ± 0.6", "73.7 ± 0.5", "81.4 ± 0.2", "MAGNA paper, Table 1"]


def test_ablations_show_the_difference_to_the_whole(tmp_path: Path) -> None:
    put(tmp_path, "table1/cora/a.json", "MAGNA, tuned", [0.80, 0.82, 0.84])
    put(tmp_path, "ablations/cora/b.json", "No Diffusion", [0.70, 0.72, 0.74])
    put(tmp_path, "ablations/cora/c.json", "No LayerNorm", [0.79, 0.81, 0.83])
    rows = {(row[0], row[1]): row[2:] for row in tables.make_table("ablations", tmp_path).rows}
    assert rows["Cora", "MAGNA"] == ["82.0 ± 2.0", "", "85.4 ± 0.6", ""]
    assert rows["Cora", "No Diffusion"] == ["72.0 ± 2.0", "**−10.0 ± 1.6**", "83.0 ± 0.4", "−2.4"]
    assert rows["Cora", "No LayerNorm"] == ["81.0 ± 2.0", "−1.0 ± 1.6", "83.8 ± 0.6", "−1.6"]
    assert rows["Pubmed", "No LayerNorm"] == ["—", "—", "79.8 ± 0.2", "−1.6"]


def test_a_single_run_has_no_error(tmp_path: Path) -> None:
    put(tmp_path, "table1/cora/a.json", "MAGNA, tuned", [0.80])
    put(tmp_path, "switches/cora/b.json", "model.tanh=false", [0.70])
    assert tables.make_table("switches", tmp_path).rows[1][2] == "70.0 (−10.0)"


def test_switches_list_what_was_measured_in_order(tmp_path: Path) -> None:
    put(tmp_path, "table1/cora/a.json", "MAGNA, tuned", [0.80, 0.82])
    put(tmp_path, "switches/cora/b.json", "model.tanh=false", [0.81, 0.83])
    put(tmp_path, "switches/cora/a.json", "model.top_k=5", [0.80, 0.82])
    assert tables.make_table("switches", tmp_path).rows == [
        ["", "as tuned", "81.0 ± 1.4", "—", "—"],
        ["1", "`model.tanh=false`", "82.0 (+1.0 ± 1.4)", "—", "—"],
        ["3", "`model.top_k=5`", "81.0 (+0.0 ± 1.4)", "—", "—"],
    ]


def test_random_splits_are_compared_split_by_split(tmp_path: Path) -> None:
    for split in range(4):
        put(tmp_path, f"random-splits/cora/magna/split-{split}.json", "MAGNA", [0.80 + split / 100] * 2, split)
        put(tmp_path, f"random-splits/cora/gat/split-{split}.json", "GAT", [0.79 + split * split / 1000], split)
    put(tmp_path, "random-splits/cora/diff-gcn/split-0.json", "Diff-GCN", [0.79], 0)
    rows = tables.make_table("random-splits", tmp_path).rows
    assert rows[0][:3] == ["Cora", "MAGNA", "81.5 ± 1.3"]
    assert rows[1] == ["Cora", "GAT", "79.4 ± 0.4", "+2.1 ± 0.5", "0.018", "0.12", "82.2 ± 1.4"]
    assert rows[2][3:6] == ["—", "—", "—"]


def test_every_row_of_ours_has_theirs() -> None:
    assert set(experiments.ABLATIONS) == set(published.ABLATIONS)
    assert set(experiments.RANDOM_SPLITS) == set(published.RANDOM_SPLITS)


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_of_the_pages_are_those_of_the_files(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert with_tables(text, ROOT, PAGES[page]) == text, "run python -m magna.report"

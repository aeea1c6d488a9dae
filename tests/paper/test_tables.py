"""The tables show what the files hold."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from rich.console import Console
from tools.report import PAGES, with_tables

from magna.config.schema import load_recipe
from magna.paper import experiments, node_systems, node_tables, published, tables
from magna.paper.cell import cell_path
from magna.paper.cells import CellStore
from magna.paper.record_text import COST_HEADER, cost_texts
from magna.paper.records import PROTOCOL, Record
from magna.paper.render import TextTable
from magna.paper.rows import ABLATED_PARTS, CONTROLS, NODE_BASELINES, SPLIT_RECIPES, TABLE_3_RECIPES, authors_row
from magna.tasks.metrics import spread

ROOT = Path(__file__).parents[2]


def put_links(
    out: Path,
    row: str,
    mrrs: list[float],
    dataset: str = "wn18rr",
    device: str = "cpu",
    parts: bool = False,
    commits: Sequence[str | None] = (None,) * 2,
) -> None:
    ranks = {"hits@1": 0.4, "hits@3": 0.5, "hits@10": 0.6}
    runs = []
    for i, mrr in enumerate(mrrs):
        test = {"mr": 2000 + 100 * i, "mrr": mrr, **ranks}
        halves = {"test_encoder": test | {"mrr": mrr - 0.1}, "test_skip": test | {"mrr": mrr - 0.2}} if parts else {}
        costs = {"epochs": 40, "seconds": 18.0 + 4 * i, "parameters": 1234, "peak_bytes": 12_500_000 + 1_000_000 * i}
        runs.append({"seed": i, "test": test, "device": device, "commit": commits[i], **costs, **halves})
    changes = () if row in TABLE_3_RECIPES else ("model.K=0",)
    write(out, Record(dataset, row, dataset, changes, (), PROTOCOL, {"device": device}, runs), "table3")


def _record(row: str, accuracies: list[float], split: int | None = None, protocol: int = PROTOCOL) -> Record:
    runs = [
        {"seed": seed, "test": {"accuracy": accuracy}, "device": "cpu", "commit": None}
        for seed, accuracy in enumerate(accuracies)
    ]
    return Record("cora", row, "cora", (), (), protocol, {"device": "cpu"}, runs, split)


def put(out: Path, table: str, row: str, accuracies: list[float], split: int | None = None) -> None:
    write(out, _record(row, accuracies, split), table)


def write(out: Path, record: Record, table: str) -> None:
    file = out / cell_path(table, record.dataset, record.row, record.split)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(record)))


def make_table(name: str, out: Path) -> TextTable:
    return tables.make_table(name, CellStore(out).read)


@pytest.mark.parametrize("name", [*experiments.EXPERIMENTS, "controls", "table1-models", "table1-baselines"])
def test_without_results_there_are_dashes(name: str, tmp_path: Path) -> None:
    table = make_table(name, tmp_path)
    assert all(len(row) == len(table.header) for row in table.rows)
    assert table.markdown()


def test_a_cell_says_what_it_costs() -> None:
    older, *newer = (_record("GAT", [0.8, 0.8]) for _ in range(2))
    older.runs[0].update(device="NVIDIA H200", seconds=500.0, epochs=1)
    older.runs[1].update(seconds=0.5, epochs=100)
    assert cost_texts([older]) == ["—", "5 ms", "—"], "the runs of another device are left out"
    for number, run in enumerate(newer[0].runs):
        run.update(parameters=142_087, peak_bytes=40 << 20, seconds=1 + 2 * number, epochs=1000)
    assert cost_texts(newer) == ["142 k", "2 ms", "40 MiB"]
    assert cost_texts([]) == ["—", "—", "—"]


def test_table_1_has_ours_and_theirs(tmp_path: Path) -> None:
    put(tmp_path, "table1", "MAGNA, tuned", [0.80, 0.82, 0.84])
    rows = make_table("table1", tmp_path).rows
    assert rows[0] == ["MAGNA, tuned (ours)", "82.0 ± 2.0", "—", "—", "ours, 3 seeds, cpu"]
    assert rows[1] == ["MAGNA, ensemble (ours)", "—", "—", "—", "not yet measured"]
    assert rows[-1] == ["MAGNA, the paper", "85.4 ± 0.6", "73.7 ± 0.5", "81.4 ± 0.2", "MAGNA paper, Table 1"]
    models = make_table("table1-models", tmp_path).rows
    assert models == [row for row in rows if "authors' settings" not in row[0]]
    assert len(rows) - len(models) == len(NODE_BASELINES) == 16


def test_authors_settings_agree_within_a_deviation_or_half_a_point(tmp_path: Path) -> None:
    """GCN printed 81.5 without a deviation, GAT 83.0 ± 0.7."""
    for model, accuracies in {
        "GCN": [0.809, 0.811],
        "GAT": [0.823, 0.823],
        "LGCN": [0.822, 0.844],
        "GCNII": [0.8, 0.8],
        "JKNet": [0.5],
        "GaAN": [0.5],
    }.items():
        put(tmp_path, "table1", authors_row(model), accuracies)
    table = make_table("table1-baselines", tmp_path)
    rows = {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    agrees = {model: row["agrees"] for model, row in rows.items() if row["agrees"] != "—"}
    assert agrees == {"GCN": "yes", "GAT": "yes", "LGCN": "yes", "GCNII": "no: Cora −5.5"}
    assert rows["GCN"]["Cora"] == "81.0 ± 0.1" and rows["GCN"]["Cora, printed"] == "81.5"
    assert rows["JKNet"]["printed by"] == "as quoted by MAGNA" and rows["JKNet"]["Cora"] == "50.0"
    assert rows["GaAN"]["Cora, printed"] == rows["GaAN"]["printed by"] == "—"


def test_table_6_has_the_variants_beside_the_plain_models(tmp_path: Path) -> None:
    put(tmp_path, "table1", "Diff-GCN", [0.82, 0.84])
    put(tmp_path, "table6", "Diff-GCN + LN + FF", [0.81])
    rows = {row[0]: row[1:3] for row in make_table("table6", tmp_path).rows}
    assert rows["Diff-GCN"] == ["83.0 ± 1.4", "83.6 ± 0.2"] and rows["Diff-GCN + LN + FF"] == ["81.0", "83.4 ± 0.4"]
    assert rows["GAT, 512 wide"] == ["—", "83.1 ± 0.5"] and rows["GAT"] == ["—", "—"]


def test_printed_figures_are_those_that_the_recipes_name() -> None:
    for model, system in NODE_BASELINES.items():
        for dataset in published.CITATION_GRAPHS:
            named = load_recipe(f"{dataset}-{system}-published").expected.paper
            if named:
                assert published.PRINTED[model].mean(dataset) == pytest.approx(100 * named), (model, dataset)


@pytest.mark.parametrize("width", range(70, 111, 3))
def test_a_terminal_of_any_width_shows_every_letter(width: int, tmp_path: Path) -> None:
    for row in ("MAGNA, tuned", *CONTROLS):
        put_links(tmp_path, row, [0.45, 0.47], "families")
    for name in ("table3", "random-splits", "controls"):
        table, shown = make_table(name, tmp_path), io.StringIO()
        table.show(Console(file=shown, width=width))
        said = "".join("".join(row) for row in [table.header, *table.rows]).replace("**", "").replace("`", "")
        assert sorted(_letters(shown.getvalue())) == sorted(_letters(said))


def _letters(text: str) -> str:
    return "".join(text.split()).replace("─", "")


def test_ablations_show_the_difference_to_the_whole(tmp_path: Path) -> None:
    put(tmp_path, "table1", "MAGNA, tuned", [0.80, 0.82, 0.84])
    put(tmp_path, "ablations", "No Diffusion", [0.70, 0.72, 0.74])
    put(tmp_path, "ablations", "No LayerNorm", [0.79, 0.81, 0.83])
    rows = {(row[0], row[1]): [*row[2:4], *row[6:8]] for row in make_table("ablations", tmp_path).rows}
    assert rows["Cora", "MAGNA"] == ["82.0 ± 2.0", "", "85.4 ± 0.6", ""]
    assert rows["Cora", "No Diffusion"] == ["72.0 ± 2.0", "**−10.0 ± 1.6**", "83.0 ± 0.4", "−2.4"]
    assert rows["Cora", "No LayerNorm"] == ["81.0 ± 2.0", "−1.0 ± 1.6", "83.8 ± 0.6", "−1.6"]
    assert rows["Pubmed", "No LayerNorm"] == ["—", "—", "79.8 ± 0.2", "−1.6"]


@pytest.mark.parametrize("name", ["nodes", "nodes-consistency"])
def test_node_models_are_compared_with_magna_on_the_same_seeds(name: str, tmp_path: Path) -> None:
    put(tmp_path, name, "MAGNA", [0.80, 0.82, 0.84, 0.81, 0.83])
    put(tmp_path, name, "GCN", [0.75, 0.78, 0.79, 0.76, 0.79])
    put(tmp_path, name, "GAT", [0.81, 0.81, 0.85, 0.80, 0.83])
    put(tmp_path, name, "APPNP", [0.99])
    table = make_table(name, tmp_path)
    at = table.header.index("− MAGNA, Cora")
    rows = {row[0]: (row[1], row[at]) for row in table.rows}
    assert rows["MAGNA"] == ("82.0 ± 1.6", "") and rows["APPNP"] == ("99.0", ""), "one seed gives no test"
    assert rows["GCN"] == ("77.4 ± 1.8", "**−4.6 ± 0.2**") and rows["GAT"] == ("82.0 ± 2.0", "level (+0.0 ± 0.4)")
    assert ("GRAND" in rows) == (name == "nodes-consistency")


def test_ablations_tuned_again_are_paired_with_magna(tmp_path: Path) -> None:
    put(tmp_path, "nodes-consistency", "MAGNA", [0.80, 0.82, 0.84])
    put(tmp_path, "nodes-consistency", "No LayerNorm", [0.79, 0.81, 0.83])
    put(tmp_path, "nodes-consistency", "MAGNA, one hop without teleport", [0.79, 0.80, 0.84])
    put(tmp_path, "nodes-consistency", "No Feed-Forward", [0.85])
    table = make_table("ablations", tmp_path)
    assert table.header[2:8] == ["accuracy, %", "difference", "tuned again", "difference", "paper", "difference"]
    rows = {row[1]: row[4:6] for row in table.rows if row[0] == "Cora"}
    assert rows == {
        "MAGNA": ["82.0 ± 2.0", ""],
        "No LayerNorm": ["81.0 ± 2.0", "**−1.0 ± 0.0**"],
        "No Diffusion": ["81.0 ± 2.6", "−1.0 ± 0.6"],
        "No Feed-Forward": ["85.0", "+5.0"],
        "No (LayerNorm + Feed-Forward)": ["—", "—"],
    }
    assert set(node_tables.TUNED_AGAIN) < set(ABLATED_PARTS)
    rows_of_search = set(node_systems.rows_of(node_systems.WITH))
    assert {node_tables.TUNED_AGAIN.get(row, row) for row in ABLATED_PARTS} <= rows_of_search


def test_switches_list_what_was_measured_in_order(tmp_path: Path) -> None:
    """A single run has no error."""
    put(tmp_path, "table1", "MAGNA, tuned", [0.80, 0.82])
    put(tmp_path, "switches", "model.tanh=false", [0.81, 0.83])
    put(tmp_path, "switches", "model.top_k=5", [0.80])
    assert make_table("switches", tmp_path).rows == [
        ["", "as tuned", "81.0 ± 1.4", "—", "—"],
        ["1", "`model.tanh=false`", "82.0 (+1.0 ± 1.4)", "—", "—"],
        ["3", "`model.top_k=5`", "80.0 (−1.0)", "—", "—"],
    ]


def test_random_splits_are_compared_split_by_split(tmp_path: Path) -> None:
    for split in range(4):
        put(tmp_path, "random-splits", "MAGNA", [0.80 + split / 100] * 2, split)
        put(tmp_path, "random-splits", "GAT", [0.79 + split * split / 1000], split)
    put(tmp_path, "random-splits", "Diff-GCN", [0.79], 0)
    rows = make_table("random-splits", tmp_path).rows
    assert rows[0][:3] == ["Cora", "MAGNA", "81.5 ± 1.3"]
    assert rows[1][:7] == ["Cora", "GAT", "79.4 ± 0.4", "+2.1 ± 0.5", "0.018", "0.12", "82.2 ± 1.4"]
    assert rows[1][-1] == "ours, 1 seed, cpu" and rows[2][-1].startswith("ours")
    assert rows[2][3:6] == ["—", "—", "—"]


def test_table_3_has_ours_and_theirs_of_each_graph(tmp_path: Path) -> None:
    put_links(tmp_path, "MAGNA, tuned", [0.501, 0.503])
    put_links(tmp_path, "No propagation", [0.45])
    put_links(tmp_path, "MAGNA, tuned", [0.4], "families")
    table = make_table("table3", tmp_path)
    costs = list(COST_HEADER)
    assert table.header == ["data", "model", "MR", "MRR", "H@1", "H@3", "H@10", *costs, "source"]
    rows = {(row[0], row[1]): row[2:] for row in table.rows}
    ours = ["2050 ± 71", ".502 ± .001", ".400", ".500", ".600", "1.23 k", "500 ms", "12.4 MiB", "ours, 2 seeds, cpu"]
    assert rows["WN18RR", "MAGNA, tuned (ours)"] == ours
    assert rows["WN18RR", "No propagation (ours)"][:2] == ["2000", ".450"]
    assert rows["WN18RR", "DistMult (ours)"] == [*["—"] * 8, "not yet measured"]
    paper = ["2545", ".502", ".459", ".519", ".589", *["—"] * 3, "MAGNA paper, Table 3"]
    assert rows["WN18RR", "MAGNA + DistMult, the paper"] == paper
    assert rows["WN18RR", "TransE"][:5] == ["3384", ".226", "—", "—", ".501"]
    assert ("WN18RR", "R-GCN") not in rows, "the paper has no figure of it"
    assert [row for row in rows if row[0] == "families"] == [("families", "MAGNA, tuned (ours)")]
    assert not [row for row in rows if row[0] == "FB15k-237"], "nothing of it is recorded"


def test_controls_show_what_is_left_of_the_gain(tmp_path: Path) -> None:
    put_links(tmp_path, "MAGNA, tuned", [0.50, 0.51], parts=True, commits=["abc", "def-dirty"])
    put_links(tmp_path, "No propagation", [0.45, 0.46], parts=True, commits=["abc", "abc"])
    put_links(tmp_path, "DistMult", [0.44])
    assert make_table("controls", tmp_path).rows == [
        ["WN18RR", "MAGNA, tuned", "recipe `wn18rr`", ".505 ± .007", "", ".405 ± .007", "abc, def-dirty"],
        ["WN18RR", "No propagation", "`model.K=0`", ".455 ± .007", "**−.050 ± .007**", ".355 ± .007", "abc"],
        ["WN18RR", "DistMult", "recipe `wn18rr`", ".440", "−.065", "—", "—"],
    ]


def test_each_half_of_the_tuned_scores_has_a_row(tmp_path: Path) -> None:
    put_links(tmp_path, "MAGNA, tuned", [0.50, 0.51], parts=True)
    put_links(tmp_path, "No propagation", [0.45, 0.46], parts=True)
    rows = {row[1]: row[3] for row in make_table("table3", tmp_path).rows}
    assert rows["MAGNA, tuned (ours)"] == ".505 ± .007"
    assert rows["MAGNA, tuned: encoder alone (ours)"] == ".405 ± .007"
    assert rows["MAGNA, tuned: shallow embeddings alone (ours)"] == ".305 ± .007"
    assert len([row for row in rows if "alone" in row]) == 2


def test_costs_are_those_of_the_whole_model(tmp_path: Path) -> None:
    put_links(tmp_path, "MAGNA, tuned", [0.50], parts=True)
    rows = {row[1]: row[7:10] for row in make_table("table3", tmp_path).rows}
    assert rows["MAGNA, tuned (ours)"] == ["1.23 k", "450 ms", "11.9 MiB"]
    assert rows["MAGNA, tuned: encoder alone (ours)"] == ["—"] * 3


def test_published_ranks_are_numbers() -> None:
    assert len(published.PAPER_TABLE_3) == 15
    for row in (*published.PAPER_TABLE_3, *published.LINKS_ELSEWHERE):
        for (_, metric), figure in row.figures.items():
            assert 100 < float(figure) < 6000 if metric == "mr" else 0 < float(figure) < 1
    for dataset in published.KNOWLEDGE_GRAPHS:
        paper = float(published.MAGNA_LINKS_PAPER.figures[dataset, "mrr"])
        assert load_recipe(dataset).expected.paper == paper


def test_every_row_of_ours_has_theirs() -> None:
    assert set(ABLATED_PARTS) == set(published.PAPER_ABLATIONS)
    assert set(SPLIT_RECIPES) == set(published.PAPER_SPLITS)


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_of_the_pages_are_those_of_the_files(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert with_tables(text, ROOT, PAGES[page]) == text, "run python -m tools.report"


@pytest.mark.parametrize("content", ["{", "{}", "[]"])
def test_a_file_that_is_no_figure_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "table1").mkdir()
    (tmp_path / "table1" / "other.json").write_text(content)
    with pytest.raises(ValueError, match=r"other\.json: is no cell of a table; try to delete it"):
        make_table("table1", tmp_path)


@pytest.mark.parametrize("dataset", ["wn18rr", "fb15k-237", "families"])
def test_what_a_recipe_expects_is_what_was_measured(dataset: str) -> None:
    recipes = [cell for cell in experiments.table3_cells(dataset) if not cell.changes and not cell.trials]
    assert any(cell.config.expected.seeds for cell in recipes)
    store = CellStore(results=ROOT / "results")
    for cell in recipes:
        runs, expected = store.runs(cell), cell.config.expected
        assert len(runs) == expected.seeds, cell.path
        if expected.seeds:
            valid, test = (spread([run[split]["mrr"] for run in runs]) for split in ("valid", "test"))
            assert round(valid.mean, 3) == expected.valid
            assert round(test.mean, 3) == expected.test
            assert round(test.std, 3) == expected.test_std


def test_a_record_of_an_older_protocol_is_marked(tmp_path: Path) -> None:
    write(tmp_path, _record("GAT", [0.8], protocol=PROTOCOL - 1), "table1")
    (row,) = [row for row in make_table("table1", tmp_path).rows if row[0] == "GAT (ours)"]
    assert row == ["GAT (ours)", "80.0", "—", "—", "ours, 1 seed, cpu, outdated"]

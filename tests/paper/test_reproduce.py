"""`magna reproduce`: the cells, their training in batches, and the continuation after a stop."""

from __future__ import annotations

import json
import math
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.ogb import write_ogb_files
from tests.support.running import Program

from magna.config.schema import SEARCH_SEEDS, Config, load_recipe
from magna.errors import DataError
from magna.nn.ensemble import make_model
from magna.paper import experiments, reproduce
from magna.paper.cell import Cell, cell_path
from magna.paper.cell_runs import Failed
from magna.paper.cells import CellStore
from magna.paper.experiments import EXPERIMENTS, Experiment, cells, quick_cells
from magna.paper.published import KNOWLEDGE_GRAPHS
from magna.paper.rows import ABLATED_PARTS, CONTROLS, SEARCHED_RECIPES, TABLE_3_RECIPES
from magna.training.loop import TrialResult
from magna.training.trials import structure

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[list[Config]]:
    """The batches of configs; nothing is trained."""
    batches: list[list[Config]] = []

    def train_trials(
        configs: Sequence[Config], task: object, *, read_test: bool, on_report: Any, on_results: Any
    ) -> None:
        assert read_test and on_report(25, [0], [0.5]) == ()
        assert len({structure(config) for config in configs}) == 1
        batches.append(list(configs))
        on_results({index: _result(config) for index, config in enumerate(configs)})

    monkeypatch.setattr(reproduce, "train_trials", train_trials)
    monkeypatch.setattr(reproduce, "make_task", lambda config, data_dir, device: SimpleNamespace(data=config.data))
    return batches


def _result(config: Config) -> TrialResult:
    accuracy = 0.8 + 0.001 * config.train.seed + 0.01 * config.to_dict()["data"]["split_seed"]
    valid, test = {"accuracy": 0.5, "loss": 1.0}, {"accuracy": accuracy, "loss": 1.0}
    return TrialResult(config, epochs=3, best_epoch=2, seconds=0.1, valid=valid, test=test, history=[], weights=None)


def _reproduce(name: str, work: Path, **options: Any) -> dict[str, Any]:
    """The table on Cora and the CPU, unless the options say otherwise."""
    return reproduce.reproduce(name, work=work, **{"datasets": ["cora"], "device": "cpu"} | options)


def test_ablations_are_those_of_the_paper() -> None:
    chosen = {cell.row: cell.config.model for cell in cells("ablations", ["cora"])}
    whole = load_recipe("cora").model
    assert chosen["MAGNA, tuned"] == whole
    assert set(chosen) <= {"MAGNA, tuned", *ABLATED_PARTS} and len(chosen) > 1
    assert all(model != whole for row, model in chosen.items() if row in ABLATED_PARTS)
    assert chosen["No Diffusion"].diffusion is False


def test_parts_that_a_recipe_lacks_are_not_taken_away() -> None:
    assert not load_recipe("pubmed").model.feed_forward
    assert [cell.row for cell in cells("ablations", ["pubmed"])] == ["MAGNA, tuned", "No LayerNorm", "No Diffusion"]


@pytest.mark.parametrize(
    ("name", "dataset"),
    [(name, dataset) for name, chosen in EXPERIMENTS.items() for dataset in (*chosen.datasets, *chosen.also)],
)
def test_every_cell_has_a_model_and_a_file_of_its_own(name: str, dataset: str) -> None:
    chosen = cells(name, [dataset])
    assert len({cell.path for cell in chosen}) == len(chosen)
    configs = [cell.config for cell in chosen]
    with torch.device("meta"):
        for config in configs:
            if config.task.name == "link_prediction":
                untyped: dict[str, Any] = {"typed": False} if config.to_dict()["data"]["control"] == "no-types" else {}
                make_model(config.model, num_entities=500, num_relations=200, **untyped)
            else:
                make_model(config.model, in_channels=10, out_channels=3)


@pytest.mark.parametrize("dataset", KNOWLEDGE_GRAPHS)
def test_table_3_has_the_recipes_and_every_control(dataset: str) -> None:
    chosen = {cell.row: cell for cell in cells("table3", [dataset])}
    assert list(chosen) == [*TABLE_3_RECIPES, *CONTROLS]
    tuned = chosen["MAGNA, tuned"].config
    assert chosen["DistMult"].config.model.num_layers == 0
    theirs, ours = chosen["DistMult"].config.train, tuned.train
    assert (theirs.eval_every, theirs.precision) == (ours.eval_every, ours.precision)
    assert theirs.epochs >= ours.epochs and theirs.patience >= ours.patience, "its budget is no smaller"
    for row in CONTROLS:
        assert chosen[row].config == tuned.with_values(chosen[row].changes) != tuned
    assert chosen["No propagation"].config.model.K == 0 and not chosen["One hop of attention"].config.model.diffusion
    assert {chosen[row].config.to_dict()["data"]["control"] for row in CONTROLS} == {
        "none",
        "random-graph",
        "no-types",
    }


def test_embedded_families_are_trained_only_where_asked_for() -> None:
    rows = ["MAGNA, tuned", *CONTROLS, *SEARCHED_RECIPES]
    assert [cell.row for cell in cells("table3", ["families"])] == rows
    assert {cell.dataset for cell in cells("table3")} == set(KNOWLEDGE_GRAPHS)


def test_a_switch_changes_one_thing_and_something() -> None:
    start, *changed = cells("switches", ["cora"])
    assert start.row == "MAGNA, tuned"
    assert len(changed) > 20
    for cell in changed:
        assert cell.config == start.config.with_values(cell.changes)
        assert not experiments.same_training(cell.config, start.config)
        assert cell.point


def test_random_splits_have_a_cell_for_each_model_and_split() -> None:
    chosen = cells("random-splits", ["cora"])
    assert {cell.config.model.name for cell in chosen} == {"magna", "gat", "diff-gcn"}
    assert sum(cell.config.recipe.endswith("-ln-ff") for cell in chosen) == 2 * experiments.NUM_SPLITS
    assert len(chosen) == 5 * experiments.NUM_SPLITS
    assert {(data["split"], data["split_seed"]) for cell in chosen if (data := cell.config.to_dict()["data"])} == {
        ("random", split) for split in range(experiments.NUM_SPLITS)
    }


def test_an_unknown_table_or_data_set_is_named() -> None:
    with pytest.raises(ValueError, match=r"table is 'table9'; did you mean 'table1'\? allowed: 'table1', 'table2'"):
        cells("table9")
    with pytest.raises(ValueError, match="data set of table1 is 'digits'; allowed: 'cora', 'citeseer', 'pubmed'"):
        cells("table1", ["digits"])
    with pytest.raises(ValueError, match="data set of table3 is 'cora'; allowed: 'wn18rr', 'fb15k-237', 'families'"):
        cells("table3", ["cora"])
    with pytest.raises(
        ValueError, match=r"row of table1 on cora is 'gat'; did you mean 'GAT'\? allowed: 'MAGNA, tuned', 'MAGNA, "
    ):
        cells("table1", ["cora"], ["gat"])


def test_a_row_can_be_trained_alone() -> None:
    for name in ("GAT", "GAT (ours)"):  # as the table has it
        assert [cell.row for cell in cells("table1", ["cora", "pubmed"], [name])] == ["GAT", "GAT"]


def test_cells_of_one_structure_train_together_and_leave_a_file_each(
    trained: list[list[Config]], tmp_path: Path
) -> None:
    result = _reproduce("random-splits", tmp_path, seeds=3)
    assert [len(batch) for batch in trained] == [30] * 5, "ten splits of three seeds, model by model"
    assert not {config.train.seed for batch in trained for config in batch} & set(SEARCH_SEEDS)
    assert len(result["cells"]) == result["trained"] == 50
    record = json.loads((tmp_path / "random-splits/cora/gat/split-2.json").read_text())
    assert (record["row"], record["dataset"], record["split"], record["recipe"]) == ("GAT", "cora", 2, "cora-gat")
    assert [run["seed"] for run in record["runs"]] == [0, 1, 2]
    assert [run["test"]["accuracy"] for run in record["runs"]] == pytest.approx([0.82, 0.821, 0.822])
    assert "data.name=cora" in record["settings"] and record["changes"] == ["data.split=random"]
    assert record["machine"]["packages"]["torch"] and record["runs"][0]["date"]


def test_what_is_done_is_not_trained_again(trained: list[list[Config]], tmp_path: Path) -> None:
    first = _reproduce("ablations", tmp_path, seeds=2)
    trained.clear()
    again = _reproduce("ablations", tmp_path, seeds=2)
    assert (again["trained"], again["cells"], trained) == (0, first["cells"], [])
    (tmp_path / "ablations/cora/no-diffusion.json").unlink()
    _reproduce("ablations", tmp_path, seeds=2)
    assert [config.model.diffusion for batch in trained for config in batch] == [False, False]


def test_a_stop_inside_a_cell_keeps_the_seeds_that_are_done(
    trained: list[list[Config]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten splits with three seeds each, four and one seed are done."""
    whole = vars(reproduce)["train_trials"]

    def stopped(configs: Sequence[Config], task: Any, **options: Any) -> None:
        whole(configs[:7], task, **options)
        options["on_results"]({index: _result(configs[index]) for index in range(7, 13)})
        raise KeyboardInterrupt

    monkeypatch.setattr(reproduce, "train_trials", stopped)
    ask: dict[str, Any] = {"work": tmp_path, "seeds": 3, "rows": ["GAT"]}
    with pytest.raises(KeyboardInterrupt):
        _reproduce("random-splits", **ask)
    seeds = [len(json.loads(file.read_text())["runs"]) for file in sorted(tmp_path.rglob("*.json"))]
    assert seeds == [3, 3, 3, 3, 1]
    monkeypatch.setattr(reproduce, "train_trials", whole)
    trained.clear()
    assert _reproduce("random-splits", **ask)["trained"] == 6
    assert [len(batch) for batch in trained] == [17]
    record = json.loads((tmp_path / "random-splits/cora/gat/split-4.json").read_text())
    assert [run["seed"] for run in record["runs"]] == [0, 1, 2] and record["runs"][0]["device"]
    assert [run["test"]["accuracy"] for run in record["runs"]] == pytest.approx([0.84, 0.841, 0.842])
    # More seeds of what is there are added to it.
    trained.clear()
    _reproduce("random-splits", **ask | {"seeds": 4})
    assert [{config.train.seed for config in batch} for batch in trained] == [{3}]


def test_quick_is_few_cells_to_patience(trained: list[list[Config]], tmp_path: Path) -> None:
    result = _reproduce("table1", tmp_path, quick=True)
    assert result["seeds"] == reproduce.QUICK_SEEDS == 2
    plain = [load_recipe(name).train for name in ("cora", "cora-gcn-published")]
    assert [batch[0].train for batch in trained] == [replace(train, patience=25) for train in plain]
    for name, value in (("rows", "MAGNA, paper"), ("datasets", "pubmed")):
        with pytest.raises(ValueError, match=rf"of table1 with --quick is '{value}'; .*allowed: "):
            _reproduce("table1", tmp_path, quick=True, **{name: [value]})


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_quick_form_is_some_cells_of_its_table(name: str) -> None:
    chosen, whole = (
        quick_cells(name),
        {cell.path: cell.config for cell in cells(name, EXPERIMENTS[name].quick_datasets)},
    )
    assert {cell.row for cell in chosen} == set(EXPERIMENTS[name].quick_rows) and 0 < len(chosen) < len(whole)
    for cell in chosen:
        searched = cell.effort is not None
        assert searched or cell.config.train.epochs == whole[cell.path].train.epochs, "it trains to patience"
        assert cell.config.train.patience < cell.config.train.epochs
    with torch.device("meta"):
        for cell in chosen:
            links = cell.config.task.name == "link_prediction"
            names = ("num_entities", "num_relations") if links else ("in_channels", "out_channels")
            sizes: dict[str, Any] = dict(zip(names, (50, 3), strict=True))
            make_model(cell.config.model, **sizes)


def test_data_that_is_missing_is_one_line_unless_it_was_asked_for(tmp_path: Path) -> None:
    lines: list[str] = []
    options: dict[str, Any] = {"work": tmp_path, "data_dir": tmp_path / "none", "device": "cpu", "say": lines.append}
    result = reproduce.reproduce("table2", **options)
    assert len([line for line in lines if "OGB's own files" in line]) == 1
    assert len(result["without_data"]) == 7 and (result["trained"], result["cells"]) == (0, [])
    assert {row[1] for row in result["rows"][:-1]} == {"not measured"}
    assert result["rows"][0][3] == "`magna reproduce table2 --row GCN`"
    with pytest.raises(DataError, match="OGB's own files"):
        reproduce.reproduce("table2", datasets=["ogbn-arxiv"], **options)


def test_table_2_trains_from_files_in_the_format_of_ogb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ogb_files(tmp_path)

    def short(dataset: str) -> Iterator[Cell]:
        for cell in experiments.table2_cells(dataset):
            yield replace(cell, config=cell.config.with_values(["train.epochs=2"]))

    monkeypatch.setitem(EXPERIMENTS, "table2", Experiment(short, ("ogbn-arxiv",)))
    result = reproduce.reproduce("table2", work=tmp_path / "work", data_dir=tmp_path, device="cpu", seeds=2)
    assert result["trained"] == 7 and result["without_data"] == []
    *rows, stand_in = result["rows"]
    assert [row[0] for row in rows[:2]] == ["GCN (ours)", "GraphSAGE (ours)"]
    for row in rows:
        assert 0 <= float(row[1].split(" ± ")[0]) <= 100 and row[3] == "ours, 2 seeds, cpu"
    assert stand_in[1:3] == ["—", "not comparable"]


def test_quick_runs_leave_the_real_ones_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []

    def train_cells(cells: Sequence[Cell], job: Any, run_dir: Path) -> Failed:
        folders.append(run_dir)
        return Failed([], [])

    monkeypatch.setattr(reproduce, "train_cells", train_cells)
    for quick in (False, True):
        _reproduce("table3", tmp_path, datasets=["families"], quick=quick)
    assert folders == [Path("runs/reproduce"), Path("runs/reproduce-quick")]


@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize("name", ["table1", "ablations", "switches", "random-splits"])
def test_only_table3_has_a_run_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"run_dir is 'here'; allowed: with table3 alone, as {name} keeps no run"):
        _reproduce(name, tmp_path / "out", run_dir="here")
    assert not (tmp_path / "out").exists()


def test_a_figure_with_a_seed_that_diverged_has_no_file(
    trained: list[list[Config]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_trials = vars(reproduce)["train_trials"]

    def diverging(configs: Sequence[Config], task: Any, **options: Any) -> None:
        rows = [{"loss": 1.0, "valid_accuracy": 0.5, "valid_loss": 1.0}, {"loss": math.nan}]

        def on_results(results: dict[int, TrialResult]) -> None:
            for index, result in results.items():
                diverges = result.config.model.alpha == 0.5 and result.config.train.seed == 1
                results[index] = replace(result, history=rows[: 1 + diverges])
            options["on_results"](results)
            # A later batch, too, adds nothing to a figure that has diverged.
            options["on_results"]({5: _result(configs[5])})

        train_trials(configs[:5], task, **options | {"on_results": on_results})

    def two(dataset: str) -> Iterator[Cell]:
        yield Cell("table1", dataset, "MAGNA, tuned", load_recipe("digits"))
        yield Cell("table1", dataset, "MAGNA, paper", load_recipe("digits").with_values(["model.alpha=0.5"]))

    monkeypatch.setattr(reproduce, "train_trials", diverging)
    monkeypatch.setitem(EXPERIMENTS, "table1", Experiment(two))
    lines: list[str] = []
    result = _reproduce("table1", tmp_path, seeds=3, say=lines.append)
    assert len(trained) == 1
    assert (result["trained"], result["diverged"]) == (1, ["table1/cora/magna-paper.json"])
    assert result["cells"] == ["table1/cora/magna-tuned.json"] and (tmp_path / result["cells"][0]).is_file()
    assert not (tmp_path / result["diverged"][0]).exists()
    assert "cora, MAGNA, paper: the loss is nan after epoch 1; try a smaller train.lr" in lines


@pytest.mark.usefixtures("trained")
def test_figures_of_other_settings_are_none_of_the_table(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha, fails = 0.1, False

    def two(dataset: str) -> Iterator[Cell]:
        for row in ("MAGNA, tuned", "MAGNA, ensemble") if dataset == "cora" else ():
            yield Cell("table1", dataset, row, load_recipe("digits").with_values([f"model.alpha={alpha}"]))

    def train_trials(configs: Sequence[Config], task: Any, *, on_results: Any, **options: Any) -> None:
        history = [{"loss": math.nan}] * fails
        on_results({index: replace(_result(config), history=history) for index, config in enumerate(configs)})

    def accuracies() -> tuple[list[str], str]:
        result = json.loads(program(*arguments, "--json")[0])
        return [row[1] for row in result["rows"][:2]], program(*arguments)[0].splitlines()[-1]

    monkeypatch.setattr(reproduce, "train_trials", train_trials)
    monkeypatch.setitem(EXPERIMENTS, "table1", Experiment(two, seeds=3))
    arguments = ["reproduce", "table1", "--work", str(tmp_path), "--results", str(tmp_path / "none"), "--device", "cpu"]
    assert accuracies()[0] == ["80.1 ± 0.1"] * 2
    alpha = 0.2
    arguments += ["--row", "MAGNA, tuned"]
    changed = "outdated, because recipe or protocol have changed since: table1/cora/magna-ensemble.json"
    assert accuracies() == (["80.1 ± 0.1", "—"], changed)
    alpha, fails = 0.3, True
    assert accuracies()[0] == ["—", "—"], "it diverged, and what is there has another alpha"
    assert len(list(tmp_path.rglob("*.json"))) == 2, "nothing is lost"


def test_seeds_are_report_seeds(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="seeds is 101; allowed: 1 to 100"):
        _reproduce("table1", tmp_path, seeds=101)


def test_a_table_is_trained_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ["model.hidden_channels=8", "model.num_layers=1", "model.heads=2", "model.K=2", "train.epochs=3"]

    def digits(dataset: str) -> Iterator[Cell]:
        magna = load_recipe("digits").with_values(small)
        yield Cell("table1", dataset, "MAGNA, tuned", magna)
        yield Cell("table1", dataset, "MAGNA, paper", magna.with_values(["model.alpha=0.5"]))

    monkeypatch.setitem(EXPERIMENTS, "table1", Experiment(digits))
    lines: list[str] = []
    result = _reproduce("table1", tmp_path, seeds=2, say=lines.append)
    assert result["trained"] == 2
    assert lines[-1].startswith("2 of 2: cora, MAGNA, tuned and 1 more (")
    ours = result["rows"][0]
    assert ours[0] == "MAGNA, tuned (ours)" and ours[-1] == "ours, 2 seeds, cpu"
    assert 0 < float(ours[1].split(" ")[0]) <= 100


def test_committed_results_are_those_of_the_recipes() -> None:
    store = CellStore(results=ROOT / "results")
    every = (cell for name, e in EXPERIMENTS.items() for cell in cells(name, [*e.datasets, *e.also]))
    known = {cell.path: store.settled(cell) for cell in every}
    expected = {path: cell.config for path, cell in known.items()}
    committed, current = (
        [
            cell_path(name, record.dataset, record.row, record.split)
            for name in EXPERIMENTS
            for records in store.read(name, configs).values()
            for record in records
        ]
        for configs in ({}, expected)
    )
    assert set(committed) <= set(known), "a record that belongs to no table"
    assert [path for path in committed if path not in current] == [], "run magna reproduce again"
    assert len(committed) > 250


def test_committed_figures_are_not_trained_again(trained: list[list[Config]], tmp_path: Path) -> None:
    ask: dict[str, Any] = {"results": ROOT / "results", "rows": ["GAT"]}
    result = _reproduce("table1", tmp_path, **ask)
    assert (result["trained"], trained, list(tmp_path.iterdir())) == (0, [], [])
    assert result["cells"] == [f"{ROOT / 'results'}/table1/runs.csv"]
    # More seeds are added to the committed ones, in a file.
    _reproduce("table1", tmp_path, **ask | {"seeds": 22})
    assert [{config.train.seed for config in batch} for batch in trained] == [{20, 21}]
    record = json.loads((tmp_path / "table1/cora/gat.json").read_text())
    assert [run["seed"] for run in record["runs"]] == list(range(22))


@pytest.mark.usefixtures("trained")
def test_finished_figures_are_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, results = tmp_path / "out", tmp_path / "results"
    ask: dict[str, Any] = {"work": out, "rows": ["GAT"]}
    monkeypatch.setattr("magna.paper.cells._commit", lambda: "abc-dirty")
    _reproduce("random-splits", seeds=1, **ask)
    with pytest.raises(ValueError, match=r"split-0\.json: the code that trained seeds 0 is no commit; try"):
        reproduce.collect("random-splits", work=out, results=results)
    assert not results.exists()
    shutil.rmtree(out)
    monkeypatch.setattr("magna.paper.cells._commit", lambda: "abc")
    _reproduce("random-splits", seeds=1, **ask)
    done = reproduce.collect("random-splits", work=out, results=results)
    assert len(done["collected"]) == 10 and done["rows"][1][:3] == ["Cora", "GAT", "84.5 ± 3.0"]
    # Another model of the table joins the first, and so do further seeds.
    shutil.rmtree(out)
    _reproduce("random-splits", results=results, seeds=2, **ask | {"rows": None})
    reproduce.collect("random-splits", work=out, results=results)
    lines = (results / "random-splits" / "runs.csv").read_text().splitlines()
    assert len(lines) == 1 + 5 * 10 * 2 and lines[2].startswith("cora,GAT,0,1,3,2,0.1,cpu,abc,")
    content = tomllib.loads((results / "random-splits" / "cells.toml").read_text())
    assert len(content["cells"]) == 5 and content["cells"][0]["splits"] == list(range(10))
    assert content["recipes"].keys() == {"cora", "cora-gat", "cora-diff-gcn", "cora-gat-ln-ff", "cora-diff-gcn-ln-ff"}


@pytest.mark.usefixtures("trained")
def test_the_command_prints_the_table(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("reproduce", "ablations", "--quick", "--seeds", "3", "--dataset", "cora", "--device", "cpu")
    out, err = program(*arguments)
    assert "85.4\u00a0±\u00a00.6" in out and "2 files of 3 seeds in runs/quick" in out
    assert err.startswith("ablations: 2 figures of 3 seeds each, 0 of them done before")
    result = json.loads(program(*arguments, "--json")[0])
    assert result["trained"] == 0 and result["rows"][0][:3] == ["Cora", "MAGNA", "80.1 ± 0.1"]

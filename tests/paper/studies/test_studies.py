"""Studies on tiny data: their numbers, their files, and the laws that a broken kernel breaks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.data import write_texts
from tests.support.running import Program

from magna.config.schema import Config
from magna.graph import Graph
from magna.nn.conv import MAGNAConv
from magna.ops import diffused_attention, edge_softmax
from magna.paper import trained
from magna.paper.registry import REGISTRY, function_of
from magna.paper.runner import run_experiment
from magna.paper.studies import complexity, depth, discrepancy, hops, laws, search_spaces, spectrum, statistics
from magna.paper.study import StudyJob
from magna.paper.trained import FirstLayer, first_layer, trained_run
from magna.use.nodes import open_nodes

STUDIES = [name for name, entry in REGISTRY.items() if entry.study]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A graph of 30 nodes in two parts, with labels that its features tell."""
    draw = torch.Generator().manual_seed(1)
    nodes = "id,a,b,label\n" + "".join(f"{i},{i % 3},{(i * 7) % 5},{'xyz'[i % 3]}\n" for i in range(30))
    ends = torch.randint(15, (60, 2), generator=draw).tolist()
    edges = "source,target\n" + "".join(f"{a + 15 * (n % 2)},{b + 15 * (n % 2)}\n" for n, (a, b) in enumerate(ends))
    (tmp_path / "tiny").mkdir()
    return write_texts(tmp_path / "tiny", ".csv", nodes=nodes, edges=edges)


@pytest.fixture
def tiny(data: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Config]:
    """Small recipes in place of ours, small graphs in place of large ones."""
    base = Config().with_values([f"data.name={data}", "data.self_loops=true", "train.epochs=3"])
    small = ["model.hidden_channels=8", "model.num_layers=1", "model.heads=2", "model.K=3", "model.alpha=0.2"]
    gat = ["model.name=gat", "model.hidden_channels=8", "model.heads=2"]
    recipes = {"": base.with_values(small), "gat": base.with_values(gat, drop_idle=True)}
    recipes |= {"paper": recipes[""], "gat-residual": recipes["gat"]}
    recipes |= {name: base.with_values([f"model.name={name}"], drop_idle=True) for name in ("gcn", "diff-gcn")}
    for module in (spectrum, discrepancy, depth):
        monkeypatch.setattr(module, "system_recipe", lambda dataset, system="": recipes[system])
    monkeypatch.setattr(depth, "QUICK_DEPTHS", (1, 2))
    monkeypatch.setattr(depth, "_QUICK", ("train.epochs=3",))
    monkeypatch.setattr(hops, "_QUICK", ("train.epochs=1", "model.hidden_channels=8"))
    monkeypatch.setattr(hops, "QUICK_DISTANCES", (1,))
    monkeypatch.setattr("magna.data.far_answers.SIZES", {"train": 8, "valid": 8, "test": 8})
    monkeypatch.setattr(complexity, "QUICK_EDGES", (64, 128, 256))
    monkeypatch.setattr(complexity, "QUICK_HOPS", (1, 2, 4))
    return recipes


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", STUDIES)
def test_each_study_runs_quick_and_leaves_its_files(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if REGISTRY[name].kind == "figure":
        pytest.importorskip("matplotlib")
    options: dict[str, Any] = {"datasets": ["cora"], "data_dir": tmp_path} if name == "statistics" else {}
    result = run_experiment(
        name, work=tmp_path / "work", out=out, quick=True, run_dir=tmp_path / "runs", device="cpu", **options
    )
    endings = ["csv", "tex"] if result["kind"] == "table" else ["csv", "svg", "png"]
    assert result["files"] == [str(out / f"{name}.{ending}") for ending in endings]
    assert all(Path(file).stat().st_size > 100 for file in result["files"])
    assert result["name"] == name and result["rows"] and result["caption"].startswith("Quick form")
    assert all(len(row) == len(result["header"]) for row in result["rows"])


def test_a_missing_data_set_is_missing_and_not_made_up(tmp_path: Path) -> None:
    outcome = statistics.count_statistics(StudyJob(tmp_path, datasets=["wn18rr"], data_dir=tmp_path))
    assert [each._asdict() for each in outcome.missing] == [
        {"cell": "wn18rr", "command": "magna data get wn18rr", "forecast_s": None, "device": None}
    ]
    ours, theirs = outcome.table.rows
    assert set(ours[2:]) == {"—"} and "86,835" in theirs
    with pytest.raises(ValueError, match="data set of statistics is 'digits'; allowed: 'cora'"):
        statistics.count_statistics(StudyJob(tmp_path, datasets=["digits"]))


def test_recipes_search_the_published_spaces(tmp_path: Path) -> None:
    table = search_spaces.compare_spaces(StudyJob(tmp_path)).table
    assert {row[-1] for row in table.rows} == {"yes"}
    assert {row[1] for row in table.rows} >= {"cora-paper", "pubmed-paper", "arxiv-paper", "fb15k-237-paper"}
    assert {row[0] for row in table.rows} == {"Table 8", "Table 9", "Table 10"}


def test_the_laws_hold(tmp_path: Path) -> None:
    rows = laws.measure_laws(StudyJob(tmp_path, quick=True)).table.rows
    assert len(rows) == len(laws.LAWS) and {row[-1] for row in rows} == {"yes"}


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        (lambda out: out * (1 + 1e-6), {"Eq. 5", "Proposition 3", "Lemma 1", "Section 2.2"}),
        (lambda out: out.flip(0), {"Eq. 5", "Proposition 2", "Proposition 3", "Appendix"}),
        (lambda out: out * float("nan"), {law.name for law in laws.LAWS} - {"Lemma 1"}),
    ],
)
def test_a_broken_kernel_breaks_the_laws(
    fault: Any, broken: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = vars(laws)["attention_diffusion"]
    monkeypatch.setattr(laws, "attention_diffusion", lambda *args, **options: fault(whole(*args, **options)))
    if fault(torch.ones(1)).isnan():
        monkeypatch.setattr(laws, "LAWS", [law for law in laws.LAWS if law.name != "Lemma 1"])  # eig refuses NaN
    rows = laws.measure_laws(StudyJob(tmp_path, quick=True, seeds=1)).table.rows
    assert {row[0] for row in rows if row[-1] == "no"} >= broken


def test_the_measured_spectrum_is_that_of_the_closed_form() -> None:
    draw = torch.Generator().manual_seed(3)
    target = torch.arange(12).repeat_interleave(3)
    source = torch.randint(6, target.shape, generator=draw) + 6 * (target >= 6)  # two parts
    graph = Graph.from_edge_index(torch.stack([source, target]), 12)
    attention = edge_softmax(torch.randn(36, 2, dtype=torch.float64, generator=draw), graph)
    layer = FirstLayer(0, graph, attention, K=3, alpha=0.2)
    measured = spectrum.laplacian_spectrum(layer)
    direct = 1 - torch.linalg.eigvals(diffused_attention(attention, graph, 0.2)[0])
    distance = (measured.all_hops[:, None] - direct).abs()
    assert float(distance.amin(0).max()) < 1e-8 and float(distance.amin(1).max()) < 1e-8
    proper = measured.one_hop.abs() > 1e-9
    assert int((~proper).sum()) == 2, "one zero for each part"
    ratio = (measured.all_hops / measured.one_hop - measured.formula(0.2))[proper]
    assert float(ratio.abs().max()) < 1e-8


def test_discrepancy_is_the_distance_by_the_degree() -> None:
    graph = Graph.from_edge_index(torch.tensor([[0, 1, 2], [0, 0, 1]]), 3)
    layer = FirstLayer(0, graph, torch.tensor([[0.9], [0.1], [1.0]], dtype=torch.float64), 1, 0.1)
    values = discrepancy.discrepancy(layer)  # node 2 has no in-edge
    torch.testing.assert_close(values, torch.tensor([(2 * 0.4**2) ** 0.5 / 2, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("system", ["", "gat"])
def test_the_first_layer_is_that_of_the_trained_model(tiny: dict[str, Config], system: str, tmp_path: Path) -> None:
    run = trained_run(tiny[system], StudyJob(tmp_path, device="cpu"))
    assert run.summary is not None and run.summary["test"] is None, "the test split is not read"
    layer = first_layer(run, None)
    task, model, _ = open_nodes(run, None, None, "cpu")
    conv = next(part for part in model.modules() if isinstance(part, MAGNAConv))
    seen: list[torch.Tensor] = []

    def softmax(*args: Any) -> torch.Tensor:
        seen.append(type(conv).softmax(conv, *args))
        return seen[-1]

    conv.softmax = softmax  # type: ignore[assignment, method-assign]
    conv.register_forward_hook(lambda *_: None)  # so that no fused walk goes round it
    task.finite_scores(model)
    torch.testing.assert_close(layer.attention.float(), seen[0])


def test_a_finished_run_is_not_trained_again_and_other_settings_replace_it(
    tiny: dict[str, Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, epochs = StudyJob(tmp_path, device="cpu"), list[int]()
    whole = vars(trained)["train"]

    def counted(config: Config, **options: Any) -> Any:
        return whole(config, **options | {"on_epoch": lambda epoch: epochs.append(epoch.number)})

    monkeypatch.setattr(trained, "train", counted)
    for config, expected in ((tiny[""], 3), (tiny[""], 3), (tiny[""].with_values(["train.epochs=2"]), 5)):
        trained_run(config, job)
        assert len(epochs) == expected


def test_slopes_and_errors_are_those_of_least_squares() -> None:
    x, y = [1.0, 2.0, 3.0, 4.0], [1.1, 1.9, 3.2, 3.8]
    line = complexity.fitted(x, y)
    stats = pytest.importorskip("scipy.stats").linregress(x, y)
    assert (line.slope, line.error, line.offset) == pytest.approx((stats.slope, stats.stderr, stats.intercept))


def test_rows_are_of_cells_alone(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"row is .*; allowed: with tables of trained cells alone, as propositions has"
    ):
        run_experiment("propositions", work=tmp_path, rows=["GAT"])


def test_the_command_prints_one_object(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out, _ = program("reproduce", "propositions", "--quick", "--seeds", "1", "--out", "files", "--json")
    result = json.loads(out)
    assert {"name", "kind", "rows", "files", "missing"} <= result.keys() and result["kind"] == "table"
    assert result["files"] == ["files/propositions.csv", "files/propositions.tex"]
    assert not (tmp_path / "runs").exists()
    shown, _ = program("reproduce", "propositions", "--quick", "--seeds", "1")
    assert "Proposition 1" in shown and "Quick form" in shown


def test_every_function_of_a_study_is_its_own() -> None:
    functions = [function_of(REGISTRY[name].study) for name in STUDIES]
    assert len(set(functions)) == len(functions)

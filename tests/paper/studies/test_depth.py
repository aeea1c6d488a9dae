"""Fig. 4b: equal terms for all models, and a rate that is chosen for each point."""

from __future__ import annotations

from pathlib import Path

import pytest

from magna.paper.points import Measured, Point
from magna.paper.studies import depth
from magna.paper.study import StudyJob, as_rows
from magna.paper.style import styled


@pytest.mark.parametrize("model", depth.SYSTEMS)
def test_models_differ_in_their_recipe_alone(model: str) -> None:
    config = depth.depth_config("cora", model)
    point = depth.depth_point("cora", model, 12, config)
    assert [float(choice[0].removeprefix("train.lr=")) for choice in point.choices] == list(depth.RATES)
    assert len({len(choice) for choice in point.choices}) == 1
    for number, rate in enumerate(depth.RATES):
        chosen = point.chosen(number)
        assert (chosen.model.num_layers, chosen.model.hidden_channels, chosen.train.lr) == (12, 64, rate)
        assert (chosen.train.epochs, chosen.train.patience, chosen.train.precision) == (800, 200, "float32")
        assert chosen.data == depth.depth_config("cora", "MAGNA").data
        assert getattr(chosen.task, "consistency", None) == 0
        is_constant = model != "MAGNA"  # the paper's recipe has a schedule
        assert (chosen.train.min_lr == rate) == is_constant


def test_magna_is_the_paper_s_block_and_gat_has_residuals() -> None:
    magna, gat = (depth.depth_config("cora", model).model for model in ("MAGNA", "GAT with residuals"))
    assert (magna.name, magna.K, magna.head_form, magna.norm, magna.feed_forward) == ("magna", 6, "full", "layer", True)
    assert gat.residual


def test_the_table_shows_the_chosen_rates_and_the_equal_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accuracy = {"magna": 0.8, "gat": 0.7, "gcn": 0.5, "diff-gcn": 0.6}
    order = []

    def measured(point: Point, *_: object, search_seeds: int, seeds: int) -> Measured:
        model = point.config.model
        order.append((model.num_layers, model.name))
        diverged = model.name == "gcn" and model.num_layers == 24
        runs = [
            {"seed": seed, "test": None if diverged else accuracy[model.name] + seed / 1000} for seed in range(seeds)
        ]
        return Measured((0.1, 0.2, 0.7, 0.6), tuple(runs), "cpu")

    monkeypatch.setattr(depth, "measure_point", measured)
    outcome = depth.measure_depth(StudyJob(tmp_path, device="cpu"))
    assert order == sorted(order, key=lambda place: place[0]) and len(order) == 20, "depth by depth"
    rows = as_rows(outcome.table)
    assert {row["rate"] for row in rows} == {"0.005"} and {row["seeds"] for row in rows} == {"10"} and len(rows) == 19
    assert [each.cell for each in outcome.missing] == ["GCN, 24 layers: its loss was not finite"]
    assert outcome.summary is not None
    assert outcome.summary.rows[-1][0] == "MAGNA, 3 layers − GAT, 18 layers"
    assert outcome.summary.rows[-1][-1] == "**+10.0 ± 0.1**"
    assert outcome.summary.rows[2][-1] == "—", "a diverged point has no difference"


def test_committed_points_make_a_figure_that_names_the_missing_ones(tmp_path: Path) -> None:
    outcome = depth.committed_depth(Path(__file__).parents[3] / "results")
    assert outcome.summary is not None
    shown = {row[0]: row[1:] for row in outcome.summary.rows}
    assert shown["GAT with residuals"][0] == "81.1 ± 0.9"
    measured = {(row["model"], int(row["layers"])) for row in as_rows(outcome.table)}
    missing = {(model, layers) for layers in depth.DEPTHS for model in depth.SYSTEMS} - measured
    assert {f"{model}, {layers} layers: no report runs" for model, layers in missing} == {
        each.cell for each in outcome.missing
    }
    assert all(f"{model}, {layers} layers" in outcome.caption for model, layers in missing)
    with styled():
        lines = depth.draw_depth(as_rows(outcome.table), outcome.caption).axes[0].containers
    assert sum(len(line[0].get_xdata()) for line in lines) == len(measured)
    nothing = depth.committed_depth(tmp_path)
    assert not nothing.table.rows and len(nothing.missing) == 20

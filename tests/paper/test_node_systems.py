"""The search space that all node models share, its draws, and how it widens."""

from __future__ import annotations

import random

import pytest

from magna.config.registry import model_settings
from magna.config.schema import load_recipe
from magna.config.spaces import split_key
from magna.config.toml import Range
from magna.paper.node_systems import (
    COMMON_DROPOUTS,
    CONSISTENCY,
    DEPTHS,
    DROPOUT,
    EFFORTS,
    NORMS,
    NUMBERS,
    SCALINGS,
    SCHEDULES,
    SYSTEMS,
    WIDTHS,
    WITH,
    WITHOUT,
    Space,
    assignments,
    rows_of,
    settings_of_draw,
    space_of,
    system_config,
)

ROWS = [(table, row) for table in (WITHOUT, WITH) for row in rows_of(table)]
CONFIG = load_recipe("digits")


@pytest.mark.parametrize("dataset", EFFORTS)
@pytest.mark.parametrize(("table", "row"), ROWS)
def test_all_models_share_one_space(table: str, row: str, dataset: str) -> None:
    """A common knob has the same values in every model that has it, and no model that has it lacks it."""
    config, fixed = system_config(table, dataset, row), SYSTEMS[row].fixed
    held = {assignment.partition("=")[0] for assignment in fixed}
    has = {name for name in config.model.in_recipes() if config._unmet("model", name) is None}
    has -= {key.removeprefix("model.") for key in held}
    space = space_of(config, table, fixed)
    knobs = {name: knob for key, knob in space.knobs.items() for name in split_key(key)}
    common = {"scaling": tuple(SCALINGS), "schedule": SCHEDULES, **NUMBERS, **(CONSISTENCY if table == WITH else {})}
    assert {key: knobs[key] for key in common} == common and ("task.consistency" in knobs) == (table == WITH)
    for name, knob in {"hidden_channels": WIDTHS, "norm": NORMS, **dict.fromkeys(COMMON_DROPOUTS, DROPOUT)}.items():
        free = name in has and (name not in COMMON_DROPOUTS or name in config.model.per_trial())
        assert knobs.get(f"model.{name}") == (knob if free else None), name
    published = load_recipe(config.recipe).search.get("model.num_layers")
    assert knobs["model.num_layers"] == DEPTHS or list(knobs["model.num_layers"]) == published  # type: ignore[arg-type]
    assert not held & knobs.keys(), "what a row fixes is not drawn"


@pytest.mark.parametrize("table", [WITHOUT, WITH])
@pytest.mark.parametrize("dataset", EFFORTS)
def test_all_models_train_alike(table: str, dataset: str) -> None:
    configs = [system_config(table, dataset, row) for row in rows_of(table)]
    assert {(each.train.epochs, each.train.patience, each.train.eval_every) for each in configs} == {(500, 100, 1)}
    assert {each.train.precision for each in configs} == {"float32"}
    consistency = [getattr(each.task, "consistency", 0.0) > 0 for each in configs]
    assert set(consistency) == {table == WITH}


def test_settings_of_earlier_searches_are_no_start() -> None:
    for dataset in EFFORTS:
        model = system_config(WITHOUT, dataset, "MAGNA").model
        assert model == model_settings(heads=8) != load_recipe(dataset).model
    one_hop = system_config(WITHOUT, "cora", "MAGNA, one hop without teleport").model
    assert one_hop == model_settings(heads=8, K=1, alpha=0.0)


def test_draws_depend_on_the_name_and_the_number_alone() -> None:
    space = space_of(system_config(WITHOUT, "cora", "MAGNA"), WITHOUT, ())
    draws = space.draws("nodes/cora/MAGNA/0", 16, 8)
    random.seed(0)
    assert space.draws("nodes/cora/MAGNA/0", 24, 8)[:16] == draws
    assert len({str(draw) for draw in draws}) == 16, "no trial is drawn twice"
    assert all(draw != other for draw, other in zip(draws, space.draws("nodes/cora/GAT/0", 16, 8), strict=True))
    for start in (0, 8):
        structures = {tuple(draw[key] for key in space.structure) for draw in draws[start : start + 8]}
        assert len(structures) == 1, "the trials of a batch share their structure"
    for draw in draws:
        assert all(knob.low <= draw[key] <= knob.high for key, knob in space.knobs.items() if isinstance(knob, Range))
        assert all(draw[key] in knob for key, knob in space.knobs.items() if not isinstance(knob, Range))


@pytest.mark.parametrize("row", list(rows_of(WITHOUT)))
def test_settings_as_text_are_those_of_the_draw(row: str) -> None:
    config = system_config(WITHOUT, "cora", row)
    for draw in space_of(config, WITHOUT, SYSTEMS[row].fixed).draws(row, 8, 2):
        settings = settings_of_draw(draw)
        read = config.with_values(assignments(settings), drop_idle=True)
        assert read == config.with_settings(settings, drop_idle=True)
        constant = draw["schedule"] == "constant"
        assert read.train.min_lr == (read.train.lr if constant else 1e-8)


@pytest.mark.parametrize(
    ("key", "knob", "value", "wider"),
    [
        ("train.lr", Range(1e-3, 1e-1, log=True), 0.09, Range(1e-3, 0.5, log=True)),
        ("train.lr", Range(1e-3, 1e-1, log=True), 1.1e-3, Range(2e-4, 0.1, log=True)),
        ("train.lr", Range(1e-3, 1e-1, log=True), 0.01, None),
        ("model.alpha", Range(0.05, 0.6), 0.59, Range(0.05, 0.875)),
        ("model.alpha", Range(0.05, 0.875), 0.87, None),  # alpha is 1 at most
        ("model.K", Range(2, 12), 12, Range(2, 17)),
        ("model.K", Range(2, 12), 2, Range(1, 12)),
        ("model.K", Range(1, 12), 1, None),  # no hop is another model
        ("model.dropout", DROPOUT, 0.89, Range(0.0, 0.97)),
        ("model.dropout", DROPOUT, 0.0, None),
        ("model.dropout", Range(0.0, 0.97), 0.96, None),
        ("model.hidden_channels", WIDTHS, 256, (*WIDTHS, 512)),
        ("model.hidden_channels", WIDTHS, 16, (*WIDTHS, 8)),
        ("model.hidden_channels", WIDTHS, 64, None),
        ("model.num_layers", DEPTHS, 3, (1, 2, 3, 4)),
        ("model.num_layers", DEPTHS, 1, None),
        ("model.edge_dropout", (0.0, 0.2, 0.4, 0.6), 0.6, (0.0, 0.2, 0.4, 0.6, 0.8)),
        ("model.edge_dropout", (0.0, 0.2, 0.4, 0.6, 0.8), 0.8, None),
        ("model.alpha", (0.05, 0.1, 0.2, 0.3), 0.05, (0.05, 0.1, 0.2, 0.3, 0.025)),
        ("model.heads", (4, 8), 8, None),
        ("model.norm", NORMS, "layer", None),
        ("train.clip", (0.0, 1.0), 1.0, None),
        ("task.ramp", (1, 50, 250), 250, None),
    ],
)
def test_a_best_value_at_an_end_widens_its_knob(key: str, knob: object, value: object, wider: object) -> None:
    space = Space({}, {key: knob, "train.weight_decay": Range(0.1, 0.3)})  # type: ignore[dict-item]
    widened, keys = space.widened({key: value, "train.weight_decay": 0.2}, CONFIG)
    assert keys == ([] if wider is None else [key])
    assert widened.knobs == {**space.knobs, key: knob if wider is None else wider}


def test_draws_of_a_wider_list_reach_its_further_value() -> None:
    space, _ = Space({"model.num_layers": DEPTHS}, {}).widened({"model.num_layers": 3}, CONFIG)
    assert {draw["model.num_layers"] for draw in space.draws("x", 64, 1)} == {1, 2, 3, 4}

"""The recipes against what they stand for: the authors' model sizes, the published spaces, models that can be built."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from magna.config.schema import Config, load_recipe, recipe_names
from magna.config.tables import NodeTask
from magna.config.toml import Range
from magna.nn.ensemble import make_model

# Features and classes.
SIZES = {"digits": (64, 10), "cora": (1433, 7), "citeseer": (3703, 6), "pubmed": (500, 3), "ogbn-arxiv": (128, 40)}
# Entities and relations.
GRAPHS = {"families": (1560, 16), "wn18rr": (40943, 11), "fb15k-237": (14541, 237)}
GRAPHS |= {"wn18rr-v1": (2746, 9), "fb15k-237-v1": (1594, 180)}
TABLES = ("cora-paper", "citeseer-paper", "pubmed-paper", "arxiv-paper")


def _model(config: Config) -> nn.Module:
    links = config.task.name == "link_prediction"
    names = ("num_entities", "num_relations") if links else ("in_channels", "out_channels")
    sizes: dict[str, Any] = dict(zip(names, (GRAPHS if links else SIZES)[config.data.name], strict=True))
    with torch.device("meta"):
        model: nn.Module = make_model(config.model, **sizes)
    return model


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


CITATION_GRAPHS = ("cora", "citeseer", "pubmed")
CORA = [name for name in recipe_names() if name.startswith("cora-") and load_recipe(name).model.name != "magna"]


@pytest.mark.parametrize("name", CORA)
def test_a_baseline_searches_the_same_settings_on_each_citation_graph(name: str) -> None:
    recipes = [load_recipe(name.replace("cora", dataset)) for dataset in CITATION_GRAPHS]
    assert len({tuple(sorted(recipe.search)) for recipe in recipes}) == 1


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.endswith("-published")])
def test_published_recipes_are_of_the_model_and_data_of_their_system(name: str) -> None:
    published, system = load_recipe(name), load_recipe(name.removesuffix("-published"))
    assert (published.model.name, published.data.name) == (system.model.name, system.data.name)


@pytest.mark.parametrize("name", recipe_names())
def test_every_corner_of_the_space_is_a_model(name: str) -> None:
    config = load_recipe(name)
    _model(config)
    for end in (0, -1):
        corner = {
            key: (space.low, space.high)[end] if isinstance(space, Range) else space[end]
            for key, space in config.search.items()
        }
        _model(config.with_settings(corner, drop_idle=True))


@pytest.mark.parametrize(("name", "millions"), [("cora", 16.97), ("citeseer", 25.19), ("pubmed", 16.01)])
def test_official_recipes_have_the_size_of_the_authors_models(name: str, millions: float) -> None:
    assert round(_parameters(_model(load_recipe(f"{name}-official"))) / 1e6, 2) == pytest.approx(millions, abs=0.011)


@pytest.mark.parametrize("name", TABLES)
def test_paper_recipes_search_tables_8_and_9(name: str) -> None:
    config, arxiv = load_recipe(name), name == "arxiv-paper"
    assert config.search == {
        "model.K": Range(3, 6) if arxiv else Range(2, 10),
        "model.alpha": Range(0.05, 0.6),
        "model.dropout": Range(0.1, 0.6),
        "model.input_dropout": Range(0.1, 0.6),
        "train.lr": Range(1e-3, 1e-2, log=True) if arxiv else Range(5e-5, 1e-3, log=True),
        "train.weight_decay": Range(1e-5, 1e-4, log=True) if arxiv else Range(1e-6, 1e-5, log=True),
    }
    model = config.model
    shape = (model.num_layers, model.hidden_channels, model.heads)
    assert shape == ((2, 128, 8) if arxiv else (6, 512, 8))
    assert (model.head_form, model.projection, model.norm, model.top_k) == ("full", "separate", "layer", None)
    assert config.train.patience == 200 and isinstance(config.task, NodeTask) and config.task.consistency == 0


@pytest.mark.parametrize("name", ["wn18rr-paper", "fb15k-237-paper"])
def test_paper_recipes_search_table_10(name: str) -> None:
    config = load_recipe(name)
    assert config.search == {
        "model.num_layers": [2, 3],
        "model.hidden_channels": [256, 512, 768],
        "model.heads": [4, 8],
        "model.K": [2, 3, 4, 5, 6],
        "model.alpha": Range(0.05, 0.6),
        "model.dropout": Range(0.1, 0.6),
        "model.input_dropout": Range(0.1, 0.6),
        "task.batch_size": [1024, 2048, 3072],
        "train.lr": Range(1e-4, 5e-3, log=True),
        "train.weight_decay": Range(1e-10, 1e-8, log=True),
    }
    assert (config.model.entity_channels, config.model.decoder, config.model.head_form) == (100, "distmult", "full")


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.endswith(("-paper", "-official"))])
def test_settings_are_inside_their_space(name: str) -> None:
    config = load_recipe(name)
    tables = config.to_dict()
    for key, space in config.search.items():
        for setting in key.split(", "):
            table, entry = setting.split(".")
            value = tables[table][entry]
            assert space.low <= value <= space.high if isinstance(space, Range) else value in space, setting
    assert getattr(config.task, "consistency", 0) == 0

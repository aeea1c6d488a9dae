"""The model that a config names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from magna.baselines import GAT, DiffGCN
from magna.config import Config, ModelConfig
from magna.nn import MAGNA, LinkPredictor

Model = MAGNA | GAT | DiffGCN | LinkPredictor
MODELS: dict[str, type[MAGNA] | type[GAT] | type[DiffGCN]] = {"magna": MAGNA, "gat": GAT, "diff-gcn": DiffGCN}


def make_model(config: ModelConfig, in_channels: int, out_channels: int, **more: Any) -> Model:
    """A fresh model; a setting that it does not have must stay at its default.

    >>> make_model(ModelConfig(name="gat", K=3), 16, 7)
    Traceback (most recent call last):
    ValueError: model.K is 3, but gat has no such setting; allowed: hidden_channels, num_layers, heads, ...
    """
    kind = MODELS[config.name]
    settings = _settings(config, kind, config.name)
    with _named_as_settings(settings):
        return kind(in_channels, out_channels=out_channels, **settings, **more)


def make_link_predictor(
    config: ModelConfig, num_entities: int, num_relations: int, *, typed: bool = True
) -> LinkPredictor:
    """A fresh link predictor; a setting that it does not have must stay at its default.

    >>> make_link_predictor(ModelConfig(hidden_channels=16, K=2), num_entities=5, num_relations=2).num_entities
    5
    """
    if config.name != "magna":
        raise ValueError(f"model.name is {config.name!r}; allowed for link prediction: 'magna'")
    settings = _settings(config, LinkPredictor, "a link predictor")
    with _named_as_settings(settings):
        return LinkPredictor(num_entities, num_relations, typed=typed, **settings)


def model_class(config: Config) -> type[Model]:
    """What a run of this config saves."""
    return LinkPredictor if config.task.name == "link_prediction" else MODELS[config.model.name]


def _settings(config: ModelConfig, kind: type[Model], name: str) -> dict[str, Any]:
    """The settings that a model takes; another one must stay at its default."""
    settings = asdict(config)
    del settings["name"]
    takes = {"hidden_channels", "num_layers", *kind.defaults()}
    for key, value in settings.items():
        if key not in takes and value != getattr(ModelConfig, key):
            allowed = ", ".join(setting for setting in settings if setting in takes)
            raise ValueError(f"model.{key} is {value!r}, but {name} has no such setting; allowed: {allowed}")
    return {key: value for key, value in settings.items() if key in takes}


@contextmanager
def _named_as_settings(settings: dict[str, Any]) -> Iterator[None]:
    """What a layer refuses by the names of its own arguments is refused by those of a recipe.

    >>> make_model(ModelConfig(heads=7), 16, 3)
    Traceback (most recent call last):
    ValueError: model.hidden_channels is 64, model.heads is 7; allowed: heads that divide the channels
    """
    try:
        yield
    except ValueError as error:
        argument = str(error).partition(" ")[0]
        if argument in settings:
            raise ValueError(f"model.{error}") from error
        if argument == "out_channels" and settings.get("head_form") != "full":
            raise ValueError(
                f"model.hidden_channels is {settings['hidden_channels']}, model.heads is {settings['heads']}; "
                "allowed: heads that divide the channels"
            ) from error
        raise ValueError(f"the settings of [model] do not go together: {error}") from error

"""The model that a config names."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from magna.baselines import GAT, DiffGCN
from magna.config import ModelConfig
from magna.nn import MAGNA

Model = MAGNA | GAT | DiffGCN
MODELS: dict[str, type[MAGNA] | type[GAT] | type[DiffGCN]] = {"magna": MAGNA, "gat": GAT, "diff-gcn": DiffGCN}


def make_model(config: ModelConfig, in_channels: int, out_channels: int, **more: Any) -> Model:
    """A fresh model; a setting that it does not have must stay at its default.

    >>> make_model(ModelConfig(name="gat", K=3), 16, 7)
    Traceback (most recent call last):
    ValueError: model.K is 3, but gat has no such setting; allowed: hidden_channels, num_layers, heads, ...
    """
    kind = MODELS[config.name]
    settings = asdict(config)
    del settings["name"]
    takes = {"hidden_channels", "num_layers", *kind.defaults()}
    for key, value in settings.items():
        if key not in takes and value != getattr(ModelConfig, key):
            allowed = ", ".join(name for name in settings if name in takes)
            raise ValueError(f"model.{key} is {value!r}, but {config.name} has no such setting; allowed: {allowed}")
    chosen = {key: value for key, value in settings.items() if key in takes}
    return kind(in_channels, out_channels=out_channels, **chosen, **more)

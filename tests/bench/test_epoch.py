"""The peer of the epoch benchmark is the same model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support.running import node_task

from magna.bench.epoch import compare_epochs
from magna.config.schema import Config
from magna.data import load_digits
from magna.tasks import NodeClassification


@pytest.mark.parametrize("head_form", ["full", "split"])
def test_both_models_give_the_same_scores(head_form: str) -> None:
    settings = {"hidden_channels": 16, "num_layers": 2, "heads": 2, "K": 3, "head_form": head_form}
    rates = {"input_dropout": 0.3, "dropout": 0.2, "feature_dropout": 0.1}
    config = Config.from_dict({"model": settings | rates})
    result = compare_epochs(node_task(config, None, torch.device("cpu")), config, repeats=1)
    assert result["difference"] < 1e-4
    assert result["ms"] > 0 and result["share"] == pytest.approx(result["ms"] / result["peer_ms"])


def test_features_of_few_entries_are_dense_in_the_peer() -> None:
    config = Config.from_dict(
        {"model": {"hidden_channels": 8, "num_layers": 1, "heads": 2, "K": 2, "embed_dropout": 0.2}}
    )
    data = load_digits()
    assert data.x is not None
    task = NodeClassification(replace(data, x=data.x * (torch.rand(data.x.shape) < 0.05)), config, torch.device("cpu"))
    assert compare_epochs(task, config, repeats=1)["difference"] < 1e-4


@pytest.mark.parametrize(
    "setting", ["model.tanh=false", "model.bias=true", "model.mode=exact", "model.node_dropout=0.1"]
)
def test_a_model_that_the_peer_is_not_is_refused(setting: str) -> None:
    config = Config().with_values([setting])
    with pytest.raises(AssertionError):
        compare_epochs(node_task(config, None, torch.device("cpu")), config, repeats=1)

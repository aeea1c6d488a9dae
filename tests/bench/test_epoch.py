"""The peer of the epoch benchmark is the same model."""

from __future__ import annotations

import pytest
import torch
from tests.laws import node_task

from magna.bench.epoch import compare_epochs
from magna.config import Config


@pytest.mark.parametrize("head_form", ["full", "split"])
def test_both_models_give_the_same_scores(head_form: str) -> None:
    settings = {
        "hidden_channels": 16,
        "num_layers": 2,
        "heads": 2,
        "K": 3,
        "input_dropout": 0.3,
        "head_form": head_form,
    }
    config = Config.from_dict({"model": settings | {"attention_dropout": 0.2, "feature_dropout": 0.1}})
    found = compare_epochs(node_task(config, None, torch.device("cpu")), config, repeats=1)
    assert found["difference"] < 1e-4
    assert found["ms"] > 0 and found["share"] == pytest.approx(found["ms"] / found["peer_ms"])

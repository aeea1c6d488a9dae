"""GCNII is a stack of PyG's layers between two matrices."""

from __future__ import annotations

import pytest
import torch
from tests.baselines.nodes.test_gcn import random_biases
from tests.support.graphs import uniform, with_isolated_node
from torch import nn
from torch_geometric.nn import GCN2Conv

from magna.baselines.nodes.gcnii import GCNII
from magna.config.schema import Config
from magna.data import load_digits
from magna.tasks import NodeClassification
from magna.training.trials import structure, train_trials


@pytest.mark.parametrize(("alpha", "theta"), [(0.1, 0.5), (0.3, 1.5), (0.0, 1.0)])
def test_it_is_pygs_with_the_same_weights(alpha: float, theta: float) -> None:
    x, edges = uniform(13, 5, seed=1), with_isolated_node(13, 30, loops=True)
    model = GCNII(5, 3, hidden_channels=7, num_layers=4, alpha=alpha, theta=theta).double()
    random_biases(model)
    first = h = model.first(x).relu()
    for number, layer in enumerate(model.layers, start=1):
        assert isinstance(layer, nn.Linear)
        conv = GCN2Conv(7, alpha, theta, number).double()
        with torch.no_grad():
            conv.weight1.copy_(layer.weight.t())
        h = conv(h, first, edges).relu()
    torch.testing.assert_close(model(x, edges), model.last(h))


def test_trials_of_one_batch_differ_in_alpha() -> None:
    data = load_digits()
    values = ["model.name=gcnii", "model.hidden_channels=8", "model.num_layers=3", "train.epochs=3"]
    configs = [Config().with_values([*values, f"model.alpha={alpha}"]) for alpha in (0.1, 0.6)]
    assert structure(configs[0]) == structure(configs[1])
    task = NodeClassification(data, configs[0], torch.device("cpu"))
    for config, together in zip(configs, train_trials(configs, task), strict=True):
        (alone,) = train_trials([config], task)
        losses = [[epoch["loss"] for epoch in result.history] for result in (together, alone)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)

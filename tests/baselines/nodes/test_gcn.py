"""GCN is PyG's."""

from __future__ import annotations

import pytest
import torch
from tests.support.graphs import uniform, with_isolated_node
from torch import nn
from torch_geometric.nn import GCNConv

from magna.baselines.nodes.gcn import GCN

X, EDGES = uniform(13, 5, seed=1), with_isolated_node(13, 30, loops=True)


def random_biases(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_it_is_pygs_gcn_with_the_same_weights(num_layers: int) -> None:
    model = GCN(5, 3, hidden_channels=7, num_layers=num_layers).double()
    random_biases(model)
    h = X
    for number, (layer, bias) in enumerate(zip(model.layers, model.biases, strict=True)):
        assert isinstance(layer, nn.Linear)
        conv = GCNConv(layer.in_features, layer.out_features).double()  # it leaves loops as they are
        with torch.no_grad():
            conv.lin.weight.copy_(layer.weight)
            conv.bias.copy_(bias)
        h = conv(h.relu() if number else h, EDGES)
    torch.testing.assert_close(model(X, EDGES), h)

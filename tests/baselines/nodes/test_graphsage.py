"""GraphSAGE is PyG's with the mean aggregator."""

from __future__ import annotations

import torch
from tests.baselines.nodes.test_gcn import random_biases
from tests.support.graphs import uniform, with_isolated_node
from torch import nn
from torch_geometric.nn import SAGEConv

from magna.baselines.nodes.graphsage import GraphSAGE


def test_it_is_pygs_with_the_same_weights() -> None:
    x, edges = uniform(13, 5, seed=1), with_isolated_node(13, 30)[:, 1:]  # one edge has one direction alone
    model = GraphSAGE(5, 3, hidden_channels=7, num_layers=3).double()
    random_biases(model)
    h = x
    for number, (layer, bias) in enumerate(zip(model.layers, model.biases, strict=True)):
        assert isinstance(layer, nn.Linear)
        conv = SAGEConv(layer.in_features, layer.out_features // 2).double()
        with torch.no_grad():
            node, neighbour = layer.weight.chunk(2)
            conv.lin_r.weight.copy_(node)
            conv.lin_l.weight.copy_(neighbour)
            conv.lin_l.bias.copy_(bias)
        h = conv(h.relu() if number else h, edges)
    torch.testing.assert_close(model(x, edges), h)

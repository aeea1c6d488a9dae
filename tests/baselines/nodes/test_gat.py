"""GAT is PyG's."""

from __future__ import annotations

import pytest
import torch
from tests.nn.test_conv import gat_like
from tests.support.graphs import random_graph, uniform
from torch import nn

from magna.baselines import GAT
from magna.nn import MAGNAConv


@pytest.mark.parametrize("out_heads", [1, 4])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_it_is_pygs_gat_with_the_same_weights(num_layers: int, out_heads: int) -> None:
    x, edge_index = uniform(12, 5, seed=1), random_graph(12, 40, fed=True).edge_index
    model = GAT(5, 8, num_layers, 3, heads=2, out_heads=out_heads, negative_slope=0.1).double()
    for bias in model.biases:
        nn.init.normal_(bias)
    h = x
    for number, (layer, bias) in enumerate(zip(model.layers, model.biases, strict=True), start=1):
        assert isinstance(layer, MAGNAConv)
        hidden = number < num_layers
        theirs = gat_like(layer, concat=hidden, negative_slope=0.1, add_self_loops=False)
        with torch.no_grad():
            theirs.bias.copy_(bias)
        h = nn.functional.elu(theirs(h, edge_index)) if hidden else theirs(h, edge_index)
    torch.testing.assert_close(model(x, edge_index), h)

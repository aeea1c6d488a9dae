"""Cheby is PyG's ChebNet."""

from __future__ import annotations

import pytest
import torch
from tests.baselines.nodes.test_gcn import random_biases
from tests.support.graphs import uniform, with_isolated_node
from torch import nn
from torch_geometric.nn import ChebConv

from magna.baselines.nodes.cheby import Cheby


@pytest.mark.parametrize(("K", "lambda_max"), [(1, 2.0), (2, 2.0), (3, 1.6), (6, 2.0)])
def test_it_is_pygs_with_the_same_weights(K: int, lambda_max: float) -> None:
    # Every node has an edge, as PyG has no Laplacian at isolated nodes.
    x, edges = uniform(12, 5, seed=1), with_isolated_node(13, 30)
    model = Cheby(5, 3, hidden_channels=7, K=K, lambda_max=lambda_max).double()
    random_biases(model)
    h = x
    for number, (layer, bias) in enumerate(zip(model.layers, model.biases, strict=True)):
        assert isinstance(layer, nn.Linear)
        conv = ChebConv(layer.in_features, layer.out_features // (K + 1), K + 1).double()
        with torch.no_grad():
            for linear, matrix in zip(conv.lins, layer.weight.chunk(K + 1), strict=True):
                linear.weight.copy_(matrix)
            conv.bias.copy_(bias)
        h = conv(h.relu() if number else h, edges, lambda_max=torch.tensor(lambda_max, dtype=torch.float64))
    torch.testing.assert_close(model(x, edges), h)


def test_it_is_the_polynomial_of_the_laplacian() -> None:
    x, edges = uniform(13, 5, seed=1), with_isolated_node(13, 30)
    model = Cheby(5, 3, num_layers=1, K=3).double()
    adjacency = torch.zeros(13, 13, dtype=torch.float64).index_put((edges[1], edges[0]), torch.ones(1).double())
    scale = adjacency.sum(1).clamp(min=1).rsqrt()
    # The Laplacian, scaled by its largest eigenvalue 2 and moved by the identity.
    moved = -scale[:, None] * adjacency * scale
    terms = [torch.eye(13).double(), moved]
    terms += [2 * moved @ terms[1] - terms[0]]
    terms += [2 * moved @ terms[2] - terms[1]]
    matrices = model.layers[0].weight.chunk(4)  # type: ignore[operator]
    expected = sum(term @ x @ matrix.t() for term, matrix in zip(terms, matrices, strict=True))
    torch.testing.assert_close(model(x, edges), expected)

"""LGCN is the paper's definition, node by node and channel by channel."""

from __future__ import annotations

import pytest
import torch
from tests.support.graphs import odd_graphs, random_graph, uniform
from torch import Tensor, nn

from magna.baselines.nodes.lgcn import LGCN, LearnableGraphConv, largest_neighbours
from magna.errors import ArgumentError
from magna.graph import Graph

N = 13
# Node 12 has no edge; loops and duplicates are among the others.
GRAPH = Graph.from_edge_index(random_graph(N - 1, 60, fed=True).edge_index, N)
X = uniform(N, 5, seed=1)


def sorted_rows(x: Tensor, graph: Graph, top_k: int) -> Tensor:
    """The largest values of each channel among the other neighbours of each node."""
    rows = x.new_zeros(graph.num_nodes, top_k, x.size(1))
    for node in range(graph.num_nodes):
        near = graph.source[(graph.target == node) & (graph.source != node)]
        for channel in range(x.size(1)):
            for place, value in enumerate(sorted(x[near, channel].tolist(), reverse=True)[:top_k]):
                rows[node, place, channel] = value
    return rows


@pytest.mark.parametrize("top_k", [1, 2, 4, 8])
@pytest.mark.parametrize("name", odd_graphs(hub=100))
def test_the_largest_values_are_sorted(name: str, top_k: int) -> None:
    graph = odd_graphs(hub=100)[name]
    x = uniform(graph.num_nodes, 3, seed=2)
    torch.testing.assert_close(largest_neighbours(x, graph, top_k), sorted_rows(x, graph, top_k))


def test_gradients_go_to_the_chosen_values() -> None:
    x = X.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: largest_neighbours(x, GRAPH, 4), (x,))


def convolved(layer: LearnableGraphConv, x: Tensor) -> Tensor:
    """Both convolutions, written as sums over their places."""
    places = torch.cat([x[:, None], sorted_rows(x, GRAPH, layer.top_k)], dim=1)
    for number, conv in enumerate((layer.first, layer.second)):
        places = layer.act(places) if number else places
        width = conv.weight.size(2)
        assert conv.bias is not None
        places = torch.stack(
            [
                sum(places[:, start + i] @ conv.weight[:, :, i].t() for i in range(width)) + conv.bias
                for start in range(places.size(1) - width + 1)
            ],
            dim=1,
        )
    assert places.size(1) == 1
    return places[:, 0]


@pytest.mark.parametrize("activation", ["relu", "none"])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_it_is_the_definition(num_layers: int, activation: str) -> None:
    model = LGCN(5, 3, hidden_channels=6, layer_channels=4, num_layers=num_layers, top_k=4, activation=activation)
    model = model.double().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    adjacency = torch.zeros(N, N, dtype=X.dtype)
    adjacency = adjacency.index_put((GRAPH.target, GRAPH.source), X.new_ones(()), accumulate=True)
    scale = adjacency.sum(1).clamp(min=1).rsqrt()
    h = scale[:, None] * adjacency * scale @ model.embedding(X)
    for layer in model.layers:
        assert isinstance(layer, LearnableGraphConv)
        h = torch.cat([h, convolved(layer, h)], dim=1)
    torch.testing.assert_close(model(X, GRAPH), model.classifier(h))


def test_an_odd_number_of_values_is_refused() -> None:
    with pytest.raises(ArgumentError, match="top_k is 3; allowed: even numbers"):
        LGCN(5, 3, top_k=3)

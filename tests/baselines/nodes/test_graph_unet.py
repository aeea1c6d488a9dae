"""Graph U-Nets are PyG's, with sigmoid gates."""

from __future__ import annotations

import pytest
import torch
from tests.support.graphs import integers, uniform
from torch import Tensor, nn
from torch_geometric.nn import GCNConv
from torch_geometric.nn import GraphUNet as Theirs

from magna.baselines.nodes.graph_unet import GraphUNet
from magna.data.node_data import undirected

N = 23
# Node 22 has its loop alone.
ENDS = integers(N - 1, 2, 40, seed=3)
EDGES = undirected(ENDS[0], ENDS[1], N)
LOOPED = torch.cat([EDGES, torch.arange(N).expand(2, -1)], dim=1)
X = uniform(N, 5, seed=1)


def model(num_layers: int = 2, **options: object) -> GraphUNet:
    torch.manual_seed(num_layers)
    made = GraphUNet(5, 3, hidden_channels=6, num_layers=num_layers, pool_nodes=15, **options).double().eval()
    for bias in made.biases:
        nn.init.normal_(bias)
    return made


def theirs(ours: GraphUNet, edge_index: Tensor) -> Tensor:
    """PyG's model with our weights; it has no output layer of its own, the last of its layers is that."""
    depth = ours.options.num_layers
    act = "relu" if ours.options.activation == "relu" else nn.Identity()
    net = Theirs(5, 6, 6, depth, pool_ratios=[15, 8, 4][:depth], act=act).double()
    convs = [*net.down_convs, *net.up_convs]
    with torch.no_grad():
        for conv, layer, bias in zip(convs, ours.layers, ours.biases, strict=False):
            conv.lin.weight.copy_(layer.weight)
            conv.bias.copy_(bias)
        for pool, projection in zip(net.pools, ours.projections, strict=True):
            pool.select.weight.copy_(projection[None])
            pool.select.act = nn.Sigmoid()
    h: Tensor = net(X, edge_index)
    last = GCNConv(6, 3, improved=True).double()
    with torch.no_grad():
        last.lin.weight.copy_(ours.layers[-1].weight)
        last.bias.copy_(ours.biases[-1])
    h = h.relu() if ours.options.activation == "relu" else h
    # Without weights of the edges PyG's loops would have weight 1.
    out: Tensor = last(h, edge_index, torch.ones(edge_index.size(1), dtype=h.dtype))
    return out


@pytest.mark.parametrize("activation", ["relu", "none"])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_it_is_pygs_with_the_same_weights(num_layers: int, activation: str) -> None:
    ours = model(num_layers, activation=activation)
    torch.testing.assert_close(ours(X, EDGES), theirs(ours, EDGES), atol=1e-5, rtol=1e-5)


def test_loops_of_the_data_do_not_matter() -> None:
    ours = model()
    torch.testing.assert_close(ours(X, LOOPED), ours(X, EDGES))


def test_pooling_to_all_nodes_keeps_their_order_free() -> None:
    ours = GraphUNet(5, 3, hidden_channels=6, num_layers=2, pool_nodes=100, pool_ratio=1.0).double().eval()
    order = torch.randperm(N)
    moved = torch.empty_like(order).scatter(0, order, torch.arange(N))[EDGES]
    torch.testing.assert_close(ours(X[order], moved), ours(X, EDGES)[order])

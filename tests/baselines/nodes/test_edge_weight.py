"""Weights of edges in the baselines: PyG's numbers, and the laws of models that read them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.graphs import uniform, with_isolated_node
from torch_geometric.nn import APPNP as Propagation
from torch_geometric.nn import GCNConv

from magna.baselines.nodes.appnp import APPNP
from magna.baselines.nodes.cheby import Cheby
from magna.baselines.nodes.dagnn import DAGNN
from magna.baselines.nodes.diff_gcn import DiffGCN, diffused_graph
from magna.baselines.nodes.gat import GAT
from magna.baselines.nodes.gcn import GCN
from magna.baselines.nodes.gcnii import GCNII
from magna.baselines.nodes.grand import GRAND
from magna.baselines.nodes.graphsage import GraphSAGE
from magna.baselines.nodes.jknet import JKNet
from magna.graph import Graph

N = 13
X, EDGES = uniform(N, 5, seed=1), with_isolated_node(N, 30, loops=True)
COUNT = EDGES.size(1)
# The same in both directions.
PAIR = EDGES.amin(0) * N + EDGES.amax(0)
WEIGHT = uniform(N * N, seed=2, low=0.2, high=3.0)[PAIR]
MODELS: dict[str, Any] = {
    "gcn": lambda: GCN(5, 3, hidden_channels=7),
    "graphsage": lambda: GraphSAGE(5, 3, hidden_channels=7),
    "gat": lambda: GAT(5, 8, 2, 3, heads=2),
    "jknet": lambda: JKNet(5, 3, hidden_channels=7),
    "appnp": lambda: APPNP(5, 3, hidden_channels=7, K=3),
    "dagnn": lambda: DAGNN(5, 3, hidden_channels=7, K=3),
    "grand": lambda: GRAND(5, 3, hidden_channels=7, K=3),
    "gcnii": lambda: GCNII(5, 3, hidden_channels=7, num_layers=3),
    "diff-gcn": lambda: DiffGCN(5, 7, 2, 3, top_k=5),
}


def make(name: str) -> Any:
    torch.manual_seed(0)
    return MODELS[name]().double().eval()


def test_gcn_is_pygs() -> None:
    model = make("gcn")
    h = X
    for number, layer in enumerate(model.layers):
        conv = GCNConv(layer.in_features, layer.out_features).double()  # it leaves loops as they are
        with torch.no_grad():
            conv.lin.weight.copy_(layer.weight)
        h = conv(h.relu() if number else h, EDGES, WEIGHT)
    torch.testing.assert_close(model(X, EDGES, edge_weight=WEIGHT), h)


def test_appnp_is_pygs_propagation() -> None:
    model = make("appnp")
    hidden = model.layers[1](model.layers[0](X).relu())
    expected = Propagation(K=3, alpha=0.1)(hidden, EDGES, WEIGHT)
    torch.testing.assert_close(model(X, EDGES, edge_weight=WEIGHT), expected)


@pytest.mark.parametrize("name", MODELS)
def test_weight_one_changes_nothing_and_others_do(name: str) -> None:
    model, plain = make(name), make(name)(X, EDGES)
    torch.testing.assert_close(model(X, EDGES, edge_weight=torch.ones(COUNT)), plain)
    assert not torch.allclose(model(X, EDGES, edge_weight=WEIGHT), plain)
    assert torch.equal(model(X, EDGES), plain)


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"diff-gcn"}))
def test_twice_the_weight_is_the_edge_twice(name: str) -> None:
    model, weight = make(name), torch.ones(COUNT)
    weight[4] = 2
    expected = model(X, torch.cat([EDGES, EDGES[:, 4:5]], 1))
    torch.testing.assert_close(model(X, EDGES, edge_weight=weight), expected)


def test_a_diffused_graph_is_pagerank_of_the_weights() -> None:
    graph = Graph.from_edge_index(EDGES, N)
    near, share = diffused_graph(graph, alpha=0.2, top_k=N, edge_weight=WEIGHT)
    dense = torch.zeros(N, N, dtype=torch.float64)
    dense[EDGES[1], EDGES[0]] = WEIGHT
    dense.fill_diagonal_(1)
    scale = dense.sum(1).rsqrt()
    kernel = 0.2 * torch.linalg.inv(torch.eye(N) - 0.8 * scale[:, None] * dense * scale)
    result = torch.zeros(N, N, dtype=torch.float64)
    result[near.target, near.source] = share[:, 0].double()
    torch.testing.assert_close(result, kernel / kernel.sum(1, keepdim=True), rtol=1e-3, atol=1e-4)
    weight = WEIGHT.clone()
    before = diffused_graph(graph, alpha=0.2, edge_weight=weight)
    weight[0] *= 3
    assert not torch.equal(diffused_graph(graph, alpha=0.2, edge_weight=weight)[1], before[1])


def test_a_model_that_reads_no_weights_refuses_them() -> None:
    model = Cheby(5, 3, hidden_channels=7)
    assert not model.TAKES_EDGE_WEIGHT
    with pytest.raises(ValueError, match=r"edge_weight is .*; allowed: None: Cheby does not read it"):
        model.states(X.float(), EDGES, WEIGHT)
    with pytest.raises(ValueError, match=r"edge_weight is -1.0; allowed: finite numbers of 0 or more"):
        make("gcn")(X, EDGES, edge_weight=-torch.ones(COUNT))

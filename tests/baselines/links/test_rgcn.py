"""R-GCN's layer is PyG's with copied weights, and its edges can be masked and dropped."""

from __future__ import annotations

import pytest
import torch
from tests.support.links import ENTITIES, RELATIONS, link_task, trained_losses

from magna.baselines.links.rgcn import RGCN, RGCNEncoder, RGCNLayer, RGCNOptions
from magna.graph import Graph, as_graph

TASK, TYPES = link_task(), 2 * RELATIONS + 1


def _graph() -> Graph:
    """The task's graph and a node without edges."""
    return Graph.from_edge_index(TASK.edge_index, ENTITIES + 1, TASK.graph.edge_type, TYPES)


def test_a_layer_is_pygs() -> None:
    nn = pytest.importorskip("torch_geometric.nn")
    graph, x = _graph(), torch.randn(ENTITIES + 1, 5).double()
    layer = RGCNLayer(5, TYPES, num_bases=3).double()
    theirs = nn.RGCNConv(5, 5, TYPES, num_bases=3).double()
    with torch.no_grad():
        theirs.weight.copy_(layer.bases)
        theirs.comp.copy_(layer.coefficients)
        theirs.root.copy_(layer.root.weight.T)
        theirs.bias.copy_(layer.root.bias)
    assert graph.edge_type is not None
    edges = torch.rand(graph.num_edges) < 0.7
    edges &= graph.edge_type != TYPES - 1  # self-loops have W_0
    encoder = RGCNEncoder(RELATIONS, RGCNOptions()).eval()
    ours = layer(x, graph, encoder.shares(graph, edges).double())
    torch.testing.assert_close(ours, theirs(x, graph.edge_index[:, edges], graph.edge_type[edges]))


def test_shares_of_a_relation_sum_to_one() -> None:
    graph, encoder = _graph(), RGCNEncoder(RELATIONS, RGCNOptions(edge_dropout=0.5))
    shares = encoder.eval().shares(graph, None)
    assert graph.edge_type is not None
    group = graph.target * TYPES + graph.edge_type
    sums = torch.zeros(graph.num_nodes * TYPES).index_add_(0, group, shares)
    expected = torch.zeros_like(sums)
    expected[group[graph.edge_type < TYPES - 1]] = 1
    torch.testing.assert_close(sums, expected)
    dropped = encoder.train().shares(graph, None)
    absent = (dropped == 0).float().mean()
    assert 0.4 < absent < 0.75 and shares.count_nonzero() == graph.num_edges - ENTITIES


def test_masked_edges_do_not_count() -> None:
    model, mask = RGCN(ENTITIES, RELATIONS, channels=8).eval(), torch.rand(TASK.num_edges) < 0.5
    states = model.encode(TASK.edge_index, TASK.edge_type, edge_mask=mask)
    assert TASK.edge_type is not None
    fewer = as_graph(TASK.edge_index[:, mask], ENTITIES, TASK.edge_type[mask], TYPES)
    torch.testing.assert_close(states, model.encode(fewer))


def test_it_trains() -> None:
    losses = trained_losses(RGCN(ENTITIES, RELATIONS, channels=16, num_bases=3, edge_dropout=0.1, dropout=0.1), n3=1e-4)
    assert min(losses[-5:]) < 0.97 * losses[0]  # answers are masked, and the triples are random

"""Diff-GCN is PyG's GCNConv on the graph of PyG's GDC."""

from __future__ import annotations

import pytest
import torch
from tests.support.comparing import all_learn
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.transforms import GDC

from magna.baselines import DiffGCN, diffused_graph
from magna.baselines.nodes import diff_gcn
from magna.data.node_data import undirected
from magna.graph import Graph


def edges(num_nodes: int = 30) -> Tensor:
    """A connected graph without symmetries, so that no two entries of a column tie."""
    chance = torch.Generator().manual_seed(3)
    source, target = torch.randint(num_nodes, (2, 3 * num_nodes), generator=chance)
    return undirected(source, target, num_nodes)


def gdc(edge_index: Tensor, num_nodes: int, alpha: float, top_k: int) -> Data:
    transform = GDC(
        self_loop_weight=1,
        normalization_in="sym",
        normalization_out="col",
        diffusion_kwargs={"method": "ppr", "alpha": alpha},
        sparsification_kwargs={"method": "topk", "k": top_k, "dim": 0},
        exact=True,
    )
    return transform(Data(edge_index=edge_index, num_nodes=num_nodes))


def dense(edge_index: Tensor, weight: Tensor, num_nodes: int) -> Tensor:
    matrix = torch.zeros(num_nodes, num_nodes)
    matrix[edge_index[1], edge_index[0]] = weight
    return matrix


@pytest.mark.parametrize(("alpha", "top_k"), [(0.05, 8), (0.15, 8), (0.5, 3), (0.15, 100), (1.0, 1)])
def test_the_graph_is_that_of_gdc(alpha: float, top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diff_gcn, "BLOCK", 7)
    edge_index = edges()
    graph, weight = diffused_graph(Graph.from_edge_index(edge_index, 30), alpha, top_k)
    theirs = gdc(edge_index, 30, alpha, top_k)
    expected = dense(theirs.edge_index, theirs.edge_attr, 30)
    torch.testing.assert_close(dense(graph.edge_index, weight[:, 0], 30), expected, atol=1e-5, rtol=1e-4)
    assert graph.in_order, "edges in target order need no permutation"


def test_loops_and_the_direction_of_edges_do_not_matter() -> None:
    edge_index = edges()
    graph, weight = diffused_graph(Graph.from_edge_index(edge_index, 30), 0.1, 8)
    one_way = edge_index[:, edge_index[0] < edge_index[1]]
    looped = torch.cat([one_way, torch.arange(30).expand(2, -1)], dim=1)
    again, same_weight = diffused_graph(Graph.from_edge_index(looped, 30), 0.1, 8)
    assert torch.equal(again.edge_index, graph.edge_index)
    torch.testing.assert_close(same_weight, weight)


def test_a_node_alone_keeps_itself() -> None:
    graph, weight = diffused_graph(Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 3), 0.1, 3)
    assert graph.edge_index.tolist() == [[0, 1, 0, 1, 2], [0, 0, 1, 1, 2]]
    torch.testing.assert_close(weight[-1], torch.ones(1))


def test_the_graph_is_computed_once() -> None:
    graph = Graph.from_edge_index(edges(), 30)
    first = diffused_graph(graph, 0.1, 8)
    assert diffused_graph(graph, 0.1, 8)[0] is first[0]
    assert diffused_graph(graph, 0.1, 9)[0] is not first[0]
    assert diffused_graph(graph, 0.2, 8)[0] is not first[0]


def test_a_graph_first_met_in_inference_mode_can_be_trained_on() -> None:
    edge_index, x = edges(), torch.randn(30, 5)
    model = DiffGCN(5, 8, 2, 3, top_k=8)
    with torch.inference_mode():
        model(x, edge_index)
    model(x, edge_index).sum().backward()
    all_learn(model)


def test_the_model_is_gcn_on_that_graph() -> None:
    edge_index, x = edges(), torch.randn(30, 5)
    model = DiffGCN(5, 8, 2, 3, alpha=0.1, top_k=8)
    for bias in model.biases:
        nn.init.normal_(bias)
    theirs = gdc(edge_index, 30, 0.1, 8)
    h = x
    for number, (layer, bias) in enumerate(zip(model.layers, model.biases, strict=True)):
        assert isinstance(layer, nn.Linear)
        conv = GCNConv(layer.in_features, layer.out_features, normalize=False)
        with torch.no_grad():
            conv.lin.weight.copy_(layer.weight)
            conv.bias.copy_(bias)
        h = conv(h.relu() if number else h, theirs.edge_index, theirs.edge_attr)
    torch.testing.assert_close(model(x, edge_index), h, atol=1e-5, rtol=1e-4)

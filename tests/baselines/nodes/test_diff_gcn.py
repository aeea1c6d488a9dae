"""Diff-GCN is PyG's GCNConv on the graph of PyG's GDC."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.support.comparing import all_learn
from tests.support.graphs import integers, uniform
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.transforms import GDC

from magna.baselines import DiffGCN, diffused_graph
from magna.baselines.nodes import diff_gcn
from magna.data.node_data import undirected
from magna.errors import ArgumentError
from magna.graph import Graph

# A connected graph without symmetries, so that no two entries of a column tie.
N = 30
ENDS = integers(N, 2, 3 * N, seed=3)
EDGES = undirected(ENDS[0], ENDS[1], N)
GRAPH, X = Graph.from_edge_index(EDGES, N), uniform(N, 5, seed=1).float()


def gdc(alpha: float, top_k: int) -> Data:
    return transformed({"method": "ppr", "alpha": alpha}, {"method": "topk", "k": top_k, "dim": 0})


def transformed(diffusion: dict[str, Any], sparsification: dict[str, Any]) -> Data:
    transform = GDC(
        self_loop_weight=1,
        normalization_in="sym",
        normalization_out="col",
        diffusion_kwargs=diffusion,
        sparsification_kwargs=sparsification,
        exact=True,
    )
    return transform(Data(edge_index=EDGES, num_nodes=N))


def dense(edge_index: Tensor, weight: Tensor) -> Tensor:
    return torch.zeros(N, N).index_put((edge_index[1], edge_index[0]), weight)


@pytest.mark.parametrize(("alpha", "top_k"), [(0.05, 8), (0.15, 8), (0.5, 3), (0.15, 100), (1.0, 1)])
def test_the_graph_is_that_of_gdc(alpha: float, top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diff_gcn, "BLOCK", 7)
    graph, weight = diffused_graph(Graph.from_edge_index(EDGES, N), alpha, top_k)  # a new graph is computed anew
    theirs = gdc(alpha, top_k)
    expected = dense(theirs.edge_index, theirs.edge_attr)
    torch.testing.assert_close(dense(graph.edge_index, weight[:, 0]), expected, atol=1e-5, rtol=1e-4)
    assert graph.in_order, "edges in target order need no permutation"


@pytest.mark.parametrize("t", [0.01, 1.0, 5.0, 30.0])
def test_the_heat_kernel_is_that_of_gdc(t: float) -> None:
    graph, weight = diffused_graph(Graph.from_edge_index(EDGES, N), t=t, top_k=8)
    theirs = transformed({"method": "heat", "t": t}, {"method": "topk", "k": 8, "dim": 0})
    expected = dense(theirs.edge_index, theirs.edge_attr)
    torch.testing.assert_close(dense(graph.edge_index, weight[:, 0]), expected, atol=2e-5, rtol=1e-4)


def test_a_threshold_is_that_of_gdc() -> None:
    graph, weight = diffused_graph(GRAPH, t=3.0, top_k=N, threshold=0.03)
    theirs = transformed({"method": "heat", "t": 3.0}, {"method": "threshold", "eps": 0.03})
    assert 0 < graph.num_edges < N * N
    expected = dense(theirs.edge_index, theirs.edge_attr)
    torch.testing.assert_close(dense(graph.edge_index, weight[:, 0]), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kernel", [{}, {"alpha": 0.1, "t": 5.0}])
def test_a_graph_has_one_kernel(kernel: Any) -> None:
    with pytest.raises(
        ArgumentError, match=r"^alpha is .*; allowed: a number with t None, or None with a number as t$"
    ):
        diffused_graph(GRAPH, **kernel)


def test_a_kernel_has_its_settings_alone() -> None:
    with pytest.raises(ArgumentError, match=r"^t is 3.0; allowed: only with kernel 'heat'$"):
        DiffGCN(5, 8, 2, 3, t=3.0)
    with pytest.raises(ArgumentError, match=r"^alpha is 0.2; allowed: only with kernel 'ppr'$"):
        DiffGCN(5, 8, 2, 3, kernel="heat", alpha=0.2)


def test_loops_and_the_direction_of_edges_do_not_matter() -> None:
    graph, weight = diffused_graph(GRAPH, 0.1, 8)
    looped = torch.cat([EDGES[:, EDGES[0] < EDGES[1]], torch.arange(N).expand(2, -1)], dim=1)
    again, same_weight = diffused_graph(Graph.from_edge_index(looped, N), 0.1, 8)
    assert torch.equal(again.edge_index, graph.edge_index)
    torch.testing.assert_close(same_weight, weight)


def test_a_node_alone_keeps_itself() -> None:
    graph, weight = diffused_graph(Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 3), 0.1, 3)
    assert graph.edge_index.tolist() == [[0, 1, 0, 1, 2], [0, 0, 1, 1, 2]]
    torch.testing.assert_close(weight[-1], torch.ones(1))


def test_the_graph_is_computed_once() -> None:
    first = diffused_graph(GRAPH, 0.1, 8)
    assert diffused_graph(GRAPH, 0.1, 8)[0] is first[0]
    assert diffused_graph(GRAPH, 0.1, 9)[0] is not first[0]
    assert diffused_graph(GRAPH, 0.2, 8)[0] is not first[0]


def test_a_graph_first_met_in_inference_mode_can_be_trained_on() -> None:
    model, edge_index = DiffGCN(5, 8, 2, 3, top_k=8), EDGES.clone()
    with torch.inference_mode():
        model(X, edge_index)
    model(X, edge_index).sum().backward()
    all_learn(model)


@pytest.mark.parametrize("heat", [False, True])
def test_the_model_is_gcn_on_that_graph(heat: bool) -> None:
    model = DiffGCN(5, 8, 2, 3, top_k=8, **{"kernel": "heat", "t": 3.0} if heat else {"alpha": 0.1})
    for bias in model.biases:
        nn.init.normal_(bias)
    kernel: dict[str, Any] = {"method": "heat", "t": 3.0} if heat else {"method": "ppr", "alpha": 0.1}
    h, theirs = X, transformed(kernel, {"method": "topk", "k": 8, "dim": 0})
    for number, (layer, bias) in enumerate(zip(model.layers, model.biases, strict=True)):
        assert isinstance(layer, nn.Linear)
        conv = GCNConv(layer.in_features, layer.out_features, normalize=False)
        with torch.no_grad():
            conv.lin.weight.copy_(layer.weight)
            conv.bias.copy_(bias)
        h = conv(h.relu() if number else h, theirs.edge_index, theirs.edge_attr)
    torch.testing.assert_close(model(X, EDGES), h, atol=1e-5, rtol=1e-4)

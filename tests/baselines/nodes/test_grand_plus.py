"""GRAND+ mixes features by the dense propagation matrix of its paper, drops entries and renormalises."""

from __future__ import annotations

import pytest
import torch
from tests.support.graphs import integers, uniform
from torch import Tensor

from magna.baselines.nodes import grand_plus
from magna.baselines.nodes.grand_plus import GRANDPlus, Propagation, propagation_matrix
from magna.data.node_data import undirected
from magna.graph import Graph

N = 17
# Node 16 has its loop alone.
ENDS = integers(N - 1, 2, 30, seed=3)
EDGES = torch.cat([undirected(ENDS[0], ENDS[1], N), torch.arange(N).expand(2, -1)], dim=1)
X = uniform(N, 5, seed=1)


def dense_matrix(propagation: Propagation, K: int, alpha: float) -> Tensor:
    adjacency = torch.zeros(N, N, dtype=torch.float64).index_put((EDGES[1], EDGES[0]), torch.ones((), dtype=X.dtype))
    step = adjacency / adjacency.sum(1, keepdim=True)
    powers = torch.stack([torch.linalg.matrix_power(step, k) for k in range(K + 1)])
    order = torch.arange(K + 1, dtype=X.dtype)
    shares = {
        "ppr": alpha * (1 - alpha) ** order,
        "avg": torch.ones_like(order) / (K + 1),
        "single": (order == K).to(X),
    }
    return (shares[propagation][:, None, None] * powers).sum(0)


@pytest.mark.parametrize("K", [0, 1, 5])
@pytest.mark.parametrize("propagation", ["ppr", "avg", "single"])
def test_the_matrix_has_the_largest_entries_of_each_row(
    propagation: Propagation, K: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grand_plus, "ROWS", 5)
    graph, entry = propagation_matrix(Graph.from_edge_index(EDGES, N), propagation, K, 0.2, 4)
    whole, size = dense_matrix(propagation, K, 0.2), graph.rowptr.diff()
    torch.testing.assert_close(entry[:, 0].double(), whole[graph.target, graph.source], atol=1e-6, rtol=1e-5)
    assert torch.equal(size.long(), (whole > 0).sum(1).clamp(max=4))
    for node in range(N):
        least = entry[graph.target == node].min()
        assert int((whole[node] > least + 1e-6).sum()) < 4, "no entry that was left out is larger"


@pytest.mark.parametrize("row_norm", [False, True])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_it_predicts_from_the_mixed_features(num_layers: int, row_norm: bool) -> None:
    sizes = {"hidden_channels": 8, "num_layers": num_layers, "K": 3, "top_k": N}
    model = GRANDPlus(5, 3, **sizes, row_norm=row_norm, norm="batch", entry_dropout=0.5).double().eval()
    matrix = dense_matrix("ppr", 3, 0.2)
    h = matrix / matrix.sum(1, keepdim=True) @ X
    for number, layer in enumerate(model.mlp.layers):
        h = h.relu() if number else h
        h = h / h.norm(dim=1, keepdim=True).clamp(min=1e-12) if row_norm else h
        h = (h - h.mean(0)) / (h.var(0, correction=0) + 1e-5).sqrt()
        h = layer(h) + model.mlp.biases[number]
    torch.testing.assert_close(model(X, EDGES), h, atol=1e-6, rtol=1e-5)


def test_entries_are_dropped_one_by_one_and_renormalised() -> None:
    model = GRANDPlus(N, 3, num_layers=1, K=3, top_k=N, entry_dropout=0.4, norm="layer").double()
    seen: list[Tensor] = []
    model.mlp.norms[0].register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].detach()))
    for _ in range(300):
        model(torch.eye(N, dtype=torch.float64), EDGES)
    rows, matrix = torch.stack(seen), dense_matrix("ppr", 3, 0.2)
    left = rows > 0
    expected = matrix * left
    expected = expected / expected.sum(-1, keepdim=True).clamp(min=1e-12)
    torch.testing.assert_close(rows, expected, atol=1e-6, rtol=1e-5)
    assert abs(float(left[:, matrix > 0].double().mean()) - 0.6) < 0.02
    alone = left[:, N - 1, N - 1].double().mean()
    assert abs(float(alone) - 0.6) < 0.1, "the entry of the node itself is dropped, too"

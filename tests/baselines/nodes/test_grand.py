"""GRAND is the mean of the powers of the normalised adjacency, then an MLP."""

from __future__ import annotations

import pytest
import torch
from tests.support.graphs import uniform
from torch import Tensor, nn

from magna.baselines.nodes.grand import GRAND
from magna.typing import Norm

N = 9
# Node 8 has no edge; the others have loops and both directions of each edge.
PAIRS = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 0], [1, 2, 3, 4, 5, 6, 7, 5]])
LOOPS = torch.arange(N - 1).expand(2, -1)
EDGES = torch.cat([PAIRS, PAIRS.flip(0), LOOPS], dim=1)
X = uniform(N, 5, seed=1)


def mixed(x: Tensor, orders: int) -> Tensor:
    """The mean of the first powers of the dense normalised adjacency, times x."""
    adjacency = torch.zeros(N, N, dtype=x.dtype).index_put((EDGES[1], EDGES[0]), x.new_ones(()))
    scale = adjacency.sum(1).clamp(min=1).rsqrt()
    adjacency = scale[:, None] * adjacency * scale
    return torch.stack([torch.linalg.matrix_power(adjacency, k) @ x for k in range(orders)]).mean(0)


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("K", [0, 1, 4])
def test_it_predicts_from_the_mean_of_the_powers(K: int, norm: Norm) -> None:
    model = GRAND(5, 3, hidden_channels=8, K=K, norm=norm, node_dropout=0.5).double().eval()
    for bias in model.mlp.biases:
        nn.init.normal_(bias)
    h = mixed(X, K + 1)
    for number, layer in enumerate(model.mlp.layers):
        h = h.relu() if number else h
        if norm == "batch":
            h = (h - h.mean(0)) / (h.var(0, correction=0) + 1e-5).sqrt()
        h = layer(h) + model.mlp.biases[number]
    torch.testing.assert_close(model(X, EDGES), h)


def test_a_dropped_node_loses_all_features() -> None:
    model = GRAND(5, 3, hidden_channels=8, K=2, node_dropout=0.5, embed_dropout=0.1).double()
    seen: list[Tensor] = []
    model.mlp.norms[0].register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    for _ in range(300):
        model(X, EDGES)
    # The powers are invertible: the drawn features can be read from the propagated ones.
    drawn = torch.stack([torch.linalg.solve(mixed(torch.eye(N, dtype=X.dtype), 3), h) for h in seen])
    factor = (drawn / X).round(decimals=6)
    assert set(factor.unique().tolist()) == {0.0, 2.0}
    assert (factor == factor[:, :, :1]).all(), "all features of a node go together"
    assert 0.45 < float(factor.mean() / 2) < 0.55

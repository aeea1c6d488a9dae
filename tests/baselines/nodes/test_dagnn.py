"""DAGNN is the sum of its paper."""

from __future__ import annotations

import pytest
import torch
from tests.baselines.nodes.test_gcn import random_biases
from tests.support.graphs import uniform, with_isolated_node

from magna.baselines.nodes.dagnn import DAGNN


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("K", [1, 5])
def test_it_is_the_gated_sum_over_the_hops(K: int, norm: str) -> None:
    x, edges = uniform(13, 5, seed=1), with_isolated_node(13, 30, loops=True)
    model = DAGNN(5, 3, hidden_channels=7, K=K, norm=norm).double()
    random_biases(model)
    adjacency = torch.zeros(13, 13, dtype=torch.float64).index_put((edges[1], edges[0]), torch.ones(1).double())
    scale = adjacency.sum(1).rsqrt()
    hop = scale[:, None] * adjacency * scale
    first, last = model.layers
    hidden = first(x)
    if norm == "batch":
        shift = model.norms[0].bias
        hidden = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt() + shift
    state = last(hidden.relu())
    expected = torch.zeros(13, 3, dtype=torch.float64)
    for _ in range(K + 1):
        gate = torch.sigmoid(state @ model.gate.weight.t() + model.gate.bias)  # [N, 1]
        expected, state = expected + gate * state, hop @ state
    torch.testing.assert_close(model(x, edges), expected)

"""GaAN is the paper's definition, node by node."""

from __future__ import annotations

import pytest
import torch
from tests.support.graphs import random_graph, uniform
from torch import Tensor, nn

from magna.baselines.nodes.gaan import GaAN, GatedAttention
from magna.graph import Graph

N, HEADS = 13, 3
# Node 12 has no edge; loops and duplicates are among the others.
GRAPH = Graph.from_edge_index(random_graph(N - 1, 40, fed=True).edge_index, N)
X = uniform(N, 5, seed=1)


def model(num_layers: int = 2) -> GaAN:
    torch.manual_seed(0)
    sizes = {"hidden_channels": 7, "heads": HEADS, "key_channels": 4, "value_channels": 5, "pool_channels": 6}
    made = GaAN(5, 3, num_layers=num_layers, **sizes).double().eval()
    for name, parameter in made.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return made


def gate_of(layer: GatedAttention, x: Tensor, node: int, near: Tensor) -> Tensor:
    """The gates of a node, from one product with the concatenation."""
    largest = layer.pool(x[near]).amax(0) if len(near) else x.new_zeros(layer.pool.out_features)
    mean = x[near].mean(0) if len(near) else torch.zeros_like(x[0])
    weight = torch.cat([layer.gate.weight, layer.gate_max.weight, layer.gate_mean.weight], dim=1)
    return torch.sigmoid(weight @ torch.cat([x[node], largest, mean]) + layer.gate.bias)


def by_definition(layer: GatedAttention, x: Tensor) -> Tensor:
    rows = []
    for node in range(N):
        near, parts = GRAPH.source[GRAPH.target == node], [x[node]]
        gate = gate_of(layer, x, node, near)
        for head in range(HEADS):
            query, key, value = (
                part(x).unflatten(1, (HEADS, -1))[:, head] for part in (layer.query, layer.key, layer.value)
            )
            attention = (key[near] @ query[node]).softmax(0)
            parts.append(gate[head] * (attention @ nn.functional.leaky_relu(value[near], 0.1)))
        weight = torch.cat([layer.out.weight, layer.out_heads.weight], dim=1)
        rows.append(weight @ torch.cat(parts) + layer.out.bias)
    return torch.stack(rows)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_it_is_the_definition(num_layers: int) -> None:
    ours = model(num_layers)
    h = X
    for number, layer in enumerate(ours.layers):
        assert isinstance(layer, GatedAttention)
        h = by_definition(layer, nn.functional.leaky_relu(h, 0.1) if number else h)
    torch.testing.assert_close(ours(X, GRAPH), h)


def test_a_closed_gate_shuts_its_head() -> None:
    ours = model(num_layers=1)
    layer = ours.layers[0]
    assert isinstance(layer, GatedAttention)
    with torch.no_grad():
        layer.gate.bias.fill_(-1e3)
    torch.testing.assert_close(ours(X, GRAPH), layer.out(X))

"""Graphs and numbers that tests draw."""

from __future__ import annotations

import torch
from torch import Tensor

from magna.data.node_data import undirected
from magna.graph import Graph


def uniform(*shape: int, seed: int, low: float = -1.0, high: float = 1.0) -> Tensor:
    numbers = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return low + (high - low) * numbers


def integers(high: int, *shape: int, seed: int) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def random_graph(num_nodes: int, num_edges: int, seed: int = 0, *, fed: bool = False) -> Graph:
    """Random edges, self-loops and duplicates among them; `fed`: every node has an in-edge."""
    edges = integers(num_nodes, 2, num_edges, seed=seed)
    if fed:
        node = torch.arange(num_nodes)
        edges = torch.cat([edges, torch.stack([(node + 1) % num_nodes, node])], dim=1)
        edges = edges[:, torch.randperm(edges.size(1), generator=torch.Generator().manual_seed(seed))]
    return Graph.from_edge_index(edges, num_nodes)


def with_isolated_node(num_nodes: int, num_pairs: int, seed: int = 0, *, loops: bool = False) -> Tensor:
    """Both directions of random edges [2, E], none at the last node; `loops`: then one loop for each node."""
    ends, node = integers(num_nodes - 1, 2, num_pairs, seed=seed), torch.arange(num_nodes)
    edges = undirected(ends[0], ends[1], num_nodes)
    return torch.cat([edges, node.expand(2, -1)], dim=1) if loops else edges


def star(edges: int, leaves: int) -> Graph:
    """A hub with `edges` edges in each direction, spread evenly over the leaves."""
    leaf = torch.arange(edges) % leaves + 1
    hub = torch.zeros_like(leaf)
    return Graph.from_edge_index(torch.cat([torch.stack([leaf, hub]), torch.stack([hub, leaf])], dim=1), leaves + 1)


def ring_triples(size: int) -> list[tuple[str, str, str]]:
    """A knowledge graph that is learnt in a few steps: the next and the third neighbour on a ring."""
    steps = {"next": 1, "third": 3}
    return [(f"{i:02}", name, f"{(i + step) % size:02}") for name, step in steps.items() for i in range(size)]


def odd_graphs(hub: int) -> dict[str, Graph]:
    """Graphs of shapes that break kernels."""

    def graph(pairs: list[tuple[int, int]], num_nodes: int) -> Graph:
        return Graph.from_edge_index(torch.tensor(pairs, dtype=torch.int64).view(-1, 2).t(), num_nodes)

    return {
        "no nodes": graph([], 0),
        "one node": graph([], 1),
        "one loop": graph([(0, 0)], 1),
        "no edges": graph([], 5),
        "isolated nodes": graph([(1, 3), (3, 1), (5, 3)], 8),
        "loops": graph([(0, 0), (1, 1), (2, 2), (0, 1), (2, 1)], 3),
        "duplicates": graph([(0, 1), (0, 1), (0, 1), (2, 1), (1, 0), (1, 0), (1, 1), (1, 1)], 3),
        "sorted by target": graph([(2, 0), (1, 0), (0, 1), (2, 1), (2, 2)], 3),
        "one piece exactly": graph([(i % 3, 1) for i in range(64)], 3),
        "hub": star(hub, leaves=-(-hub // 40)),
    }

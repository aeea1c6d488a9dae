"""Graphs of the measurements: five benchmarks from the data folder, or synthetic graphs of the same size.

Every graph has both directions of each edge and one self-loop per node, sorted by target. Knowledge graphs hold the
triples of the training split and the entities that occur in it; parallel edges of different relations stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from magna.data import DATASETS, load_arxiv, load_node_data, load_triples
from magna.errors import ArgumentError
from magna.graph import Graph


@dataclass(frozen=True)
class Shape:
    """Size of a graph, and the features and hops of its measurement."""

    num_nodes: int
    num_edges: int
    max_degree: int  # the largest in-degree, the self-loop counted
    heads: int
    width: int
    K: int


SHAPES = {
    "cora": Shape(2_708, 13_264, 169, heads=8, width=64, K=6),
    "pubmed": Shape(19_717, 108_365, 172, heads=8, width=64, K=6),
    "wn18rr": Shape(40_559, 214_229, 483, heads=8, width=64, K=4),
    "fb15k-237": Shape(14_505, 558_735, 7_615, heads=8, width=64, K=2),
    "ogbn-arxiv": Shape(169_343, 2_484_941, 13_162, heads=8, width=16, K=4),
}


def shape_of(name: str) -> Shape:
    if name not in SHAPES:
        raise ArgumentError("graph", name, list(SHAPES))
    return SHAPES[name]


def load_graph(name: str, data_dir: str | Path | None = None) -> tuple[Tensor, bool]:
    """The edge index of a graph, and True if it is synthetic because the data folder lacks the graph.

    >>> edge_index, synthetic = load_graph("cora", data_dir="no/such/folder")
    >>> edge_index.shape, synthetic
    (torch.Size([2, 13264]), True)
    """
    shape = shape_of(name)
    if not DATASETS[name].is_present(data_dir):
        return synthetic_edges(shape), True
    if name in ("wn18rr", "fb15k-237"):
        entities, ends = torch.unique(load_triples(name, data_dir).train[:, [0, 2]].t(), return_inverse=True)
        return with_loops(ends, entities.numel()), False
    data = load_arxiv(data_dir) if name == "ogbn-arxiv" else load_node_data(name, data_dir)
    return data.with_self_loops().edge_index, False


def synthetic_edges(shape: Shape, seed: int = 0) -> Tensor:
    """A random graph with exactly these numbers of nodes and edges and this largest in-degree.

    Degrees fall as a power of the rank; nodes are then joined at random according to their degrees.
    """
    generator = torch.Generator().manual_seed(seed)
    degrees = _power_law_degrees(shape.num_nodes, shape.num_edges - shape.num_nodes, shape.max_degree - 1)
    stubs = torch.randperm(shape.num_nodes, generator=generator).repeat_interleave(degrees)
    ends = stubs[torch.randperm(stubs.numel(), generator=generator)].view(2, -1)
    return with_loops(ends, shape.num_nodes)


def _power_law_degrees(num_nodes: int, total: int, largest: int) -> Tensor:
    rank = torch.arange(1, num_nodes + 1, dtype=torch.float64)

    def degrees(exponent: float) -> Tensor:
        return (largest * rank**-exponent).round().long().clamp_(min=1)

    steep, flat = 8.0, 0.0
    for _ in range(60):
        middle = (steep + flat) / 2
        if int(degrees(middle).sum()) > total:
            flat = middle
        else:
            steep = middle
    result = degrees(steep)
    # Rounding leaves a few edges, which go to the nodes after the largest, one each.
    rest = total - int(result.sum())
    assert 0 <= rest < num_nodes, "no power law fits this shape"
    result[1 : rest + 1] += 1
    return result


def skewed_graph(num_edges: int, device: torch.device, seed: int = 0) -> Graph:
    """A random graph with 16 edges per node on average and hubs at every size, made on the device itself."""
    num_nodes = max(1, num_edges // 16)
    generator = torch.Generator(device).manual_seed(seed)
    # The square of a uniform number: node i has in- and out-degree in proportion to 1 / sqrt(i).
    ends = torch.rand(2, num_edges, generator=generator, device=device, dtype=torch.float64)
    source, target = (ends.square_() * num_nodes).long().clamp_(max=num_nodes - 1)
    target, order = torch.sort(target)
    return Graph.from_edge_index(torch.stack([source[order], target]), num_nodes)


def with_loops(edges: Tensor, num_nodes: int) -> Tensor:
    """Both directions of each edge and one self-loop per node, sorted by target."""
    loops = torch.arange(num_nodes).expand(2, -1)
    both = torch.cat([edges, edges.flip(0), loops], dim=1)
    return both[:, torch.argsort(both[1] * num_nodes + both[0])]

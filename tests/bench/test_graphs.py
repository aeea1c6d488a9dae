"""Graphs of the benchmarks: their sizes, real and synthetic."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.data import needs
from torch import Tensor

from magna.bench.graphs import SHAPES, Shape, load, skewed_graph


def check(edge_index: Tensor, shape: Shape) -> None:
    """Check the size, and that the graph is undirected with self-loops, by target."""
    source, target = edge_index
    in_degree = target.bincount(minlength=shape.num_nodes)
    assert (len(target), len(in_degree), int(in_degree.max())) == (shape.num_edges, shape.num_nodes, shape.max_degree)
    assert torch.equal(source.bincount(), target.bincount())
    assert torch.unique(source[source == target]).numel() == shape.num_nodes
    assert bool((target[1:] >= target[:-1]).all())


@pytest.mark.parametrize("name", SHAPES)
def test_synthetic_graph_has_the_size_of_the_real_one(name: str, tmp_path: Path) -> None:
    edge_index, synthetic = load(name, tmp_path)
    assert synthetic
    check(edge_index, SHAPES[name])
    assert torch.equal(edge_index, load(name, tmp_path)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_real_graph_has_the_published_size(name: str) -> None:
    needs(name)
    edge_index, synthetic = load(name)
    assert not synthetic
    check(edge_index, SHAPES[name])


def test_skewed_graph_has_hubs() -> None:
    graph = skewed_graph(16_000, torch.device("cpu"))
    assert (graph.num_nodes, graph.num_edges) == (1_000, 16_000)
    assert int(graph.rowptr.diff().max()) > 100

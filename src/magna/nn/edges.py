"""`Edges`: the edges of a call with what comes with each, and the self-loops that a layer adds."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from magna.graph import Graph, durable

_LOOPED: WeakKeyDictionary[Graph, Graph] = WeakKeyDictionary()


def add_self_loops(graph: Graph) -> Graph:
    """The graph with one loop for each node that has none, after the caller's edges; built once per graph.

    Where edges are typed the loops are an extra relation, the last one. Under torch.compile every node gets a loop, and
    the layer masks those that are too many.

    >>> add_self_loops(Graph.from_edge_index(torch.tensor([[0, 1], [1, 1]]), num_nodes=2)).edge_index.tolist()
    [[0, 1, 0], [1, 1, 0]]
    """
    compiling = torch.compiler.is_compiling()
    if not compiling and graph in _LOOPED:
        return _LOOPED[graph]
    with durable():
        every = torch.arange(graph.num_nodes, device=graph.device)
        added = every if compiling else every[~graph.has_self_loop()]
        edge_index, types = torch.cat([graph.edge_index, added.expand(2, -1)], dim=1), graph.edge_type
        if types is not None:
            types = torch.cat([types, torch.full_like(added, graph.num_relations)])
        relations = None if types is None else graph.num_relations + 1
        looped = Graph.from_edge_index(edge_index, graph.num_nodes, types, relations, validate=False)
    if not compiling:
        _LOOPED[graph] = looped
    return looped


class Edges(NamedTuple):
    """The checked edges of a call, those that the layer adds included, and what comes with each."""

    graph: Graph
    mask: Tensor | None
    weight: Tensor | None
    attr: Tensor | None


def edges_with_loops(edges: Edges) -> Edges:
    """The edges and the loops of :func:`add_self_loops`, which have weight 1 and attributes 0."""
    graph, mask, weight, attr = edges
    looped = add_self_loops(graph)
    added = looped.source[graph.num_edges :]
    compiling = torch.compiler.is_compiling()
    if mask is None and compiling:
        mask = torch.ones_like(graph.source, dtype=torch.bool)
    if mask is not None:
        stays = ~graph.has_self_loop() if compiling else torch.ones_like(added, dtype=torch.bool)
        mask = torch.cat([mask, stays.view(-1, *[1] * (mask.dim() - 1)).expand(-1, *mask.shape[1:])])
    if weight is not None:
        weight = torch.cat([weight, weight.new_ones(added.shape)])
    if attr is not None:
        attr = torch.cat([attr, attr.new_zeros(len(added), *attr.shape[1:])])
    return Edges(looped, mask, weight, attr)

"""A `Graph` as the tensors and ints that the schema of an op can hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from magna.graph import Graph, Segments
from magna.graph.torch_internals import keeps_graph


class Packed(list[Tensor]):
    """The tensors of a graph; an op that is called directly takes the graph itself from it."""

    graph: Graph


def pack(graph: Graph) -> tuple[list[Tensor], list[int]]:
    """A graph as the tensors and ints that an op's schema can hold."""
    tensors = [graph.edge_index, *graph.by_target[:4], *graph.by_source[:4]]
    tensors += [graph.col, graph.source_col, graph.source_rank]
    sizes = [graph.num_nodes, int(graph.in_order), graph.by_target.num_slots, graph.by_source.num_slots]
    if graph.edge_type is not None and graph.by_relation is not None:
        tensors += [graph.edge_type, *graph.by_relation[:4]]
        sizes += [graph.num_relations, graph.by_relation.num_slots]
    if torch.compiler.is_compiling():
        return tensors, sizes
    packed = Packed(tensors)
    packed.graph = graph
    return packed, sizes


def save_inputs(ctx: Any, graph: Sequence[Tensor], *tensors: Tensor | None) -> None:
    """Keep tensors and a graph for the backward pass; a `Packed` graph as it is."""
    ctx.graph = graph if isinstance(graph, Packed) else None
    ctx.save_for_backward(*tensors, *(graph if ctx.graph is None else ()))


def saved_inputs(ctx: Any, count: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The `count` tensors and the graph of `save_inputs`."""
    tensors, graph = ctx.saved_tensors, ctx.graph
    if graph is None:
        return tensors[:count], list(tensors[count:])
    if not keeps_graph():
        ctx.graph = None  # freed with the tensors, which a second backward pass finds gone
    return tensors, graph


def unpack(tensors: Sequence[Tensor], sizes: Sequence[int]) -> Graph:
    if isinstance(tensors, Packed):
        return tensors.graph
    typed = len(sizes) > 4
    return Graph(
        num_nodes=sizes[0],
        edge_index=tensors[0],
        by_target=_segments(tensors[1:5], sizes[2]),
        by_source=_segments(tensors[5:9], sizes[3]),
        col=tensors[9],
        source_col=tensors[10],
        source_rank=tensors[11],
        in_order=bool(sizes[1]),
        edge_type=tensors[12] if typed else None,
        num_relations=sizes[4] if typed else 0,
        by_relation=_segments(tensors[13:17], sizes[5]) if typed else None,
    )


def _segments(tensors: Sequence[Tensor], num_slots: int) -> Segments:
    ptr, order, pieces, hubs = tensors
    return Segments(ptr, order, pieces, hubs, num_slots)

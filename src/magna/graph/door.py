"""The door for PyG's words: an edge index becomes a `Graph`, built once for each tensor."""

from __future__ import annotations

import weakref
from functools import partial

import torch
from torch import Tensor

from magna.errors import ArgumentError
from magna.graph.csr import Graph, bare
from magna.graph.torch_internals import durable, unwatched, version

Digest = tuple[bytes, ...]

_BUILT: dict[tuple[object, ...], tuple[weakref.ref[Tensor | Graph], weakref.ref[Tensor | Graph], Digest, Graph]] = {}
_BUILT_MAX = 8
_MATRICES = torch.sparse_coo, torch.sparse_csr, torch.sparse_csc
_BLOCK = 512  # entries


def as_graph(edges: Tensor | Graph, num_nodes: int, edge_type: Tensor | None, num_relations: int | None) -> Graph:
    """The graph of an edge index, or a `Graph` with types; built once until the tensors change.

    A change in place is noticed by torch's counter, and on the CPU also one behind it, in the buffer of a numpy array.
    """
    edges, edge_type = bare(edges, "edge_index"), bare(edge_type, "edge_type")
    if isinstance(edges, Graph):
        if edges.num_nodes != num_nodes:
            raise ArgumentError("the number of rows of x", num_nodes, f"{edges.num_nodes}, the nodes of the graph")
        if edge_type is None or edge_type is edges.edge_type:
            return edges
    owners = (edges,) if edge_type is None else (edges, edge_type)
    tensors = [owner for owner in owners if not isinstance(owner, Graph)]
    # Tensors born in inference mode have no version to tell them apart by.
    if torch.compiler.is_compiling() or any(not isinstance(part, Tensor) or part.is_inference() for part in tensors):
        return _build(edges, num_nodes, edge_type, num_relations)
    key = (id(edges), id(edge_type), num_nodes, num_relations, *map(version, tensors))
    digest = tuple(part for tensor in tensors for part in _digest(tensor))
    entry = _BUILT.get(key)
    if entry is not None and entry[0]() is edges and entry[1]() is owners[-1] and digest in ((), entry[2]):
        return entry[3]
    # The graph holds views: with the caller's tensors themselves in it, they would never be freed.
    with durable():
        kinds = None if edge_type is None else edge_type.detach()
        graph = _build(edges if isinstance(edges, Graph) else edges.detach(), num_nodes, kinds, num_relations)
    # Another thread may take entries away meanwhile.
    for oldest in list(_BUILT)[: 1 - _BUILT_MAX]:
        _BUILT.pop(oldest, None)
    # No line of Python, as in `ops.cpu.memory_pool`: an interrupt that is raised while a tensor is freed is lost.
    forget = partial(_BUILT.pop, key)  # called with the reference, which is the default if the entry is gone
    _BUILT[key] = weakref.ref(edges, forget), weakref.ref(owners[-1], forget), digest, graph
    return graph


def _build(edges: Tensor | Graph, num_nodes: int, edge_type: Tensor | None, num_relations: int | None) -> Graph:
    if isinstance(edges, Graph):
        assert edge_type is not None
        return edges.with_types(edge_type, num_relations)
    if isinstance(edges, Tensor) and edges.layout in _MATRICES:
        edges = _places(edges, num_nodes)
    return Graph.from_edge_index(edges, num_nodes, edge_type, num_relations)


def _places(adj_t: Tensor, num_nodes: int) -> Tensor:
    """The edges of a sparse matrix whose rows are the targets, row by row; its values are not read."""
    if adj_t.shape != (num_nodes, num_nodes):
        raise ArgumentError("adj_t", adj_t, f"[{num_nodes}, {num_nodes}], a row and a column per node")
    matrix: Tensor = adj_t.to_sparse(layout=torch.sparse_coo)
    return matrix.coalesce().indices().flip(0)


def _digest(index: Tensor) -> Digest:
    """Sums over the memory of an index on the CPU, which differ after any change of one entry or swap of two.

    The memory is cut into blocks: one sum for each block, and one for each place within a block. It takes 8 µs for
    Cora's edges and 45 µs for Pubmed's. Empty where memory cannot be read: on a GPU, under a transform.
    """
    readable = index.device.type == "cpu" and index.dtype in (torch.int64, torch.int32)
    if not readable or index.layout != torch.strided or not unwatched():
        return ()
    flat = index.detach().numpy().reshape(-1)
    whole = len(flat) // _BLOCK * _BLOCK
    blocks = flat[:whole].reshape(-1, _BLOCK)
    return blocks.sum(0).tobytes(), blocks.sum(1).tobytes(), flat[whole:].tobytes()

"""`Graph`: edges sorted by target and by source, built once and checked once.

Every operator takes a `Graph`. All per-edge tensors stay in the caller's edge order; the two sorted views
carry the permutations, so no caller of `ops` sees sorted order.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from magna.errors import ArgumentError
from magna.graph.segments import Segments, segments_of
from magna.graph.torch_internals import durable, is_batched, levels

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Graph:
    r"""A directed graph as target-sorted CSR and its transpose.

    Row 0 of `edge_index` is the source, row 1 the target. No self-loops are added and duplicate edges stay
    separate edges. Build it with :meth:`from_edge_index`; it keeps the tensors it is built from, so change only copies
    of them.

    >>> graph = Graph.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 0]]), num_nodes=3)
    >>> graph.num_nodes, graph.num_edges, graph.col.tolist()
    (3, 3, [2, 0, 1])
    """

    num_nodes: int  #: Number of nodes.
    edge_index: Tensor  #: [2, E] int64, the caller's order.
    by_target: Segments
    by_source: Segments
    col: Tensor  #: [E] int32, source of each edge in target order.
    source_col: Tensor  # [E] int32, target of each edge in source order
    source_rank: Tensor  # [E] int32, position of the caller's edge in source order
    in_order: bool  # the caller's edges are sorted by target already
    edge_type: Tensor | None = None  #: [E] int64, the caller's order.
    num_relations: int = 0  #: Number of relations; 0 without types.
    by_relation: Segments | None = None

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return self.edge_index.size(1)

    @property
    def rowptr(self) -> Tensor:
        """[N + 1] int32, the first edge of each target in :attr:`col`."""
        return self.by_target.ptr

    @property
    def device(self) -> torch.device:
        """Device of all tensors."""
        return self.edge_index.device

    @property
    def source(self) -> Tensor:
        """[E] int64, source of each edge in the caller's order."""
        return self.edge_index[0]

    @property
    def target(self) -> Tensor:
        """[E] int64, target of each edge in the caller's order."""
        return self.edge_index[1]

    @staticmethod
    def from_edge_index(
        edge_index: Tensor,
        num_nodes: int | None = None,
        edge_type: Tensor | None = None,
        num_relations: int | None = None,
        *,
        validate: bool = True,
    ) -> Graph:
        """Sort the edges by both ends and check them.

        Args:
            edge_index: int64 [2, E], row 0 the source, row 1 the target; a PyG `EdgeIndex` works as it is.
            num_nodes: number of nodes; the largest index + 1 where it is not given.
            edge_type: int64 [E], the relation of each edge.
            num_relations: number of relations; the largest type + 1 where it is not given.
            validate: check that every index is in range (waits for the GPU once).
        """
        edge_index = _plain(edge_index, "edge_index")
        if edge_index.dim() != 2 or edge_index.size(0) != 2:
            raise ArgumentError("edge_index", edge_index, "torch.int64 [2, num_edges]")
        num_nodes, num_edges = _count("num_nodes", num_nodes, edge_index), edge_index.size(1)
        for name, count in (("num_nodes", num_nodes), ("num_edges", num_edges)):
            if not 0 <= count <= _INT32_MAX:
                raise ArgumentError(name, count, f"0 to {_INT32_MAX}")
        compiling = torch.compiler.is_compiling()
        if validate and not compiling:
            check_range("edge_index", edge_index, num_nodes, "num_nodes")
        with durable():
            source, target = edge_index[0], edge_index[1]
            in_order = not compiling and bool((target[1:] >= target[:-1]).all())
            by_target = segments_of(target, num_nodes, in_order)
            by_source = segments_of(source, num_nodes, False)
            rank = torch.empty_like(by_source.order)
            rank[by_source.order.long()] = torch.arange(num_edges, dtype=torch.int32, device=rank.device)
            graph = Graph(
                num_nodes=num_nodes,
                edge_index=edge_index,
                by_target=by_target,
                by_source=by_source,
                col=source.index_select(0, by_target.order).int(),
                source_col=target.index_select(0, by_source.order).int(),
                source_rank=rank,
                in_order=in_order,
            )
        if edge_type is None:
            return graph
        return graph.with_types(edge_type, num_relations, validate=validate)

    def with_types(self, edge_type: Tensor, num_relations: int | None = None, *, validate: bool = True) -> Graph:
        """The same graph with a relation on each edge."""
        edge_type = _plain(edge_type, "edge_type")
        if edge_type.shape != (self.num_edges,) or edge_type.device != self.device:
            raise ArgumentError("edge_type", edge_type, f"[{self.num_edges}] on {self.device}, one per edge")
        num_relations = _count("num_relations", num_relations, edge_type)
        if validate and not torch.compiler.is_compiling():
            check_range("edge_type", edge_type, num_relations, "num_relations")
        with durable():
            by_relation = segments_of(edge_type, num_relations, False)
        return replace(self, edge_type=edge_type, num_relations=num_relations, by_relation=by_relation)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Graph:
        """The same graph on another device; one that a PyG `Data` holds goes along with it."""
        tensors = ((name, value) for name, value in vars(self).items() if isinstance(value, Tensor | Segments))
        moved: dict[str, Any] = {name: value.to(device, non_blocking=non_blocking) for name, value in tensors}
        return replace(self, **moved)

    def has_self_loop(self) -> Tensor:
        """Mask of the nodes that have an edge to themselves, bool [N]."""
        # Summed, as the number of loops is not known under a compiler.
        loops = torch.zeros(self.num_nodes, dtype=torch.int64, device=self.device)
        return loops.index_add(0, self.target, (self.source == self.target).long()) > 0

    def __repr__(self) -> str:
        typed = f", num_relations={self.num_relations}" if self.edge_type is not None else ""
        return f"Graph(num_nodes={self.num_nodes}, num_edges={self.num_edges}{typed}, device={str(self.device)!r})"


def _count(name: str, value: SupportsIndex | None, index: Tensor) -> int:
    """A number of nodes or relations; None: the largest index + 1."""
    if value is None:
        return int(index.max()) + 1 if index.numel() else 0
    if torch.compiler.is_compiling():  # the compiler's own number, which stands for many
        return value  # type: ignore[return-value]
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentError(name, value, "an int, 0 and above") from None


def check_range(name: str, index: Tensor, size: int, limit: str = "") -> None:
    """Refuse entries outside of 0 to size - 1 (waits for the GPU); `limit` is the argument that has the size."""
    if index.numel():
        low, high = (int(value) for value in torch.aminmax(index))
        if low < 0 or high >= size:
            allowed = f"0 to {size - 1} ({limit} is {size})" if limit else f"0 to {size - 1}"
            raise ArgumentError(f"an entry of {name}", low if low < 0 else high, allowed)


def bare(index: Any, name: str) -> Any:
    """An index without the wrappers of transforms that look for gradients, which no index has."""
    if torch.compiler.is_compiling() or not isinstance(index, Tensor):
        return index
    *wrappers, index = levels(index)
    if any(map(is_batched, wrappers)):
        hint = "torch_geometric.data.Batch"
        raise ArgumentError(name, "batched by torch.vmap, a graph for each entry", "the same edges in all", hint)
    return index


def _plain(index: Tensor, name: str) -> Tensor:
    if not isinstance(index, Tensor):
        raise ArgumentError(name, index, "a torch.Tensor of int64")
    if index.layout != torch.strided:
        hint = "torch_geometric.utils.to_edge_index(adj_t)[0].flip(0), where rows of adj_t are targets"
        raise ArgumentError(name, f"a {index.layout} matrix", "torch.int64 [2, num_edges]", hint)
    if hasattr(index, "as_tensor"):  # torch_geometric.EdgeIndex
        index = index.as_tensor()
    index = bare(index, name)
    if index.dtype not in (torch.int64, torch.int32):
        raise ArgumentError(name, index, "torch.int64", ".long()")
    with durable():
        index = index.long()
        return index.clone() if not torch.compiler.is_compiling() and index.is_inference() else index

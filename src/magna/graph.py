"""`Graph`: edges sorted by target and by source, built once and checked once.

Every operator takes a `Graph`. All per-edge tensors stay in the caller's edge order; the two sorted views
carry the permutations, so that nobody outside `ops` ever sees sorted order.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple, SupportsIndex

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

# A program of a GPU kernel walks at most so many edges, so that a hub does not run on one program alone. Where pieces
# fill the GPU many times over, longer ones leave less to add up.
_SHORT_PIECE, _LONG_PIECE, _MANY_EDGES = 64, 128, 1 << 20
_INT32_MAX = 2**31 - 1


class Segments(NamedTuple):
    """Edges grouped by one end (target, source or relation), and each group cut into pieces of bounded length."""

    ptr: Tensor  # [S + 1] int32, group s is positions ptr[s] .. ptr[s + 1]
    order: Tensor  # [E] int32, the caller's edge at each position
    pieces: Tensor  # [P, 4] int32: group, begin, end, slot (-1: the group's only piece; group -1: padding)
    hubs: Tensor  # [Q, 3] int32: group, first slot, end slot, for groups of several pieces (group -1: padding)
    num_slots: int  # slots that the pieces of hubs write their partial sums to

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Segments:
        ptr, order, pieces, hubs = (tensor.to(device, non_blocking=non_blocking) for tensor in self[:4])
        return Segments(ptr, order, pieces, hubs, self.num_slots)


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

    num_nodes: int
    edge_index: Tensor  # [2, E] int64, the caller's order
    by_target: Segments
    by_source: Segments
    col: Tensor  # [E] int32, source of each edge in target order
    source_col: Tensor  # [E] int32, target of each edge in source order
    source_rank: Tensor  # [E] int32, position of the caller's edge in source order
    in_order: bool  # the caller's edges are sorted by target already
    edge_type: Tensor | None = None  # [E] int64, the caller's order
    num_relations: int = 0
    by_relation: Segments | None = None

    @property
    def num_edges(self) -> int:
        return self.edge_index.size(1)

    @property
    def rowptr(self) -> Tensor:
        return self.by_target.ptr

    @property
    def device(self) -> torch.device:
        return self.edge_index.device

    @property
    def source(self) -> Tensor:
        return self.edge_index[0]

    @property
    def target(self) -> Tensor:
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
            raise ValueError(f"edge_index has shape {list(edge_index.shape)}; allowed: [2, num_edges]")
        if num_nodes is None:
            num_nodes = int(edge_index.max()) + 1 if edge_index.numel() else 0
        num_nodes = _count("num_nodes", num_nodes)
        num_edges = edge_index.size(1)
        if num_nodes < 0 or num_nodes > _INT32_MAX or num_edges > _INT32_MAX:
            raise ValueError(f"num_nodes is {num_nodes} and num_edges {num_edges}; allowed: 0 to {_INT32_MAX}")
        compiling = torch.compiler.is_compiling()
        if validate and not compiling:
            _check_range("edge_index", edge_index, num_nodes, "num_nodes")
        with durable():
            source, target = edge_index[0], edge_index[1]
            in_order = not compiling and bool((target[1:] >= target[:-1]).all())
            by_target = _segments(target, num_nodes, in_order)
            by_source = _segments(source, num_nodes, False)
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
        if edge_type.shape != (self.num_edges,):
            raise ValueError(f"edge_type has shape {list(edge_type.shape)}; allowed: [{self.num_edges}], one per edge")
        if edge_type.device != self.device:
            raise ValueError(f"edge_type is on {edge_type.device}, the graph on {self.device}; move one of them")
        if num_relations is None:
            num_relations = int(edge_type.max()) + 1 if edge_type.numel() else 0
        num_relations = _count("num_relations", num_relations)
        if validate and not torch.compiler.is_compiling():
            _check_range("edge_type", edge_type, num_relations, "num_relations")
        with durable():
            by_relation = _segments(edge_type, num_relations, False)
        return self._replace(edge_type=edge_type, num_relations=num_relations, by_relation=by_relation)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Graph:
        """The same graph on another device; one that a PyG `Data` holds goes along with it."""

        def move(value: object) -> object:
            return value.to(device, non_blocking=non_blocking) if isinstance(value, Tensor | Segments) else value

        return self._replace(**{f.name: move(getattr(self, f.name)) for f in fields(self)})

    def has_self_loop(self) -> Tensor:
        """[N] bool: which nodes have an edge to themselves."""
        loops = torch.zeros(self.num_nodes, dtype=torch.bool, device=self.device)
        loops[self.source[self.source == self.target]] = True
        return loops

    def _replace(self, **changes: object) -> Graph:
        values = {f.name: getattr(self, f.name) for f in fields(self)} | changes
        return Graph(**values)

    def __repr__(self) -> str:
        typed = f", num_relations={self.num_relations}" if self.edge_type is not None else ""
        return f"Graph(num_nodes={self.num_nodes}, num_edges={self.num_edges}{typed}, device={str(self.device)!r})"


def as_graph(edges: Tensor | Graph, num_nodes: int, edge_type: Tensor | None, num_relations: int | None) -> Graph:
    """The door for PyG's words: an edge index becomes a `Graph`, a `Graph` gets types; the same tensors only once."""
    edges, edge_type = _bare(edges, "edge_index"), _bare(edge_type, "edge_type")
    if isinstance(edges, Graph):
        if edges.num_nodes != num_nodes:
            raise ValueError(f"x has {num_nodes} rows and the graph {edges.num_nodes} nodes; they must agree")
        if edge_type is None or edge_type is edges.edge_type:
            return edges
    given = (edges,) if edge_type is None else (edges, edge_type)
    tensors = [part for part in given if not isinstance(part, Graph)]
    # Tensors born in inference mode have no version to tell them apart by.
    if torch.compiler.is_compiling() or any(not isinstance(part, Tensor) or part.is_inference() for part in tensors):
        return _build(edges, num_nodes, edge_type, num_relations)
    # The tensors' own versions are part of the key, so an in-place change is seen.
    key = (id(edges), id(edge_type), num_nodes, num_relations, *(part._version for part in tensors))
    held = _BUILT.get(key)
    if held is not None and held[0]() is edges and (edge_type is None or held[1]() is edge_type):
        return held[2]
    # The graph holds views of its own: where it held the caller's tensors themselves, they would never go away.
    with durable():
        kinds = None if edge_type is None else edge_type.detach()
        graph = _build(edges if isinstance(edges, Graph) else edges.detach(), num_nodes, kinds, num_relations)
    # Another thread may take entries away meanwhile.
    for oldest in list(_BUILT)[: 1 - _BUILT_MAX]:
        _BUILT.pop(oldest, None)
    # No line of Python, as in `ops.pool`: an interrupt that is raised while a tensor is freed is lost.
    forget = partial(_BUILT.pop, key)  # called with the reference, which then is what is given where there is no entry
    owners = (edges, edges if edge_type is None else edge_type)
    _BUILT[key] = (*(weakref.ref(owner, forget) for owner in owners), graph)
    return graph


def _build(edges: Tensor | Graph, num_nodes: int, edge_type: Tensor | None, num_relations: int | None) -> Graph:
    if isinstance(edges, Graph):
        assert edge_type is not None
        return edges.with_types(edge_type, num_relations)
    return Graph.from_edge_index(edges, num_nodes, edge_type, num_relations)


_BUILT: dict[tuple, tuple] = {}
_BUILT_MAX = 8


def durable() -> AbstractContextManager:
    """For tensors that are kept: those born in inference mode could not be saved for a later backward pass, and those
    that a transform of `torch.func` wraps are of no use after it.
    """
    # A compiler cannot trace the questions, and keeps nothing.
    return nullcontext() if torch.compiler.is_compiling() else _outside()


@contextmanager
def _outside() -> Iterator[None]:
    leaves = torch.is_inference_mode_enabled()
    with temporarily_clear_interpreter_stack(), torch.inference_mode(False) if leaves else nullcontext():
        yield


def _bare(index: Any, name: str) -> Any:
    """Indices have no gradient, so that a transform that looks for one may be left out."""
    if torch.compiler.is_compiling() or not isinstance(index, Tensor):
        return index
    while torch._C._functorch.is_functorch_wrapped_tensor(index):
        if torch._C._functorch.is_batchedtensor(index):
            hint = "allowed: the same edges in all (try torch_geometric.data.Batch)"
            raise ValueError(f"{name} has an axis of torch.vmap, a graph for each entry; {hint}")
        index = torch._C._functorch.get_unwrapped(index)
    return index


def _plain(index: Tensor, name: str) -> Tensor:
    if not isinstance(index, Tensor):
        raise ValueError(f"{name} is a {type(index).__name__}; allowed: a torch.Tensor of int64")
    if index.layout != torch.strided:
        hint = "torch_geometric.utils.to_edge_index(adj_t)[0].flip(0), where rows of adj_t are targets"
        raise ValueError(f"{name} is a {index.layout} matrix; allowed: torch.int64 [2, num_edges] (try {hint})")
    if hasattr(index, "as_tensor"):  # torch_geometric.EdgeIndex
        index = index.as_tensor()
    index = _bare(index, name)
    if index.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{name} has dtype {index.dtype}; allowed: torch.int64 (try .long())")
    with durable():
        index = index.long()
        return index.clone() if not torch.compiler.is_compiling() and index.is_inference() else index


def _count(name: str, value: SupportsIndex) -> int:
    if torch.compiler.is_compiling():  # the compiler's own number, which stands for many
        return value  # type: ignore[return-value]
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}; allowed: an int, 0 and above") from None


def _check_range(name: str, index: Tensor, size: int, limit: str) -> None:
    if index.numel() == 0:
        return
    low, high = (int(v) for v in torch.aminmax(index))
    if low < 0 or high >= size:
        bad = low if low < 0 else high
        raise ValueError(f"{name} holds {bad}; allowed: 0 to {size - 1} ({limit} is {size})")


def _segments(key: Tensor, size: int, in_order: bool) -> Segments:
    if in_order:
        ordered, order = key, torch.arange(key.numel(), device=key.device)
    else:
        ordered, order = torch.sort(key, stable=True)
    bounds = torch.arange(size + 1, device=key.device)
    ptr = torch.searchsorted(ordered.contiguous(), bounds)
    return Segments(ptr.int(), order.int(), *_cut(ptr, key.numel()))


def piece_edges(num_edges: int) -> int:
    """Edges of a piece at most; a row with more is a hub."""
    return _SHORT_PIECE if num_edges < _MANY_EDGES else _LONG_PIECE


def _cut(ptr: Tensor, num_edges: int) -> tuple[Tensor, Tensor, int]:
    """Cut each group into pieces of bounded length.

    Under a compiler the number of pieces must not depend on the data: the tables then have the largest size that
    can be needed, and what is left over is marked with group -1.
    """
    device, size = ptr.device, ptr.numel() - 1
    if size == 0:
        empty = torch.zeros(0, dtype=torch.int32, device=device)
        return empty.view(0, 4), empty.view(0, 3), 0
    longest = piece_edges(num_edges)
    degree = ptr[1:] - ptr[:-1]
    count = ((degree + longest - 1) // longest).clamp_(min=1)
    first = torch.cumsum(count, 0)
    is_hub = count > 1
    hub_end = torch.cumsum(torch.where(is_hub, count, 0), 0)
    if torch.compiler.is_compiling():
        # Two more than there can be: a compiler takes sizes of 0 and 1 for cases of their own, and would compile anew.
        num_hubs = num_edges // longest + 2
        num_slots = 2 * num_hubs
        num_pieces = size + num_slots  # never fewer than slots, as slot i belongs to piece i
    else:
        num_pieces, num_hubs, num_slots = torch.stack([first[-1], is_hub.sum(), hub_end[-1]]).tolist()
    piece = torch.arange(num_pieces, device=device)
    group = torch.searchsorted(first, piece, right=True)
    used = group < size
    group = group.clamp_(max=size - 1)
    within = piece - (first - count)[group]
    begin = ptr[group] + within * longest
    end = torch.minimum(begin + longest, ptr[group + 1])
    slot = torch.where(used & is_hub[group], (hub_end - count)[group] + within, -1)
    end = torch.where(used, end, begin)
    pieces = torch.stack([torch.where(used, group, -1), begin, end, slot], dim=1)
    # The pieces of hubs come first, so that slot i belongs to piece i; then the others from long to short, so that the
    # rows that a program walks side by side are alike.
    pieces = pieces[torch.argsort(torch.where(slot < 0, begin - end, -longest - 1), stable=True)]
    # The hubs in the order of their groups: the i-th hub is the first group whose running count passes i.
    running = torch.cumsum(is_hub, 0)
    hub = torch.searchsorted(running, torch.arange(num_hubs, device=device), right=True)
    used = hub < size
    hub = hub.clamp_(max=size - 1)
    slots = torch.stack([(hub_end - count)[hub], hub_end[hub]], dim=1)
    hubs = torch.cat([torch.where(used, hub, -1)[:, None], torch.where(used[:, None], slots, 0)], dim=1)
    # The largest first, so that nobody waits for it at the end.
    hubs = hubs[torch.argsort(torch.where(used, hubs[:, 1] - hubs[:, 2], 0), stable=True)]
    return pieces.int(), hubs.int(), num_slots

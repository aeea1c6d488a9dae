"""`Graph` and its door: what they accept, sorted views of the caller's edges, and changes in place."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import operator
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from magna.graph import Graph, Segments, as_graph, piece_edges
from magna.graph.door import _BUILT
from magna.ops.backend.graph_tensors import pack, unpack
from tests.support.graphs import integers, odd_graphs, random_graph, star
from tests.support.operators import Options

GRAPHS = odd_graphs(300) | {"random": random_graph(40, 400), "two hubs": random_graph(3, 700)}


@pytest.fixture(params=GRAPHS)
def graph(request: pytest.FixtureRequest) -> Graph:
    return GRAPHS[request.param]


def check_segments(segments: Segments, key: Tensor, size: int) -> None:
    """Every edge stands in its group, and in exactly one piece of it; the hubs' slots are their pieces in order."""
    order = segments.order.long()
    assert torch.equal(order.sort().values, torch.arange(key.numel()))
    ordered = key[order]
    assert (ordered.diff() >= 0).all()
    within = order.diff()[ordered.diff() == 0]
    assert (within > 0).all()  # stable: the caller's order within a group
    assert segments.ptr.tolist() == torch.searchsorted(ordered, torch.arange(size + 1)).tolist()

    pieces = segments.pieces[segments.pieces[:, 0] >= 0].tolist()
    walked: dict[int, list[tuple[int, int, int]]] = {group: [] for group in range(size)}
    for group, begin, end, slot in pieces:
        assert 0 <= end - begin <= piece_edges(key.numel())
        walked[group].append((begin, end, slot))
    hubs = {group: (first, last) for group, first, last in segments.hubs.tolist() if group >= 0}
    # A kernel reads the slots of a row of padding as well.
    assert all(first == last == 0 for group, first, last in segments.hubs.tolist() if group < 0)
    slots = []
    for group, parts in walked.items():
        assert parts[0][0] == segments.ptr[group] and parts[-1][1] == segments.ptr[group + 1]
        assert all(left[1] == right[0] for left, right in itertools.pairwise(parts))
        if len(parts) == 1:
            assert parts[0][2] == -1 and group not in hubs
        else:
            assert [part[2] for part in parts] == list(range(*hubs[group]))
            slots += [part[2] for part in parts]
    assert sorted(slots) == list(range(len(slots))) and len(slots) <= segments.num_slots
    # Slot i is written by piece i, so that there is a piece for each slot.
    assert segments.num_slots <= len(segments.pieces)
    assert all(piece[3] == i for i, piece in enumerate(segments.pieces.tolist()) if piece[3] >= 0)
    # Rows of one piece come after those of hubs, from long to short.
    lengths = [end - begin for _, begin, end, slot in segments.pieces.tolist() if slot < 0]
    assert lengths == sorted(lengths, reverse=True)


def check_graph(graph: Graph) -> None:
    check_segments(graph.by_target, graph.target, graph.num_nodes)
    check_segments(graph.by_source, graph.source, graph.num_nodes)


def test_sorted_views_describe_the_edges(graph: Graph) -> None:
    check_graph(graph)
    assert torch.equal(graph.col.long(), graph.source[graph.by_target.order.long()])
    assert torch.equal(graph.source_col.long(), graph.target[graph.by_source.order.long()])
    assert torch.equal(graph.by_source.order[graph.source_rank.long()].long(), torch.arange(graph.num_edges))
    assert graph.in_order == torch.equal(graph.by_target.order.long(), torch.arange(graph.num_edges))
    assert graph.rowptr is graph.by_target.ptr and graph.rowptr.numel() == graph.num_nodes + 1


def test_tables_built_under_a_compiler_are_padded_and_say_the_same(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    padded = Graph.from_edge_index(graph.edge_index, graph.num_nodes)
    monkeypatch.undo()
    for mine, other in ((padded.by_target, graph.by_target), (padded.by_source, graph.by_source)):
        real = mine.pieces[mine.pieces[:, 0] >= 0]
        assert sorted(real.tolist()) == sorted(other.pieces.tolist())
        assert mine.hubs[mine.hubs[:, 0] >= 0].tolist() == other.hubs.tolist()
        assert mine.num_slots >= other.num_slots
    check_graph(padded)


@pytest.mark.parametrize("many", [0, 1000])
def test_hub_is_cut(monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    """Into longer pieces where there are many edges."""
    monkeypatch.setattr("magna.graph.segments._MANY_EDGES", many)
    hub = star(300, leaves=300)
    longest = piece_edges(hub.num_edges)
    assert (longest > 64) == (many == 0)
    assert hub.by_target.hubs.shape == (1, 3) and hub.by_target.num_slots == -(-300 // longest)
    assert hub.by_source.hubs.shape == (1, 3)
    check_segments(hub.by_target, hub.target, hub.num_nodes)


def test_relations_are_segments_too() -> None:
    kinds = torch.tensor([2, 0, 2, 2, 0])
    graph = Graph.from_edge_index(torch.tensor([[0, 1, 2, 0, 1], [1, 2, 0, 2, 0]]), 3, kinds, 4)
    assert graph.num_relations == 4 and graph.by_relation is not None and graph.edge_type is not None
    check_segments(graph.by_relation, kinds, 4)
    assert Graph.from_edge_index(graph.edge_index, 3, kinds).num_relations == 3
    retyped = graph.with_types(1 - kinds.clamp(max=1))
    assert retyped.num_relations == 2 and retyped.by_target is graph.by_target


def test_number_of_nodes_is_guessed() -> None:
    assert Graph.from_edge_index(torch.tensor([[0, 7], [3, 1]])).num_nodes == 8
    assert Graph.from_edge_index(torch.empty(2, 0, dtype=torch.int64)).num_nodes == 0


def test_int32_is_accepted_and_others_are_not() -> None:
    edges = torch.tensor([[0, 1], [1, 0]])
    assert Graph.from_edge_index(edges.int(), 2).edge_index.dtype == torch.int64
    for wrong in (edges.float(), edges.double(), edges.to(torch.int16), edges.bool()):
        with pytest.raises(ValueError, match=rf"edge_index is {wrong.dtype} .*; allowed: torch.int64"):
            Graph.from_edge_index(wrong, 2)


def test_packs_and_unpacks(graph: Graph) -> None:
    for one in (graph, graph.with_types(torch.arange(graph.num_edges) % 2, 2)):
        again = unpack(*pack(one))
        for field in dataclasses.fields(Graph):
            old, new = getattr(one, field.name), getattr(again, field.name)
            assert old is new or (all(map(operator.is_, old, new)) if isinstance(old, Segments) else old == new)


def test_self_loops_are_found() -> None:
    graph = Graph.from_edge_index(torch.tensor([[0, 1, 1], [0, 0, 1]]), 3)
    assert graph.has_self_loop().tolist() == [True, True, False]


def test_as_graph_builds_the_same_tensor_once_and_sees_changes() -> None:
    edges, kinds = torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.tensor([0, 1, 0])
    first = as_graph(edges, 3, None, None)
    assert as_graph(edges, 3, None, None) is first
    assert as_graph(edges.clone(), 3, None, None) is not first
    assert as_graph(edges, 4, None, None).num_nodes == 4
    typed = as_graph(edges, 3, kinds, 2)
    assert as_graph(edges, 3, kinds, 2) is typed and typed.edge_type is not None
    kinds[0] = 1
    assert as_graph(edges, 3, kinds, 2).edge_type.tolist() == [1, 1, 0]  # type: ignore[union-attr]
    edges[1, 0] = 0
    changed = as_graph(edges, 3, None, None)
    assert changed is not first and changed.target.tolist() == [0, 2, 0]


@pytest.mark.parametrize("gone", ["edges", "types"])
@pytest.mark.parametrize("built", [False, True])
def test_as_graph_lets_a_graph_go_with_its_edges_and_types(built: bool, gone: str) -> None:
    graph = random_graph(5, 8)
    parts: dict[str, Any] = {"edges": graph if built else graph.edge_index.clone(), "types": integers(2, 8, seed=1)}
    graphs = [weakref.ref(as_graph(parts["edges"], 5, parts["types"], 2))]
    if not built and gone == "edges":
        graphs.append(weakref.ref(as_graph(parts["edges"], 5, None, None)))
    del graph
    assert all(graph() is not None for graph in graphs)
    del parts[gone]
    gc.collect()
    assert not any(graph() for graph in graphs)


def test_as_graph_in_many_threads() -> None:
    edges = [integers(5, 2, 9, seed=seed) for seed in range(20)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            graphs = list(pool.map(lambda edge_index: as_graph(edge_index, 5, None, None), edges * 20))
    finally:
        sys.setswitchinterval(interval)
    assert all(torch.equal(graph.edge_index, edge_index) for graph, edge_index in zip(graphs, edges * 20, strict=True))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_graph_born_in_inference_mode_can_be_trained_on(dtype: torch.dtype) -> None:
    with torch.inference_mode():
        edges = torch.tensor([[0, 1], [1, 0]], dtype=dtype)
        graph = Graph.from_edge_index(edges, 2, torch.tensor([0, 1], dtype=dtype))
        assert as_graph(edges, 2, None, None).num_edges == 2
    assert graph.edge_type is not None
    assert not any(tensor.is_inference() for tensor in pack(graph)[0])


def test_as_graph_takes_a_graph() -> None:
    graph = random_graph(5, 8)
    kinds = torch.zeros(8, dtype=torch.int64)
    assert as_graph(graph, 5, None, None) is graph
    typed = as_graph(graph, 5, kinds, 1)
    assert typed.num_relations == 1 and as_graph(graph, 5, kinds, 1) is typed
    assert as_graph(graph, 5, kinds, 2).num_relations == 2
    kinds[0] = 1
    assert as_graph(graph, 5, kinds, 2).edge_type.tolist() == [1] + [0] * 7  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="the number of rows of x is 4; allowed: 5, the nodes of the graph"):
        as_graph(graph, 4, None, None)
    with pytest.raises(ValueError, match=r"edge_type is .*; allowed"):
        as_graph(graph.edge_index, 5, [0] * graph.num_edges, 1)  # type: ignore[arg-type]


def test_repr() -> None:
    graph = Graph.from_edge_index(torch.tensor([[0], [1]]), 2, torch.tensor([0]))
    assert repr(graph) == "Graph(num_nodes=2, num_edges=1, num_relations=1, device='cpu')"


EDGES, TWO = torch.tensor([[0, 1, 2], [1, 2, 0]]), {"num_relations": 2}


@pytest.mark.parametrize(
    ("edge_index", "options", "message"),
    [
        ([[0, 1], [1, 0]], {}, "edge_index is .*; allowed: a torch.Tensor of int64"),
        (torch.eye(2).to_sparse(), {}, r"edge_index is 'a torch.sparse_coo matrix'; allowed: .*to_edge_index\(adj_t\)"),
        (EDGES[0], {}, r"edge_index is \S+ \[3\] on \S+; allowed: torch.int64 \[2, num_edges\]"),
        (EDGES.t(), {}, r"edge_index is \S+ \[3, 2\] on \S+; allowed: torch.int64 \[2, num_edges\]"),
        (EDGES, {"num_nodes": 2}, r"an entry of edge_index is 2; allowed: 0 to 1 \(num_nodes is 2\)"),
        (EDGES - 1, {"num_nodes": 3}, r"an entry of edge_index is -1; allowed: 0 to 2"),
        (EDGES, {"num_nodes": -1}, "num_nodes is -1; allowed: 0 to 2147483647"),
        (EDGES, {"num_nodes": 3.0}, "num_nodes is 3.0; allowed: an int, 0 and above"),
        (EDGES, {"edge_type": EDGES[0], "num_relations": 3.0}, "num_relations is 3.0; allowed: an int"),
        (EDGES, {"num_nodes": 2**31}, "num_nodes is 2147483648; allowed: 0 to 2147483647"),
        (EDGES, {"edge_type": EDGES[0].float()}, "edge_type is torch.float32 .*; allowed: torch.int64"),
        (EDGES, {"edge_type": EDGES[0, :2]}, r"edge_type is \S+ \[2\] on \S+; allowed: \[3\]"),
        (EDGES, TWO | {"edge_type": EDGES[0]}, r"entry of edge_type is 2; allowed: 0 to 1 \(num_relations is 2\)"),
        (EDGES, TWO | {"edge_type": EDGES[0] - 1}, "an entry of edge_type is -1; allowed: 0 to 1"),
        (EDGES, {"edge_type": EDGES[0].to("meta")}, "edge_type is .* on meta; allowed: .* on "),
    ],
)
def test_refused(edge_index: Tensor, options: Options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Graph.from_edge_index(edge_index, **options)


def test_no_python_runs_when_the_edges_of_a_kept_graph_are_freed() -> None:
    """An exception raised there, such as an interrupt, would be lost."""
    remaining = len(_BUILT)
    edges = [torch.tensor([[0, 1], [1, 0]])]
    as_graph(edges[0], 2, None, None)
    called: list[str] = []
    sys.setprofile(lambda frame, event, argument: called.append(event))
    edges.clear()
    sys.setprofile(None)
    assert "call" not in called and len(_BUILT) == remaining


MANY, NODES = 700, 40


def swap(row: int, one: int, other: int) -> Callable[[np.ndarray], None]:
    def change(buffer: np.ndarray) -> None:
        buffer[row, [one, other]] = buffer[row, [other, one]]

    return change


CHANGES: dict[str, Callable[[np.ndarray], None]] = {
    "refilled": lambda buffer: buffer.__setitem__(..., integers(NODES, 2, MANY, seed=9).numpy()),
    "one entry": lambda buffer: buffer.__setitem__((1, -1), (buffer[1, -1] + 1) % NODES),
    "turned": lambda buffer: buffer.__setitem__(..., buffer[::-1].copy()),
    "two targets swapped": swap(1, 3, 600),
    "two swapped at one place of two blocks": swap(0, 3, 3 + 512),
    "shuffled": lambda buffer: buffer.__setitem__(..., buffer[:, np.random.default_rng(0).permutation(MANY)]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_change_of_the_buffer_is_noticed(change: str, dtype: torch.dtype) -> None:
    buffer = integers(NODES, 2, MANY, seed=1).to(dtype).numpy()
    buffer[:, 3], buffer[:, 600], buffer[:, 3 + 512] = 1, 2, 5
    edges = torch.from_numpy(buffer)
    first = as_graph(edges, NODES, None, None)
    assert as_graph(edges, NODES, None, None) is first
    version = edges._version
    CHANGES[change](buffer)
    assert edges._version == version
    second = as_graph(edges, NODES, None, None)
    assert second is not first and torch.equal(second.edge_index, edges.long())
    assert torch.equal(second.col, edges[0, second.by_target.order.long()].int())


def test_types_and_data_are_watched_too() -> None:
    edges, kinds = integers(NODES, 2, MANY, seed=1), integers(3, MANY, seed=2)
    first = as_graph(edges, NODES, kinds, 3)
    kinds.numpy()[5] = (kinds[5] + 1) % 3
    second = as_graph(edges, NODES, kinds, 3)
    assert second is not first and torch.equal(second.with_types(kinds, 3).by_relation.ptr, second.by_relation.ptr)  # type: ignore[union-attr]
    edges.data.copy_(edges.flip(1))
    assert as_graph(edges, NODES, kinds, 3) is not second

"""Graphs, bytes, results, checks and measures of `magna bench`."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.support.data import needs
from torch import Tensor

from magna import bench
from magna.bench import floor, graphs, measure
from magna.bench.comparison import compare
from magna.bench.floor import Floor, floor_ms, traffic
from magna.bench.graphs import SHAPES, Shape, load_graph, skewed_graph
from magna.bench.peers import PEERS, Problem, TorchCSR, peers_on, stepper, truth
from magna.graph import Graph

PROMISED = {"op", "graph", "backend", "ms", "peer", "peer_ms", "ratio", "peak_bytes", "error"}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph of forty nodes in place of Cora."""
    monkeypatch.setitem(graphs.SHAPES, "cora", graphs.Shape(40, 200, 17, heads=2, width=4, K=3))


def random_problem() -> Problem:
    edges = torch.randint(9, (2, 30), generator=torch.Generator().manual_seed(1))
    edge_index: Tensor = torch.unique(edges, dim=1)
    return Problem.random(Graph.from_edge_index(edge_index, 9), heads=2, width=4, K=3)


def test_result_is_the_promised_object(tiny: None, tmp_path: Path) -> None:
    lines: list[str] = []
    result = bench.run(device="cpu", quick=True, data_dir=tmp_path, progress=lines.append)
    assert json.loads(json.dumps(result)) == result
    assert result["device"]
    rows = {row["backend"]: row for row in result["rows"]}
    assert {"reference", "pyg"} <= set(rows)
    for row in rows.values():
        assert set(row) >= PROMISED
        assert row["synthetic"]
        assert row["graph"] == "cora"
        assert row["ms"] > 0
        assert row["error"] < 1e-4
        assert row["ratio"] == pytest.approx(row["peer_ms"] / row["ms"])
        assert row["floor_ratio"] == pytest.approx(row["ms"] / row["floor_ms"])
    assert rows["pyg"]["peer"] == "pyg"
    assert rows["pyg"]["ratio"] == 1
    assert any("checking" in line for line in lines)


def test_table_names_every_row_and_note(tiny: None, tmp_path: Path) -> None:
    result = bench.run(device="cpu", quick=True, data_dir=tmp_path)
    note = "dgl on cora: not installed (libdgl.so [/usr/lib] [int])"  # brackets are no markup
    result["notes"].append(note)
    text = io.StringIO()
    bench.show_benchmark(result, Console(file=text, width=160))
    for row in result["rows"]:
        assert row["backend"] in text.getvalue()
    assert "cora (synthetic)" in text.getvalue()
    assert f"note: {note}" in text.getvalue()


@pytest.mark.parametrize("name", peers_on(torch.device("cpu")))
def test_peer_computes_the_definition(name: str) -> None:
    problem = random_problem()
    reason = PEERS[name].why_not(problem)
    if reason is not None:
        pytest.skip(f"{name}: {reason}")
    errors = measure.errors(stepper(problem, PEERS[name])(), truth(problem))
    assert max(errors.values()) < 1e-6


def test_csr_refuses_parallel_edges() -> None:
    edges = torch.tensor([[0, 0], [1, 1]])
    problem = Problem.random(Graph.from_edge_index(edges, 2), heads=1, width=1, K=1)
    assert TorchCSR().why_not(problem) == "it refuses parallel edges"


def test_wrong_peer_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        def why_not(self, problem: Problem) -> None:
            return None

        def build(self, problem: Problem) -> Callable[[Tensor, Tensor], Tensor]:
            return lambda x, scores: x * 1.01 + 0 * scores.sum()

    monkeypatch.setitem(PEERS, "wrong", Wrong())
    rows, notes = compare(random_problem(), "some", bandwidth=1e9, budget_s=0.01, peers=["wrong", "reference"])
    assert [row["backend"] for row in rows] == ["reference"]
    assert rows[0]["peer"] == "reference"
    assert notes[0].startswith("wrong on some failed: ArithmeticError: not timed")


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"graph is 'nora'; did you mean 'cora'\? allowed: 'cora', "):
        bench.run(graphs=["nora"])
    with pytest.raises(ValueError, match="device is 'tpu'; did you mean 'cpu'"):
        bench.run(device="tpu")


def test_saved_memory_counts_each_storage_once_and_no_input() -> None:
    x = torch.ones(1000, requires_grad=True)
    y = torch.ones(1000)

    def passes() -> Tensor:
        z = x * y  # saves y, an input
        w = z.exp()  # saves its result
        return (w * w).sum()  # saves the same result twice

    _, memory = measure.memory_of(passes, [x, y], torch.device("cpu"))
    assert memory.saved_bytes == 4000


def test_peak_memory_sees_what_is_freed_again() -> None:
    def allocate() -> float:
        return float(torch.ones(25_000_000).sum())

    _, memory = measure.memory_of(allocate, [], torch.device("cpu"))
    if memory.peak_bytes is None:
        pytest.skip("this system has no high-water mark of memory")
    # The whole process is counted, the C library keeps what it likes, and a busy machine takes pages back.
    assert 0.5e8 < memory.peak_bytes < 1e9


def test_timing_meets_every_step_in_every_round() -> None:
    calls: list[str] = []
    steps = {name: partial(calls.append, name) for name in "ab"}
    timings = measure.interleaved(steps, torch.device("cpu"), budget_s=0.0, rounds=5)
    # One call to see how long it takes, five to settle, twenty that count.
    assert "".join(calls) == ("a" * 26 + "b" * 26) * 3
    assert all(timing.samples == 60 and math.isfinite(timing.ms) for timing in timings.values())


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
    edge_index, synthetic = load_graph(name, tmp_path)
    assert synthetic
    check(edge_index, SHAPES[name])
    assert torch.equal(edge_index, load_graph(name, tmp_path)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_real_graph_has_the_published_size(name: str) -> None:
    needs(name)
    edge_index, synthetic = load_graph(name)
    assert not synthetic
    check(edge_index, SHAPES[name])


def test_skewed_graph_has_hubs() -> None:
    graph = skewed_graph(16_000, torch.device("cpu"))
    assert (graph.num_nodes, graph.num_edges) == (1_000, 16_000)
    assert int(graph.rowptr.diff().max()) > 100


def test_traffic_counted_by_hand() -> None:
    # 3 nodes, 5 edges, 2 heads of width 4, 2 hops, float32: a row of all nodes is 96 bytes, a value per edge 40.
    forward = 2 * (96 + 96) + 2 * (40 + 20)
    backward = (96 + 96 + 96) + (96 + 96 + 96) + (40 + 40 + 20) + (40 + 80 + 20)
    softmax = 5 * 40
    by_edge, by_node = 4 * 5 * 32, 4 * 96
    moved = traffic(num_nodes=3, num_edges=5, heads=2, width=4, K=2, element_bytes=4)
    assert moved == Floor(forward + backward + softmax + by_edge, forward + backward + softmax + by_node)


def test_half_precision_halves_the_rows_and_keeps_the_attention() -> None:
    single, half = (traffic(10, 40, 2, 8, 3, size) for size in (4, 2))
    rows = 10 * 2 * 8 * (6 * 3 - 2) + 2 * 3 * 40 * 2 * 8
    assert single.gathers - half.gathers == 2 * rows


def test_milliseconds() -> None:
    assert floor_ms(Floor(2e9, 1e9), bandwidth=1e12) == pytest.approx(Floor(2.0, 1.0))


def test_bandwidth_is_that_of_the_better_of_copy_and_triad(monkeypatch: pytest.MonkeyPatch) -> None:
    # A copy moves two arrays of 2²⁷ bytes, a triad three.
    for copy_ms, triad_ms, expected in ((1.0, 2.0, 2 * 2**27 * 1e3), (2.0, 1.0, 3 * 2**27 * 1e3)):
        times = iter([copy_ms, triad_ms])
        monkeypatch.setattr(floor, "_fastest_ms", lambda call, *_, times=times: (call(), next(times))[1])
        assert floor.bandwidth(torch.device("cpu")) == expected

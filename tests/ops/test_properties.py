"""The contract and the laws over random graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from magna.graph import Graph  # noqa: E402
from magna.ops import attention_matrix, edge_softmax  # noqa: E402
from magna.ops.backend.registry import MODULES, why_not  # noqa: E402
from magna.typing import Backend, Memory  # noqa: E402
from tests.graph.test_csr import check_segments  # noqa: E402
from tests.support.comparing import same  # noqa: E402
from tests.support.operators import Options, Problem, diffuse, softmax  # noqa: E402
from tests.support.running import device_of, interpreted  # noqa: E402

RUNS = ["reference", *(name for name in MODULES if why_not(name, device_of(name)) is None and not interpreted(name))]


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 12, max_edges: int = 200) -> Graph:
    num_nodes = draw(st.integers(0, max_nodes))
    node = st.integers(0, max(num_nodes - 1, 0))
    # Few targets make hubs, many make isolated nodes.
    num_edges = draw(st.integers(0, max_edges)) if num_nodes else 0
    pairs = draw(st.lists(st.tuples(node, node), min_size=num_edges, max_size=num_edges))
    return Graph.from_edge_index(torch.tensor(pairs, dtype=torch.int64).view(-1, 2).t(), num_nodes)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    heads, width, K = draw(st.integers(1, 4)), draw(st.integers(1, 9)), draw(st.integers(1, 5))
    return Problem.of(draw(graphs()), heads, width, K, seed=draw(st.integers(0, 1000)))


rates = st.sampled_from([0.0, 0.1, 0.5, 0.9])
relaxed = settings(deadline=None, max_examples=40, derandomize=True)


def placed(problem: Problem, backend: Backend) -> Problem:
    device = device_of(backend)
    tensors = (problem.x, problem.scores, problem.theta, problem.grad)
    return Problem(problem.graph.to(device), *(t.to(device) for t in tensors))


@pytest.mark.parametrize("name", RUNS[1:])
@relaxed
@given(
    problem=problems(),
    attention=rates,
    feature=rates,
    memory=st.sampled_from(["save", "recompute"]),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_fused_diffusion_is_the_reference(
    name: Backend, problem: Problem, attention: float, feature: float, memory: Memory, seed: int
) -> None:
    problem = placed(problem, name)
    drops: Options = {"dropout": attention, "feature_dropout": feature, "seed": seed}
    same(diffuse(problem, name, memory=memory, **drops), diffuse(problem, "reference", **drops), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", RUNS[1:])
@relaxed
@given(problem=problems(), drop=rates, k=st.none() | st.integers(1, 6), shared=st.booleans(), ties=st.booleans())
def test_fused_softmax_is_the_reference(
    name: Backend, problem: Problem, drop: float, k: int | None, shared: bool, ties: bool
) -> None:
    problem = placed(problem, name)
    if ties:
        problem = Problem(problem.graph, problem.x, problem.scores.round(), problem.theta, problem.grad)
    options: Options = {"edge_dropout": drop, "seed": 1, "top_k": k, "top_k_shared": shared}
    same(softmax(problem, name, **options), softmax(problem, "reference", **options))


@pytest.mark.parametrize("name", RUNS)
@relaxed
@given(problem=problems(), alpha=st.floats(0.05, 1))
def test_rows_sum_and_contraction(name: Backend, problem: Problem, alpha: float) -> None:
    problem = placed(problem, name)
    fed = problem.graph.rowptr.diff() > 0
    attention = edge_softmax(problem.scores, problem.graph, backend=name)
    sums = attention_matrix(attention, problem.graph).sum(2)
    torch.testing.assert_close(sums, fed.to(sums).expand_as(sums))
    # A never makes the largest entry larger, so no diffusion does.
    out = diffuse(problem, name, K=3, alpha=alpha)["out"]
    assert out.numel() == 0 or out.abs().max() <= problem.x.abs().max() * (1 + 1e-12)


@pytest.mark.parametrize("name", RUNS)
@relaxed
@given(problem=problems(), alpha=st.floats(0.2, 1))
def test_exact_solves_its_equation(name: Backend, problem: Problem, alpha: float) -> None:
    problem = placed(problem, name)
    z = diffuse(problem, name, alpha=alpha, mode="exact", tolerance=1e-10)["out"]
    attention = attention_matrix(problem.attention, problem.graph)
    residual = z - (1 - alpha) * torch.einsum("hij,jhd->ihd", attention, z) - alpha * problem.x
    assert residual.numel() == 0 or residual.abs().max() < 1e-9


@relaxed
@given(graph=graphs(max_edges=600))
def test_graph_is_its_edges(graph: Graph) -> None:
    check_segments(graph.by_target, graph.target, graph.num_nodes)
    check_segments(graph.by_source, graph.source, graph.num_nodes)


def pairs_of(source: Tensor, target: Tensor) -> list[list[int]]:
    return torch.stack([source, target], 1).tolist()


@relaxed
@given(graph=graphs())
def test_graph_round_trip(graph: Graph) -> None:
    # Both sorted views, put back into the caller's order, are the caller's edges.
    degree = graph.rowptr.diff().long()
    rows = torch.repeat_interleave(torch.arange(graph.num_nodes), degree)
    back = graph.by_target.order.long().argsort()
    assert pairs_of(graph.col.long()[back], rows[back]) == graph.edge_index.t().tolist()
    rank = graph.source_rank.long()
    rows = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.by_source.ptr.diff().long())
    assert pairs_of(rows[rank], graph.source_col.long()[rank]) == graph.edge_index.t().tolist()

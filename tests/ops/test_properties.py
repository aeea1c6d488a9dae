"""The contract and the laws over random graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

hypothesis = pytest.importorskip("hypothesis")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from magna.graph import Graph  # noqa: E402
from magna.ops import attention_matrix, edge_softmax  # noqa: E402
from magna.ops.backend.registry import MODULES, why_not  # noqa: E402
from magna.typing import Backend, Memory  # noqa: E402
from tests.graph.test_graph import check_graph  # noqa: E402
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
seeds = st.integers(-(2**63), 2**63 - 1)
drops = st.fixed_dictionaries({"dropout": rates, "feature_dropout": rates, "seed": seeds})
relaxed = settings(deadline=None, max_examples=40, derandomize=True)


@pytest.mark.parametrize("name", RUNS[1:])
@relaxed
@given(problem=problems(), drops=drops, memory=st.sampled_from(["save", "recompute"]))
def test_fused_diffusion_is_the_reference(name: Backend, problem: Problem, drops: Options, memory: Memory) -> None:
    problem = problem.to(torch.float64, device_of(name))
    same(diffuse(problem, name, memory=memory, **drops), diffuse(problem, "reference", **drops), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", RUNS[1:])
@relaxed
@given(problem=problems(), drop=rates, k=st.none() | st.integers(1, 6), shared=st.booleans(), ties=st.booleans())
def test_fused_softmax_is_the_reference(
    name: Backend, problem: Problem, drop: float, k: int | None, shared: bool, ties: bool
) -> None:
    problem = problem.to(torch.float64, device_of(name))
    if ties:
        problem = replace(problem, scores=problem.scores.round())
    options: Options = {"edge_dropout": drop, "seed": 1, "top_k": k, "top_k_shared": shared}
    same(softmax(problem, name, **options), softmax(problem, "reference", **options))


@pytest.mark.parametrize("name", RUNS)
@relaxed
@given(problem=problems(), alpha=st.floats(0.05, 1))
def test_rows_sum_and_contraction(name: Backend, problem: Problem, alpha: float) -> None:
    problem = problem.to(torch.float64, device_of(name))
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
    problem = problem.to(torch.float64, device_of(name))
    z = diffuse(problem, name, alpha=alpha, mode="exact", tolerance=1e-10)["out"]
    attention = attention_matrix(problem.attention, problem.graph)
    residual = z - (1 - alpha) * torch.einsum("hij,jhd->ihd", attention, z) - alpha * problem.x
    assert residual.numel() == 0 or residual.abs().max() < 1e-9


@relaxed
@given(graph=graphs(max_edges=600))
def test_graph_is_its_edges(graph: Graph) -> None:
    check_graph(graph)

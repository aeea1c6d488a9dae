"""The paper's propositions, hop weights, and the laws that any diffusion obeys, in float64 on every backend."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from magna.graph import Graph
from magna.ops import (
    attention_diffusion,
    attention_matrix,
    diffused_attention,
    edge_softmax,
    geometric_weights,
    hops_for,
    truncation_error,
)
from magna.typing import Backend, Mode
from tests.support.comparing import same
from tests.support.graphs import random_graph, uniform
from tests.support.operators import Options, Problem, diffuse, operator_matrix, output_of
from tests.support.running import device_of

ALPHA = 0.3
TIGHT: Options = {"rtol": 1e-10, "atol": 1e-12}

Case = Callable[[int], tuple[Graph, Tensor]]


@pytest.fixture
def graph() -> Graph:
    return random_graph(6, 12, fed=True)


@pytest.fixture
def problem(backend: Backend) -> Problem:
    return Problem.of(random_graph(6, 12), device=device_of(backend))


@pytest.fixture
def attention(graph: Graph) -> Tensor:
    return edge_softmax(uniform(graph.num_edges, 1, seed=3, low=-2, high=2), graph, backend="reference")


def ring(num_nodes: int) -> tuple[Graph, Tensor]:
    """An undirected ring with equal attention: A is symmetric."""
    node = torch.arange(num_nodes)
    ahead = torch.stack([node, (node + 1) % num_nodes])
    graph = Graph.from_edge_index(torch.cat([ahead, ahead.flip(0)], 1), num_nodes)
    return graph, torch.full((2 * num_nodes, 1), 0.5, dtype=torch.float64)


def turning(num_nodes: int = 7) -> tuple[Graph, Tensor]:
    """A directed ring with unequal chords: A is not symmetric and its eigenvalues are complex."""
    node = torch.arange(num_nodes)
    edges = torch.stack([torch.cat([node, node]), torch.cat([(node + 1) % num_nodes, (node + 3) % num_nodes])])
    graph = Graph.from_edge_index(edges, num_nodes)
    return graph, edge_softmax(uniform(2 * num_nodes, 1, seed=5, low=-2, high=2), graph, backend="reference")


def sorted_complex(values: Tensor) -> list[complex]:
    rounded = (complex(round(v.real, 9), round(v.imag, 9)) for v in values.tolist())
    return sorted(rounded, key=lambda v: (v.real, v.imag))


def test_attention_rows_sum_to_one(backend: Backend, problem: Problem) -> None:
    attention = edge_softmax(problem.scores, problem.graph, backend=backend)
    sums = attention_matrix(attention, problem.graph).sum(2)
    degree = problem.graph.rowptr.diff()
    assert (degree == 0).any() and (attention > 0).all()
    torch.testing.assert_close(sums, (degree > 0).to(sums).expand_as(sums))


def test_softmax_does_not_see_a_shift_per_target(backend: Backend, problem: Problem) -> None:
    shift = 100 * uniform(6, 1, seed=8).to(problem.scores)
    shifted = edge_softmax(problem.scores + shift[problem.graph.target], problem.graph, backend=backend)
    torch.testing.assert_close(shifted, edge_softmax(problem.scores, problem.graph, backend=backend))


def test_softmax_survives_large_scores(backend: Backend) -> None:
    graph = Graph.from_edge_index(torch.tensor([[0, 1, 2], [0, 0, 0]]), 3).to(device_of(backend))
    scores = torch.tensor([[3e38], [-3e38], [3e38]], device=graph.device)
    assert edge_softmax(scores, graph, backend=backend).flatten().tolist() == [0.5, 0.0, 0.5]


@pytest.mark.parametrize("mode", ["truncated", "exact"])
def test_diffused_rows_sum_to_one(backend: Backend, graph: Graph, attention: Tensor, mode: Mode) -> None:
    hops: Options = {"K": 4} if mode == "truncated" else {"tolerance": 1e-12}
    matrix = operator_matrix(graph, attention, backend, mode=mode, alpha=ALPHA, **hops)
    assert (matrix >= 0).all()
    torch.testing.assert_close(matrix.sum(1), torch.ones(graph.num_nodes).double(), **TIGHT)


@pytest.mark.parametrize(
    "options", [{"K": 4, "alpha": ALPHA}, {"K": 1, "alpha": 0.0}, {"mode": "exact", "alpha": ALPHA}]
)
def test_constants_pass_through(backend: Backend, options: Options) -> None:
    problem = Problem.of(random_graph(6, 12, fed=True), device=device_of(backend))
    constant = torch.full_like(problem.x, 1.7)
    out = output_of(problem, backend, x=constant, **options)
    torch.testing.assert_close(out, constant, rtol=1e-5, atol=1e-6)


def test_a_node_without_in_edges_gets_its_own_teleport(backend: Backend) -> None:
    problem = Problem.of(random_graph(6, 5), device=device_of(backend))
    alone = problem.graph.rowptr.diff() == 0
    assert alone.any()
    for options in ({"K": 3}, {"mode": "exact"}):
        out = output_of(problem, backend, alpha=ALPHA, **options)
        torch.testing.assert_close(out[alone], ALPHA * problem.x[alone])


def test_proposition_1_converges_at_its_rate(backend: Backend, graph: Graph, attention: Tensor) -> None:
    limit = diffused_attention(attention, graph, ALPHA)[0]
    before, last = 0, 2.0  # the largest error of no hop
    for K in (0, 1, 2, 4, 8, 16):
        actual = operator_matrix(graph, attention, backend, K=K, alpha=ALPHA)
        error = float((actual - limit).abs().sum(1).max())  # the operator's norm for the largest entry
        assert error <= truncation_error(K, ALPHA) + 1e-12
        assert error <= (1 - ALPHA) ** (K - before) * last + 1e-12
        before, last = K, error


def test_proposition_1_rate_is_attained(backend: Backend) -> None:
    # On two nodes that only see each other A has the eigenvalue -1, the slowest that there can be.
    graph, attention = Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 2), torch.ones(2, 1).double()
    limit = diffused_attention(attention, graph, ALPHA)[0]
    matrices = (operator_matrix(graph, attention, backend, K=K, alpha=ALPHA) for K in range(5))
    errors = [(matrix - limit).abs().max().item() for matrix in matrices]
    assert [after / error for error, after in itertools.pairwise(errors)] == pytest.approx([1 - ALPHA] * 4)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_enough_hops_meet_the_closed_form(backend: Backend, graph: Graph, attention: Tensor, alpha: float) -> None:
    tolerance = 1e-4
    actual = operator_matrix(graph, attention, backend, K=hops_for(tolerance, alpha), alpha=alpha)
    assert (actual - diffused_attention(attention, graph, alpha)[0]).abs().sum(1).max() <= tolerance


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_exact_meets_the_closed_form(backend: Backend, graph: Graph, attention: Tensor, alpha: float) -> None:
    for tolerance in (1e-3, 1e-9):
        actual = operator_matrix(graph, attention, backend, mode="exact", tolerance=tolerance, alpha=alpha)
        assert (actual - diffused_attention(attention, graph, alpha)[0]).abs().max() <= tolerance


@pytest.mark.parametrize("case", [ring, turning])
@pytest.mark.parametrize("alpha", [0.4, 0.8])
def test_lemma_eigenvalues(backend: Backend, case: Case, alpha: float) -> None:
    graph, attention = case(7)
    eigenvalues = torch.linalg.eigvals(attention_matrix(attention, graph)[0])
    if case is turning:
        assert eigenvalues.imag.abs().max() > 0.1
    diffused = operator_matrix(graph, attention, backend, mode="exact", tolerance=1e-13, alpha=alpha)
    expected = alpha / (1 - (1 - alpha) * eigenvalues)
    assert sorted_complex(torch.linalg.eigvals(diffused)) == pytest.approx(sorted_complex(expected), abs=1e-7)


@pytest.mark.parametrize("case", [ring, turning])
def test_lemma_is_a_series(case: Case) -> None:
    graph, attention = case(7)
    eigenvalues = torch.linalg.eigvals(attention_matrix(attention, graph)[0])
    series = sum(ALPHA * ((1 - ALPHA) * eigenvalues) ** hop for hop in range(hops_for(1e-12, ALPHA)))
    torch.testing.assert_close(series, ALPHA / (1 - (1 - ALPHA) * eigenvalues))


@pytest.mark.parametrize("case", [ring, turning])
def test_proposition_2_ratio_of_laplacian_eigenvalues(backend: Backend, case: Case) -> None:
    graph, attention = case(7)
    values, vectors = torch.linalg.eig(attention_matrix(attention, graph)[0])
    diffused = operator_matrix(graph, attention, backend, mode="exact", tolerance=1e-13, alpha=ALPHA)
    # The eigenvectors are shared, so each eigenvalue of the diffused Laplacian has its partner.
    hat = ((vectors.conj() * (diffused.to(vectors) @ vectors)).sum(0)) / (vectors.conj() * vectors).sum(0)
    laplacian, hat_laplacian = 1 - values, 1 - hat
    moving = laplacian.abs() > 1e-9
    expected = 1 / (ALPHA / (1 - ALPHA) + laplacian[moving])
    torch.testing.assert_close((hat_laplacian / laplacian)[moving], expected, rtol=1e-8, atol=1e-10)


def test_proposition_2_low_frequencies_grow_and_high_ones_shrink() -> None:
    graph, attention = ring(12)
    laplacian = 1 - torch.linalg.eigvalsh(attention_matrix(attention, graph)[0])
    diffused = 1 - torch.linalg.eigvalsh(diffused_attention(attention, graph, ALPHA)[0])
    turn = 1 - ALPHA / (1 - ALPHA)
    low, high = (laplacian < turn - 1e-9) & (laplacian > 1e-9), laplacian > turn + 1e-9
    assert low.any() and high.any()
    assert (diffused[low] > laplacian[low]).all() and (diffused[high] < laplacian[high]).all()
    assert (diffused[low] / laplacian[low]).max() < (1 - ALPHA) / ALPHA


@pytest.mark.parametrize("case", [ring, turning])
def test_eigenvectors_are_shared(backend: Backend, case: Case) -> None:
    graph, attention = case(7)
    values, vectors = torch.linalg.eig(attention_matrix(attention, graph)[0])
    diffused = operator_matrix(graph, attention, backend, mode="exact", tolerance=1e-13, alpha=ALPHA).to(vectors)
    torch.testing.assert_close(diffused @ vectors, vectors * (ALPHA / (1 - (1 - ALPHA) * values)), rtol=1e-8, atol=1e-9)


def test_proposition_3_is_personalised_pagerank(backend: Backend, graph: Graph, attention: Tensor) -> None:
    A = attention_matrix(attention, graph)[0]
    start = torch.eye(graph.num_nodes).double()
    walk = start
    for _ in range(400):  # power iteration: row i is the walk that teleports back to node i
        walk = ALPHA * start + (1 - ALPHA) * walk @ A
    series = sum(ALPHA * (1 - ALPHA) ** hop * torch.linalg.matrix_power(A, hop) for hop in range(400))
    closed = diffused_attention(attention, graph, ALPHA)[0]
    actual = operator_matrix(graph, attention, backend, mode="exact", tolerance=1e-13, alpha=ALPHA)
    for other in (walk, series, closed):
        torch.testing.assert_close(actual, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("options", [{}, {"dropout": 0.4, "feature_dropout": 0.3, "seed": 1}, {"mode": "exact"}])
def test_adjoint_identity(backend: Backend, problem: Problem, options: Options) -> None:
    hops: Options = {"tolerance": 1e-13} if "mode" in options else {"K": 3}
    actual = diffuse(problem, backend, alpha=ALPHA, **hops, **options)
    torch.testing.assert_close((actual["out"] * problem.grad).sum(), (problem.x * actual["x"]).sum(), **TIGHT)


def test_linear_in_features(backend: Backend, problem: Problem) -> None:
    a, b = problem.x, problem.grad
    options: Options = {"theta": problem.theta, "dropout": 0.4, "feature_dropout": 0.3, "seed": 1}
    whole, *parts = (output_of(problem, backend, x=x, **options) for x in (2 * a - 3 * b, a, b))
    torch.testing.assert_close(whole, 2 * parts[0] - 3 * parts[1], **TIGHT)


def test_renaming_nodes_commutes(backend: Backend, problem: Problem) -> None:
    name = torch.randperm(6, generator=torch.Generator().manual_seed(1)).to(problem.x.device)
    back = name.argsort()
    renamed = Graph.from_edge_index(name[problem.graph.edge_index], 6)
    actual = diffuse(Problem(renamed, problem.x[back], problem.scores, problem.theta, problem.grad[back]), backend)
    expected = diffuse(problem, backend)
    same(actual, expected | {"out": expected["out"][back], "x": expected["x"][back]}, **TIGHT)


def test_order_of_edges_does_not_matter(backend: Backend, problem: Problem) -> None:
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1)).to(problem.x.device)
    shuffled = Graph.from_edge_index(problem.graph.edge_index[:, order], 6)
    softmax = edge_softmax(problem.scores[order], shuffled, backend=backend)
    torch.testing.assert_close(softmax, problem.attention[order], **TIGHT)
    actual = diffuse(Problem(shuffled, problem.x, problem.scores[order], problem.theta, problem.grad), backend)
    expected = diffuse(problem, backend)
    same(actual, expected | {"attention": expected["attention"][order]}, **TIGHT)


def test_parallel_edges_add_up(backend: Backend) -> None:
    device = device_of(backend)
    once = Graph.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 0]]), 3).to(device)
    twice = Graph.from_edge_index(torch.tensor([[0, 1, 2, 0], [1, 2, 0, 1]]), 3).to(device)
    x = uniform(3, 2, 4, seed=0).to(device)
    whole = uniform(3, 2, seed=1, low=0).to(device)
    parts = torch.cat([whole, 0.25 * whole[:1]])
    parts[0] *= 0.75
    actual = attention_diffusion(x, parts, twice, K=3, alpha=ALPHA, backend=backend)
    torch.testing.assert_close(actual, attention_diffusion(x, whole, once, K=3, alpha=ALPHA, backend=backend), **TIGHT)


def test_full_teleport_returns_the_features(backend: Backend, problem: Problem) -> None:
    for options in ({"K": 3}, {"mode": "exact"}):
        out = output_of(problem, backend, alpha=1.0, **options)
        torch.testing.assert_close(out, problem.x, rtol=0, atol=0)


def test_no_hop_is_the_identity(backend: Backend, problem: Problem) -> None:
    drops: Options = {"dropout": 0.5, "feature_dropout": 0.5, "seed": 1}
    for options in ({}, drops):
        out = output_of(problem, backend, K=0, alpha=0.3, **options)
        torch.testing.assert_close(out, problem.x, rtol=0, atol=0)


def test_one_hop_without_teleport_is_attention(backend: Backend, problem: Problem) -> None:
    out = output_of(problem, backend, K=1, alpha=0.0)
    dense = attention_matrix(problem.attention, problem.graph)
    torch.testing.assert_close(out, torch.einsum("hij,jhd->ihd", dense, problem.x), **TIGHT)


def test_equation_5_step_by_step(backend: Backend, problem: Problem) -> None:
    dense, z = attention_matrix(problem.attention, problem.graph), problem.x
    for K in range(1, 5):
        z = (1 - ALPHA) * torch.einsum("hij,jhd->ihd", dense, z) + ALPHA * problem.x
        out = output_of(problem, backend, K=K, alpha=ALPHA)
        torch.testing.assert_close(out, z, **TIGHT)


def test_equation_3_any_weights(backend: Backend) -> None:
    problem = Problem.of(random_graph(6, 12), K=4, device=device_of(backend))
    dense = attention_matrix(problem.attention, problem.graph)
    expected = sum(
        problem.theta[:, k, None] * torch.einsum("hij,jhd->ihd", torch.linalg.matrix_power(dense, k), problem.x)
        for k in range(5)
    )
    out = output_of(problem, backend, theta=problem.theta)
    torch.testing.assert_close(out, expected, **TIGHT)


def test_geometric_weights_are_alpha(backend: Backend, problem: Problem) -> None:
    alpha = torch.tensor([0.1, 0.7], dtype=torch.float64, device=problem.x.device)
    apply = partial(output_of, problem, backend)
    torch.testing.assert_close(apply(theta=geometric_weights(alpha, 3)), apply(K=3, alpha=alpha), rtol=0, atol=0)
    torch.testing.assert_close(apply(theta=geometric_weights(alpha[:1], 3)[0]), apply(K=3, alpha=0.1), **TIGHT)
    torch.testing.assert_close(apply(K=3, alpha=alpha)[:, 1], apply(K=3, alpha=0.7)[:, 1], **TIGHT)


def test_heads_do_not_see_each_other(backend: Backend) -> None:
    problem = Problem.of(random_graph(6, 12), heads=3, device=device_of(backend))
    whole = output_of(problem, backend, theta=problem.theta)
    for head in range(3):
        one = slice(head, head + 1)
        theta, attention = problem.theta[one], problem.attention[:, one]
        alone = output_of(problem, backend, x=problem.x[:, one], attention=attention, theta=theta)
        torch.testing.assert_close(alone, whole[:, one], **TIGHT)


@pytest.mark.parametrize("K", [0, 1, 2, 7])
def test_weights_sum_to_one_and_decay(K: int) -> None:
    alpha = torch.tensor([0.0, 0.1, 0.5, 1.0], dtype=torch.float64)
    theta = geometric_weights(alpha, K)
    assert theta.shape == (4, K + 1)
    torch.testing.assert_close(theta.sum(1), torch.ones(4).double())
    for k in range(K):
        torch.testing.assert_close(theta[:, k], alpha * (1 - alpha) ** k)
    torch.testing.assert_close(theta[:, K], (1 - alpha) ** K)


def test_share_of_the_last_hop() -> None:
    # Point 30 of the paper's differences: a truncated model is not PageRank.
    shares = {(0.15, 4): 52, (0.1, 6): 53, (0.1, 10): 35, (0.2, 2): 64}
    for (alpha, K), percent in shares.items():
        assert round(100 * geometric_weights(torch.tensor([alpha]), K)[0, K].item()) == percent


def test_weights_are_differentiable_everywhere() -> None:
    alpha = torch.tensor([0.2, 0.7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: geometric_weights(a, 4), (alpha,))
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
    geometric_weights(ends, 3).square().sum().backward()
    assert ends.grad is not None and ends.grad.isfinite().all()


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("tolerance", [1.9, 1e-2, 1e-6, 1e-12])
def test_hops_for_is_the_smallest(alpha: float, tolerance: float) -> None:
    K = hops_for(tolerance, alpha)
    assert truncation_error(K, alpha) <= tolerance
    assert K == 0 or truncation_error(K - 1, alpha) > tolerance


def test_bounds_at_the_ends() -> None:
    assert hops_for(2.0, 0.1) == 0
    assert truncation_error(0, 0.3) == 2 and truncation_error(3, 1.0) == 0 and truncation_error(5, 0.0) == 2


@pytest.mark.parametrize("alpha", [-0.1, 1.1, math.nan])
def test_alpha_out_of_range(alpha: float) -> None:
    with pytest.raises(ValueError, match=rf"alpha is {alpha}; allowed: 0 to 1"):
        truncation_error(3, alpha)
    with pytest.raises(ValueError, match=f"alpha is {alpha}; allowed: above 0 and at most 1"):
        hops_for(0.1, alpha)


def test_other_bad_values() -> None:
    for K in (-1, math.nan, "3", 2.5):
        with pytest.raises(ValueError, match=f"K is {K!r}; allowed: an int, 0 and above"):
            truncation_error(K, 0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tolerance is 0; allowed: above 0"):
        hops_for(0, 0.1)
    with pytest.raises(ValueError, match=r"alpha is 0.0; allowed: above 0"):
        hops_for(0.1, 0)

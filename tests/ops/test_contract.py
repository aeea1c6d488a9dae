"""The kernel contract: outputs and every gradient of a fused backend against the definition.

All memory is NaN until it is written, and every test sees which backend ran.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.functional import hessian

from magna.graph import Graph
from magna.ops import attention_diffusion, attention_matrix, dropout, edge_scores, edge_softmax, head_scores, reference
from magna.ops.backend.registry import MODULES, choose, kernels, why_not
from magna.typing import Backend, Memory
from tests.support.comparing import Results, same, same_bits, within_budget
from tests.support.graphs import odd_graphs, random_graph, star, uniform
from tests.support.operators import Options, Problem, diffuse, output_of, softmax, with_gradients
from tests.support.running import device_of, interpreted

Calls = Counter[tuple[str, str]]
DROPS: Options = {"dropout": 0.4, "feature_dropout": 0.3, "seed": 5}
ODD = list(odd_graphs(2))


@pytest.fixture(autouse=True)
def only_this_backend(poisoned: None, request: pytest.FixtureRequest, calls: Calls) -> Iterator[None]:
    fused = request.getfixturevalue("fused") if "fused" in request.fixturenames else None
    yield
    assert fused is None or {backend for backend, _ in calls} <= {fused}


def check(problem: Problem, fused: Backend, run: Callable[..., Results] = diffuse, **options: Any) -> None:
    """Check that a fused backend gives the outputs and gradients of the definition."""
    tolerance = {name: options.pop(name) for name in ("rtol", "atol") if name in options}
    same(run(problem, fused, **options), run(problem, "reference", **options), **tolerance)


def check_budget(problem: Problem, fused: Backend, run: Callable[..., Results]) -> None:
    within_budget(run(problem, fused), run(problem, "reference"), run(problem.to(torch.float64), "reference"))


def sized(fused: Backend, small: tuple[int, int], large: tuple[int, int]) -> Graph:
    """A random graph of some nodes and edges: the small one in the interpreter."""
    return random_graph(*(small if interpreted(fused) else large))


def hops_ran(calls: Calls, fused: Backend) -> tuple[int, int]:
    return calls[fused, "hop"], calls[fused, "hop_backward"]


def complete(num_nodes: int) -> Graph:
    """Every pair of nodes in both directions, and a loop on every node."""
    node = torch.arange(num_nodes)
    return Graph.from_edge_index(torch.cartesian_prod(node, node).t(), num_nodes)


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("drops", [{}, DROPS], ids=["plain", "dropout"])
def test_diffusion_on_odd_graphs(fused: Backend, calls: Calls, name: str, drops: Options) -> None:
    # Dropout takes long in the interpreter; two pieces are a hub too.
    graph = odd_graphs((70 if drops else 300) if interpreted(fused) else 5000)[name]
    problem = Problem.of(graph, heads=2, width=3, K=2, device=device_of(fused))
    check(problem, fused, **drops)
    assert hops_ran(calls, fused) == (2, 2)


def test_longer_pieces_give_the_same(fused: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(4, 900)  # of up to three pieces, or of none
    problem = Problem.of(graph, heads=2, width=3, K=1, device=device_of(fused))
    runs = diffuse, softmax
    expected = [run(problem, "reference") for run in runs]
    mask = reference.top_k_mask(problem.scores, 15, problem.graph)
    monkeypatch.setattr("magna.graph.segments._MANY_EDGES", 0)
    longer = Problem.of(random_graph(4, 900), heads=2, width=3, K=1, device=device_of(fused))
    assert longer.graph.by_target.num_slots < problem.graph.by_target.num_slots
    for run, results in zip(runs, expected, strict=True):
        same(run(longer, fused), results)
    assert torch.equal(kernels(fused).top_k_mask(longer.scores, 15, longer.graph), mask)


@pytest.mark.parametrize("name", ODD)
def test_softmax_on_odd_graphs(fused: Backend, calls: Calls, name: str) -> None:
    problem = Problem.of(odd_graphs(300 if interpreted(fused) else 5000)[name], heads=3, device=device_of(fused))
    check(problem, fused, softmax)
    assert calls[fused, "edge_softmax"] == calls[fused, "edge_softmax_backward"] == 1


@pytest.mark.parametrize(("heads", "width"), [(1, 1), (3, 3), (8, 16), (1, 33), (3, 64), (2, 130), (8, 1)])
@pytest.mark.parametrize("drops", [{}, DROPS], ids=["plain", "dropout"])
def test_diffusion_of_odd_sizes(fused: Backend, heads: int, width: int, drops: Options) -> None:
    problem = Problem.of(sized(fused, (5, 9), (50, 300)), heads, width, K=2, device=device_of(fused))
    check(problem, fused, **drops)


@pytest.mark.parametrize("heads", [1, 3, 8, 17])
def test_softmax_of_odd_sizes(fused: Backend, heads: int) -> None:
    check(Problem.of(sized(fused, (5, 9), (50, 300)), heads, device=device_of(fused)), fused, softmax)


def test_hub_of_a_hundred_thousand_edges(fused: Backend) -> None:
    if interpreted(fused):
        pytest.skip("takes minutes in the interpreter")
    hub = star(100_000, leaves=100_000)
    problem = Problem.of(hub, heads=2, width=4, K=3, dtype=torch.float32, device=device_of(fused))
    for run in (softmax, diffuse):
        check_budget(problem, fused, run)


@pytest.mark.parametrize("alpha", [0.2, [0.1, 0.4, 1.0]], ids=["fixed", "per head"])
@pytest.mark.parametrize("K", [1, 2, 5])
def test_alpha(fused: Backend, calls: Calls, K: int, alpha: float | list[float]) -> None:
    problem = Problem.of(random_graph(6, 12), heads=3, device=device_of(fused))
    check(problem, fused, K=K, alpha=alpha if isinstance(alpha, float) else problem.x.new_tensor(alpha))
    assert hops_ran(calls, fused) == (K, K)


@pytest.mark.parametrize("K", [1, 3])
def test_rates_per_hop_and_head(fused: Backend, K: int) -> None:
    problem = Problem.of(random_graph(4, 8), heads=3, width=4, K=K, device=device_of(fused))
    rates = torch.tensor([[0.6, 0.0, 0.1], [0.0, 0.5, 0.3], [0.0, 0.0, 0.8]], device=problem.x.device)[:K]
    for memory in ("save", "recompute"):
        check(problem, fused, memory=memory, dropout=rates[0], feature_dropout=rates, seed=3)
    check(problem, fused, feature_dropout=rates[0], seed=3)
    # One rate for all heads of a hop, and the same one for all hops.
    alike = torch.full((K, 1), 0.4, device=problem.x.device)
    actual = diffuse(problem, fused, feature_dropout=alike, seed=3)
    same(actual, diffuse(problem, "reference", feature_dropout=0.4, seed=3))


def test_attention_masks_are_the_reference_bits(fused: Backend) -> None:
    # With unit vectors as features one hop shows the weight of every edge.
    device = device_of(fused)
    graph = complete(6).to(device)
    x = torch.eye(6, device=device)[:, None].expand(6, 2, 6)
    attention = torch.ones(36, 2, device=device)
    options: Options = {"K": 1, "alpha": 0.0, "dropout": 0.5}
    for seed in (0, 2**40 + 1, -7):
        actual = attention_diffusion(x, attention, graph, **options, seed=seed, backend=fused)
        assert torch.equal(actual, attention_diffusion(x, attention, graph, **options, seed=seed, backend="reference"))
        assert set(actual.unique().tolist()) == {0, 2}


@pytest.mark.parametrize("K", [8, 9, 33])
def test_dropout_over_many_hops(fused: Backend, K: int) -> None:
    # The Triton backend draws for all hops ahead: a byte for 8 hops, words for 32 where there are more.
    problem = Problem.of(random_graph(3, 7), heads=2, width=1, K=K, device=device_of(fused))
    check(problem, fused, K=K, alpha=0.02, dropout=0.1, seed=5)


@pytest.mark.parametrize("name", ODD)
def test_exact_on_odd_graphs(fused: Backend, name: str) -> None:
    graph = odd_graphs(70 if interpreted(fused) else 300)[name]
    problem = Problem.of(graph, heads=1, width=2, device=device_of(fused))
    check(problem, fused, alpha=0.8, mode="exact", tolerance=1e-9, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("first", [0.4, 1.0])
def test_exact_gradients_meet_a_dense_solve(backend: Backend, calls: Calls, first: float) -> None:
    problem = Problem.of(random_graph(6, 12), device=device_of(backend))
    alpha = problem.x.new_tensor([first, 0.5])

    def solved(x: Tensor, attention: Tensor, alpha: Tensor) -> Tensor:
        system = torch.eye(6).to(x) - (1 - alpha)[:, None, None] * attention_matrix(attention, problem.graph)
        z: Tensor = torch.linalg.solve(system, alpha[:, None, None] * x.transpose(0, 1))
        return z.transpose(0, 1)

    expected = with_gradients(solved, problem.grad, x=problem.x, attention=problem.attention, alpha=alpha)
    same(diffuse(problem, backend, alpha=alpha, mode="exact", tolerance=1e-11), expected, rtol=1e-8, atol=1e-9)
    if backend != "reference":
        assert calls[backend, "hop"] > 2 and calls[backend, "hop_backward"] == 1


@pytest.mark.parametrize("shared", [False, True], ids=["per head", "shared"])
@pytest.mark.parametrize("k", [1, 2, 5, 100])
def test_top_k_with_ties(backend: Backend, k: int, shared: bool) -> None:
    graph = random_graph(5, 24).to(device_of(backend))
    scores = (uniform(graph.num_edges, 3, seed=0) * 3).round().to(graph.device)  # with ties
    left = edge_softmax(scores, graph, top_k=k, top_k_shared=shared, backend=backend) > 0
    rank_by = scores.mean(1, keepdim=True).expand_as(scores) if shared else scores
    for edge in range(graph.num_edges):
        rivals = rank_by[graph.target == graph.target[edge]]
        better = (rivals > rank_by[edge]).sum(0)
        assert torch.equal(left[edge], better < k)


@pytest.mark.parametrize("shared", [False, True], ids=["per head", "shared"])
@pytest.mark.parametrize("options", [{}, {"edge_dropout": 0.5, "seed": 3}])
def test_top_k_and_its_gradient(fused: Backend, calls: Calls, shared: bool, options: Options) -> None:
    problem = Problem.of(sized(fused, (6, 40), (50, 600)), heads=3, device=device_of(fused))
    check(problem, fused, softmax, top_k=3, top_k_shared=shared, **options)
    assert calls[fused, "top_k_mask"] == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_k_of_rows_of_every_length(fused: Backend, dtype: torch.dtype) -> None:
    target = torch.arange(4).repeat_interleave(torch.tensor([7, 70, 600, 4500]))
    graph = Graph.from_edge_index(torch.stack([target % 3, target]), 4).to(device_of(fused))
    scores = uniform(graph.num_edges, 3, seed=0, low=-40, high=40).to(dtype)
    scores[:, 1] = scores[:, 1].round() / 16  # ties, among them 0 and -0
    scores[::3, 2] = -torch.inf
    scores = scores.to(graph.device)
    assert torch.equal(kernels(fused).top_k_mask(scores, 15, graph), reference.top_k_mask(scores, 15, graph))


@pytest.mark.parametrize("k", [1, 5, 64, 200])
def test_top_k_of_more_rows_than_programs(fused: Backend, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if fused == "triton":
        monkeypatch.setattr("magna.ops.triton.softmax._PROGRAMS", 3)
    target = torch.arange(12).repeat_interleave(torch.tensor([0, 9, 2, 70, 64, 6, 5, 130, 1, 20, 63, 7]))
    graph = Graph.from_edge_index(torch.stack([target % 3, target]), 12).to(device_of(fused))
    scores = uniform(graph.num_edges, 9, seed=0).float().to(graph.device)
    assert torch.equal(kernels(fused).top_k_mask(scores, k, graph), reference.top_k_mask(scores, k, graph))


@pytest.mark.parametrize("shape", [(12,), (12, 2)])
def test_mask_and_targets_with_nothing_left(backend: Backend, shape: tuple[int, ...]) -> None:
    problem = Problem.of(random_graph(6, 12), device=device_of(backend))
    mask = (uniform(*shape, seed=4) > 0).to(problem.x.device)
    mask[problem.graph.target == problem.graph.target[0]] = False
    actual = softmax(problem, backend, mask=mask)
    absent = ~mask if mask.dim() == 2 else ~mask[:, None].expand(12, 2)
    assert (actual["out"][absent] == 0).all() and (actual["scores"][absent] == 0).all()
    by_hand = replace(problem, scores=problem.scores.masked_fill(absent, -torch.inf))
    same(actual, softmax(by_hand, "reference"))
    assert actual["out"].isfinite().all() and actual["scores"].isfinite().all()


def test_edge_dropout_drops_pairs_together_and_keeps_loops(backend: Backend) -> None:
    graph = complete(8 if interpreted(backend) else 60).to(device_of(backend))
    size = graph.num_nodes
    scores = torch.zeros(graph.num_edges, 2, device=graph.device)
    options: Options = {"edge_dropout": 0.4, "seed": 1, "backend": backend}
    left = (edge_softmax(scores, graph, **options) > 0).view(size, size, 2)
    assert torch.equal(left, left.transpose(0, 1))
    assert left.diagonal().all()
    assert torch.equal(left[..., 0], left[..., 1])  # an edge is absent for all heads
    alone = (edge_softmax(scores, graph, **options, edge_pairs=False) > 0).view(size, size, 2)
    assert not torch.equal(alone, alone.transpose(0, 1)) and alone.diagonal().all()
    by_number = edge_softmax(scores, graph, **options, edge_pairs=torch.arange(size * size, device=graph.device))
    assert torch.equal(by_number.view(size, size, 2) > 0, alone)


def test_edge_dropout_has_its_rate() -> None:
    graph, rates = complete(150), torch.tensor([0.0, 0.2, 0.7])
    left = edge_softmax(torch.zeros(graph.num_edges, 3), graph, edge_dropout=rates, seed=1, backend="reference") > 0
    apart = graph.source < graph.target
    pairs = int(apart.sum())
    assert (~left[apart]).double().mean(0).tolist() == pytest.approx(rates.tolist(), abs=5 * (0.25 / pairs) ** 0.5)


def scores_with_grads(backend: Backend, graph: Graph, heads: int, typed: bool, slope: float) -> Results:
    rows = {"source": graph.num_nodes, "target": graph.num_nodes} | ({"relation": graph.num_relations} if typed else {})
    inputs = {name: uniform(size, heads, seed=i).to(graph.device) for i, (name, size) in enumerate(rows.items())}
    return with_gradients(partial(edge_scores, graph=graph, negative_slope=slope, backend=backend), 3, **inputs)


@pytest.mark.parametrize("typed", [False, True], ids=["untyped", "typed"])
@pytest.mark.parametrize("slope", [0.0, 0.2, 1.5])
def test_edge_scores(fused: Backend, calls: Calls, typed: bool, slope: float) -> None:
    for name, graph in odd_graphs(70 if interpreted(fused) else 5000).items():
        if interpreted(fused) and slope != 0.2 and name == "hub":
            continue
        if typed:
            graph = graph.with_types(torch.arange(graph.num_edges) * 5 % 3, 4)
        graph = graph.to(device_of(fused))
        calls.clear()
        actual = scores_with_grads(fused, graph, 3, typed, slope)
        assert calls[fused, "edge_scores"] == 1 and calls[fused, "segment_sum"] == (3 if typed else 2)
        same(actual, scores_with_grads("reference", graph, 3, typed, slope))


@pytest.mark.parametrize("heads", [1, 8, 40])
def test_sums_of_rows_of_every_length(fused: Backend, heads: int) -> None:
    degree = torch.tensor([0, 1, 3, 8, 9, 20, 64, 65, 200, *[2] * 20])
    target = torch.arange(len(degree)).repeat_interleave(degree)
    order = (torch.arange(len(target)) * 7 + 3) % len(target)  # not by target; 7 divides no such number of edges
    graph = Graph.from_edge_index(torch.stack([target % 5, target])[:, order], len(degree)).to(device_of(fused))
    same(scores_with_grads(fused, graph, heads, False, 0.2), scores_with_grads("reference", graph, heads, False, 0.2))


def node_scores_with_grads(backend: Backend, x: Tensor, vector: Tensor, tanh: bool) -> Results:
    return with_gradients(partial(head_scores, tanh=tanh, backend=backend), 3, x=x, vector=vector)


@pytest.mark.parametrize("tanh", [True, False])
@pytest.mark.parametrize(
    "shape", [(0, 2, 3), (1, 1, 1), (5, 3, 7), (130, 2, 8), (3, 1, 65), (300, 1, 20), (70, 1, 300)]
)
def test_node_scores_of_odd_sizes(fused: Backend, calls: Calls, shape: tuple[int, int, int], tanh: bool) -> None:
    x, vector = (uniform(*s, seed=i, low=-3, high=3).to(device_of(fused)) for i, s in enumerate((shape, shape[1:])))
    actual = node_scores_with_grads(fused, x, vector, tanh)
    assert calls[fused, "head_scores"] == calls[fused, "head_scores_backward"] == 1
    same(actual, node_scores_with_grads("reference", x, vector, tanh))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_error_budget_of_node_scores(fused: Backend, dtype: torch.dtype) -> None:
    device = device_of(fused)
    x, vector = uniform(300, 2, 16, seed=0, low=-3, high=3).to(device, dtype), uniform(2, 16, seed=1).to(device)
    truth = node_scores_with_grads("reference", x.double(), vector, True)
    plain = node_scores_with_grads("reference", x, vector.float(), True)
    actual = node_scores_with_grads(fused, x, vector.float(), True)
    assert actual["x"].dtype == dtype and actual["out"].dtype == actual["vector"].dtype == torch.float32
    within_budget(actual, plain, truth, times=4)


def test_node_scores_of_extreme_features(fused: Backend) -> None:
    x = torch.tensor([-torch.inf, -1e30, -100.0, 0.0, 1e-6, 100.0, torch.inf, torch.nan]).to(device_of(fused))
    out = head_scores(x.view(-1, 1, 1), torch.ones(1, 1, device=x.device), backend=fused).flatten()
    torch.testing.assert_close(out, x.tanh(), equal_nan=True, rtol=0, atol=2e-7)
    low = head_scores(x.bfloat16().view(-1, 1, 1), torch.ones(1, 1, device=x.device), backend=fused).flatten()
    torch.testing.assert_close(low, x.bfloat16().float().tanh(), equal_nan=True, rtol=0, atol=1e-6)


@pytest.mark.parametrize("pairs", ["pairs", "edges", "numbers", "large numbers"])
def test_the_same_edges_are_left_out(fused: Backend, calls: Calls, pairs: str) -> None:
    for graph in odd_graphs(70 if interpreted(fused) else 5000).values():
        graph = graph.to(device_of(fused))
        number = torch.arange(graph.num_edges, device=graph.device) // 3
        arguments = {"pairs": True, "edges": False, "numbers": number, "large numbers": number * (2**31 + 5)}[pairs]
        options: Options = {"edge_dropout": torch.tensor([0.2, 0.7]), "edge_pairs": arguments, "seed": 11}
        scores = torch.zeros(graph.num_edges, 2, device=graph.device)
        calls.clear()
        left = edge_softmax(scores, graph, backend=fused, **options) > 0
        assert calls[fused, "kept_edges"] == 1
        assert torch.equal(left, edge_softmax(scores, graph, backend="reference", **options) > 0)


@pytest.mark.parametrize("top_k", [None, 2])
@pytest.mark.parametrize("masked", [None, (40,), (40, 3)], ids=["all", "masked", "masked by head"])
def test_one_draw_of_an_edge_serves_all_heads(
    backend: Backend, masked: tuple[int, ...] | None, top_k: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number drops what the same number for each head drops, with one column of draws."""
    problem = Problem.of(random_graph(6, 40), heads=3, device=device_of(backend))
    mask = None if masked is None else (uniform(*masked, seed=4) > -0.5).to(problem.x.device)
    options: Options = {"mask": mask, "top_k": top_k, "seed": 5}
    module, columns = (reference if backend == "reference" else kernels(backend)), list[int]()
    kept_edges = module.kept_edges

    def counted(rate: Tensor, *rest: Any) -> Tensor:
        columns.append(rate.numel())
        return kept_edges(rate, *rest)

    monkeypatch.setattr(module, "kept_edges", counted)
    one = softmax(problem, backend, edge_dropout=0.4, **options)
    each = softmax(problem, backend, edge_dropout=torch.full((3,), 0.4), **options)
    same_bits(one, each)
    assert columns == [1, 3]


BUDGETED: dict[str, Options] = {
    "plain": {},
    "dropout": DROPS,
    "recompute": {"memory": "recompute"},
    "exact": {"mode": "exact", "alpha": 0.5, "tolerance": 1e-6},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", BUDGETED)
def test_error_budget_of_diffusion(fused: Backend, dtype: torch.dtype, name: str) -> None:
    graph = random_graph(*((6, 20) if interpreted(fused) else (300, 3000)), fed=True)
    problem = Problem.of(graph, heads=4, width=8, K=4, dtype=dtype, device=device_of(fused))
    attention, options = problem.attention, BUDGETED[name]
    truth = diffuse(problem.to(torch.float64), "reference", attention=attention.double(), **options)
    plain = diffuse(problem, "reference", attention=attention, **options)
    actual = diffuse(problem, fused, attention=attention, **options)
    assert actual["out"].dtype == actual["x"].dtype == dtype
    # Triton's interpreter cuts bfloat16 off where a GPU rounds it.
    times = 8 if interpreted(fused) and dtype == torch.bfloat16 else 2
    within_budget(actual, plain, truth, times=times, floor=options.get("tolerance", 0.0))


def test_error_budget_of_softmax(fused: Backend) -> None:
    graph = sized(fused, (6, 60), (300, 3000))
    check_budget(Problem.of(graph, heads=4, dtype=torch.float32, device=device_of(fused)), fused, softmax)


def test_inputs_that_are_not_contiguous(fused: Backend) -> None:
    problem = Problem.of(random_graph(6, 12), heads=3, width=3, device=device_of(fused))
    turned = Problem(
        problem.graph,
        problem.x.transpose(1, 2).contiguous().transpose(1, 2),
        problem.scores.t().contiguous().t(),
        problem.theta.t().contiguous().t(),
        problem.grad.transpose(0, 2).contiguous().transpose(0, 2),
    )
    for run in (diffuse, softmax):
        same(run(turned, fused), run(problem, "reference"))
    # A sum sends back a gradient without strides.
    x = problem.x.clone().requires_grad_()
    output_of(problem, fused, x=x, K=2, alpha=0.2).sum().backward()
    ones = replace(problem, grad=torch.ones_like(problem.x))
    torch.testing.assert_close(x.grad, diffuse(ones, "reference", K=2, alpha=0.2)["x"])


def test_types_and_numbers_of_edges_that_are_columns_of_a_table(fused: Backend) -> None:
    table = torch.randint(3, (12, 4), generator=torch.Generator().manual_seed(2)).to(device_of(fused))
    graph = Graph.from_edge_index(table[:, :2].t(), 3, table[:, 2], 3)
    nodes, relation = torch.arange(6.0, device=table.device).view(3, 2), torch.eye(3, device=table.device)[:, :2]
    scores = edge_scores(nodes, -nodes, graph, relation, backend=fused)
    assert torch.equal(scores, edge_scores(nodes, -nodes, graph, relation, backend="reference"))
    options: Options = {"edge_dropout": 0.5, "edge_pairs": table[:, 3], "seed": 3}
    left = edge_softmax(scores, graph, backend=fused, **options) > 0
    assert torch.equal(left, edge_softmax(scores, graph, backend="reference", **options) > 0)


def test_only_what_is_asked_for_has_a_gradient(fused: Backend) -> None:
    problem = Problem.of(random_graph(6, 12), device=device_of(fused))
    expected = diffuse(problem, "reference")
    for name in ("x", "attention", "theta"):
        leaf = getattr(problem, name).detach().clone().requires_grad_()
        output_of(problem, fused, **{"theta": problem.theta, name: leaf}).backward(problem.grad)
        torch.testing.assert_close(leaf.grad, expected[name])


def test_second_derivatives_are_refused_not_wrong(fused: Backend) -> None:
    problem = Problem.of(random_graph(4, 6), device=device_of(fused))
    x, attention = problem.x.requires_grad_(), problem.attention.requires_grad_()

    def diffused(x: Tensor) -> Tensor:
        return output_of(problem, fused, x=x, attention=attention, K=2, alpha=0.2).square().sum()

    (first,) = torch.autograd.grad(diffused(x), x, create_graph=True)
    with pytest.raises(RuntimeError):
        first.square().sum().backward()
    with pytest.raises(RuntimeError):
        torch.autograd.grad(first.square().sum(), [x, attention], allow_unused=True)
    with pytest.raises(RuntimeError):
        hessian(diffused, problem.x.detach())
    with pytest.raises(RuntimeError):
        hessian(lambda s: edge_softmax(s, problem.graph, backend=fused).sum(), attention)


def test_a_second_derivative_of_dropout_is_one(fused: Backend) -> None:
    x = torch.randn(4, 3, device=device_of(fused)).requires_grad_()
    (first,) = torch.autograd.grad(dropout(x, 0.5, seed=1, backend=fused).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    left = dropout(torch.ones_like(x), 0.5, seed=1, backend=fused)
    torch.testing.assert_close(second, 6 * x * left**3)


def test_derivatives_in_forward_mode_are_refused_not_zero(fused: Backend) -> None:
    problem = Problem.of(random_graph(4, 6), device=device_of(fused))
    diffused = partial(output_of, problem, K=2, alpha=0.2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(problem.x, torch.ones_like(problem.x))
        with pytest.raises(RuntimeError, match="forward mode; try backend='reference'"):
            diffused(fused, x=dual)
        tangent = forward_ad.unpack_dual(diffused("reference", x=dual)).tangent
    # It is linear in x.
    torch.testing.assert_close(tangent, diffused(fused, x=torch.ones_like(problem.x)))
    with pytest.raises(RuntimeError, match="forward mode"):
        torch.func.jvp(lambda x: diffused(fused, x=x), (problem.x,), (problem.x,))


def test_a_backward_pass_gives_up_the_graph(fused: Backend) -> None:
    problem = Problem.of(random_graph(4, 6), device=device_of(fused))
    edge_index = weakref.ref(problem.graph.edge_index)
    problem.x.requires_grad_()
    out = output_of(problem, fused, K=2, alpha=0.2).sum()
    problem = None  # type: ignore[assignment]
    out.backward(retain_graph=True)
    assert edge_index() is not None
    out.backward()
    gc.collect()
    assert edge_index() is None


def check_gradients(backend: Backend, function: Callable[..., Tensor], **inputs: Tensor) -> None:
    leaves = tuple(tensor.detach().clone().requires_grad_() for tensor in inputs.values())

    def apply(*leaves: Tensor) -> Tensor:
        return function(**dict(zip(inputs, leaves, strict=True)))

    assert torch.autograd.gradcheck(apply, leaves, fast_mode=interpreted(backend))


@pytest.mark.parametrize("memory", ["save", "recompute"])
@pytest.mark.parametrize("drops", [{}, DROPS], ids=["plain", "dropout"])
def test_gradcheck_diffusion(backend: Backend, memory: Memory, drops: Options) -> None:
    if interpreted(backend) and not drops:
        pytest.skip("takes long in the interpreter, and dropout is tested there")
    problem = Problem.of(random_graph(3, 6), heads=2, width=2, K=3, device=device_of(backend))
    apply = partial(output_of, problem, backend, memory=memory, **drops)
    check_gradients(backend, apply, x=problem.x, attention=problem.attention, theta=problem.theta)


def test_gradcheck_exact(backend: Backend) -> None:
    problem = Problem.of(random_graph(3, 6, fed=True), heads=2, width=2, device=device_of(backend))
    apply = partial(output_of, problem, backend, mode="exact", tolerance=1e-12)
    check_gradients(backend, apply, x=problem.x, attention=problem.attention, alpha=problem.x.new_tensor([0.8, 0.9]))


def test_gradcheck_from_scores_to_output(backend: Backend) -> None:
    graph = random_graph(4, 9).with_types(torch.arange(9) % 2, 2).to(device_of(backend))
    shapes = {"source": (4, 2), "target": (4, 2), "relation": (2, 2), "x": (4, 2, 2)}
    inputs = {name: uniform(*shape, seed=i).to(graph.device) for i, (name, shape) in enumerate(shapes.items())}

    def apply(source: Tensor, target: Tensor, relation: Tensor, x: Tensor) -> Tensor:
        scores = edge_scores(source, target, graph, relation, backend=backend)
        attention = edge_softmax(scores, graph, top_k=2, edge_dropout=0.2, seed=1, backend=backend)
        return attention_diffusion(x, attention, graph, K=2, alpha=0.3, backend=backend)

    check_gradients(backend, apply, **inputs)


def test_auto_takes_the_fused_backend_of_the_device() -> None:
    for device, fused in (("cpu", "cpu"), ("cuda", "triton")):
        place = torch.device(device)
        expected = fused if why_not(fused, place) is None else "reference"
        assert choose("auto", place) == expected
    assert choose("auto", torch.device("meta")) == "reference"


@pytest.mark.parametrize("name", list(MODULES))
def test_no_silent_fallback(name: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem.of(random_graph(4, 6))
    monkeypatch.setitem(MODULES, name, "magna.ops.no_such_module")
    assert choose("auto", torch.device("cpu")) != name
    for call in (partial(output_of, problem, K=2, alpha=0.1), partial(edge_softmax, problem.scores, problem.graph)):
        with pytest.raises(ValueError, match=f"backend is '{name}'; allowed: one that runs .*; try backend='auto'"):
            call(backend=name)

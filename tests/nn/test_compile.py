"""torch.compile(fullgraph=True) and the modules; dynamo traces, a backend runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from magna import MAGNA, Graph, MAGNAConv
from magna.ops.backend.registry import choose
from magna.typing import Backend
from tests.support.graphs import integers, random_graph, uniform

pytestmark = pytest.mark.slow

N, E, C = 12, 40, 8
GRAPH, X = random_graph(N, E), uniform(N, C, seed=1).float()

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "hops learnt": {"hop_weights": "theta"},
    # Dropout counts edges, and under the compiler every node gets a loop.
    "dropout": {"add_self_loops": False, "dropout": 0.3, "feature_dropout": 0.2, "edge_dropout": 0.4, "top_k": 3},
    "full heads": {"head_form": "full", "out_projection": True},
}


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run(module: Any, *inputs: Any, **call: Any) -> list[Tensor]:
    torch.manual_seed(5)
    module.zero_grad()
    out = module(*inputs, **call)
    out.square().sum().backward()
    return [out.detach()] + [p.grad.clone() for p in module.parameters()]


def check(module: Any, compiler: str, *inputs: Any, **call: Any) -> None:
    expected = run(module, *inputs, **call)
    compiled_results = run(torch.compile(module, fullgraph=True, backend=compiler), *inputs, **call)
    torch.testing.assert_close(compiled_results, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("prebuilt", [True, False], ids=["Graph", "edge_index"])
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_the_layer_compiles_whole(options: dict[str, Any], prebuilt: bool, compiler: str) -> None:
    check(MAGNAConv(C, 8, heads=2, K=3, **options), compiler, X, GRAPH if prebuilt else GRAPH.edge_index)


@pytest.mark.parametrize("prebuilt", [True, False], ids=["Graph", "edge_index"])
def test_the_typed_model_compiles_whole(prebuilt: bool) -> None:
    types = integers(3, E, seed=2)
    call = (Graph.from_edge_index(GRAPH.edge_index, N, types, 3),) if prebuilt else (GRAPH.edge_index, types)
    model = MAGNA(C, 8, 2, 3, heads=2, num_relations=3, output_dropout=0.3, norm="unbiased")
    check(model, "aot_eager", X, *call)


def test_subgraphs_of_many_sizes_compile_once() -> None:
    conv = MAGNAConv(C, 8, heads=2, K=3, dropout=0.3, add_self_loops=False)
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager", dynamic=True)
    for size in (30, 41, 52, 12, 3):
        inputs = uniform(size, C, seed=size).float(), random_graph(size, 5 * size).edge_index
        with torch.compiler.set_stance("default" if size == 30 else "fail_on_recompile"):
            compiled_results = run(compiled, *inputs)
        torch.testing.assert_close(compiled_results, run(conv, *inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_an_exported_model_takes_graphs_of_other_sizes(backend: Backend) -> None:
    model = MAGNA(C, 8, 2, 3, heads=2, K=3, backend=backend).eval()
    nodes, edges = torch.export.Dim("nodes", min=2, max=10_000), torch.export.Dim("edges", min=2, max=10_000)
    exported = torch.export.export(model, (X, GRAPH.edge_index), dynamic_shapes=({0: nodes}, {1: edges})).module()
    for size, count in ((30, 300), (3, 2)):
        inputs = uniform(size, C, seed=size).float(), integers(size, 2, count, seed=size)
        torch.testing.assert_close(exported(*inputs), model(*inputs))


def test_exact_mode_compiles_whole() -> None:
    if choose("auto", torch.device("cpu")) == "reference":
        pytest.skip("the reference counts its hops from alpha's value; the fused solve compiles")
    check(MAGNAConv(C, 8, heads=2, alpha=0.3, mode="exact"), "aot_eager", X, GRAPH)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_the_layer_compiles_with_inductor() -> None:
    conv = MAGNAConv(C, 8, heads=2, K=3)
    with torch.no_grad():  # the backward pass would double a long compilation
        compiled = torch.compile(conv, fullgraph=True, backend="inductor")
        torch.testing.assert_close(compiled(X, GRAPH), conv(X, GRAPH))


@pytest.mark.parametrize("masked", [False, True])
def test_loops_are_added_under_the_compiler_where_they_are_missing(masked: bool) -> None:
    assert 0 < GRAPH.has_self_loop().sum() < N
    mask = {"edge_mask": torch.arange(E) % 3 > 0} if masked else {}
    check(MAGNAConv(C, 8, heads=2, add_self_loops=True), "aot_eager", X, GRAPH, **mask)

"""The operators as `torch.library` ops: opcheck, and torch.compile without a break in the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensorMode

from magna.graph import Graph
from magna.ops import attention_diffusion, dropout, edge_scores, edge_softmax
from magna.ops.backend.graph_tensors import Packed, pack
from magna.ops.backend.op import FusedOp
from magna.ops.diffusion import diffuse_backward_op, diffuse_op
from magna.ops.exact import solve_backward_op, solve_op
from magna.ops.gpu import linear
from magna.ops.gpu.norm import layer_norm_backward_op, layer_norm_op
from magna.ops.gpu.table import lookup_backward_op, lookup_op
from magna.ops.loss import kvsall_loss_backward_op, kvsall_loss_op, kvsall_targets_op
from magna.ops.scores import edge_scores_backward_op, edge_scores_op, head_scores_backward_op, head_scores_op
from magna.ops.seeded_dropout import dropout_op
from magna.ops.softmax import edge_softmax_backward_op, edge_softmax_op, kept_edges_op, top_k_mask_op
from magna.typing import Backend
from tests.support.graphs import random_graph
from tests.support.operators import Options, Problem, output_of
from tests.support.running import device_of, interpreted

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def problem_for(backend: Backend, dtype: torch.dtype = torch.float32) -> Problem:
    graph = random_graph(4, 7).with_types(torch.arange(7) % 2, 2)
    return Problem.of(graph, heads=2, width=3, K=3, dtype=dtype, device=device_of(backend))


def learn(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.detach().clone().requires_grad_() for tensor in tensors)


def dense_samples(x: Tensor) -> Iterator[tuple[FusedOp[Any], tuple[Any, ...]]]:
    """Those of Triton alone, of x [G, N, C]."""
    rows, low = x[:, 0], x[:, 0].bfloat16()  # [G, C]
    grad = low @ low.T
    yield linear.linears_op, (*learn(low), list(learn(rows, rows)), [low, low])
    yield linear.linears_op, (*learn(low), list(learn(rows, rows, rows)), [torch.cat([low, low]), low])
    yield linear.linears_backward_op, (low, [grad, grad], rows, [low, low])
    square = torch.linspace(-1, 1, 64, device=x.device).view(8, 8)  # rows of whole 16 bytes
    rounded = square.bfloat16()
    yield linear.feed_forward_op, (*learn(rounded, square, square.T), rounded, rounded.T, *learn(square[0], square[1]))
    yield linear.feed_forward_backward_op, (rounded, rounded, rounded, square, square.T, rounded, rounded.T)
    rate, seed = torch.full((len(x),), 0.3, device=x.device), torch.tensor([3], device=x.device)
    for adds in (True, False):
        for drawn in ((rate, seed, None, None), (None, None, rate, seed), (None, None, None, None)):
            passed = *learn(x), learn(x)[0] if adds else None, *learn(rows, rows)
            yield layer_norm_op, (*passed, *drawn, 1e-5, adds)
            saved = x, x if adds else None, x, rows, x[:, :, 0], x[:, :, 1]
            yield layer_norm_backward_op, (*saved, *drawn, 1e-5, adds)
        yield linear.linear_op, (*learn(low, rows), low, learn(rows[:, 0])[0] if adds else None, adds)
        yield linear.linear_backward_op, (grad, low, rows, low, grad if adds else None, adds, adds)


def op_samples(fused: Backend) -> Iterator[tuple[FusedOp[Any], tuple[Any, ...]]]:
    """Every registered op with arguments."""
    p = problem_for(fused)
    packed, attention = pack(p.graph), p.attention.detach()
    seed, rate = torch.tensor([3]).to(p.x.device), torch.tensor([0.3, 0.6]).to(p.x.device)
    alpha, nodes = torch.tensor([0.5, 0.7]).to(p.x.device), p.x[:, :, 0].contiguous()

    for every, rates in ((1, (rate, rate)), (2, (rate, None)), (0, (None, None))):
        yield diffuse_op, (*learn(p.x, attention, p.theta), seed, *rates, *packed, every, fused)
        states = diffuse_op(p.x, attention, p.theta, seed, *rates, *packed, every, fused)[1]
        rest = seed, *rates, *packed, every, every == 1, fused
        yield diffuse_backward_op, (p.grad, p.x, attention, p.theta, states, *rest)
    yield solve_op, (*learn(p.x, attention, alpha), *packed, 1e-3, fused)
    yield solve_backward_op, (p.grad, p.x, p.x, attention, alpha, *packed, 1e-3, fused)
    yield head_scores_op, (*learn(p.x[None], p.x[:1]), True, fused)
    yield head_scores_backward_op, (nodes[None], p.x[None], p.x[:1], True, fused)
    yield kept_edges_op, (rate, seed, None, True, *packed, fused)
    yield edge_softmax_op, (*learn(p.scores), p.scores, *packed, fused)
    yield edge_softmax_backward_op, (p.scores, attention, *packed, fused)
    yield top_k_mask_op, (p.scores, 2, *packed, fused)
    yield edge_scores_op, (*learn(nodes, nodes, nodes[:2]), *packed, 0.2, fused)
    yield edge_scores_op, (*learn(nodes, nodes), None, *packed, 0.2, fused)
    yield edge_scores_backward_op, (p.scores, p.scores, *packed, 0.2, fused)
    yield dropout_op, (*learn(p.x), rate[:1], seed, False, fused)
    yield lookup_op, (*learn(nodes), seed)
    for whole in (nodes, None):
        yield lookup_backward_op, (nodes[:1], seed, whole, len(nodes))
    if fused == "triton":
        yield from dense_samples(p.x)
    # Two queries among four entities.
    query, bias = nodes[:2], nodes[:, 0].contiguous()
    answers = torch.tensor([0, 2, 3]).to(p.x.device), torch.tensor([1, 3, 0, 0]).to(p.x.device)
    chosen = "triton" if fused == "triton" else "blocked"
    for weight in (rate, None):
        yield kvsall_targets_op, (*answers, weight, 4, 0.1, torch.float32, chosen)
    targets = kvsall_targets_op(*answers, rate, 4, 0.1, nodes.dtype, chosen)
    options = ("float32", 3, chosen)
    for passed in (bias, None):
        learned = (*learn(query, nodes), None if passed is None else learn(passed)[0])
        entity = None if passed is None else answers[1][:2]
        rows = (entity, None if passed is None else learn(rate)[0])
        yield kvsall_loss_op, (*learned, answers[0], *targets, *rows, *options)
        picked = torch.ones_like(targets[0], dtype=nodes.dtype)
        saved = (query, nodes, passed, *targets, entity, None if passed is None else rate, rate, rate, picked)
        yield kvsall_loss_backward_op, (rate.sum(), *saved, *options)


def test_every_op_passes_opcheck(fused: Backend) -> None:
    # Tracing does not depend on the kernels, so the slow interpreter need not be traced again.
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    checked = set()
    for op, arguments in op_samples(fused):
        arguments = tuple(list(arg) if isinstance(arg, Packed) else arg for arg in arguments)
        torch.library.opcheck(op.library, arguments, test_utils=tests[:3] if interpreted(fused) else tests)
        checked.add(op.name)
    of_triton = {op.name for op, _ in dense_samples(torch.zeros(2, 2, 2))}
    everywhere = {name for name in OPDEFS if name.startswith("magna::")} - of_triton
    assert checked == (everywhere | of_triton if fused == "triton" else everywhere)


def test_every_op_runs_on_the_device_of_its_tensors(fused: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    for op, arguments in op_samples(fused):
        entered = Mock(return_value=nullcontext())
        with monkeypatch.context() as patch, torch.no_grad():
            patch.setattr(torch.cuda, "device_of", entered)
            op(*arguments)
        (call,) = entered.call_args_list
        assert call.args[0] is arguments[0], op.name


def test_the_short_way_gives_the_same_bits(fused: Backend) -> None:
    def results(call: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Tensor]:
        actual = call(*arguments)
        outputs = list(actual) if isinstance(actual, tuple | list) else [actual]
        passed = [t for a in arguments for t in (a if isinstance(a, list) else [a])]
        leaves = [t for t in passed if isinstance(t, Tensor) and t.requires_grad]
        learned = [out for out in outputs if out.requires_grad]
        if not leaves or not learned:
            return outputs
        grads = torch.autograd.grad(learned, leaves, [torch.ones_like(out) for out in learned], allow_unused=True)
        return [*outputs, *(grad for grad in grads if grad is not None)]

    for op, arguments in op_samples(fused):
        expected, actual = results(op.library, arguments), results(op, arguments)
        assert len(actual) == len(expected), op.name
        for one, other in zip(actual, expected, strict=True):
            assert one.requires_grad == other.requires_grad and torch.equal(one, other), op.name


def test_the_short_way_is_for_plain_tensors_alone(fused: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_of(fused)
    x = torch.ones(2, 3, 4, device=device)
    library = Mock(return_value=None)
    monkeypatch.setattr(dropout_op, "library", library)
    passed = torch.tensor([0.5], device=device), torch.tensor([1], device=device), False, fused
    dropout_op(x, *passed)
    assert not library.called
    with FakeTensorMode(allow_non_fake_inputs=True):
        dropout_op(x, *passed)
    dropout_op(x.to("meta"), *passed)
    torch.vmap(lambda row: row.clone() if dropout_op(row, *passed) is None else row)(x)
    dropout_op(x, x.as_subclass(Own), *passed[1:])
    assert library.call_count == 4


class Own(Tensor):
    """A kind of tensor that may have its own say."""


def test_gradients_that_come_stacked_are_refused(fused: Backend) -> None:
    p = problem_for(fused)
    x = p.x.requires_grad_()
    out = attention_diffusion(x, p.attention, p.graph, 2, 0.1, backend=fused)
    with pytest.raises(RuntimeError, match="atching rule"):
        torch.autograd.grad(out, x, torch.ones(2, *out.shape, device=out.device), is_grads_batched=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_tracer_sees_the_ops() -> None:
    p = problem_for("auto")

    def function(x: Tensor, scores: Tensor) -> Tensor:
        return attention_diffusion(x, edge_softmax(scores, p.graph, validate=False), p.graph, 2, 0.1)

    scores = p.attention.log()
    traced = torch.jit.trace(function, (p.x, scores), check_trace=False)
    assert torch.equal(traced(2 * p.x, scores), function(2 * p.x, scores))


def layer(graph: Graph, backend: Backend, x: Tensor, source: Tensor, target: Tensor, theta: Tensor) -> Tensor:
    scores = edge_scores(source, target, graph, backend=backend)
    attention = edge_softmax(scores, graph, top_k=2, edge_dropout=0.2, seed=1, backend=backend)
    drops: Options = {"dropout": 0.3, "feature_dropout": 0.2, "seed": 2}
    z = attention_diffusion(x, attention, graph, theta=theta.softmax(1), backend=backend, **drops)
    alone = attention_diffusion(x, attention, graph, K=2, alpha=0.2, memory="recompute", backend=backend)
    return dropout(z + alone, 0.5, seed=3, backend=backend)


def run(function: Callable[..., Tensor], problem: Problem) -> list[Tensor]:
    nodes = problem.x[:, :, 0]
    leaves = [t.detach().clone().requires_grad_() for t in (problem.x, nodes, nodes.flip(0), problem.theta)]
    out = function(*leaves)
    out.square().sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def check(function: Callable[..., Tensor], problem: Problem, compiler: str) -> None:
    expected = run(function, problem)
    actual = run(torch.compile(function, fullgraph=True, backend=compiler), problem)
    assert len(actual) == len(expected) == 5
    torch.testing.assert_close(actual, expected)


def test_compiles_in_one_graph(backend: Backend) -> None:
    problem = problem_for(backend)
    check(lambda *leaves: layer(problem.graph, backend, *leaves), problem, "aot_eager")


def test_compiles_with_the_graph_as_an_argument() -> None:
    problem = problem_for("triton" if torch.cuda.is_available() else "cpu")
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    expected = run(lambda *leaves: layer(problem.graph, "auto", *leaves), problem)
    torch.testing.assert_close(run(lambda *leaves: compiled(problem.graph, "auto", *leaves), problem), expected)


def test_compiles_a_graph_built_inside(backend: Backend) -> None:
    problem = problem_for(backend)
    edges, size = problem.graph.edge_index, problem.graph.num_nodes
    check(lambda *leaves: layer(Graph.from_edge_index(edges, size), backend, *leaves), problem, "aot_eager")


def test_compiles_the_exact_mode(fused: Backend) -> None:
    problem = problem_for(fused)

    def function(x: Tensor, source: Tensor, target: Tensor, theta: Tensor) -> Tensor:
        scores = edge_scores(source, target, problem.graph, backend=fused)
        attention, alpha = edge_softmax(scores, problem.graph, backend=fused), theta[:, 0].sigmoid()
        return output_of(problem, fused, x=x, attention=attention, alpha=alpha, mode="exact", tolerance=1e-3)

    check(function, problem, "aot_eager")


def test_compiles_with_inductor(fused: Backend) -> None:
    if interpreted(fused):
        pytest.skip("inductor writes no Triton kernels for the interpreter")
    problem = problem_for(fused)
    try:
        torch.compile(lambda t: t + 1, backend="inductor")(torch.zeros(2, device=problem.x.device))
    except Exception as error:  # no compiler on this machine, in one of many words
        pytest.skip(f"inductor does not run here: {type(error).__name__}")
    check(lambda *leaves: layer(problem.graph, fused, *leaves), problem, "inductor")

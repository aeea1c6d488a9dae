"""The tensors that wait for the backward pass, and the peak memory of `memory="recompute"`."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from magna.ops import diffusion
from magna.ops.hops import spacing
from magna.typing import Backend, Memory
from tests.support.comparing import same, same_bits
from tests.support.graphs import random_graph
from tests.support.measuring import peak_bytes, saved_tensors
from tests.support.operators import Options, Problem, diffuse, output_of
from tests.support.running import device_of, interpreted

DROPS: Options = {"dropout": 0.4, "feature_dropout": 0.3, "seed": 5}


def remaining(problem: Problem, fused: Backend, memory: Memory, **options: Any) -> list[Tensor]:
    leaves = {"x": problem.x.clone().requires_grad_(), "attention": problem.attention.requires_grad_()}
    return saved_tensors(lambda: output_of(problem, fused, theta=problem.theta, memory=memory, **leaves, **options))


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffusion, "_total_memory", lambda _: 0)
    monkeypatch.setattr(diffusion, "_free_memory", lambda _: 0)


def size(tensors: list[Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def test_auto_saves_while_the_states_fit_into_a_quarter_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    assert 2**28 < diffusion._free_memory(device) < 2**50
    monkeypatch.setattr(diffusion, "_total_memory", lambda _: 0)
    monkeypatch.setattr(diffusion, "_free_memory", lambda _: 4 * 1500)
    # Of 16 hops there are 15 states, or 3 checkpoints and the 3 states between two of them.
    for state, every in ((0, 1), (100, 1), (101, 4), (250, 4), (251, 0)):
        assert diffusion.interval("auto", 16, state, device) == every
        assert diffusion.interval("recompute", 16, state, device) == (every if every != 1 else 4)
        assert diffusion.interval("save", 16, state, device) == 1
    # States that are small for the device are saved without a look at its free memory.
    monkeypatch.setattr(diffusion, "_total_memory", lambda _: 64 * 15 * 300)
    assert diffusion.interval("auto", 16, 300, device) == 1


@pytest.mark.parametrize(
    ("memory", "K", "drops", "states"),
    [("save", 5, {}, 3), ("save", 5, DROPS, 3), ("recompute", 10, DROPS, 2)],  # all but the last; Z_4 and Z_8
)
def test_states_that_are_kept(fused: Backend, memory: Memory, K: int, drops: Options, states: int) -> None:
    device = device_of(fused)
    problems = [Problem.of(random_graph(6, 12), heads=2, width=12, K=K, device=device) for K in (2, K)]
    few, many = (remaining(problem, fused, memory, **drops) for problem in problems)
    grown = problems[1].theta.nbytes - problems[0].theta.nbytes
    assert size(many) - size(few) == states * problems[0].x.nbytes + grown


def test_nothing_is_kept_without_gradients(fused: Backend) -> None:
    problem = Problem.of(random_graph(6, 12), device=device_of(fused))
    with torch.no_grad():
        assert remaining(problem, fused, "save") == []


@pytest.mark.parametrize("memory", ["auto", "save", "recompute"])
def test_the_choice_decides(fused: Backend, memory: Memory, no_room: None, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem.of(random_graph(6, 12), width=12, K=4, device=device_of(fused))
    monkeypatch.setattr(diffusion, "_free_memory", lambda _: 8 * problem.x.nbytes)
    states = [t.size(0) for t in remaining(problem, fused, memory) if t.dim() == 4 and t.numel()]
    assert states == [3 if memory == "save" else 1]


def test_exact_keeps_its_result_only(fused: Backend) -> None:
    problem = Problem.of(random_graph(6, 12), width=12, device=device_of(fused))
    leaves = {"x": problem.x.requires_grad_(), "attention": problem.attention.requires_grad_()}
    runs = (partial(output_of, problem, fused, alpha=alpha, mode="exact", **leaves) for alpha in (0.5, 0.9))
    slow, fast = map(saved_tensors, runs)
    assert size(slow) == size(fast)
    assert len([t for t in slow if t.shape == problem.x.shape]) == 2  # x and the result


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("drops", [{}, DROPS], ids=["plain", "dropout"])
@pytest.mark.parametrize(("K", "heads", "width"), [(1, 2, 3), (2, 1, 1), (3, 2, 5), (5, 2, 7), (9, 2, 9), (17, 3, 4)])
def test_recompute_equals_save(
    fused: Backend, calls: Counter[Any], K: int, heads: int, width: int, drops: Options
) -> None:
    if interpreted(fused) and (K != 5 or not drops):
        pytest.skip("takes long in the interpreter, and other sizes are tested there")
    graph = random_graph(4, 7) if interpreted(fused) else random_graph(50, 300)
    problem = Problem.of(graph, heads, width, K, device=device_of(fused))
    saved = diffuse(problem, fused, memory="save", **drops)
    assert calls[fused, "hop"] == K
    recomputed = diffuse(problem, fused, memory="recompute", **drops)
    again = K - 1 - (K - 1) // spacing(K)  # all states but the checkpoints
    assert calls[fused, "hop"] == 2 * K + again
    same_bits(recomputed, saved)
    same(recomputed, diffuse(problem, "reference", **drops))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("drops", [{}, DROPS], ids=["plain", "dropout"])
@pytest.mark.parametrize(
    ("K", "heads", "width", "count"), [(1, 2, 3, 1), (2, 5, 3, 1), (3, 7, 3, 2), (9, 2, 9, 2), (5, 3, 17, 6)]
)
def test_slices_equal_save(
    fused: Backend, calls: Counter[Any], K: int, heads: int, width: int, count: int, drops: Options, no_room: None
) -> None:
    """Without room for the states, the columns go in slices of 8 and more: a cache line of float64."""
    if interpreted(fused) and (K != 3 or not drops):
        pytest.skip("takes long in the interpreter, and other sizes are tested there")
    graph = random_graph(4, 7) if interpreted(fused) else random_graph(50, 300)
    problem = Problem.of(graph, heads, width, K, device=device_of(fused))
    saved = diffuse(problem, fused, memory="save", **drops)
    sliced = diffuse(problem, fused, memory="recompute", **drops)
    assert calls[fused, "hop_backward"] == K + count * K
    same(sliced, saved, rtol=1e-13, atol=1e-13)
    same(sliced, diffuse(problem, "reference", **drops))


@pytest.mark.parametrize("K", [4, 16, 64])
@pytest.mark.parametrize("free", [2**40, 0], ids=["checkpoints", "slices"])
def test_peak_of_recompute(fused: Backend, K: int, free: int, no_room: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 2 √K states beside gradient, result and buffers; slices of a cache line take no state."""
    if interpreted(fused):
        pytest.skip("takes long in the interpreter")
    monkeypatch.setattr(diffusion, "_free_memory", lambda _: free)
    graph, device = random_graph(150, 600), device_of(fused)
    problem = Problem.of(graph, heads=8, width=64, K=K, dtype=torch.float32, device=device)
    x, attention = problem.x.requires_grad_(), problem.attention.requires_grad_()

    def work() -> None:
        out = output_of(problem, fused, attention=attention, theta=problem.theta, memory="recompute")
        torch.autograd.backward(out, problem.grad)

    work()
    x.grad = attention.grad = None
    states = peak_bytes(work, x.device) / x.nbytes
    assert states <= (2 * K**0.5 + 3 if free else 4)


def test_the_graph_is_kept_as_it_is(fused: Backend) -> None:
    problem = Problem.of(random_graph(6, 12), device=device_of(fused))
    assert not [t for t in remaining(problem, fused, "save") if t.dtype == torch.int32]

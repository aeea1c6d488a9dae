"""What is kept for the backward pass, and that `memory="recompute"` does not grow with K."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from magna.ops import attention_diffusion, diffusion
from magna.typing import Backend, Memory
from tests.support.graphs import random_graph
from tests.support.measuring import peak_bytes, saved_tensors
from tests.support.operators import Options, Problem
from tests.support.running import device_of, interpreted


def remaining(problem: Problem, fused: Backend, memory: Memory, **options: Any) -> list[Tensor]:
    x, attention = problem.x.clone().requires_grad_(), problem.attention.requires_grad_()

    def forward() -> object:
        return attention_diffusion(
            x, attention, problem.graph, theta=problem.theta, memory=memory, backend=fused, **options
        )

    return saved_tensors(forward)


def size(tensors: list[Tensor]) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def test_auto_saves_while_the_states_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    monkeypatch.setattr(diffusion, "_total_memory", lambda _: 16 * 1000)
    assert diffusion.saves(0, device) and diffusion.saves(1000, device) and not diffusion.saves(1001, device)
    monkeypatch.undo()
    assert 2**28 < diffusion._total_memory(device) < 2**50


@pytest.mark.parametrize("drops", [{}, {"dropout": 0.5, "feature_dropout": 0.5, "seed": 1}])
def test_recompute_keeps_no_states(fused: Backend, drops: Options) -> None:
    device = device_of(fused)
    problems = [Problem.of(random_graph(6, 12), heads=2, width=12, K=K, device=device) for K in (2, 9)]
    few, many = (remaining(problem, fused, "recompute", **drops) for problem in problems)
    # Nothing but the weights of the hops themselves grows with K.
    assert size(many) - size(few) == problems[1].theta.nbytes - problems[0].theta.nbytes
    assert [t.shape for t in many if t.numel() >= problems[1].x.numel()] == [problems[1].x.shape]


def test_save_keeps_one_state_less_than_hops(fused: Backend) -> None:
    device = device_of(fused)
    problems = [Problem.of(random_graph(6, 12), heads=2, width=12, K=K, device=device) for K in (2, 5)]
    few, many = (remaining(problem, fused, "save") for problem in problems)
    grown = problems[1].theta.nbytes - problems[0].theta.nbytes
    assert size(many) - size(few) == 3 * problems[0].x.nbytes + grown


def test_dropout_masks_are_not_kept(fused: Backend) -> None:
    problem = Problem.of(random_graph(6, 12), heads=2, width=12, device=device_of(fused))
    drops: Options = {"dropout": 0.5, "feature_dropout": 0.5, "seed": 1}
    rates_and_seed = 2 * 2 * 4 + 8
    assert size(remaining(problem, fused, "save", **drops)) - size(remaining(problem, fused, "save")) <= rates_and_seed


def test_nothing_is_kept_without_gradients(fused: Backend) -> None:
    problem = Problem.of(random_graph(6, 12), device=device_of(fused))
    with torch.no_grad():
        assert remaining(problem, fused, "save") == []


@pytest.mark.parametrize("memory", ["auto", "save", "recompute"])
def test_the_choice_decides(fused: Backend, memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem.of(random_graph(6, 12), width=12, K=4, device=device_of(fused))
    asked = []

    def saves(states: int, _: torch.device) -> bool:
        asked.append(states)
        return False

    monkeypatch.setattr(diffusion, "saves", saves)
    states = [t for t in remaining(problem, fused, memory) if t.dim() == 4 and t.numel()]
    assert len(states) == (1 if memory == "save" else 0)
    assert asked == ([3 * problem.x.nbytes] if memory == "auto" else [])


def test_exact_keeps_its_result_only(fused: Backend) -> None:
    problem = Problem.of(random_graph(6, 12), width=12, device=device_of(fused))
    x, attention = problem.x.requires_grad_(), problem.attention.requires_grad_()

    def forward(alpha: float) -> list[Tensor]:
        return saved_tensors(
            lambda: attention_diffusion(x, attention, problem.graph, alpha=alpha, mode="exact", backend=fused)
        )

    slow, fast = forward(0.5), forward(0.9)
    assert size(slow) == size(fast)
    assert len([t for t in slow if t.shape == problem.x.shape]) == 2  # x and the result


def test_peak_does_not_grow_with_hops(fused: Backend) -> None:
    if interpreted(fused):
        pytest.skip("takes long in the interpreter")
    peaks = {}
    for K in (2, 32):
        problem = Problem.of(
            random_graph(500, 2000), heads=8, width=64, K=K, dtype=torch.float32, device=device_of(fused)
        )
        x, attention = problem.x.requires_grad_(), problem.attention.requires_grad_()

        def work(problem: Problem = problem, x: Tensor = x, attention: Tensor = attention) -> None:
            out = attention_diffusion(
                x,
                attention,
                problem.graph,
                theta=problem.theta,
                memory="recompute",
                backend=fused,
            )
            out.backward(problem.grad)

        work()
        x.grad = attention.grad = None
        peaks[K] = peak_bytes(work, x.device)
    assert peaks[32] <= 1.1 * peaks[2]


def test_the_graph_is_kept_as_it_is(fused: Backend) -> None:
    problem = Problem.of(random_graph(6, 12), device=device_of(fused))
    assert not [t for t in remaining(problem, fused, "save") if t.dtype == torch.int32]

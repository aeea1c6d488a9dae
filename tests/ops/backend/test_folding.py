"""Under `torch.vmap` an op gives each trial what it would get alone."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tests.support.running import interpreted
from torch import Tensor

from magna.graph import Graph
from magna.ops import attention_diffusion, diffusion, dropout, edge_scores, edge_softmax, head_scores, reference
from magna.ops.backend import registry as backends
from magna.ops.diffusion import diffuse_op
from magna.typing import Backend, Memory

TRIALS, HEADS, WIDTH = 3, 2, 5
BACKENDS: list[Backend] = [name for name in ("cpu", "triton") if backends.why_not(name, torch.device("cpu")) is None]
# The interpreter of Triton is slow.
FUSED = [pytest.param(name, marks=pytest.mark.slow) if interpreted(name) else name for name in BACKENDS]


@pytest.fixture(params=FUSED)
def fused(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def graph() -> Graph:
    generator = torch.Generator().manual_seed(1)
    return Graph.from_edge_index(torch.randint(7, (2, 30), generator=generator), num_nodes=7)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("top_k", [None, 2])
def test_scores_softmax_and_hops_of_each_trial(graph: Graph, fused: Backend, top_k: int | None) -> None:
    source, target = draw(TRIALS, 7, HEADS), draw(TRIALS, 7, HEADS) + 1
    x, alpha = draw(TRIALS, 7, HEADS, WIDTH), torch.tensor([0.1, 0.5, 0.9])

    def layer(source: Tensor, target: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
        scores = edge_scores(source, target, graph, backend=fused)
        attention = edge_softmax(scores, graph, top_k=top_k, backend=fused, validate=False)
        return attention_diffusion(x, attention, graph, K=3, alpha=alpha, backend=fused, validate=False)

    stacked = [part.requires_grad_() for part in (source, target, x, alpha)]
    together = torch.vmap(layer)(*stacked)
    grads = torch.autograd.grad(together.square().sum(), stacked)
    for trial in range(TRIALS):
        alone = [part[trial].detach().requires_grad_() for part in stacked]
        out = layer(*alone)
        torch.testing.assert_close(together[trial], out)
        expected = torch.autograd.grad(out.square().sum(), alone)
        torch.testing.assert_close([grad[trial] for grad in grads], list(expected))


@pytest.mark.parametrize("axis", [None, 0, 2])
def test_each_trial_has_its_rates_of_each_hop(graph: Graph, fused: Backend, axis: int | None) -> None:
    """A rate so high that what passes is told from what is dropped; 0 leaves all as it is."""
    x, attention = torch.ones(TRIALS, 7, HEADS, WIDTH), torch.rand(30, HEADS) + 0.5
    rates = torch.zeros(TRIALS, 3, HEADS)
    if axis is None:
        rates = rates[0]
    elif axis:
        rates[1, 2] = 0.999999  # after the last hop of the second trial
        rates = rates.movedim(0, axis)

    def layer(x: Tensor, rates: Tensor) -> Tensor:
        return attention_diffusion(
            x, attention, graph, K=3, alpha=0.5, feature_dropout=rates, seed=1, backend=fused, validate=False
        )

    together = torch.vmap(layer, in_dims=(0, axis), randomness="different")(x, rates)
    plain = attention_diffusion(x[0], attention, graph, K=3, alpha=0.5, backend=fused)
    for trial in range(TRIALS):
        dropped = trial == 1 and axis == 2
        torch.testing.assert_close(together[trial], torch.zeros_like(plain) if dropped else plain)


@pytest.mark.skipif(not BACKENDS, reason="no fused backend runs on this CPU")
@pytest.mark.parametrize("memory", ["auto", "recompute"])
def test_trials_that_learn_save_their_states(graph: Graph, memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    diffuse, interval = Mock(wraps=diffuse_op), Mock(wraps=diffusion.interval)
    monkeypatch.setattr(diffusion, "diffuse_op", diffuse)
    monkeypatch.setattr(diffusion, "interval", interval)
    x, attention = draw(TRIALS, 7, HEADS, WIDTH).requires_grad_(), torch.rand(30, HEADS)
    layer = partial(attention_diffusion, attention=attention, graph=graph, K=3, alpha=0.1, memory=memory)
    torch.vmap(layer)(x).sum().backward()
    with torch.no_grad():
        torch.vmap(layer)(x)
    torch.vmap(layer)(x.detach())
    assert [call.args[-2] for call in diffuse.call_args_list] == [1 if memory == "auto" else 2, 0, 0]
    assert [call.args[2] for call in interval.call_args_list] == [x.nbytes]  # of a state of all trials together


@pytest.mark.parametrize("axes", [(0, 0), (None, 0), (1, None)])
def test_node_scores_of_each_trial(fused: Backend, axes: tuple[int | None, int | None]) -> None:
    shapes = [(7, HEADS, WIDTH), (HEADS, WIDTH)]
    inputs = [
        draw(*shape).requires_grad_() if axis is None else draw(TRIALS, *shape).movedim(0, axis).requires_grad_()
        for shape, axis in zip(shapes, axes, strict=True)
    ]
    outs = [torch.vmap(partial(head_scores, backend=name), in_dims=axes)(*inputs) for name in (fused, "reference")]
    torch.testing.assert_close(*((out, *torch.autograd.grad(out.square().sum(), inputs)) for out in outs))


def test_each_trial_leaves_out_edges_at_its_own_rate_and_seed(graph: Graph, fused: Backend) -> None:
    scores, rates, seeds = torch.zeros(30, HEADS), torch.tensor([0.1, 0.5, 0.9]), torch.tensor([[5], [6], [7]])

    def remaining(rate: Tensor, seed: Tensor, backend: Backend) -> Tensor:
        return edge_softmax(scores, graph, edge_dropout=rate, seed=seed, backend=backend, validate=False) > 0

    for axes, rate, seed in (((0, None), rates, seeds[0]), ((None, 0), rates[1], seeds)):
        together = torch.vmap(partial(remaining, backend=fused), in_dims=axes)(rate, seed)
        pairs = zip(rate.expand(3), seed.expand(3, 1), strict=True)
        assert torch.equal(together, torch.stack([remaining(*pair, "reference") for pair in pairs]))
        assert not torch.equal(together[0], together[1])


@pytest.mark.parametrize("backend", ["reference", *FUSED])
def test_exact_mode_of_each_trial(graph: Graph, backend: Backend) -> None:
    x, alpha = draw(TRIALS, 7, HEADS, WIDTH), torch.tensor([0.2, 0.5, 0.9])
    attention = edge_softmax(draw(30, HEADS), graph, backend=backend)

    def solve(x: Tensor, alpha: Tensor) -> Tensor:
        return attention_diffusion(x, attention, graph, alpha=alpha, mode="exact", backend=backend, validate=False)

    together = torch.vmap(solve)(x, alpha)
    for trial in range(TRIALS):
        torch.testing.assert_close(together[trial], solve(x[trial], alpha[trial]), rtol=1e-4, atol=1e-5)


def test_trials_draw_different_masks(graph: Graph, fused: Backend) -> None:
    attention = torch.full((TRIALS, 30, HEADS), 0.1)

    def diffuse(attention: Tensor) -> Tensor:
        drops: dict[str, Any] = {"dropout": 0.5, "seed": torch.randint(2**62, (1,)), "validate": False}
        return attention_diffusion(torch.ones(7, HEADS, WIDTH), attention, graph, 2, 0.1, backend=fused, **drops)

    out = torch.vmap(diffuse, randomness="different")(attention)
    assert not torch.equal(out[0], out[1]) and not torch.equal(out[1], out[2])


@pytest.mark.parametrize("shared", [True, False])
def test_a_trial_drops_the_entries_that_the_definition_numbers_after_those_before_it(
    fused: Backend, shared: bool
) -> None:
    x, rates, seed = draw(*([50] if shared else [TRIALS, 50])), torch.tensor([0.0, 0.5, 0.6]), torch.tensor([3])
    drop = partial(dropout, seed=seed, backend=fused, validate=False)
    rows = [x.requires_grad_()] * TRIALS if shared else x.requires_grad_()
    together = torch.vmap(drop, in_dims=(None if shared else 0, 0))(x, rates)
    alone = [reference.dropout(row, rate, seed, 50 * i) for i, (row, rate) in enumerate(zip(rows, rates, strict=True))]
    outs = together, torch.stack(alone)
    torch.testing.assert_close(*outs)
    torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), x) for out in outs))

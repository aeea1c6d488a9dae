"""Attention diffusion (Eqs. 3 to 5): the checked function, its op over the kernels of a backend, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from magna.errors import ArgumentError
from magna.graph import Graph
from magna.graph.torch_internals import constant_result
from magna.ops import checks, reference
from magna.ops.backend.graph_tensors import pack, save_inputs, saved_inputs, unpack
from magna.ops.backend.op import fused_op
from magna.ops.backend.registry import Draw, accumulator, choose, kernels
from magna.ops.checks import Rate
from magna.ops.cpu.memory_pool import free_memory, machine_memory
from magna.ops.exact import solve
from magna.ops.hops import HopWalk, gradients_by_slices, in_target_order, spacing, states_at_once
from magna.ops.weights import fixed_theta, per_head
from magna.typing import Backend, Memory, Mode, one_of


def attention_diffusion(
    x: Tensor,
    attention: Tensor,
    graph: Graph,
    K: int | None = None,
    alpha: float | Tensor | None = None,
    *,
    theta: Tensor | None = None,
    mode: Mode = "truncated",
    tolerance: float = 1e-6,
    memory: Memory = "auto",
    dropout: Rate = 0.0,
    feature_dropout: Rate = 0.0,
    seed: int | Tensor | None = None,
    backend: Backend = "auto",
    validate: bool = True,
) -> Tensor:
    r"""Attention diffusion (Eqs. 3 to 5): every node attends to nodes many hops away, at a cost linear in the edges.

    `mode="truncated"`, as trained in the paper: Z ← (1 − α) A Z + α Z_0, K times, starting from Z_0 = x. With `theta`
    in place of `alpha`, any weights: Σ_k θ_k A^k x (Eq. 3).

    `mode="exact"`: the Z that solves (I − (1 − α) A) Z = α x, to `tolerance` relative to the largest entry of each
    column of x; the gradient solves the adjoint system, so memory does not depend on the number of iterations. The rows
    of A must sum to at most 1, as a softmax's do. A truncated model with small K is another model: see
    `truncation_error`.

    A node without in-edges has an empty row in A: it gets only its teleport.

    Args:
        x: features per node and head, float64, float32 or bfloat16.
        attention: A on the edges, float64 with float64 features, else float32.
        graph: the edges.
        K: number of hops; 0 returns x.
        alpha: teleport probability, 0 to 1, a number or a (learnable) tensor [H].
        theta: hop weights [H, K + 1] or [K + 1], in place of K and alpha.
        mode: "truncated" or "exact" (without K, theta and dropout).
        tolerance: of the exact solve.
        memory: "save" keeps the states of all hops for the backward pass; "recompute" keeps about √K of them and runs
            the hops between them again; "auto" saves while the states fit into a quarter of the free memory.
        dropout: drawn anew each hop from the untouched attention; one number or one per head.
        feature_dropout: drawn after each hop; one number, one per head, or one per hop and head [K, H].
        seed: an int or an int64 tensor [1]; needed with dropout. Same seed, same bits, in every backend.
        backend: "auto", "reference", "cpu" or "triton".
        validate: check that tensors of `alpha` and dropout rates are in range (waits for the GPU).

    Shapes: x [N, H, D], attention [E, H] → [N, H, D].

    >>> graph = Graph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    >>> x = torch.tensor([1.0, 0.0]).view(2, 1, 1)
    >>> attention_diffusion(x, torch.ones(2, 1), graph, K=1, alpha=0.25).flatten().tolist()
    [0.25, 0.75]
    """
    one_of("mode", mode, Mode)
    one_of("memory", memory, Memory)
    checks.features(x, attention, graph)
    for name, value in (("alpha", alpha), ("theta", theta)):
        if isinstance(value, Tensor):
            checks.same_device(name, value, graph)
    heads, device = x.size(1), x.device
    attention = attention.to(accumulator(x.dtype)).contiguous()
    rates = [
        checks.rates(rate, heads, device) if checks.active(name, rate, heads, validate, per_hop) else None
        for name, rate, per_hop in (("dropout", dropout, False), ("feature_dropout", feature_dropout, True))
    ]
    drops = any(rate is not None for rate in rates)
    chosen = choose(backend, device)
    if mode == "exact":
        if K is not None or theta is not None or drops:
            raise ArgumentError("mode", mode, "'truncated' with K, theta or dropout: 'exact' takes alpha alone")
        checks.alpha(alpha, heads, validate, above_zero=True)
        return solve(x, attention, per_head(alpha, heads, attention), graph, tolerance, chosen)
    theta = _hop_weights(K, alpha, theta, heads, attention, validate)
    if theta.size(1) == 1:
        return x * theta.to(x.dtype)
    checks.per_hop("feature_dropout", rates[1], theta.size(1) - 1)
    # Without dropout no backend reads the seed.
    seed = checks.seed(seed, "dropout or feature_dropout", device) if drops else theta.new_empty(1, dtype=torch.int64)
    if chosen == "reference":
        return reference.attention_diffusion(
            x, attention, theta, graph, dropout=rates[0], feature_dropout=rates[1], seed=seed
        )
    whole = checks.levels(x)[-1]
    state = whole.numel() * whole.element_size()  # a compiler knows no `nbytes` of symbolic sizes
    every = interval(memory, theta.size(1) - 1, state, device) if _learn(x, attention, theta) else 0
    return diffuse_op(x.contiguous(), attention, theta, seed, *rates, *pack(graph), every, chosen)[0]


def _learn(*tensors: Tensor) -> bool:
    """True if one of the tensors gets a gradient, also inside a transform of `torch.func`."""
    levels = (level for tensor in tensors for level in checks.levels(tensor))
    return torch.is_grad_enabled() and any(level.requires_grad for level in levels)


def _hop_weights(
    K: int | None,
    alpha: float | Tensor | None,
    theta: Tensor | None,
    heads: int,
    attention: Tensor,
    validate: bool,
) -> Tensor:
    """Weights θ [H, K + 1] of the hops: those of K and alpha, or theta."""
    if theta is None:
        checks.hops(K)
        checks.alpha(alpha, heads, validate)
        return fixed_theta(alpha, K, heads, attention)
    if K is not None or alpha is not None:
        raise ArgumentError("theta", theta, "None with K or alpha: theta alone, or K and alpha")
    return checks.theta(theta, heads).to(attention.dtype)


def interval(memory: Memory, K: int, state: int, device: torch.device) -> int:
    """Hops between the states, of `state` bytes each, that wait for the backward pass: 1 keeps all, 0 none."""
    if memory == "save" or (memory == "auto" and _fit((K - 1) * state, device)):
        return 1
    return spacing(K) if _fit(states_at_once(K) * state, device) else 0


def _fit(size: int, device: torch.device) -> bool:
    """True if states of `size` bytes fit into a quarter of the free memory, or are small for this device."""
    return size <= _total_memory(device) // 64 or size <= _free_memory(device) // 4


@constant_result
def _total_memory(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else machine_memory()


@constant_result
def _free_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return free_memory()
    # While a graph is captured, the driver is not asked.
    capturing = torch.cuda.is_current_stream_capturing()
    free = 0 if capturing else torch.cuda.mem_get_info(device)[0]
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _diffuse_shape(x: Tensor, attention: Tensor, theta: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(_states_shape(x, theta.size(1) - 1, rest[-2]))


@fused_op("magna::diffuse", _diffuse_shape)
def diffuse_op(
    x: Tensor,
    attention: Tensor,
    theta: Tensor,
    seed: Tensor,
    attention_rate: Tensor | None,
    feature_rate: Tensor | None,
    graph: Sequence[Tensor],
    sizes: Sequence[int],
    every: int,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Σ_k θ_k A^k x, and every `every`-th of the states Z_1 .. Z_{K-1}; `feature_rate` is [H], or [K, H] by hop."""
    g, fused = unpack(graph, sizes), kernels(backend)
    K = theta.size(1) - 1
    draw = Draw(seed, attention_rate, feature_rate, x.size(1), x.size(2))
    weights = theta.t().contiguous().unbind()
    hops = HopWalk(x, in_target_order(attention, g, fused), weights, draw, g, fused).over(g.by_target)
    states, out = fused.empty(_states_shape(x, K, every), x), fused.empty(x.shape, x)
    hops.run(x, 0, [*hops.buffers(K - 1, states, every), out])
    return out, states


def _states_shape(x: Tensor, K: int, every: int) -> tuple[int, ...]:
    return ((K - 1) // every if every else 0, *x.shape)


def _diffuse_backward_shape(
    grad: Tensor, x: Tensor, attention: Tensor, theta: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(attention), theta.new_empty(theta.shape if rest[-2] else 0)


@fused_op("magna::diffuse_backward", _diffuse_backward_shape)
def diffuse_backward_op(
    grad: Tensor,
    x: Tensor,
    attention: Tensor,
    theta: Tensor,
    states: Tensor,
    seed: Tensor,
    attention_rate: Tensor | None,
    feature_rate: Tensor | None,
    graph: Sequence[Tensor],
    sizes: Sequence[int],
    every: int,
    theta_grad: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to x, attention and theta from the states of `diffuse`; without states, slice by slice."""
    g, fused = unpack(graph, sizes), kernels(backend)
    weights, grad = theta.t().contiguous(), grad.contiguous()
    grad_theta = torch.zeros_like(weights) if theta_grad else None
    draw = Draw(seed, attention_rate, feature_rate, x.size(1), x.size(2))
    back = HopWalk(x, fused.take_rows(attention, g.by_source.order), weights.unbind(), draw, g, fused)
    ahead = back if every == 1 else back._replace(attention=in_target_order(attention, g, fused))
    if every:
        ahead = ahead if every == 1 else ahead.over(g.by_target)
        sums = fused.empty(back.attention.shape, back.attention)
        again = ahead.states_back(states.unbind(), every)
        grads = back.over(g.by_source).run_back(grad, again, sums, grad_theta)
    else:
        grads = gradients_by_slices(grad, ahead, back, grad_theta, _free_memory(x.device) // 4)
    return *grads, theta.new_empty(0) if grad_theta is None else grad_theta.t().contiguous()


def _diffuse_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, attention, theta, *drawn, graph, ctx.sizes, ctx.every, ctx.backend = inputs
    save_inputs(ctx, graph, x, attention, theta, output[1], *drawn)
    ctx.set_materialize_grads(False)


@diffuse_op.register_autograd(_diffuse_save)
def _(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    tensors, graph = saved_inputs(ctx, 7)
    if grad is None:
        return *(None,) * 6, [None] * len(graph), None, None, None
    by_theta = ctx.needs_input_grad[2]
    options = ctx.sizes, ctx.every, by_theta, ctx.backend
    grad_x, grad_attention, grad_theta = diffuse_backward_op(grad, *tensors, graph, *options)
    return grad_x, grad_attention, grad_theta if by_theta else None, *[None] * 3, [None] * len(graph), *[None] * 3

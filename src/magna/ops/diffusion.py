"""Attention diffusion (Eqs. 3 to 5): its front door, its op over the kernels of a backend, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from magna.graph import Graph
from magna.graph.torch_internals import constant_result
from magna.ops import checks, reference
from magna.ops.backend.graph_tensors import pack, save_inputs, saved_inputs, unpack
from magna.ops.backend.op import fused_op
from magna.ops.backend.registry import Draw, accumulator, choose, kernels
from magna.ops.checks import Rate
from magna.ops.cpu.memory_pool import machine_memory
from magna.ops.exact import solve
from magna.ops.hops import in_target_order, run_hops, run_hops_back, slices, with_kept
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
    r"""Attention diffusion (Eq. 3 to 5): every node attends to nodes many hops away, at a cost linear in the edges.

    `mode="truncated"`, as trained in the paper: Z ← (1 − α) A Z + α Z_0, K times, starting from Z_0 = x. With `theta`
    instead of `alpha` any weights: Σ_k θ_k A^k x (Eq. 3).

    `mode="exact"`: the Z that solves (I − (1 − α) A) Z = α x, to `tolerance` relative to the largest entry of each
    column of x; the gradient solves the adjoint system, so memory does not depend on the number of iterations. The rows
    of A must sum to at most 1, as a softmax's do. This is another model than a truncated one with small K: see
    `truncation_error`.

    A node without in-edges has an empty row in A: it gets α x from its own teleport alone.

    Args:
        x: features per node and head, float64, float32 or bfloat16.
        attention: A on the edges, float64 with float64 features, else float32.
        graph: the edges.
        K: number of hops; 0 returns x.
        alpha: teleport probability, 0 to 1, a number or a (learnable) tensor [H].
        theta: hop weights [H, K + 1] or [K + 1], in place of K and alpha.
        mode: "truncated" or "exact" (without K, theta and dropout).
        tolerance: of the exact solve.
        memory: "save" keeps the states of all hops for the backward pass; "recompute" needs one state whatever K is
            and costs one more forward pass; "auto" saves while the states fit into 1/16 of the device's memory.
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
            raise ValueError("mode is 'exact', which takes alpha alone: leave out K, theta and dropout")
        checks.alpha(alpha, heads, validate, above_zero=True)
        return solve(x, attention, per_head(alpha, heads, attention), graph, tolerance, chosen)
    if theta is None:
        checks.hops(K)
        checks.alpha(alpha, heads, validate)
        theta = fixed_theta(alpha, K, heads, attention)
    else:
        if K is not None or alpha is not None:
            raise ValueError("theta comes with K or alpha; allowed: theta alone, or K and alpha")
        theta = checks.theta(theta, heads).to(attention.dtype)
    if theta.size(1) == 1:
        return x * theta.to(x.dtype)
    checks.per_hop("feature_dropout", rates[1], theta.size(1) - 1)
    # Without dropout no backend reads the seed.
    seed = checks.seed(seed, "dropout or feature_dropout", device) if drops else theta.new_empty(1, dtype=torch.int64)
    if chosen == "reference":
        return reference.attention_diffusion(
            x, attention, theta, graph, dropout=rates[0], feature_dropout=rates[1], seed=seed
        )
    save = memory != "recompute" and torch.is_grad_enabled() and _learn(x, attention, theta)
    if save and memory == "auto":
        save = saves(checks.levels(x)[-1].numel() * x.element_size() * (theta.size(1) - 2), device)
    return diffuse_op(x.contiguous(), attention, theta, seed, *rates, *pack(graph), save, chosen)[0]


def _learn(*tensors: Tensor) -> bool:
    """True if a tensor has a gradient, also inside a transform of `torch.func`."""
    return any(level.requires_grad for tensor in tensors for level in checks.levels(tensor))


def saves(states_bytes: int, device: torch.device) -> bool:
    """True while `memory="auto"` keeps the states: they fit into 1/16 of the device's memory."""
    return states_bytes <= int(_total_memory(device)) // 16


@constant_result
def _total_memory(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else machine_memory()


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
    save: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Σ_k θ_k A^k x and, with `save`, the states Z_1 .. Z_{K-1} for the backward pass; the rate of features is [H], or
    [K, H] where each hop has its own.
    """
    g, fused = unpack(graph, sizes), kernels(backend)
    draw = Draw(seed, attention_rate, feature_rate, x.size(1), x.size(2))
    K = theta.size(1) - 1
    states = fused.empty(_states_shape(x, K, save), x)
    buffers = list(states.unbind()) if save else [fused.empty(x.shape, x) for _ in range(min(K - 1, 2))]
    weights = theta.t().contiguous().unbind()
    out = fused.empty(x.shape, x)
    draw = with_kept(draw, K, g.by_target, fused)
    run_hops(x, in_target_order(attention, g, fused), weights, draw, g, fused, K, buffers, out)
    return out, states


def _states_shape(x: Tensor, K: int, save: bool) -> tuple[int, ...]:
    return (K - 1 if save else 0, *x.shape)


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
    theta_grad: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to x, attention and theta; where no states were saved, they are computed again slice by slice."""
    g, fused = unpack(graph, sizes), kernels(backend)
    K, heads, width = theta.size(1) - 1, x.size(1), x.size(2)
    weights = theta.t().contiguous()
    by_source = fused.take_rows(attention, g.by_source.order)
    grad_theta = torch.zeros_like(weights) if theta_grad else None
    grad = grad.contiguous()
    draw = Draw(seed, attention_rate, feature_rate, heads, width)
    if K == 1 or states.size(0):
        saved, sums = [x, *states.unbind()], fused.empty(by_source.shape, by_source)
        draw = with_kept(draw, K, g.by_source, fused)
        grad_x, grad_attention = run_hops_back(
            grad, saved, by_source, sums, weights.unbind(), grad_theta, draw, g, fused, True, True
        )
    else:
        grad_x, grad_attention = fused.empty(x.shape, x), fused.empty(by_source.shape, by_source)
        by_target = in_target_order(attention, g, fused)
        for h in slices(heads, heads // max(1, min(heads, K - 1))):
            part_by_source = by_source[:, h].contiguous()
            part_sums = fused.empty(part_by_source.shape, part_by_source)
            part_weights = weights[:, h].contiguous().unbind()
            part_theta = None if grad_theta is None else grad_theta[:, h].contiguous()
            part_draw = draw._replace(
                attention_rate=None if attention_rate is None else attention_rate[h],
                feature_rate=None if feature_rate is None else feature_rate[..., h].contiguous(),
                first_head=h.start,
            )
            draws = [with_kept(part_draw, K, segments, fused) for segments in (g.by_target, g.by_source)]
            for c in slices(width, width // -(-(K - 1) // heads)):
                part = x[:, h, c].contiguous()
                forward, back = (part_draw._replace(first_column=c.start) for part_draw in draws)
                part_states = list(fused.empty((K - 1, *part.shape), part))
                run_hops(part, by_target[:, h].contiguous(), part_weights, forward, g, fused, K - 1, part_states, None)
                grad_x[:, h, c], part_grad = run_hops_back(
                    grad[:, h, c].contiguous(),
                    [part, *part_states],
                    part_by_source,
                    part_sums,
                    part_weights,
                    part_theta,
                    back,
                    g,
                    fused,
                    c.start == 0,
                    c.stop == width,
                )
            grad_attention[:, h] = part_grad
            if grad_theta is not None and part_theta is not None:
                grad_theta[:, h] = part_theta
    return grad_x, grad_attention, theta.new_empty(0) if grad_theta is None else grad_theta.t().contiguous()


def _diffuse_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, attention, theta, seed, attention_rate, feature_rate, graph, ctx.sizes, _, ctx.backend = inputs
    ctx.rated = attention_rate is not None, feature_rate is not None
    rates = [rate for rate in (attention_rate, feature_rate) if rate is not None]
    save_inputs(ctx, graph, x, attention, theta, output[1], seed, *rates)
    ctx.set_materialize_grads(False)


def _diffuse_grad(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    (x, attention, theta, states, seed, *rates), graph = saved_inputs(ctx, 5 + sum(ctx.rated))
    attention_rate = rates.pop(0) if ctx.rated[0] else None
    feature_rate = rates.pop(0) if ctx.rated[1] else None
    if grad is None:
        return *(None,) * 6, [None] * len(graph), None, None, None
    grad_x, grad_attention, grad_theta = diffuse_backward_op(
        grad,
        x,
        attention,
        theta,
        states,
        seed,
        attention_rate,
        feature_rate,
        graph,
        ctx.sizes,
        ctx.needs_input_grad[2],
        ctx.backend,
    )
    by_theta = grad_theta if ctx.needs_input_grad[2] else None
    return grad_x, grad_attention, by_theta, None, None, None, [None] * len(graph), None, None, None


diffuse_op.register_autograd(_diffuse_grad, _diffuse_save)

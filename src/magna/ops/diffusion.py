"""K hops as a `torch.library` op over a backend's kernels: what is saved, what is computed again, in what order.

Everything that is not a walk over edges is written here, once for all backends: the schedule of the hops, the states of
the backward pass, and the slices of `memory="recompute"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from magna.graph import Graph, Segments
from magna.ops.backend.registry import Draw, fused_op, in_target_order, keep, kept, kernels, unpack


@fused_op("magna::diffuse")
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
    draw = _with_kept(draw, K, g.by_target, fused)
    _run_hops(x, in_target_order(attention, g, fused), weights, draw, g, fused, K, buffers, out)
    return out, states


def _states_shape(x: Tensor, K: int, save: bool) -> tuple[int, ...]:
    return (K - 1 if save else 0, *x.shape)


@diffuse_op.register_fake
def _(x, attention, theta, seed, attention_rate, feature_rate, graph, sizes, save, backend):
    return torch.empty_like(x), x.new_empty(_states_shape(x, theta.size(1) - 1, save))


def _run_hops(
    x: Tensor,
    attention: Tensor,
    weights: Sequence[Tensor],
    draw: Draw,
    graph: Graph,
    backend: ModuleType,
    hops: int,
    buffers: list[Tensor],
    out: Tensor | None,
) -> None:
    """The first `hops` hops; hop k writes buffers[k modulo their number], the last of all K hops writes `out`."""
    K = len(weights) - 1
    z = x
    for hop in range(hops):
        into = out if hop == K - 1 and out is not None else buffers[hop % len(buffers)]
        backend.hop(
            z,
            x,
            attention,
            graph.by_target,
            graph.col,
            z_scale=weights[K] if hop == 0 else None,
            x_scale=weights[K - 1 - hop],
            draw=_after(draw, hop),
            number=hop,
            out=into,
        )
        z = into


@fused_op("magna::diffuse_backward")
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
        draw = _with_kept(draw, K, g.by_source, fused)
        grad_x, grad_attention = _run_hops_back(
            grad, saved, by_source, sums, weights.unbind(), grad_theta, draw, g, fused, True, True
        )
    else:
        grad_x, grad_attention = fused.empty(x.shape, x), fused.empty(by_source.shape, by_source)
        by_target = in_target_order(attention, g, fused)
        for h in _slices(heads, heads // max(1, min(heads, K - 1))):
            part_by_source = by_source[:, h].contiguous()
            part_sums = fused.empty(part_by_source.shape, part_by_source)
            part_weights = weights[:, h].contiguous().unbind()
            part_theta = None if grad_theta is None else grad_theta[:, h].contiguous()
            part_draw = draw._replace(
                attention_rate=None if attention_rate is None else attention_rate[h],
                feature_rate=None if feature_rate is None else feature_rate[..., h].contiguous(),
                first_head=h.start,
            )
            draws = [_with_kept(part_draw, K, segments, fused) for segments in (g.by_target, g.by_source)]
            for c in _slices(width, width // -(-(K - 1) // heads)):
                part = x[:, h, c].contiguous()
                forward, back = (part_draw._replace(first_column=c.start) for part_draw in draws)
                part_states = list(fused.empty((K - 1, *part.shape), part))
                _run_hops(part, by_target[:, h].contiguous(), part_weights, forward, g, fused, K - 1, part_states, None)
                grad_x[:, h, c], part_grad = _run_hops_back(
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


@diffuse_backward_op.register_fake
def _(grad, x, attention, theta, states, seed, attention_rate, feature_rate, graph, sizes, theta_grad, backend):
    return (
        torch.empty_like(x),
        torch.empty_like(attention),
        theta.new_empty(theta.shape if theta_grad else 0),
    )


def _with_kept(draw: Draw, hops: int, segments: Segments, backend: ModuleType) -> Draw:
    """The draw with what a backend wants to know before walking over segments."""
    if draw.attention_rate is None:
        return draw
    return draw._replace(kept=backend.attention_kept(draw, hops, segments))


def _after(draw: Draw, hop: int) -> Draw:
    """The draw with the rate of features after a hop."""
    rate = draw.feature_rate
    return draw if rate is None or rate.dim() == 1 else draw._replace(feature_rate=rate[hop])


def _slices(size: int, step: int) -> list[slice]:
    """Parts of `step` at most, all of one size where that costs less than twice as many: a GPU's kernels are compiled
    for each size.

    >>> [part.stop for part in _slices(8, 3)], [part.stop for part in _slices(7, 3)]
    ([2, 4, 6, 8], [3, 6, 7])
    """
    step = max(1, step)
    even = next(part for part in range(step, 0, -1) if size % part == 0)
    step = even if 2 * even > step else step
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def _run_hops_back(
    grad: Tensor,
    states: list[Tensor],
    attention: Tensor,
    sums: Tensor,
    weights: Sequence[Tensor],
    grad_weights: Tensor | None,
    draw: Draw,
    graph: Graph,
    backend: ModuleType,
    first_slice: bool,
    last_slice: bool,
) -> tuple[Tensor, Tensor]:
    """Walk the hops back. T_0 is the incoming gradient, T_m = Aᵀ T_{m-1}; grad x = Σ_m θ_m T_m and
    ∂A_ji = Σ_k ⟨T_{K-1-k}[j], Z_k[i]⟩; both need T of the same neighbours, so one walk over the out-edges serves both.

    ∂A adds up in `sums`, in source order; the last hop of the last slice brings it into the caller's order.
    """
    K = len(weights) - 1
    x, grad_attention = states[0], sums
    if draw.feature_rate is not None:
        grad = backend.hop_dropout(grad, _after(draw, K - 1), K - 1)
    grad_x = backend.empty(x.shape, x)
    buffers = [backend.empty(x.shape, x) for _ in range(2)] if K > 1 or grad_weights is not None else []
    for m in range(1, K + 1):
        hop = K - m
        if grad_weights is not None:
            grad_weights[m - 1] += (grad.to(grad_weights.dtype) * x).sum(0).sum(-1)
        into = buffers[m % 2] if hop > 0 or grad_weights is not None else None
        complete = backend.hop_backward(
            grad,
            states[hop],
            attention,
            graph.by_source,
            graph.source_col,
            z_scale=weights[K] if hop == 0 else None,
            first_scale=weights[0] if m == 1 else None,
            scale=weights[m],
            draw=_after(draw, hop - 1),  # the gradient leaves the hop before through its dropout
            number=hop,
            grad_attention=sums,
            add=m > 1 or not first_slice,
            rank=graph.source_rank if last_slice and hop == 0 else None,
            grad_x=grad_x,
            out=into,
        )
        if complete is not None:
            grad_attention = complete
        if into is not None:
            grad = into
    if grad_weights is not None:
        grad_weights[K] += (grad.to(grad_weights.dtype) * x).sum(0).sum(-1)
    return grad_x, grad_attention


def _diffuse_save(ctx, inputs, output):
    x, attention, theta, seed, attention_rate, feature_rate, graph, ctx.sizes, _, ctx.backend = inputs
    ctx.rated = attention_rate is not None, feature_rate is not None
    rates = [rate for rate in (attention_rate, feature_rate) if rate is not None]
    keep(ctx, graph, x, attention, theta, output[1], seed, *rates)
    ctx.set_materialize_grads(False)


def _diffuse_grad(ctx, grad, _):
    (x, attention, theta, states, seed, *rates), graph = kept(ctx, 5 + sum(ctx.rated))
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
    grad_theta = grad_theta if ctx.needs_input_grad[2] else None
    return grad_x, grad_attention, grad_theta, None, None, None, [None] * len(graph), None, None, None


diffuse_op.register_autograd(_diffuse_grad, setup_context=_diffuse_save)

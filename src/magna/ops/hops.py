"""The walk over K hops, forward and back, on a backend's kernels, and the slices of `memory="recompute"`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from magna.graph import Graph, Segments
from magna.ops.backend.registry import Draw, Kernels


def run_hops(
    x: Tensor,
    attention: Tensor,
    weights: Sequence[Tensor],
    draw: Draw,
    graph: Graph,
    backend: Kernels,
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


def with_kept(draw: Draw, hops: int, segments: Segments, backend: Kernels) -> Draw:
    """The draw with what a backend wants to know before walking over segments."""
    if draw.attention_rate is None:
        return draw
    return draw._replace(drawn=backend.attention_kept(draw, hops, segments))


def _after(draw: Draw, hop: int) -> Draw:
    """The draw with the rate of features after a hop."""
    rate = draw.feature_rate
    return draw if rate is None or rate.dim() == 1 else draw._replace(feature_rate=rate[hop])


def slices(size: int, step: int) -> list[slice]:
    """Parts of `step` at most, all of one size where that costs less than twice as many: a GPU's kernels are compiled
    for each size.

    >>> [part.stop for part in slices(8, 3)], [part.stop for part in slices(7, 3)]
    ([2, 4, 6, 8], [3, 6, 7])
    """
    step = max(1, step)
    even = next(part for part in range(step, 0, -1) if size % part == 0)
    step = even if 2 * even > step else step
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


def run_hops_back(
    grad: Tensor,
    states: list[Tensor],
    attention: Tensor,
    sums: Tensor,
    weights: Sequence[Tensor],
    grad_weights: Tensor | None,
    draw: Draw,
    graph: Graph,
    backend: Kernels,
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


def in_target_order(values: Tensor, graph: Graph, backend: Kernels) -> Tensor:
    return values if graph.in_order else backend.take_rows(values, graph.by_target.order)

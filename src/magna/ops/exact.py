"""The whole diffusion, 𝒜 x = α (I − (1 − α) A)⁻¹ x: in closed form for small graphs, and by an implicit solve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from magna.graph import Graph
from magna.ops import checks, reference
from magna.ops.backend.graph_tensors import pack, save_inputs, saved_inputs, unpack
from magna.ops.backend.op import fused_op
from magna.ops.backend.registry import Draw, Hop, HopBack, Kernels, kernels
from magna.ops.hops import in_target_order
from magna.ops.weights import geometric_weights, hops_for


def attention_matrix(attention: Tensor, graph: Graph) -> Tensor:
    """A as dense matrices, A[h, i, j] the attention of target i to source j; parallel edges add up.

    Shapes: attention [E, H] → [H, N, N].
    """
    dense = attention.new_zeros(attention.size(1), graph.num_nodes * graph.num_nodes)
    cell = graph.target * graph.num_nodes + graph.source
    dense = dense.index_add(1, cell, attention.t())
    return dense.view(attention.size(1), graph.num_nodes, graph.num_nodes)


def diffused_attention(attention: Tensor, graph: Graph, alpha: float) -> Tensor:
    """𝒜 = α (I − (1 − α) A)⁻¹ as dense matrices (Prop. 3: personalised PageRank with transition matrix A).

    Shapes: attention [E, H] → [H, N, N]. For studies and tests: it costs N³.
    """
    identity = torch.eye(graph.num_nodes, dtype=attention.dtype, device=attention.device)
    inverse: Tensor = torch.linalg.inv(identity - (1 - alpha) * attention_matrix(attention, graph))
    return alpha * inverse


def solve(x: Tensor, attention: Tensor, alpha: Tensor, graph: Graph, tolerance: float, backend: str) -> Tensor:
    """Diffusion over all hops: the Z that solves (I − (1 − α) A) Z = α x.

    Shapes: x [N, H, D], attention [E, H], alpha [H] → [N, H, D].
    """
    checks.tolerance(tolerance)
    if x.dtype == torch.bfloat16:
        # States rounded to 8 bits do not come near the tolerance.
        return solve(x.float(), attention, alpha, graph, tolerance, backend).to(x.dtype)
    if backend != "reference":
        return solve_op(x.contiguous(), attention, alpha, *pack(graph), tolerance, backend)
    # The hops that the tolerance asks for, in all trials under `torch.vmap`.
    K = hops_for(tolerance, float(checks.levels(alpha.detach())[-1].min()))
    return reference.attention_diffusion(x, attention, geometric_weights(alpha, K), graph)


@fused_op("magna::solve", lambda x, *_: torch.empty_like(x))
def solve_op(
    x: Tensor,
    attention: Tensor,
    alpha: Tensor,
    graph: Sequence[Tensor],
    sizes: Sequence[int],
    tolerance: float,
    backend: str,
) -> Tensor:
    """Z with (I − (1 − α) A) Z = α x."""
    g, fused = unpack(graph, sizes), kernels(backend)
    by_target, decay, draw = (in_target_order(attention, g, fused), g.by_target, g.col), 1 - alpha, _no_draw(x)

    def step(z: Tensor, out: Tensor) -> None:
        fused.hop(Hop(z, x, *by_target, decay, alpha, out, draw, 0))

    # A's rows sum to at most 1: in the largest entry each step brings Z closer by the factor 1 − α.
    return _iterate(step, x, alpha, tolerance, lambda t: t.abs().amax(0), fused)


def _no_draw(x: Tensor) -> Draw:
    return Draw(x.new_empty(0, dtype=torch.int64), None, None, x.size(1), x.size(2))


def _iterate(
    step: Callable[[Tensor, Tensor], None],
    start: Tensor,
    alpha: Tensor,
    tolerance: float,
    norm: Callable[[Tensor], Tensor],
    fused: Kernels,
) -> Tensor:
    """Repeat a contraction with factor 1 − α until `tolerance`, relative to the start, column by column."""
    if start.numel() == 0:
        return start.clone()
    slowest = float(alpha.min())
    most, every = hops_for(tolerance, slowest), 8
    limit = tolerance * norm(start) * slowest
    buffers, z = [fused.empty(start.shape, start) for _ in range(2)], start
    for number in range(1, most + 1):
        previous, z = z, buffers[number % 2]
        step(previous, z)
        if number % every == 0 and number < most:
            # The distance left is at most (1 − α) / α times the last step.
            if bool(((1 - slowest) * norm(z - previous) <= limit).all()):
                break
    return z


@fused_op(
    "magna::solve_backward",
    lambda grad, z, x, attention, alpha, *_: tuple(map(torch.empty_like, (x, attention, alpha))),
)
def solve_backward_op(
    grad: Tensor,
    z: Tensor,
    x: Tensor,
    attention: Tensor,
    alpha: Tensor,
    graph: Sequence[Tensor],
    sizes: Sequence[int],
    tolerance: float,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """The adjoint solve: (I − (1 − α) Aᵀ) u = grad; grad x = α u, ∂A_ji = (1 − α) ⟨u_j, z_i⟩, ∂α = ⟨u, x − A z⟩."""
    g, fused = unpack(graph, sizes), kernels(backend)
    decay, one, draw, grad = 1 - alpha, torch.ones_like(alpha), _no_draw(x), grad.contiguous()
    by_source = fused.take_rows(attention, g.by_source.order), g.by_source, g.source_col

    def step(u: Tensor, out: Tensor) -> None:
        fused.hop(Hop(u, grad, *by_source, decay, one, out, draw, 0))

    # Aᵀ contracts in the sum of the entries of a column, as A does in the largest.
    u = _iterate(step, grad, alpha, tolerance, lambda t: t.abs().sum(0), fused)
    grad_x, x_minus_az, sums = fused.empty(x.shape, x), fused.empty(x.shape, x), fused.empty(attention.shape, attention)
    scales = decay, alpha, torch.zeros_like(alpha)
    back = HopBack(u, z, *by_source, *scales, sums, False, g.source_rank, grad_x, out=None, draw=draw, number=0)
    grad_attention = fused.hop_backward(back)
    by_target = in_target_order(attention, g, fused), g.by_target, g.col
    fused.hop(Hop(z, x, *by_target, -one, one, x_minus_az, draw, 0))
    assert grad_attention is not None
    grad_alpha = (u.to(alpha.dtype) * x_minus_az).sum((0, 2))
    return grad_x, grad_attention, grad_alpha


def _solve_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, attention, alpha, graph, ctx.sizes, ctx.tolerance, ctx.backend = inputs
    save_inputs(ctx, graph, output, x, attention, alpha)


@solve_op.register_autograd(_solve_save)
def _(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (z, x, attention, alpha), graph = saved_inputs(ctx, 4)
    grads = solve_backward_op(grad, z, x, attention, alpha, graph, ctx.sizes, ctx.tolerance, ctx.backend)
    return *grads, [None] * len(graph), None, None, None

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
from magna.ops.backend.registry import Draw, Kernels, kernels
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
    by_target, decay = in_target_order(attention, g, fused), 1 - alpha
    draw = Draw(attention.new_empty(0), None, None, x.size(1), x.size(2))

    def step(z: Tensor, out: Tensor) -> None:
        fused.hop(z, x, by_target, g.by_target, g.col, z_scale=decay, x_scale=alpha, draw=draw, number=0, out=out)

    # A's rows sum to at most 1: in the largest entry each step brings Z closer by the factor 1 − α.
    return _iterate(step, x, alpha, tolerance, lambda t: t.abs().amax(0), fused)


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
    by_source, decay, one = fused.take_rows(attention, g.by_source.order), 1 - alpha, torch.ones_like(alpha)
    grad = grad.contiguous()
    draw = Draw(attention.new_empty(0), None, None, x.size(1), x.size(2))

    def step(u: Tensor, out: Tensor) -> None:
        fused.hop(
            u, grad, by_source, g.by_source, g.source_col, z_scale=decay, x_scale=one, draw=draw, number=0, out=out
        )

    # Aᵀ contracts in the sum of the entries of a column, as A does in the largest.
    u = _iterate(step, grad, alpha, tolerance, lambda t: t.abs().sum(0), fused)
    grad_x, grad_by_source = fused.empty(x.shape, x), fused.empty(by_source.shape, by_source)
    grad_attention = fused.hop_backward(
        u,
        z,
        by_source,
        g.by_source,
        g.source_col,
        z_scale=decay,
        first_scale=alpha,
        scale=torch.zeros_like(alpha),
        draw=draw,
        number=0,
        grad_attention=grad_by_source,
        add=False,
        rank=g.source_rank,
        grad_x=grad_x,
        out=None,
    )
    x_minus_az = fused.empty(x.shape, x)
    by_target = in_target_order(attention, g, fused)
    fused.hop(z, x, by_target, g.by_target, g.col, z_scale=-one, x_scale=one, draw=draw, number=0, out=x_minus_az)
    assert grad_attention is not None
    grad_alpha = (u.to(alpha.dtype) * x_minus_az).sum((0, 2))
    return grad_x, grad_attention, grad_alpha


def _solve_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, attention, alpha, graph, ctx.sizes, ctx.tolerance, ctx.backend = inputs
    save_inputs(ctx, graph, output, x, attention, alpha)


def _solve_grad(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (z, x, attention, alpha), graph = saved_inputs(ctx, 4)
    grads = solve_backward_op(grad, z, x, attention, alpha, graph, ctx.sizes, ctx.tolerance, ctx.backend)
    return *grads, [None] * len(graph), None, None, None


solve_op.register_autograd(_solve_grad, _solve_save)

"""Scores of nodes and edges (Eq. 1), without storing what lies between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from magna.errors import ArgumentError
from magna.graph import Graph
from magna.ops import checks, reference
from magna.ops.backend.graph_tensors import pack, save_inputs, saved_inputs, unpack
from magna.ops.backend.op import fused_op
from magna.ops.backend.registry import accumulator, choose, kernels
from magna.typing import Backend


def head_scores(x: Tensor, vector: Tensor, *, tanh: bool = True, backend: Backend = "auto") -> Tensor:
    """The dot products of Eq. 1, one per node and head: Σ_c v_hc tanh(x_nhc), without storing the tanh.

    Summed in float32 also where features are bfloat16: the softmax needs the digits.

    Args:
        x: projected features, float64, float32 or bfloat16.
        vector: the attention vector v.
        tanh: False leaves the tanh out, as GAT does.
        backend: "auto", "reference", "cpu" or "triton".

    Shapes: x [N, H, C], vector [H, C] → [N, H], float64 with float64 features, else float32.

    >>> head_scores(torch.ones(1, 1, 2), torch.tensor([[1.0, 2.0]]), tanh=False).tolist()
    [[3.0]]
    """
    checks.head_vector(x, vector)
    vector = vector.to(accumulator(x.dtype))
    chosen = choose(backend, x.device)
    if chosen == "reference":
        return reference.head_scores(x, vector, tanh)
    # Not [0], whose gradient would be copied into zeros.
    return head_scores_op(x[None], vector[None], tanh, chosen).squeeze(0)


def edge_scores(
    source: Tensor,
    target: Tensor,
    graph: Graph,
    relation: Tensor | None = None,
    edge: Tensor | None = None,
    *,
    negative_slope: float | Tensor = 0.2,
    backend: Backend = "auto",
) -> Tensor:
    """Eq. 1 after its products: the score of each edge from scores per node and per relation.

    s_e = LeakyReLU(source[i] + target[j] + relation[k] + edge[e]) for the edge e = (i, k, j). The dot product of Eq. 1
    with a concatenation is a sum of dot products, so each is computed once per node or relation and gathered.

    Args:
        source: scores of the nodes as sources.
        target: scores of the nodes as targets.
        graph: the edges, with types if there is `relation`.
        relation: scores of the relations.
        edge: scores of the features of the edges.
        negative_slope: slope of LeakyReLU below zero, not negative; a number, or a tensor of one number.
        backend: "auto", "reference", "cpu" or "triton".

    Shapes: source [N, H], target [N, H], relation [R, H], edge [E, H] → [E, H], in the caller's edge order.
    """
    if edge is not None or isinstance(negative_slope, Tensor):
        if isinstance(negative_slope, Tensor) and negative_slope.numel() != 1:
            raise ArgumentError("negative_slope", negative_slope, "a number, or a tensor of one")
        # With slope 1 the op gives the bare sums.
        total = edge_scores(source, target, graph, relation, negative_slope=1.0, backend=backend)
        if edge is not None:
            slope = 0.0 if isinstance(negative_slope, Tensor) else negative_slope
            checks.node_scores(source, target, relation, graph, slope, edge)
            total = total + edge
        return torch.where(total > 0, total, total * negative_slope)
    checks.node_scores(source, target, relation, graph, negative_slope)
    chosen = choose(backend, source.device)
    if chosen == "reference":
        return reference.edge_scores(source, target, relation, graph, negative_slope)
    relation = None if relation is None else relation.contiguous()
    return edge_scores_op(source, target, relation, *pack(graph), negative_slope, chosen)


@fused_op("magna::head_scores", lambda x, vector, tanh, backend: vector.new_empty(x.shape[:3]))
def head_scores_op(x: Tensor, vector: Tensor, tanh: bool, backend: str) -> Tensor:
    """Scores [G, N, H] of G trials; x [G, N, H, C], vector [G, H, C]."""
    return kernels(backend).head_scores(x.contiguous(), vector.contiguous(), tanh)


@fused_op(
    "magna::head_scores_backward",
    lambda grad, x, vector, tanh, backend: (x.new_empty(x.shape), vector.new_empty(vector.shape)),
)
def head_scores_backward_op(grad: Tensor, x: Tensor, vector: Tensor, tanh: bool, backend: str) -> tuple[Tensor, Tensor]:
    return kernels(backend).head_scores_backward(grad.contiguous(), x.contiguous(), vector.contiguous(), tanh)


def _head_scores_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, vector, ctx.tanh, ctx.backend = inputs
    ctx.save_for_backward(x, vector)


@head_scores_op.register_autograd(_head_scores_save)
def _(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *head_scores_backward_op(grad, *ctx.saved_tensors, ctx.tanh, ctx.backend), None, None


@fused_op(
    "magna::edge_scores", lambda source, target, relation, graph, *_: source.new_empty(graph[0].size(1), source.size(1))
)
def edge_scores_op(
    source: Tensor,
    target: Tensor,
    relation: Tensor | None,
    graph: Sequence[Tensor],
    sizes: Sequence[int],
    negative_slope: float,
    backend: str,
) -> Tensor:
    return kernels(backend).edge_scores(source, target, relation, unpack(graph, sizes), negative_slope)


def _edge_scores_backward_shape(
    grad: Tensor, scores: Tensor, graph: Sequence[Tensor], sizes: Sequence[int], *_: Any
) -> tuple[Tensor, ...]:
    rows = sizes[0], sizes[0], sizes[4] if len(sizes) > 4 else 0
    return tuple(grad.new_empty(count, grad.size(1)) for count in rows)


@fused_op("magna::edge_scores_backward", _edge_scores_backward_shape)
def edge_scores_backward_op(
    grad: Tensor, scores: Tensor, graph: Sequence[Tensor], sizes: Sequence[int], negative_slope: float, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    g, segment_sum = unpack(graph, sizes), kernels(backend).segment_sum
    grad = grad.contiguous()
    by_source = segment_sum(grad, scores, negative_slope, g.by_source)
    by_target = segment_sum(grad, scores, negative_slope, g.by_target)
    by_relation = grad.new_empty(0, grad.size(1))
    if g.by_relation is not None:
        by_relation = segment_sum(grad, scores, negative_slope, g.by_relation)
    return by_source, by_target, by_relation


def _edge_scores_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, _, relation, graph, ctx.sizes, ctx.negative_slope, ctx.backend = inputs
    ctx.typed = relation is not None
    save_inputs(ctx, graph, output)


@edge_scores_op.register_autograd(_edge_scores_save)
def _(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (scores,), graph = saved_inputs(ctx, 1)
    source, target, relation = edge_scores_backward_op(grad, scores, graph, ctx.sizes, ctx.negative_slope, ctx.backend)
    return source, target, relation if ctx.typed else None, [None] * len(graph), None, None, None

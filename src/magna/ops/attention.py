"""Scores, softmax, top-k and dropout as `torch.library` ops over a backend's kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from magna.ops.backend.registry import fused_op, keep, kept, kernels, unpack


@fused_op("magna::head_scores")
def head_scores_op(x: Tensor, vector: Tensor, tanh: bool, backend: str) -> Tensor:
    return kernels(backend).head_scores(x.contiguous(), vector.contiguous(), tanh)


@head_scores_op.register_fake
def _(x, vector, tanh, backend):
    return vector.new_empty(x.shape[:3])


@fused_op("magna::head_scores_backward")
def head_scores_backward_op(grad: Tensor, x: Tensor, vector: Tensor, tanh: bool, backend: str) -> tuple[Tensor, Tensor]:
    return kernels(backend).head_scores_backward(grad.contiguous(), x.contiguous(), vector.contiguous(), tanh)


@head_scores_backward_op.register_fake
def _(grad, x, vector, tanh, backend):
    return x.new_empty(x.shape), vector.new_empty(vector.shape)


def _head_scores_save(ctx, inputs, output):
    x, vector, ctx.tanh, ctx.backend = inputs
    ctx.save_for_backward(x, vector)


def _head_scores_grad(ctx, grad):
    return *head_scores_backward_op(grad, *ctx.saved_tensors, ctx.tanh, ctx.backend), None, None


head_scores_op.register_autograd(_head_scores_grad, setup_context=_head_scores_save)


@fused_op("magna::edge_scores")
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


@edge_scores_op.register_fake
def _(source, target, relation, graph, sizes, negative_slope, backend):
    return source.new_empty(graph[0].size(1), source.size(1))


@fused_op("magna::edge_scores_backward")
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


@edge_scores_backward_op.register_fake
def _(grad, scores, graph, sizes, negative_slope, backend):
    heads, relations = grad.size(1), sizes[4] if len(sizes) > 4 else 0
    return grad.new_empty(sizes[0], heads), grad.new_empty(sizes[0], heads), grad.new_empty(relations, heads)


def _edge_scores_save(ctx, inputs, output):
    _, _, relation, graph, ctx.sizes, ctx.negative_slope, ctx.backend = inputs
    ctx.typed = relation is not None
    keep(ctx, graph, output)


def _edge_scores_grad(ctx, grad):
    (scores,), graph = kept(ctx, 1)
    source, target, relation = edge_scores_backward_op(grad, scores, graph, ctx.sizes, ctx.negative_slope, ctx.backend)
    return source, target, relation if ctx.typed else None, [None] * len(graph), None, None, None


edge_scores_op.register_autograd(_edge_scores_grad, setup_context=_edge_scores_save)


@fused_op("magna::kept_edges")
def kept_edges_op(
    rate: Tensor,
    seed: Tensor,
    pairs: Tensor | None,
    paired: bool,
    graph: Sequence[Tensor],
    sizes: Sequence[int],
    backend: str,
) -> Tensor:
    return kernels(backend).kept_edges(rate, seed, pairs, paired, unpack(graph, sizes))


@kept_edges_op.register_fake
def _(rate, seed, pairs, paired, graph, sizes, backend):
    return rate.new_empty(graph[0].size(1), rate.size(0), dtype=torch.bool)


@fused_op("magna::edge_softmax")
def edge_softmax_op(
    scores: Tensor, left: Tensor, graph: Sequence[Tensor], sizes: Sequence[int], backend: str
) -> Tensor:
    """`left` is the scores, -inf for absent edges: it is what the softmax is of, the scores what gets the gradient."""
    return kernels(backend).edge_softmax(left.contiguous(), unpack(graph, sizes))


@edge_softmax_op.register_fake
def _(scores, left, graph, sizes, backend):
    return left.new_empty(left.shape)


@fused_op("magna::edge_softmax_backward")
def edge_softmax_backward_op(
    grad: Tensor, attention: Tensor, graph: Sequence[Tensor], sizes: Sequence[int], backend: str
) -> Tensor:
    return kernels(backend).edge_softmax_backward(grad.contiguous(), attention, unpack(graph, sizes))


@edge_softmax_backward_op.register_fake
def _(grad, attention, graph, sizes, backend):
    return torch.empty_like(attention)


def _edge_softmax_save(ctx, inputs, output):
    _, _, graph, ctx.sizes, ctx.backend = inputs
    keep(ctx, graph, output)


def _edge_softmax_grad(ctx, grad):
    (attention,), graph = kept(ctx, 1)
    grad = edge_softmax_backward_op(grad, attention, graph, ctx.sizes, ctx.backend)
    return grad, None, [None] * len(graph), None, None


edge_softmax_op.register_autograd(_edge_softmax_grad, setup_context=_edge_softmax_save)


@fused_op("magna::top_k_mask")
def top_k_mask_op(scores: Tensor, k: int, graph: Sequence[Tensor], sizes: Sequence[int], backend: str) -> Tensor:
    return kernels(backend).top_k_mask(scores, k, unpack(graph, sizes))


@top_k_mask_op.register_fake
def _(scores, k, graph, sizes, backend):
    return torch.empty_like(scores, dtype=torch.bool)


@fused_op("magna::dropout")
def dropout_op(x: Tensor, rate: Tensor, seed: Tensor, shared: bool, backend: str) -> Tensor:
    return kernels(backend).dropout(x.contiguous(), rate, seed, shared)


@dropout_op.register_fake
def _(x, rate, seed, shared, backend):
    return x.new_empty((*rate.shape, *x.shape) if shared else x.shape)


def _dropout_save(ctx, inputs, output):
    _, rate, seed, ctx.shared, ctx.backend = inputs
    ctx.save_for_backward(rate, seed)


def _dropout_grad(ctx, grad):
    # The same factors again: dropout is linear and its mask is a function of the seed.
    grad = dropout_op(grad, *ctx.saved_tensors, False, ctx.backend)
    return grad.sum(0) if ctx.shared else grad, None, None, None, None


dropout_op.register_autograd(_dropout_grad, setup_context=_dropout_save)

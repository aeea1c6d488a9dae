"""Attention from scores (Eq. 2): the softmax, the dropout of edges and the choice of the best before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from magna.graph import Graph
from magna.ops import checks, reference
from magna.ops.backend.graph_tensors import pack, save_inputs, saved_inputs, unpack
from magna.ops.backend.op import fused_op
from magna.ops.backend.registry import choose, kernels
from magna.ops.checks import Rate
from magna.typing import Backend


def edge_softmax(
    scores: Tensor,
    graph: Graph,
    *,
    edge_weight: Tensor | None = None,
    mask: Tensor | None = None,
    edge_dropout: Rate = 0.0,
    edge_pairs: bool | Tensor = True,
    top_k: int | None = None,
    top_k_shared: bool = False,
    seed: int | Tensor | None = None,
    backend: Backend = "auto",
    validate: bool = True,
) -> Tensor:
    """Attention A (Eq. 2): the softmax of the scores over the in-edges of each target.

    An edge that is masked, dropped or not among the top k counts as absent: the others share its attention. A target
    with no edge left gets none.

    Args:
        scores: one score per edge and head; -inf means that the edge is absent.
        graph: the edges.
        edge_weight: prior of each edge, 0 or more: its logarithm is added to the score, so that 1 changes nothing, 2
            counts an edge twice and 0 is no edge.
        mask: bool, False where an edge is absent.
        edge_dropout: probability of dropping an edge before the softmax, one number or one per head. Self-loops stay.
        edge_pairs: True: all edges between the same two nodes are dropped together, so an undirected graph stays
            undirected. False: each edge for itself. An int64 tensor [E]: edges with equal numbers together.
        top_k: keep the k best edges of each target (ties with the k-th stay), after edge dropout.
        top_k_shared: choose them by the mean score of all heads, the same for all heads, instead of head by head.
        seed: an int or an int64 tensor [1]; needed with edge dropout.
        backend: "auto", "reference", "cpu" or "triton".
        validate: look for NaN in the scores and rates out of range (waits for the GPU).

    Shapes: scores [E, H], edge_weight [E], mask [E] or [E, H] → [E, H], in the caller's edge order.

    >>> graph = Graph.from_edge_index(torch.tensor([[0, 1, 2], [2, 2, 0]]), num_nodes=3)
    >>> edge_softmax(torch.zeros(3, 1), graph).squeeze().tolist()
    [0.5, 0.5, 1.0]
    """
    checks.scores(scores, graph, validate)
    heads, chosen = scores.size(1), choose(backend, scores.device)
    if edge_weight is not None:
        checks.edge_weight(edge_weight, graph, validate)
        scores = scores + edge_weight.to(scores.dtype).log()[:, None]
    masks = []
    if mask is not None:
        checks.mask("mask", mask, graph, heads)
        masks.append(mask if mask.dim() == 2 else mask[:, None])
    if checks.active("edge_dropout", edge_dropout, heads, validate):
        checks.pairs(edge_pairs, graph)
        drawn = checks.seed(seed, "edge_dropout", scores.device)
        masks.append(_edges_left(edge_dropout, drawn, edge_pairs, graph, chosen))
    # The gradient of an edge whose attention is 0 is 0 by itself; only the definition's, by autograd, needs the masks.
    left = scores if chosen == "reference" else scores.detach()
    if masks:
        left = torch.where(masks[0] if len(masks) == 1 else masks[0] & masks[1], left, -torch.inf)
    if top_k is not None:
        checks.top_k(top_k)
        ranked = left.detach().mean(1, keepdim=True) if top_k_shared else left.detach().contiguous()
        if chosen == "reference":
            best = reference.top_k_mask(ranked, top_k, graph)
        else:
            best = top_k_mask_op(ranked, top_k, *pack(graph), chosen)
        left = torch.where(best, left, -torch.inf)
    if chosen == "reference":
        return reference.edge_softmax(left, graph)
    return edge_softmax_op(scores, left, *pack(graph), chosen)


def _edges_left(rate: Rate, seed: Tensor, pairs: bool | Tensor, graph: Graph, chosen: str) -> Tensor:
    """Mask of the edges that dropout leaves, [E, 1] or [E, H]: one rate drops an edge for all heads."""
    rates = checks.rates(rate, rate.numel() if isinstance(rate, Tensor) else 1, graph.device)
    numbers, paired = (pairs, False) if isinstance(pairs, Tensor) else (None, pairs)
    if chosen == "reference":
        return reference.kept_edges(rates, seed, numbers, paired, graph)
    return kept_edges_op(rates, seed, numbers, paired, *pack(graph), chosen)


@fused_op(
    "magna::kept_edges",
    lambda rate, seed, pairs, paired, graph, *_: rate.new_empty(graph[0].size(1), rate.size(0), dtype=torch.bool),
)
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


@fused_op("magna::top_k_mask", lambda scores, *_: torch.empty_like(scores, dtype=torch.bool))
def top_k_mask_op(scores: Tensor, k: int, graph: Sequence[Tensor], sizes: Sequence[int], backend: str) -> Tensor:
    return kernels(backend).top_k_mask(scores, k, unpack(graph, sizes))


@fused_op("magna::edge_softmax", lambda scores, left, *_: left.new_empty(left.shape))
def edge_softmax_op(
    scores: Tensor, left: Tensor, graph: Sequence[Tensor], sizes: Sequence[int], backend: str
) -> Tensor:
    """The softmax of `left`, which is the scores with -inf for absent edges; the scores get the gradient."""
    return kernels(backend).edge_softmax(left.contiguous(), unpack(graph, sizes))


@fused_op("magna::edge_softmax_backward", lambda grad, attention, *_: torch.empty_like(attention))
def edge_softmax_backward_op(
    grad: Tensor, attention: Tensor, graph: Sequence[Tensor], sizes: Sequence[int], backend: str
) -> Tensor:
    return kernels(backend).edge_softmax_backward(grad.contiguous(), attention, unpack(graph, sizes))


def _edge_softmax_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, _, graph, ctx.sizes, ctx.backend = inputs
    save_inputs(ctx, graph, output)


@edge_softmax_op.register_autograd(_edge_softmax_save)
def _(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (attention,), graph = saved_inputs(ctx, 1)
    grad = edge_softmax_backward_op(grad, attention, graph, ctx.sizes, ctx.backend)
    return grad, None, [None] * len(graph), None, None

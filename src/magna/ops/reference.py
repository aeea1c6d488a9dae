"""The operators in plain PyTorch: the definition, readable beside the paper.

Each function has the signature of its fused namesake in `magna.ops`; gradients come from autograd.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from magna.graph import Graph
from magna.ops.answers import Answers, SelfBias, entries, shares
from magna.ops.backend.registry import accumulator
from magna.ops.random import DENSE_STREAM, EDGE_STREAM, attention_stream, dropout_factor, feature_stream, stays


def head_scores(x: Tensor, vector: Tensor, tanh: bool) -> Tensor:
    """The dot products of Eq. 1, one per node and head: Σ_c v_hc tanh(x_nhc), summed in float32 at least.

    Shapes: x [N, H, C], vector [H, C] → [N, H].
    """
    return ((x.tanh() if tanh else x) * vector).sum(-1, dtype=vector.dtype)


def edge_scores(source: Tensor, target: Tensor, relation: Tensor | None, graph: Graph, negative_slope: float) -> Tensor:
    """Eq. 1 after its products: s_e = LeakyReLU(source[i] + target[j] + relation[k]) for e = (i, k, j).

    Shapes: source [N, H], target [N, H], relation [R, H] → [E, H].
    """
    total = source.index_select(0, graph.source) + target.index_select(0, graph.target)
    if relation is not None:
        assert graph.edge_type is not None
        total = total + relation.index_select(0, graph.edge_type)
    return F.leaky_relu(total, negative_slope)


def kept_edges(rate: Tensor, seed: Tensor, pairs: Tensor | None, paired: bool, graph: Graph) -> Tensor:
    """Mask of the edges that edge dropout leaves, each with probability 1 - rate; self-loops all stay.

    Edges with the same number in `pairs` stay or go together; without numbers and with `paired`, those between the
    same two nodes. Heads with the same seed lose the same edges, if their rates are equal.

    Shapes: rate [H], seed [1] or [H], pairs [E] → [E, H].
    """
    source, target = graph.source, graph.target
    if pairs is None and paired:
        pairs = torch.minimum(source, target) * graph.num_nodes + torch.maximum(source, target)
    elif pairs is None:
        pairs = torch.arange(graph.num_edges, device=graph.device)
    return stays(seed, EDGE_STREAM, pairs[:, None], rate) | (source == target)[:, None]


def edge_softmax(scores: Tensor, graph: Graph) -> Tensor:
    """Eq. 2 and the softmax below it: over the in-edges of each target, head by head; -inf stands for no edge.

    A target all of whose edges are -inf (or that has none) gets attention 0.

    Shapes: scores [E, H] → [E, H].
    """
    index = graph.target[:, None].expand_as(scores)
    top = scores.new_full((graph.num_nodes, scores.size(1)), -torch.inf)
    top = top.scatter_reduce(0, index, scores.detach(), "amax")
    top = torch.where(top.isfinite(), top, 0)
    weight = torch.exp(scores - top.index_select(0, graph.target))
    total = weight.new_zeros(top.shape).index_add(0, graph.target, weight)
    # A row of -inf alone sums to 0; its attention is 0 whatever it is divided by.
    return weight / torch.where(total > 0, total, 1).index_select(0, graph.target)


def top_k_mask(scores: Tensor, k: int, graph: Graph) -> Tensor:
    """Mask of the edges whose score is among the k largest of their target; ties with the k-th all stay.

    Shapes: scores [E, H] → [E, H].
    """
    rowptr = graph.rowptr.long()
    kth = rowptr[:-1] + k - 1
    has_more = kth + 1 < rowptr[1:]
    kth = torch.where(has_more, kth, 0)
    mask = torch.empty_like(scores, dtype=torch.bool)
    for head, score in enumerate(scores.unbind(1)):
        by_score = score.argsort(descending=True)
        by_target = graph.target[by_score].argsort(stable=True)
        ranked = score[by_score[by_target]]
        threshold = torch.where(has_more, ranked[kth], -torch.inf) if ranked.numel() else ranked.new_empty(0)
        mask[:, head] = score >= threshold[graph.target]
    return mask


def attention_diffusion(
    x: Tensor,
    attention: Tensor,
    theta: Tensor,
    graph: Graph,
    *,
    dropout: Tensor | None = None,
    feature_dropout: Tensor | None = None,
    seed: Tensor | None = None,
) -> Tensor:
    """Eq. 3 to 5 for any hop weights: Σ_k θ_k A^k x, by Horner's rule.

    Z_0 = θ_K x and Z_{k+1} = A_k Z_k + θ_{K-1-k} x. With θ = `geometric_weights(alpha, K)` this is the
    paper's Z ← (1 − α) A Z + α Z_0: each Z here is the paper's times a power of (1 − α), and Z_K is the same. A_k is
    the untouched attention under dropout number k.

    Shapes: x [N, H, D], attention [E, H], theta [H, K + 1], dropout rates [H], of features also [K, H] → [N, H, D].
    """
    K = theta.size(1) - 1
    theta = theta.to(x.dtype)
    z = theta[:, K, None] * x
    for hop in range(K):
        weight = attention.to(x.dtype)
        if dropout is not None:
            weight = _dropped(weight, dropout, seed, attention_stream(hop))
        message = weight[:, :, None] * z.index_select(0, graph.source)  # [E, H, D]
        z = torch.zeros_like(x).index_add(0, graph.target, message) + theta[:, K - 1 - hop, None] * x
        if feature_dropout is not None:
            rate = feature_dropout if feature_dropout.dim() == 1 else feature_dropout[hop]
            z = _dropped(z, rate[:, None], seed, feature_stream(hop))
    return z


def _dropped(x: Tensor, rate: Tensor, seed: Tensor | None, stream: int, first: int = 0) -> Tensor:
    assert seed is not None
    entry = torch.arange(first, first + x.numel(), device=x.device).view(x.shape)
    return x * dropout_factor(seed, stream, entry, rate, x.dtype)


def dropout(x: Tensor, rate: Tensor, seed: Tensor, first: int = 0) -> Tensor:
    """Inverted dropout; `first` is the number of the first entry, for a tensor that is part of a larger one.

    Shapes: x [...], rate any that broadcasts with it → [...].
    """
    return _dropped(x, rate, seed, DENSE_STREAM, first).view(x.shape)


def add_norm(
    x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor, eps: float, unbiased: bool = False
) -> tuple[Tensor, Tensor]:
    """X + added, and its layer norm in the same type.

    `unbiased`: divided by the unbiased deviation plus eps instead of the root of the variance plus eps.

    Shapes: x and added [..., C], weight [C], bias [C] → [..., C] twice.
    """
    total = x if added is None else x + added
    # Autocast would widen the norm to float32, and the product that follows would round it again.
    with torch.autocast(x.device.type, enabled=False):
        if not unbiased:
            return total, F.layer_norm(total, weight.shape, weight.to(total.dtype), bias.to(total.dtype), eps)
        wide = total.to(accumulator(total.dtype))
        std, mean = torch.std_mean(wide, -1, keepdim=True)
        return total, ((wide - mean) / (std + eps) * weight + bias).to(total.dtype)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """X @ weight.T + bias, and ReLU of it with `relu`.

    Shapes: x [N, C], weight [D, C], bias [D] → [N, D].
    """
    out = F.linear(x, weight, bias)
    return out.relu() if relu else out


def linears(x: Tensor, weights: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """X @ weight.T for several groups of weights, the products of a group side by side.

    Shapes: x [N, C], weights [D, C] each → for each group [N, sum of D].
    """
    return [torch.cat([F.linear(x, weight) for weight in group], -1) for group in weights]


def _all_scores(query: Tensor, candidates: Tensor, bias: Tensor | None, self_bias: SelfBias | None) -> Tensor:
    scores = query @ candidates.T
    if bias is not None:
        scores = scores + bias
    if self_bias is None:
        return scores
    return scores.scatter_add(1, self_bias[0][:, None], self_bias[1][:, None].to(scores.dtype))


def kvsall_loss(
    query: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    answers: Answers,
    *,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    self_bias: SelfBias | None = None,
) -> Tensor:
    """The weighted mean over the queries of KL(t ‖ softmax(s)), with s = query @ candidates.T + bias over all entities.

    `self_bias` is one entity of each query and a bias of its score.

    t = labels (1 − γ) + γ / N, divided by its sum. Here all B × N scores are stored.

    Shapes: query [B, C], candidates [N, C], bias [N], weight [B] → scalar.
    """
    scores = _all_scores(query, candidates, bias, self_bias)
    # Ignored entries have entity -1: a column at the end that is cut off.
    labels = scores.new_zeros(scores.size(0), scores.size(1) + 1)
    labels.index_put_(entries(*answers), labels.new_ones(()))  # 1 alone would come from the CPU
    target = F.normalize(labels[:, :-1] * (1 - label_smoothing) + label_smoothing / scores.size(1), p=1)
    divergence = torch.xlogy(target, target).sum(1) - (target * scores.log_softmax(1)).sum(1)
    return (shares(answers[0], weight, scores.dtype) * divergence).sum()


def rank_targets(
    query: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    query_index: Tensor,
    target: Tensor,
    known: Answers | None,
    self_bias: SelfBias | None = None,
) -> tuple[Tensor, Tensor]:
    """For each target the number of other entities that score higher, and of those that score the same.

    Entities known to be true answers do not count. A target that scores NaN is below all others; another entity that
    scores NaN is above none and tied with none.

    Shapes: query [Q, C], candidates [N, C], bias [N], query_index [T], target [T] → int64 [T], [T].
    """
    scores = _all_scores(query, candidates, bias, self_bias)
    counts = scores.new_ones(scores.size(0), scores.size(1) + 1, dtype=torch.bool)
    if known is not None:
        counts[entries(*known)] = False
    counts = counts[query_index, :-1].scatter(1, target[:, None], False)  # [T, N]
    scores = scores[query_index]
    true = scores.gather(1, target[:, None])
    better = counts & ((scores > true) | true.isnan())
    return better.sum(1), (counts & (scores == true)).sum(1)

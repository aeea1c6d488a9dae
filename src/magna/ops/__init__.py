"""Pure functions: check, choose a backend, call. No parameters, no global randomness."""

from __future__ import annotations

import torch
from torch import Tensor

import magna.ops.backend.folding  # noqa: F401 (how the ops behave under torch.vmap)
from magna.graph import Graph
from magna.ops import checks, reference
from magna.ops.answers import (
    Answers,
    Own,
    check_answers,
    check_own,
    check_own_values,
    check_products,
    check_values,
)
from magna.ops.attention import (
    edge_scores_op,
    edge_softmax_op,
    head_scores_op,
    kept_edges_op,
    top_k_mask_op,
)
from magna.ops.backend.registry import accumulator, as_they_come, choose, pack
from magna.ops.checks import Rate
from magna.ops.diffusion import attention_diffusion
from magna.ops.exact import attention_matrix, diffused_attention
from magna.ops.gpu.linear import feed_forward, linear, linears, rounded_at_once
from magna.ops.gpu.norm import add_norm, dropout
from magna.ops.gpu.table import lookup, lookups
from magna.ops.loss import (
    LossBackend,
    Precision,
    choose_backend,
    choose_block,
    kvsall_loss_op,
    kvsall_targets_op,
)
from magna.ops.ranking import RankCounts, rank_scores, rank_targets
from magna.ops.weights import geometric_weights, hops_for, truncation_error
from magna.typing import Backend, one_of

__all__ = [
    "RankCounts",
    "add_norm",
    "attention_diffusion",
    "attention_matrix",
    "diffused_attention",
    "dropout",
    "edge_scores",
    "edge_softmax",
    "feed_forward",
    "geometric_weights",
    "head_scores",
    "hops_for",
    "kvsall_loss",
    "linear",
    "linears",
    "lookup",
    "lookups",
    "rank_scores",
    "rank_targets",
    "rounded_at_once",
    "truncation_error",
]


def head_scores(x: Tensor, vector: Tensor, *, tanh: bool = True, backend: Backend = "auto") -> Tensor:
    """The dot products of Eq. 1, one per node and head: Σ_c v_hc tanh(x_nhc), without storing the tanh.

    Summed in float32 also where features are bfloat16: the softmax needs the digits.

    Args:
        x: projected features, float64, float32 or bfloat16.
        vector: the attention vector v.
        tanh: False leaves the tanh out, as GAT does.

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
    *,
    negative_slope: float | Tensor = 0.2,
    backend: Backend = "auto",
) -> Tensor:
    """Eq. 1 after its products: the score of each edge from scores per node and per relation.

    s_e = LeakyReLU(source[i] + target[j] + relation[k]) for the edge e = (i, k, j). The dot product of Eq. 1 with a
    concatenation is the sum of three dot products, so each is computed once per node or relation and gathered here.

    Args:
        source: scores of the nodes as sources.
        target: scores of the nodes as targets.
        graph: the edges, with types where `relation` is given.
        relation: scores of the relations.
        negative_slope: slope of LeakyReLU below zero, not negative; a number, or one for all edges as a tensor.

    Shapes: source [N, H], target [N, H], relation [R, H] → [E, H], in the caller's edge order.
    """
    if isinstance(negative_slope, Tensor):
        # With slope 1 the op gives the bare sums.
        total = edge_scores(source, target, graph, relation, negative_slope=1.0, backend=backend)
        return torch.where(total > 0, total, total * negative_slope)
    checks.node_scores(source, target, relation, graph, negative_slope)
    chosen = choose(backend, source.device)
    if chosen == "reference":
        return reference.edge_scores(source, target, relation, graph, negative_slope)
    relation = None if relation is None else relation.contiguous()
    return edge_scores_op(source, target, relation, *pack(graph), negative_slope, chosen)


def edge_softmax(
    scores: Tensor,
    graph: Graph,
    *,
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
        mask: bool, False where an edge is absent.
        edge_dropout: probability of dropping an edge before the softmax, one number or one per head. Self-loops stay.
        edge_pairs: True: all edges between the same two nodes are dropped together, so an undirected graph stays
            undirected. False: each edge for itself. An int64 tensor [E]: edges with equal numbers together.
        top_k: keep the k best edges of each target (ties with the k-th stay), after edge dropout.
        top_k_shared: choose them by the mean score of all heads, the same for all heads, instead of head by head.
        seed: an int or an int64 tensor [1]; needed with edge dropout.
        validate: look for NaN in the scores and rates out of range (waits for the GPU).

    Shapes: scores [E, H], mask [E] or [E, H] → [E, H], in the caller's edge order.

    >>> graph = Graph.from_edge_index(torch.tensor([[0, 1, 2], [2, 2, 0]]), num_nodes=3)
    >>> edge_softmax(torch.zeros(3, 1), graph).squeeze().tolist()
    [0.5, 0.5, 1.0]
    """
    checks.scores(scores, graph, validate)
    chosen = choose(backend, scores.device)
    keeps = []
    if mask is not None:
        checks.mask("mask", mask, graph, scores.size(1))
        keeps.append(mask if mask.dim() == 2 else mask[:, None])
    if checks.active("edge_dropout", edge_dropout, scores.size(1), validate):
        checks.pairs(edge_pairs, graph)
        # A number is the same for all heads, as are the bits of an edge: one column says which are left.
        rate = checks.rates(edge_dropout, scores.size(1) if isinstance(edge_dropout, Tensor) else 1, scores.device)
        drawn = checks.seed(seed, "edge_dropout", scores.device)
        numbers, paired = (edge_pairs, False) if isinstance(edge_pairs, Tensor) else (None, edge_pairs)
        if chosen == "reference":
            keeps.append(reference.kept_edges(rate, drawn, numbers, paired, graph))
        else:
            keeps.append(kept_edges_op(rate, drawn, numbers, paired, *pack(graph), chosen))
    # The gradient of an edge whose attention is 0 is 0 by itself; only the definition's, by autograd, needs the masks.
    left = scores if chosen == "reference" else scores.detach()
    if keeps:
        left = torch.where(keeps[0] if len(keeps) == 1 else keeps[0] & keeps[1], left, -torch.inf)
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


def kvsall_loss(
    query: Tensor,
    candidates: Tensor,
    bias: Tensor | None,
    answers: Answers,
    *,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    own: Own | None = None,
    precision: Precision = "float32",
    block: int | None = None,
    backend: LossBackend = "auto",
    validate: bool = True,
) -> Tensor:
    r"""KL divergence with label smoothing between the answers of queries and the softmax over all entities.

    s = query @ candidates.T + bias; t = (labels (1 − γ) + γ / N) / (n (1 − γ) + γ) for a query with n answers; the loss
    is Σ_b w_b KL(t_b ‖ softmax(s_b)) / Σ_b w_b. The entities are walked in blocks, forward and backward, so B × N
    scores are never stored. Queries weighted by their number of answers give the mean over triples.

    A query without answers is ignored, so a short batch may be filled up with such queries; entries of `index` from
    ptr[-1] on are ignored too. With both, batches have one size and a training step can be a CUDA graph.

    Args:
        query: one vector per query, float64, float32 or bfloat16.
        candidates: one vector per entity, of the same type.
        bias: one number per entity, or None.
        answers: ptr and index: the answers of query b are index[ptr[b]:ptr[b + 1]], increasing, each once.
        label_smoothing: γ, 0 to 1.
        weight: w, 0 and above; None counts all queries the same. It gets no gradient.
        own: one entity of each query and what is added to its score, such as the head that is asked about itself.
        precision: "float32" multiplies as torch is set to (TF32 where allowed; float64 stays float64); "bfloat16"
            rounds what is multiplied to bfloat16 and adds up in float32, on the GPU's tensor cores.
        block: entities at a time; None chooses by the size of a block of scores.
        backend: "reference" stores all scores, "blocked" is plain PyTorch, "triton" runs on the GPU; "auto" chooses.
        validate: look at the values of `answers` and `weight` (waits for the GPU).

    Shapes: query [B, C], candidates [N, C], bias [N], ptr [B + 1], index [A], weight [B] → scalar.

    >>> answers = torch.tensor([0, 2]), torch.tensor([0, 1])
    >>> round(kvsall_loss(torch.zeros(1, 3), torch.zeros(4, 3), None, answers).exp().item(), 6)
    2.0
    """
    one_of("precision", precision, Precision)
    one_of("backend", backend, LossBackend)
    check_products(query, candidates, bias)
    check_answers("answers", answers, query.size(0), query.device)
    check_own(own, query.size(0), query.device)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing is {label_smoothing}; allowed: 0 to 1")
    if block is not None and block < 1:
        raise ValueError(f"block is {block}; allowed: 1 and above, or None")
    if precision == "bfloat16" and query.dtype == torch.float64:
        raise ValueError("precision is 'bfloat16' and query has dtype torch.float64; allowed: torch.float32 (.float())")
    if weight is not None and (weight.shape != query.shape[:1] or weight.device != query.device):
        allowed = f"[{query.size(0)}] on {query.device}, one per query"
        raise ValueError(f"weight has shape {list(weight.shape)} on {weight.device}; allowed: {allowed}")
    if validate and checks.values_readable(query):
        check_values("answers", answers, candidates.size(0))
        check_own_values(own, candidates.size(0))
        if weight is not None and not bool((weight >= 0).all()):
            raise ValueError(f"weight has {float(weight[~(weight >= 0)][0])}; allowed: 0 and above")
    chosen = choose_backend(backend, query.device)
    if chosen == "reference":
        if precision == "bfloat16":
            query, candidates = query.bfloat16().float(), candidates.bfloat16().float()
        with as_they_come(query.device):
            return reference.kvsall_loss(
                query, candidates, bias, answers, label_smoothing=label_smoothing, weight=weight, own=own
            )
    ptr, index = answers
    weight = None if weight is None else weight.detach()
    targets = kvsall_targets_op(
        ptr, index, weight, candidates.size(0), float(label_smoothing), accumulator(query.dtype), chosen
    )
    if block is None:
        multiplied = torch.bfloat16 if precision == "bfloat16" else query.dtype
        block = choose_block(query.size(0), candidates.size(0), query.device, multiplied)
    entity, entity_bias = own or (None, None)
    options = precision, block, chosen
    return kvsall_loss_op(query, candidates, bias, ptr, *targets, entity, entity_bias, *options)[0]
